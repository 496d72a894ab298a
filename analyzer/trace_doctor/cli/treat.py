"""`trace-doctor treat`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trace_doctor.cli import common as c
from trace_doctor.cli.paths import spare
from trace_doctor.errors import UsageError
from trace_doctor.files import open_regular

if TYPE_CHECKING:
    from trace_doctor.reporters import Options
    from trace_doctor.treatment import Treated, Treatment
    from trace_doctor.treatment.candidates import Candidate

DEFAULT_PATCH = Path("trace-doctor-treat.patch")
DEFAULT_PAGE = Path("trace-doctor-treat.html")
_FORMATS = ("text", "json", "html")

TYPER = {"context_settings": {"allow_interspersed_args": False}}
"""how typer makes a command of it"""


def treat(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="What starts the training, as you start it.")
    ],
    source: Annotated[Path, typer.Option(help="Folder (or file) of the training script.")] = Path("."),
    unsafe_fixes: Annotated[
        bool,
        typer.Option("--unsafe-fixes", help="Also try fixes that may change numerics, randomness or memory."),
    ] = False,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Ask for each fix whether to try it.")
    ] = False,
    select: Annotated[
        list[str] | None, typer.Option(help="Only these findings: ids (TD101-1), codes, prefixes, names.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="In the end, edit the scripts.")] = False,
    patch: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the patch of what helped is written.")
    ] = DEFAULT_PATCH,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output", "--format", "-o", metavar="FORMAT[=PATH]",
            help=f"text, json or html; repeatable (default: text, and html={DEFAULT_PAGE}).",
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(help="Runs with each fix, and as many without it, 4 or more; twice as many if not clear.")
    ] = 4,
    max_steps: Annotated[
        int | None,
        typer.Option(help="Steps of a plain run, warm-up included (default: what takes 5 seconds, 40 to 400)."),
    ] = None,
    max_seconds: Annotated[float, typer.Option(help="When it ends at the latest, with what it knows.")] = 3600.0,
    max_trials: Annotated[int | None, typer.Option(min=1, help="Try so many fixes at most.")] = None,
    min_gain: Annotated[
        str, typer.Option(help="A fix is kept if it gains more than this share of the step or the peak.")
    ] = "1%",
    loss_tolerance: Annotated[
        str, typer.Option(help="How far the losses of an unsafe fix may lie apart, on average.")
    ] = "2%",
    without_losses: Annotated[
        bool, typer.Option("--without-losses", help="Keep unsafe fixes also where no loss can be seen.")
    ] = False,
    step_every: Annotated[
        int | None, typer.Option(min=1, help="Module calls that make a step, where there is no optimizer.")
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(help="Files and folders of the project to link into the copy instead of copying them."),
    ] = None,
    copy_data: Annotated[
        bool,
        typer.Option("--copy-data", help="Copy large files and folders of data too, so that no run can change yours."),
    ] = False,
    scratch: Annotated[Path | None, typer.Option(help="Where the copy is made (default: temporary files).")] = None,
    logs: Annotated[Path | None, typer.Option(help="Keep the recordings before and after below this folder.")] = None,
    allow_dirty: Annotated[
        bool, typer.Option("--allow-dirty", help="Apply although there is no clean git work tree to go back to.")
    ] = False,
    torch_version: c.TorchVersion = None,
    config: c.ConfigFile = None,
    color: c.Color = "auto",
    quiet: c.Quiet = 0,
    verbose: c.Verbose = 0,
) -> None:  # fmt: skip
    """Record, try each fix on the command itself, keep what helps. Exit 0 something helped or nothing was to be tried, 1 no fix helped, 2 files of yours changed."""
    from trace_doctor.config import load_config
    from trace_doctor.treatment import TreatOptions
    from trace_doctor.treatment import treat as run

    c.set_verbosity(verbose)
    wants_color = c.wants_color(color)
    sinks = c.parse_outputs(c.overrides(output=output or [])["output"])
    sinks = sinks or [c.Sink("text", None), c.Sink("html", DEFAULT_PAGE, optional=True)]
    if wrong := [s.format for s in sinks if s.format not in _FORMATS]:
        raise UsageError(f"--output: treat writes {', '.join(_FORMATS)}, not {wrong[0]}")
    spare([*sinks, c.Sink("patch", patch, option="patch")], [source, config])
    _refuse_to_replace(sinks, patch)
    options = TreatOptions(
        unsafe=unsafe_fixes,
        select=tuple(c.overrides(select=select or [])["select"]),
        repeats=repeats,
        max_steps=max_steps,
        max_seconds=max_seconds,
        max_trials=max_trials,
        step_every=step_every,
        least_gain=_share("--min-gain", min_gain),
        loss_tolerance=_share("--loss-tolerance", loss_tolerance),
        without_losses=without_losses,
        link=tuple(link or ()),
        copy_data=copy_data,
        scratch=scratch,
        logs=logs,
    )
    if source.exists():
        c.interrupted_edits(source, apply)
    if apply and not allow_dirty:
        _refuse_without_a_way_back(source)
    settings = load_config(
        file=config, overrides=c.overrides(torch_version=torch_version, source=str(source))
    )
    made = run(
        command, source, options, config=settings, torch_version=torch_version,
        choose=_choose if interactive else None, say=(lambda line: None) if quiet else c.note,
    )  # fmt: skip
    _hand_over(made, patch, apply, allow_dirty, quiet)
    for sink in sinks:
        c.deliver(partial(_render, made.treatment, sink.format), sink, color=wants_color, quiet=quiet)
        if sink.path is not None and not quiet:
            c.note(f"{sink.format} report: {sink.path}")
    raise typer.Exit(made.treatment.code)


def _refuse_to_replace(sinks: Sequence[c.Sink], patch: Path) -> None:
    """What nobody has named takes the place of nothing but its like."""
    if any(sink.optional and sink.path is not None and not c.is_replaceable(sink.path) for sink in sinks):
        raise UsageError(f"{DEFAULT_PAGE} exists and is no page of ours; use --output html=PATH")
    if patch == DEFAULT_PATCH and patch.is_file() and not _is_patch(patch):
        raise UsageError(f"{patch} exists and is no patch of ours; use --patch FILE")


def _is_patch(path: Path) -> bool:
    with open_regular(path) as file:
        return file.read(256).startswith((b"# safe: ", b"# unsafe: "))


def _hand_over(made: Treated, patch: Path, apply: bool, allow_dirty: bool, quiet: int) -> None:
    """The patch to its file; into the scripts only where that was asked for and all is decided."""
    data = made.edits.patch()
    if not data:
        return
    c.write(patch, data)
    if not quiet:
        c.note(f"patch of what helped: {patch}; apply it with `git apply {patch}`")
    if apply and made.treatment.code == 0:
        changed = made.apply(allow_dirty=allow_dirty)
        if not quiet:
            c.note(f"applied to {', '.join(changed)}")
    elif apply and not quiet:
        c.note("nothing was applied: " + made.treatment.verdict)


def _refuse_without_a_way_back(source: Path) -> None:
    """Before an hour of trials, not after it."""
    from trace_doctor.fixes.apply import no_way_back

    folder = (source if source.is_dir() else source.parent).resolve()
    if source.exists() and (why := no_way_back(folder, [])) is not None:
        raise UsageError(f"--apply: {why}")


def _choose(queue: list[Candidate]) -> list[Candidate]:
    """y, n or q for each fix that can be tried."""
    return c.chosen(
        queue,
        lambda candidate: candidate.item.diff.decode("utf-8", "replace") or candidate.item.fix.text + "\n",
        lambda candidate: (
            f"{candidate.item.label} {candidate.item.fix.title} [{candidate.item.safety}]: try it?"
        ),
    )


def _share(option: str, text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise UsageError(f"{option}: {text!r} is no share: 0.02 or 2%")
    return value


def _render(made: Treatment, fmt: str, options: Options) -> str:
    from trace_doctor.reporters import treatment_text
    from trace_doctor.reporters.html import treatment

    if fmt == "json":
        return made.to_json().decode()
    return treatment.render(made, options) if fmt == "html" else treatment_text.render(made, options)
