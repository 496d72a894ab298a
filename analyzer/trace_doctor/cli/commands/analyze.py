"""`trace-doctor analyze`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trace_doctor.cli import options as o
from trace_doctor.cli.console import ColorConsole, Console
from trace_doctor.cli.outputs import Sink, default_sinks, emit, parse_outputs, report_options
from trace_doctor.cli.paths import captures, spare
from trace_doctor.cli.progress import progress_on
from trace_doctor.errors import UsageError

if TYPE_CHECKING:
    from trace_doctor.config import Config
    from trace_doctor.model import Result


def analyze(
    *,
    context: typer.Context,
    paths: o.Paths,
    source: o.Source = None,
    output: o.Output = None,
    rules: o.Rules,
    rank: o.Rank = None,
    steps: o.Steps = None,
    device: o.Device = None,
    setup: o.Setup,
    no_source: o.NoSource = False,
    critical_path: Annotated[
        bool,
        typer.Option(
            "--critical-path",
            help="HTA's critical path of one step of each trace as well; needs the extra hta, and pandas 2.",
        ),
    ] = False,
    no_zoom: o.NoZoom = False,
    show_skipped: o.ShowSkipped = False,
    force: o.Force = False,
    summaries: o.Summaries = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="With --summaries: only read the I-th of N parts, I from 0, for `trace-doctor merge`.",
        ),
    ] = None,
    executor: Annotated[
        str,
        typer.Option(
            metavar="local|dask:ADDRESS|slurm",
            help="Where captures are read: here, on the workers of a Dask cluster, or slurm, which prints a script "
            "for a Slurm array.",
        ),
    ] = "local",
    rank_timeout: o.RankTimeout = None,
    console: ColorConsole,
    loading: o.Loading,
) -> None:
    """Diagnose traces and memory snapshots. Prints a summary and writes an HTML report."""
    config = setup.load(source=source, output=output, **rules.overrides, **loading.limits)
    _check_executor(executor, paths, shard)
    if executor == "slurm":
        console.print_bytes(_script(context, paths, config, summaries, critical_path))
        return
    if shard is not None:
        _shard(
            paths,
            config,
            summaries,
            shard,
            console,
            loading,
            source=source,
            rank=rank,
            steps=o.parse_steps(steps),
            device=device,
            rank_timeout=rank_timeout,
        )
        return
    sinks = parse_outputs(config.settings.output) or default_sinks(console.silent, force)
    spare(sinks, [*paths, summaries], config)
    result = diagnose(
        paths, config, sinks, console, loading,
        source=source, rank=rank, steps=o.parse_steps(steps), device=device, with_source_lines=not no_source,
        critical_path=critical_path, zoom=not no_zoom, summaries=summaries, executor=executor,
        rank_timeout=rank_timeout,
    )  # fmt: skip
    options = report_options(paths, config.settings.source, show_skipped=show_skipped, no_zoom=no_zoom)
    emit(console, result, sinks, options)


def _check_executor(executor: str, paths: Sequence[str], shard: str | None) -> None:
    from trace_doctor.loading.cluster import scheduler_of

    if executor != "slurm" and scheduler_of(executor) is None:
        return
    if shard is not None:
        raise UsageError("--shard is one part of the captures, --executor reads them all: use one of them")
    if "-" in paths:
        raise UsageError("--executor: other machines cannot read stdin: name a file that they can read")


def _script(
    context: typer.Context, paths: Sequence[str], config: Config, summaries: Path | None, critical_path: bool
) -> bytes:
    """For a Slurm array. What `merge` would refuse at the end of it is refused now."""
    from trace_doctor.cli.slurm import array_script
    from trace_doctor.reporters import OF_CAPTURES

    if summaries is None:
        raise UsageError("--executor slurm needs --summaries STORE: the folder that all tasks share")
    sinks = parse_outputs(config.settings.output)
    if critical_path or any(s.format in OF_CAPTURES for s in sinks):
        raise UsageError(
            "--executor slurm: perfetto and --critical-path need the captures themselves on one machine"
        )
    spare(sinks, [*paths, summaries], config)
    return array_script(context, paths, summaries).encode("utf-8", "surrogateescape")


def _shard(
    paths: Sequence[str],
    config: Config,
    summaries: Path | None,
    shard: str,
    console: Console,
    loading: o.Loading,
    **options: Any,
) -> None:
    """Keeps what is found in one part of the captures, and says how many there were."""
    from trace_doctor.api import analyze_shard

    if summaries is None:
        raise UsageError("--shard needs --summaries STORE: the folder that all shards share")
    with progress_on(console, loading) as progress:
        done = analyze_shard(
            *paths, summaries=summaries, shard=shard, config=config, progress=progress, **options
        )
    for group in done.groups:
        if group.lost:
            console.note(f"{group.name}: not read: {group.lost}")
    count = f"{len(done.groups)} of {done.total} capture groups"
    console.note(f"shard {done.shard.number} of {done.shard.of} is done: {count} in {summaries}")


def diagnose(
    paths: Sequence[str],
    config: Config,
    sinks: Sequence[Sink],
    console: Console,
    loading: o.Loading,
    *,
    zoom: bool,
    **options: Any,
) -> Result:
    """What `analyze` and `check` do alike. `zoom`: whether pages get what they show closer. `options` are
    those of `trace_doctor.analyze`."""
    from trace_doctor.api import analyze as api_analyze

    perfetto = next((s.path for s in sinks if s.format == "perfetto"), None)
    detail = zoom and any(s.format == "html" for s in sinks)
    with progress_on(console, loading) as progress, captures(paths) as files:
        return api_analyze(
            *files, config=config, perfetto=perfetto, progress=progress, detail=detail, **options
        )
