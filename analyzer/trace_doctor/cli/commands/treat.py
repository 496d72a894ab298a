"""`trace-doctor treat`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from trace_doctor.cli import options as o
from trace_doctor.cli.commands.fix import finish_or_name_edits
from trace_doctor.cli.console import ColorConsole, Console
from trace_doctor.cli.outputs import Sink, deliver_all, is_output_of_ours, is_replaceable, sinks_among
from trace_doctor.cli.paths import apply_words, spare
from trace_doctor.errors import UsageError
from trace_doctor.files import place_of
from trace_doctor.reporters.units import plural

if TYPE_CHECKING:
    from trace_doctor.fixes.plan import Plan
    from trace_doctor.reporters import Options
    from trace_doctor.treatment import Treated, Treatment
    from trace_doctor.treatment.candidates import Candidate
    from trace_doctor.treatment.quiet import IfBusy

DEFAULT_PATCH = Path("trace-doctor-treat.patch")
DEFAULT_PAGE = Path("trace-doctor-treat.html")
DEFAULT_BODY = Path("trace-doctor-treat.md")

TYPER = {"context_settings": {"allow_interspersed_args": False}}
"""how typer makes a command of it"""


def treat(
    *,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="The command that starts the training.")
    ],
    source: Annotated[Path, typer.Option(help="Folder (or file) of the training script.")] = Path("."),
    unsafe_fixes: Annotated[
        bool,
        typer.Option("--unsafe-fixes", help="Also try fixes that may change numerics, randomness or memory."),
    ] = False,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Ask for each fix whether to try it.")
    ] = False,
    select: o.Findings = None,
    apply: Annotated[bool, typer.Option("--apply", help="Edit the scripts after all trials.")] = False,
    patch: Annotated[
        Path, typer.Option(metavar="FILE", help="File for the patch of the fixes that helped.")
    ] = DEFAULT_PATCH,
    branch: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Make a git branch with a commit for each fix that helped, and {DEFAULT_BODY} for its pull request."),
    ] = None,
    output: Annotated[
        list[str] | None,
        o.output_option(f"text, json, html or markdown; repeatable (default: text, and html={DEFAULT_PAGE})."),
    ] = None,
    repeats: Annotated[
        int, typer.Option(help="Runs with each fix, and as many without it, 6 or more; twice as many if not clear.")
    ] = 6,
    max_steps: Annotated[
        int | None,
        typer.Option(help="Steps per run, warm-up included (default: what takes 5 seconds, 40 to 400)."),
    ] = None,
    max_minutes: Annotated[float, typer.Option(help="Time limit; what is known by then is reported.")] = 60.0,
    max_seconds: Annotated[float | None, typer.Option(help="The same in seconds.", show_default=False)] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Page or JSON of an interrupted treat ({DEFAULT_PAGE}): what it decided is not tried again."),
    ] = None,
    max_trials: Annotated[int | None, typer.Option(min=1, help="Try at most this many fixes.")] = None,
    if_busy: Annotated[
        str, typer.Option(help="If other processes keep the machine busy: `more` pairs of runs, `wait` for a quiet one, `stop`.")
    ] = "more",
    search_batch: Annotated[
        bool,
        typer.Option("--search-batch", help="Also search for a batch size by samples per second; it changes the training and gets a patch of its own."),
    ] = False,
    min_gain: Annotated[
        str, typer.Option(help="A fix is kept if it gains more than this share of the step or the peak.")
    ] = "1%",
    loss_tolerance: Annotated[
        str, typer.Option(help="Mean relative difference of losses that a fix may have.")
    ] = "2%",
    without_losses: Annotated[
        bool, typer.Option("--without-losses", help="Keep fixes even if no loss was recorded.")
    ] = False,
    step_every: Annotated[
        int | None, typer.Option(min=1, help="Module calls per step, for scripts without an optimizer.")
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(help="Files and folders of the project to link into the copy instead of copying them."),
    ] = None,
    copy_data: Annotated[
        bool,
        typer.Option("--copy-data", help="Copy large files and folders of data too, so that no run can change yours."),
    ] = False,
    allow_data_writes: Annotated[
        bool,
        typer.Option("--allow-data-writes", help="Go on if runs write to your files where the copy can have none of its own."),
    ] = False,
    scratch: Annotated[Path | None, typer.Option(help="Where the copy is made (default: temporary files).")] = None,
    logs: Annotated[Path | None, typer.Option(help="Keep the recordings before and after below this folder.")] = None,
    allow_dirty: o.AllowDirty = False,
    setup: o.Setup,
    console: ColorConsole,
) -> None:  # fmt: skip
    """Record a command, try each fix on it, keep what helps. Exit 0 a fix helped or there was none to try, 1 no fix helped, 2 files of yours changed."""
    from trace_doctor.fixes.branch import check_branch
    from trace_doctor.reporters.saved import read_treatment
    from trace_doctor.treatment import TreatOptions
    from trace_doctor.treatment import treat as run
    from trace_doctor.treatment.unfinished import Unfinished

    sinks = sinks_among("treat", ("text", "json", "html", "markdown"), output)
    if not output:
        sinks.append(Sink("html", DEFAULT_PAGE, optional=True))
    if branch is not None and not any(sink.format == "markdown" for sink in sinks):
        sinks.append(Sink("markdown", DEFAULT_BODY, optional=True))
    config = setup.load(source=source)
    batch_patch = patch.with_name(f"{patch.stem}-batch{patch.suffix}")
    patches = [patch, batch_patch] if search_batch else [patch]
    spare([*sinks, *(Sink("patch", one, option="patch") for one in patches)], [source], config)
    _refuse_to_replace(sinks, patches if patch == DEFAULT_PATCH else [])
    sinks = [replace(s, place=place_of(s.path)) if s.path is not None else s for s in sinks]
    patch_place = place_of(patch)
    batch_place = place_of(batch_patch)
    options = TreatOptions(
        unsafe=unsafe_fixes,
        select=tuple(o.in_parts(select, "select")),
        repeats=repeats,
        max_steps=max_steps,
        max_seconds=max_seconds if max_seconds is not None else 60 * max_minutes,
        max_trials=max_trials,
        if_busy=cast("IfBusy", if_busy),
        search_batch=search_batch,
        step_every=step_every,
        least_gain=_share("--min-gain", min_gain),
        loss_tolerance=_share("--loss-tolerance", loss_tolerance),
        without_losses=without_losses,
        link=tuple(link or ()),
        copy_data=copy_data,
        data_writes=allow_data_writes,
        scratch=scratch,
        logs=logs,
        resume=read_treatment(resume) if resume is not None else None,
    )
    if source.exists():
        finish_or_name_edits(console, source, apply)
    if apply and not allow_dirty:
        _refuse_without_a_way_back(source)
    if branch is not None and source.exists():
        check_branch(source if source.is_dir() else source.parent, branch)
    unfinished = Unfinished(source)
    if resume is None and unfinished.left_behind():
        console.hint(
            f"an earlier treat was killed here: --resume {unfinished.path} goes on with what it decided"
        )
    treated = run(
        command, source, options, config=config, torch_version=setup.torch_version, after_each=unfinished.save,
        choose=partial(_before_trials, console, interactive=interactive, branch=branch), say=console.hint,
    )  # fmt: skip
    if data := treated.edits.patch():
        console.write(patch, data, patch_place)
        console.hint(f"patch of what helped: {patch}; {apply_words(patch, treated.edits.patch_base)}")
    if treated.batch_patch:
        console.write(batch_patch, treated.batch_patch, batch_place)
        console.hint(f"patch of the batch size, for after the other: {batch_patch}")
    deliver_all(console, sinks, partial(_render, treated.treatment))
    unfinished.discard()
    if apply and data:
        _apply(console, treated, allow_dirty)
    if branch is not None:
        _make_branch(console, treated, branch)
    raise typer.Exit(treated.treatment.code)


def _refuse_to_replace(sinks: Sequence[Sink], patches: Sequence[Path]) -> None:
    """What nobody has named takes the place of nothing but its like."""
    from trace_doctor.model.treatment import Treatment
    from trace_doctor.reporters.saved import is_patch_of_ours

    for sink in sinks:
        if not sink.optional or sink.path is None:
            continue
        ours = (
            is_replaceable(sink.path, Treatment)
            if sink.format == "html"
            else (not os.path.lexists(sink.path) or is_output_of_ours(sink.path))
        )
        if not ours:
            raise UsageError(
                f"{sink.path} exists and is no unchanged output of ours; use --output {sink.format}=PATH"
            )
    for patch in patches:
        if patch.is_file() and not is_patch_of_ours(patch):
            raise UsageError(f"{patch} exists and is no patch of ours; use --patch FILE")


def _apply(console: Console, treated: Treated, allow_dirty: bool) -> None:
    """Edits the scripts where all is decided. Everything else is written by then: a full disk leaves them alone."""
    if treated.treatment.code == 0:
        console.hint(f"applied to {', '.join(treated.apply(allow_dirty=allow_dirty))}")
    else:
        console.hint("nothing was applied: " + treated.treatment.verdict)


def _refuse_without_a_way_back(source: Path) -> None:
    """Before an hour of trials, not after it."""
    from trace_doctor.fixes.apply import no_way_back

    folder = (source if source.is_dir() else source.parent).resolve()
    if source.exists() and (why := no_way_back(folder, [])) is not None:
        raise UsageError(f"--apply: {why}")


def _make_branch(console: Console, treated: Treated, name: str) -> None:
    """As with --apply, only where all is decided."""
    from trace_doctor.fixes.branch import make_branch
    from trace_doctor.reporters.treatment.markdown import commit_message

    if treated.treatment.code != 0:
        console.hint(f"no branch was made: {treated.treatment.verdict}")
        return
    kept = {attempt.label: attempt for attempt in treated.treatment.of("kept")}
    messages = [(item, commit_message(kept[item.label])) for item in treated.edits.of("ready")]
    commits = make_branch(treated.edits, name, messages)
    if commits:
        console.hint(
            f"branch {name}: {plural(len(commits), 'commit')} on top of HEAD; `git switch {name}` shows it"
        )
    else:
        console.hint("no branch was made: no fix that helped edits a file")


def _before_trials(
    console: Console, queue: list[Candidate], edits: Plan, *, interactive: bool, branch: str | None
) -> list[Candidate]:
    """Which fixes to try. What no branch can hold is known before an hour of trials."""
    from trace_doctor.fixes.branch import check_files

    if interactive:
        queue = _choose(console, queue)
    if branch is not None:
        check_files(
            edits, [file for c in queue if c.item.change is not None for file, _ in c.item.change.files]
        )
    return queue


def _choose(console: Console, queue: list[Candidate]) -> list[Candidate]:
    """y, n or q for each fix that can be tried."""
    return console.choose(
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


def _render(treatment: Treatment, fmt: str, options: Options) -> str:
    from trace_doctor.reporters.html import treatment as page
    from trace_doctor.reporters.treatment import markdown, text

    if fmt == "json":
        return treatment.to_json().decode()
    if fmt == "markdown":
        return markdown.render(treatment, options)
    return page.render(treatment, options) if fmt == "html" else text.render(treatment, options)
