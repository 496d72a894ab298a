"""What several commands share: options, outputs, progress, colour."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from trace_doctor.cli.completion import FILES, format_words, rule_words
from trace_doctor.cli.progress import progress as progress
from trace_doctor.errors import UsageError, one_line, printable
from trace_doctor.files import check_link, open_regular, replacing
from trace_doctor.model import Result

if TYPE_CHECKING:
    from trace_doctor.reporters import Options

T = TypeVar("T")

Usage = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""click's UsageError: of the click that typer uses, which newer ones bring with them"""

DEFAULT_REPORT = Path("trace-doctor-report.html")
MARKER = b'name="generator" content="trace-doctor'

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...", help="Traces, snapshots, folders and globs that hold them, or - for stdin."
    ),
]
Source = Annotated[
    Path | None,
    typer.Option(help="Folder of the training script: findings name its lines, fixes become diffs."),
]
Output = Annotated[
    list[str] | None,
    typer.Option(
        "--output", "--format", "-o", metavar="FORMAT[=PATH]", autocompletion=format_words,
        help="text, html, json, sarif, junit, github, markdown, or perfetto (needs a PATH); repeatable; at most one "
        "without PATH goes to stdout.",
    ),
]  # fmt: skip
Select = Annotated[
    list[str] | None,
    typer.Option(
        autocompletion=rule_words,
        help="Run only these rules: codes, prefixes (TD1), names; repeatable, or with commas.",
    ),
]
Ignore = Annotated[list[str] | None, typer.Option(autocompletion=rule_words, help="Do not run these rules.")]
ExtendSelect = Annotated[
    list[str] | None, typer.Option(autocompletion=rule_words, help="Run these rules as well.")
]
Preview = Annotated[bool, typer.Option("--preview", help="Run rules that are still in preview.")]
MinConfidence = Annotated[str | None, typer.Option(help="Drop findings below: high, medium or low.")]
MinSaving = Annotated[str | None, typer.Option(help="Drop findings that save less: a share (0.02) or 2%.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="Configuration file (default: the nearest one).")
]
Rank = Annotated[int | None, typer.Option(help="Only this rank.")]
Ranks = Annotated[
    str | None,
    typer.Option(
        metavar="N|all",
        help="Ranks that must have been read; fewer exit 3. all: as many as the captures say the job has.",
    ),
]
AllowPartial = Annotated[
    bool,
    typer.Option(
        "--allow-partial",
        help="Say what was not read or is missing, but let it decide nothing (default: exit 3).",
    ),
]
Device = Annotated[int | None, typer.Option(help="Only this device.")]
Steps = Annotated[
    str | None, typer.Option(metavar="FIRST:LAST", help="Only these steps, the last one excluded.")
]
TorchVersion = Annotated[str | None, typer.Option(help="torch version that made the captures.")]
NoSource = Annotated[bool, typer.Option("--no-source", help="Embed no line of the script in any output.")]
ShowSkipped = Annotated[
    bool, typer.Option("--show-skipped", help="List skipped rules with how to capture them.")
]
NoZoom = Annotated[bool, typer.Option("--no-zoom", help="HTML without the zoomable panels: 2 MB less.")]
CriticalPath = Annotated[
    bool,
    typer.Option(
        "--critical-path",
        help="HTA's critical path of one step of each trace as well; needs the extra hta, and pandas 2.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace a report file that is not ours.")]
Color = Annotated[str, typer.Option(help="auto, always or never.")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Processes that read captures (default: as many as there are cores)."),
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory to use at most: 4GB, 512MB, or 50% of what is available (default: 75%). "
        "A file that needs more is refused.",
    ),
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress bar.")]
Quiet = Annotated[
    int,
    typer.Option(
        "--quiet", "-q", count=True, show_default=False, help="-q: only the report; -qq: only the exit code."
    ),
]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose", "-v", count=True, show_default=False, help="-v: phases; -vv: debug log, tracebacks."
    ),
]

_verbosity = 0


def verbosity() -> int:
    """0, 1 (-v) or 2 (-vv), as the running command was told."""
    return _verbosity


def set_verbosity(level: int) -> None:
    global _verbosity  # noqa: PLW0603 - main() must know it when a command raises
    _verbosity = level
    logging.basicConfig(
        stream=sys.stderr,
        level=(logging.WARNING, logging.INFO, logging.DEBUG)[min(level, 2)],
        format="%(message)s",
        force=True,
    )


