"""`trace-doctor check`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trace_doctor.cli import options as o
from trace_doctor.cli.commands.analyze import diagnose
from trace_doctor.cli.console import ColorConsole, Console
from trace_doctor.cli.outputs import Sink, emit, on_terminal, parse_outputs, report_options
from trace_doctor.cli.paths import spare
from trace_doctor.errors import UsageError
from trace_doctor.reporters.seals import sealed
from trace_doctor.reporters.units import plural

if TYPE_CHECKING:
    from trace_doctor.gate.decision import Terms
    from trace_doctor.model import Result


def check(
    *,
    paths: o.Paths,
    fail_on: Annotated[
        str | None, typer.Option(help="Fail at this severity: critical, warning (default), info, never.")
    ] = None,
    require: Annotated[
        list[str] | None, typer.Option(help="Exit 3 if one of these rules is skipped.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Accepted findings and figures: only new ones and regressions fail."
        ),
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write the current findings to the baseline.")
    ] = False,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit 0 whatever the findings are.")] = False,
    source: o.Source = None,
    output: o.Output = None,
    rules: o.Rules,
    coverage: o.Coverage,
    steps: o.Steps = None,
    device: o.Device = None,
    setup: o.Setup,
    no_source: o.NoSource = False,
    no_zoom: o.NoZoom = False,
    show_skipped: o.ShowSkipped = False,
    summaries: o.Summaries = None,
    rank_timeout: o.RankTimeout = None,
    console: ColorConsole,
    loading: o.Loading,
) -> None:
    """Fail CI on findings. Exit 0 passed, 1 failed, 2 usage error or no readable input, 3 inconclusive."""
    from trace_doctor.gate.decision import checked, terms_of

    config = setup.load(
        source=source, output=output, fail_on=fail_on, require=require, ranks=coverage.ranks,
        baseline=str(baseline) if baseline else None, **rules.overrides, **loading.limits,
    )  # fmt: skip
    settings = config.settings
    terms = terms_of(settings, update=update_baseline, allow_partial=coverage.allow_partial)
    sinks = parse_outputs(settings.output) or [Sink("text")]
    accepted = Path(settings.baseline) if update_baseline else None
    reference = None if update_baseline else settings.baseline or None
    spare([*sinks, Sink("json", accepted, option="baseline")], [*paths, reference, summaries], config)
    result = diagnose(
        paths, config, sinks, console, loading,
        source=source, rank=coverage.rank, steps=o.parse_steps(steps), device=device,
        with_source_lines=not no_source, zoom=not no_zoom, summaries=summaries, rank_timeout=rank_timeout,
    )  # fmt: skip
    if accepted is not None:
        terms = _accepted(result, terms, accepted, console)
    result = checked(result, terms)
    assert result.gate is not None
    emit(
        console,
        result,
        sinks,
        report_options(paths, settings.source, show_skipped=show_skipped, no_zoom=no_zoom),
    )
    if not on_terminal(sinks):
        console.conclude(result.gate.verdict)
    raise typer.Exit(0 if exit_zero else result.gate.code)


def _accepted(result: Result, terms: Terms, path: Path, console: Console) -> Terms:
    """Writes what is found as the baseline, and holds the result against it. What was seen in part, or could not be
    judged, is not written: nobody would miss later what it lacks."""
    from trace_doctor.gate.baseline import Baseline, read_baseline
    from trace_doctor.gate.decision import unacceptable

    baseline = Baseline.of(result)
    with suppress(UsageError):  # none so far, or one that is no baseline any more
        baseline, kept = baseline.with_others_of(read_baseline(path))
        if kept:
            console.note(
                f"kept in the baseline: {plural(kept, 'finding')} of rules that were skipped or left out this time"
            )
    if reasons := unacceptable(result, terms):
        console.note(f"baseline not written: {reasons[0]}{' (and more)' if len(reasons) > 1 else ''}")
    else:
        console.write(path, sealed("json", baseline.to_json()))
        console.hint(f"baseline written: {path} ({baseline.words()})")
    return terms.against(baseline)
