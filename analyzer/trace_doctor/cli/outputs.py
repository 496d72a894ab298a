"""Where the renderings of a command go: `--output`, and the report that is written where nothing was asked for."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trace_doctor.cli.options import SUFFIXES, in_parts
from trace_doctor.errors import UsageError
from trace_doctor.files import check_link, open_regular, read_regular, stream_of
from trace_doctor.reporters.seals import SEAL_BYTES, seal_holds, sealed

if TYPE_CHECKING:
    from trace_doctor.cli.console import Console
    from trace_doctor.model import Result
    from trace_doctor.model.treatment import Treatment
    from trace_doctor.reporters import Options

DEFAULT_REPORT = Path("trace-doctor-report.html")
_GZIP = b"\x1f\x8b"
_HEAD = 1 << 20
"""bytes of a trace before its first event, at the most: there our tracks begin"""


@dataclass(frozen=True)
class Sink:
    """One rendering and where it goes; `path` None is stdout."""

    format: str
    path: Path | None = None
    optional: bool = False
    """written because nothing else was asked for: where it cannot be, a note is enough"""
    option: str = "output"
    """that names it"""
    place: Path | None = None
    """where `path` led before other programs ran"""


def parse_outputs(texts: Sequence[str]) -> list[Sink]:
    """`FORMAT`, `FORMAT=PATH` or `FORMAT=-`. Raises UsageError for an unknown format or two on stdout."""
    from trace_doctor.reporters import FORMATS, OF_CAPTURES

    sinks = []
    for text in texts:
        fmt, equals, path = text.partition("=")
        if fmt not in FORMATS and fmt not in OF_CAPTURES:
            formats = ", ".join(sorted([*FORMATS, *OF_CAPTURES]))
            likely = next((f for f, suffix in SUFFIXES.items() if text.lower().endswith(suffix)), None)
            hint = f"did you mean {likely}={text}?" if likely and not equals else f"one of {formats}"
            raise UsageError(f"--output: unknown format {fmt!r}; {hint}")
        if fmt in OF_CAPTURES and path in ("", "-"):
            raise UsageError(f"--output: {fmt} needs a path: {fmt}=FILE.json.gz")
        if equals and not path:
            raise UsageError(f"--output: {text!r} names no path")
        if path.endswith(("/", os.sep)):
            raise UsageError(f"--output: {path} is a folder; name a file in it")
        sinks.append(Sink(fmt, Path(path) if path and path != "-" else None))
    streams = [1 if s.path is None else stream_of(s.path) for s in sinks]
    if any(number is not None and streams.count(number) > 1 for number in streams):
        raise UsageError("--output: only one format can go to stdout; give the others a path (FORMAT=PATH)")
    if sum(s.format in OF_CAPTURES for s in sinks) > 1:
        raise UsageError("--output: perfetto once is enough")
    return sinks


def sinks_among(command: str, formats: Sequence[str], output: list[str] | None) -> list[Sink]:
    """The outputs of a command that does not know every format; without any, text on stdout. Raises UsageError."""
    sinks = parse_outputs(in_parts(output, "output")) or [Sink("text")]
    if others := [s.format for s in sinks if s.format not in formats]:
        accepted = " or ".join(formats) if len(formats) == 2 else f"{', '.join(formats)}, not {others[0]}"
        raise UsageError(f"--output: {command} writes {accepted}")
    return sinks


def default_sinks(silent: bool, force: bool) -> list[Sink]:
    """What `analyze` writes where nothing was asked for. Checked before the analysis, so that a refusal costs no time."""
    from trace_doctor.model import Result

    if silent:
        return [Sink("text")]
    if DEFAULT_REPORT.is_symlink():
        check_link(DEFAULT_REPORT)
    if DEFAULT_REPORT.is_dir() or not (force or is_replaceable(DEFAULT_REPORT, Result)):
        raise UsageError(
            f"{DEFAULT_REPORT} exists and is no unchanged report of ours; use --output html=PATH or --force to replace it"
        )
    return [Sink("text"), Sink("html", DEFAULT_REPORT, optional=True)]


def is_replaceable(path: Path, kind: type[Result] | type[Treatment]) -> bool:
    """Whether nothing is at the place of a page, or a page of ours that holds such a one and to which nobody has added notes."""
    from trace_doctor.reporters.saved import is_page_of_ours

    return not path.exists() or (is_page_of_ours(path, kind) and is_output_of_ours(path))


def is_output_of_ours(path: Path) -> bool:
    """Whether a file is an output or a baseline as we wrote it, or holds nothing. A digest of all above it says so, never
    the name; tracks have a mark instead, annotations for GitHub nothing. All of a file is read only where it ends as ours do,
    and is no larger than any of ours."""
    from trace_doctor.exporters.perfetto import LABEL
    from trace_doctor.reporters.embedded_json import LARGEST

    try:
        with open_regular(path) as file:
            head = file.read(_HEAD)
            if head.startswith(_GZIP):
                return LABEL.encode() in zlib.decompressobj(31).decompress(head, _HEAD)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - SEAL_BYTES, 0))
            if seal_holds(file.read()) is None:
                return not size or (head.startswith(b"{") and LABEL.encode() in head)
        return seal_holds(read_regular(path, LARGEST)) is True
    except (OSError, zlib.error):
        return False


def on_terminal(sinks: Sequence[Sink]) -> bool:
    """Whether the text is shown, with the verdict in it."""
    return any(s.format == "text" and s.path is None for s in sinks)


def emit(console: Console, result: Result, sinks: Sequence[Sink], options: Options) -> None:
    """Renders the result once per sink; files are written whole or not at all."""
    from trace_doctor.reporters import OF_CAPTURES, render
    from trace_doctor.reporters.text import not_checked

    options = replace(options, source=options.source or script_folder(result))
    for sink in sorted(sinks, key=lambda s: s.path is None):  # files first: the text says what they add
        if sink.format in OF_CAPTURES:
            console.hint(f"{sink.format}: {_file_names(sink.path, result)}")
            continue
        own_options = options if sink.path is None else replace(options, report=None, given=(), source=None)
        try:
            deliver(console, sink, partial(render, result), own_options)
        except UsageError as error:
            if not sink.optional:
                raise
            console.note(f"no report: {error}; --output html=PATH writes it elsewhere")
            continue
        if sink.format == "html" and sink.path is not None:
            options = replace(options, report=str(sink.path))
        if sink.path is not None and not sink.optional:  # the text names that one
            console.hint(f"{sink.format} report: {sink.path}")
    if options.show_skipped and all(sink.path is not None for sink in sinks):
        console.print_text(partial(not_checked, result), options)


def deliver(console: Console, sink: Sink, render: Callable[[str, Options], str], options: Options) -> None:
    """One rendering to its file, or to stdout: text as the terminal can show it; what programs read is UTF-8 in every
    locale. `render` is given the format and the options."""
    if sink.path is not None:
        console.write(sink.path, sealed(sink.format, render(sink.format, options)), sink.place)
    elif sink.format == "text":
        console.print_text(partial(render, sink.format), options)
    else:
        console.print_bytes(render(sink.format, options).encode("utf-8", "surrogateescape"))


def deliver_all(console: Console, sinks: Sequence[Sink], render: Callable[[str, Options], str]) -> None:
    """The renderings of what is no result. Files are named."""
    from trace_doctor.reporters import Options

    for sink in sinks:
        deliver(console, sink, render, Options())
        if sink.path is not None:
            console.hint(f"{sink.format} report: {sink.path}")


def _file_names(path: Path | None, result: Result) -> str:
    """The file of the one trace, or what those of several are called."""
    if path is None or len({row.input for row in result.time_ledger}) < 2:
        return str(path)
    from trace_doctor.exporters.perfetto import named

    return f"{named(path, '*')} (a file for each trace)"


def report_options(
    paths: Sequence[str], source: str | Path | None, *, show_skipped: bool, no_zoom: bool
) -> Options:
    """With the same captures and script for another command, to be copied; not of what was piped in or is at a URL, which
    other commands do not read."""
    from trace_doctor.inputs.remote import is_url
    from trace_doctor.reporters import Options

    return Options(
        show_skipped=show_skipped,
        zoom=not no_zoom,
        given=() if any(p == "-" or is_url(p) for p in paths) else tuple(paths),
        source=str(source) if source else None,
    )


def script_folder(result: Result) -> str | None:
    """The folder of a script that a finding with an edit names, where it is there; the current one if the script is below."""
    from trace_doctor.reporters.fix_labels import how_made
    from trace_doctor.user_frames import is_user_frame

    places = {f.location.file for f in result.findings for x in f.fixes if how_made(x) == x.safety}
    for name in sorted(filter(None, places)):
        script = Path(name)
        if is_user_frame(name) and os.path.isfile(script):
            return "." if script.absolute().is_relative_to(Path.cwd()) else str(script.parent)
    return None