def note(text: str) -> None:
    """A hint or warning for the person at the terminal."""
    print(printable(text), file=sys.stderr)


def chosen(items: Iterable[T], shown: Callable[[T], str], question: Callable[[T], str]) -> list[T]:
    """Those that were answered with y: each is shown and asked for, n leaves it out, q and all behind it."""
    taken = []
    for item in items:
        sys.stdout.write("\t".join(map(printable, shown(item).split("\t"))))
        sys.stdout.flush()
        answer = ""
        while answer not in ("y", "n", "q"):
            answer = _answer(f"{question(item)} (y/n/q)")
        if answer == "q":
            break
        if answer == "y":
            taken.append(item)
    return taken


def _answer(question: str) -> str:
    """What was typed; the end of the input is q."""
    sys.stderr.write(one_line(question) + " ")
    sys.stderr.flush()
    line = sys.stdin.readline()
    return line.strip().lower() if line else "q"


def interrupted_edits(source: Path, completes: bool) -> None:
    """An edit that was killed half-way is completed by those who edit, and named to the others."""
    from trace_doctor.fixes.apply import interrupted, recover

    if completes:
        for line in recover(source):
            note(line)
        return
    try:
        for line in interrupted(source):
            note(line)
    except UsageError as unreadable:
        note(str(unreadable))


def parse_steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, colon, last = text.partition(":")
    try:
        span = (int(first or 0), int(last) if last else (1 << 31) if colon else int(first) + 1)
    except ValueError:
        raise UsageError(f"--steps: {text!r} is not FIRST:LAST") from None
    if span[0] >= span[1]:
        raise UsageError(f"--steps: {text!r} selects no step")
    return span


@dataclass(frozen=True)
class Sink:
    """One rendering and where it goes; `path` None is stdout."""

    format: str
    path: Path | None
    optional: bool = False
    """written because nothing else was asked for: where it cannot be, a note is enough"""
    option: str = "output"
    """that names it"""


def parse_outputs(given: Sequence[str]) -> list[Sink]:
    """`FORMAT`, `FORMAT=PATH` or `FORMAT=-`. Raises UsageError for an unknown format or two on stdout."""
    from trace_doctor.reporters import FORMATS, OF_CAPTURES

    sinks = []
    for item in given:
        fmt, equals, path = item.partition("=")
        if fmt not in FORMATS and fmt not in OF_CAPTURES:
            known = ", ".join(sorted([*FORMATS, *OF_CAPTURES]))
            meant = next((f for f, suffix in FILES.items() if item.lower().endswith(suffix)), None)
            hint = f"did you mean {meant}={item}?" if meant and not equals else f"one of {known}"
            raise UsageError(f"--output: unknown format {fmt!r}; {hint}")
        if fmt in OF_CAPTURES and path in ("", "-"):
            raise UsageError(f"--output: {fmt} needs a path: {fmt}=FILE.json.gz")
        if equals and not path:
            raise UsageError(f"--output: {item!r} names no path")
        if path.endswith(("/", os.sep)):
            raise UsageError(f"--output: {path} is a folder; name a file in it")
        sinks.append(Sink(fmt, Path(path) if path and path != "-" else None))
    if sum(s.path is None for s in sinks) > 1:
        raise UsageError("--output: only one format can go to stdout; give the others a path (FORMAT=PATH)")
    return sinks


def sinks_for(given: Sequence[str], *, force: bool, quiet: int, default_report: bool) -> list[Sink]:
    """The outputs asked for; without any, text on stdout and (for `analyze`) the HTML report. Checked before the
    analysis, so that a refusal costs no time."""
    if given:
        return parse_outputs(given)
    sinks = [Sink("text", None)]
    if default_report and quiet < 2:
        if DEFAULT_REPORT.is_symlink():
            check_link(DEFAULT_REPORT)
        if DEFAULT_REPORT.is_dir() or not (force or is_replaceable(DEFAULT_REPORT)):
            raise UsageError(
                f"{DEFAULT_REPORT} exists and is no report of ours; use --output html=PATH or --force to replace it"
            )
        sinks.append(Sink("html", DEFAULT_REPORT, optional=True))
    return sinks


