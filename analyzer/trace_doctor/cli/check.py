"""`trace-doctor check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trace_doctor.cli import common as c
from trace_doctor.cli.analyze import run
from trace_doctor.cli.paths import spare

if TYPE_CHECKING:
    from trace_doctor.gate import Terms
    from trace_doctor.model import Result


def check(
    paths: c.Paths,
    fail_on: Annotated[
        str | None, typer.Option(help="Fail at this severity: critical, warning (default), info, never.")
    ] = None,
    require: Annotated[
        list[str] | None, typer.Option(help="Exit 3 when one of these rules lacks its evidence.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Accepted findings and figures: only new ones and regressions fail."
        ),
    ] = None,
    update_baseline: Annotated[
        bool,
        typer.Option("--update-baseline", help="Write what is found now to the baseline, and accept it."),
    ] = False,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit 0 whatever is found.")] = False,
    source: c.Source = None,
    output: c.Output = None,
    select: c.Select = None,
    ignore: c.Ignore = None,
    extend_select: c.ExtendSelect = None,
    preview: c.Preview = False,
    min_confidence: c.MinConfidence = None,
    min_saving: c.MinSaving = None,
    rank: c.Rank = None,
    ranks: c.Ranks = None,
    allow_partial: c.AllowPartial = False,
    steps: c.Steps = None,
    device: c.Device = None,
    torch_version: c.TorchVersion = None,
    config: c.ConfigFile = None,
    no_source: c.NoSource = False,
    no_zoom: c.NoZoom = False,
    show_skipped: c.ShowSkipped = False,
    color: c.Color = "auto",
    jobs: c.Jobs = None,
    max_memory: c.MaxMemory = None,
    no_progress: c.NoProgress = False,
    quiet: c.Quiet = 0,
    verbose: c.Verbose = 0,
) -> None:
    """The same diagnosis as a gate. Exit 0 ok, 1 failed, 2 usage or no readable input, 3 could not decide."""
    from trace_doctor.config import load_config
    from trace_doctor.gate.decision import checked, terms_of

    c.set_verbosity(verbose)
    c.wants_color(color)
    settings = load_config(
        file=config,
        overrides=c.overrides(
            select=select, ignore=ignore, extend_select=extend_select, preview=preview or None, require=require,
            min_confidence=min_confidence, min_saving=min_saving, torch_version=torch_version, fail_on=fail_on,
            output=output, source=str(source) if source else None, jobs=jobs, max_memory=max_memory,
            baseline=str(baseline) if baseline else None, ranks=ranks,
        ),
    )  # fmt: skip
    terms = terms_of(settings.settings, update=update_baseline, allow_partial=allow_partial)
    sinks = c.sinks_for(settings.settings.output, force=False, quiet=quiet, default_report=False)
    written = Path(settings.settings.baseline) if update_baseline else None
    baseline_read = None if update_baseline else settings.settings.baseline or None
    spare(
        [*sinks, c.Sink("json", written, option="baseline")],
        [*paths, settings.settings.source or None, config, baseline_read],
    )
    with c.progress(quiet, not no_progress) as progress:
        result = run(paths, settings, source, rank, steps, device, no_source, progress, c.tracks_of(sinks))
    if update_baseline:
        terms = _accepted(result, terms, Path(settings.settings.baseline), quiet)
    result = checked(result, terms)
    assert result.gate is not None
    c.emit(
        result,
        sinks,
        color=color,
        quiet=quiet,
        show_skipped=show_skipped,
        zoom=not no_zoom,
        given=c.as_given(paths, settings.settings.source),
    )
    if quiet < 2 and not any(s.format == "text" and s.path is None for s in sinks):
        c.note(result.gate.verdict)
    raise typer.Exit(0 if exit_zero else result.gate.code)


def _accepted(result: Result, terms: Terms, path: Path, quiet: int) -> Terms:
    """Writes what is found as the baseline, and holds the result against it. What was seen in part, or could not be
    judged, is not written: nobody would miss later what it lacks."""
    from trace_doctor.gate.baseline import Baseline
    from trace_doctor.gate.decision import unacceptable

    accepted = Baseline.of(result)
    if why := unacceptable(result, terms):
        c.note(f"baseline not written: {why[0]}{' (and more)' if len(why) > 1 else ''}")
    else:
        c.write(path, accepted.to_json())
        if not quiet:
            c.note(f"baseline written: {path} ({accepted.words()})")
    return terms.against(accepted)