def tracks_of(sinks: Sequence[Sink]) -> Path | None:
    """Where the capture is to be written again with its tracks."""
    wanted = [s.path for s in sinks if s.format == "perfetto"]
    if len(wanted) > 1:
        raise UsageError("--output: perfetto once is enough")
    return wanted[0] if wanted else None


def is_replaceable(path: Path) -> bool:
    """Whether nothing is at the place of a page, or a page of ours."""
    if not path.exists():
        return True
    try:
        with open_regular(path) as file:
            return MARKER in file.read(4096)
    except OSError:
        return False


def emit(
    result: Result,
    sinks: Sequence[Sink],
    *,
    color: str,
    quiet: int,
    show_skipped: bool = False,
    zoom: bool = True,
    given: str = "",
) -> None:
    """Renders the result once per sink; files are written whole or not at all. `given`: see `as_given`."""
    from trace_doctor.reporters import OF_CAPTURES, Options, render

    options = Options(show_skipped=show_skipped, zoom=zoom)
    report: str | None = None
    for sink in sorted(sinks, key=lambda s: s.path is None):  # files first: the text says what they add
        if sink.format in OF_CAPTURES:
            if not quiet:
                note(f"{sink.format}: {_written(sink.path, result)}")
            continue
        try:
            deliver(
                lambda chosen, fmt=sink.format: render(result, fmt, chosen),  # type: ignore[misc]
                sink,
                color=wants_color(color),
                quiet=quiet,
                options=options
                if sink.path is not None
                else replace(options, report=report, given=given or Options.given),
            )
        except UsageError as error:
            if not sink.optional:
                raise
            note(f"no report: {error}; --output html=PATH writes it elsewhere")
            continue
        if sink.format == "html" and sink.path is not None:
            report = str(sink.path)
        if sink.path is not None and not quiet and not sink.optional:  # the text names that one
            note(f"{sink.format} report: {sink.path}")


def _written(path: Path | None, result: Result) -> str:
    """The file of the one trace, or what those of several are called."""
    if path is None or len({row.input for row in result.time_ledger}) < 2:
        return str(path)
    stem, dot, suffix = path.name.partition(".")
    return f"{path.with_name(f'{stem}-*{dot}{suffix}')} (a file for each trace)"


def deliver(
    render: Callable[[Options], str], sink: Sink, *, color: bool, quiet: int, options: Options | None = None
) -> None:
    """One rendering to its file, or to stdout: text as the terminal can show it; what programs read is UTF-8 in every
    locale."""
    from trace_doctor.reporters import Options

    options = options or Options()
    if sink.path is not None:
        write(sink.path, render(options))
    elif quiet < 2 and sink.format != "text":
        sys.stdout.flush()
        sys.stdout.buffer.write(render(options).encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.flush()
    elif quiet < 2:
        here = replace(options, color=color, width=_width(), ascii=not _unicode(sys.stdout.encoding))
        sys.stdout.write(render(here))
        sys.stdout.flush()


def _width() -> int:
    return max(min(shutil.get_terminal_size().columns, 80) if sys.stdout.isatty() else 80, 40)


def as_given(paths: Sequence[str], source: str | Path | None) -> str:
    """The same captures and script for another command, to be copied. Empty where one of them would not fit into a line,
    or cannot be read again, as what was piped in."""
    files, script = shlex.join(paths), shlex.quote(str(source)) if source else "DIR"
    return "" if "-" in paths or max(map(len, (files, script))) > 55 else f"{files} --source {script}"


def write(path: Path, data: str | bytes) -> None:
    """Writes a file whole or not at all. Raises UsageError when the place cannot be written."""
    with replacing(path) as file:
        file.write(data if isinstance(data, bytes) else data.encode("utf-8", "surrogateescape"))


def wants_color(choice: str) -> bool:
    if choice not in ("auto", "always", "never"):
        raise UsageError(f"--color: {choice!r} is not auto, always or never")
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR") or os.environ.get("CLICOLOR_FORCE"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _unicode(encoding: str | None) -> bool:
    return (encoding or "").lower().replace("-", "").startswith("utf")


def overrides(**given: Any) -> dict[str, Any]:
    """Command-line values for `load_config`: comma lists are split, None means "not given"."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        if isinstance(value, list):
            value = [part.strip() for item in value for part in item.split(",") if part.strip()]
        found[key] = value
    return found
