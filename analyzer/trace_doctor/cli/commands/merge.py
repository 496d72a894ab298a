"""`trace-doctor merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trace_doctor.cli import options as o
from trace_doctor.cli.console import ColorConsole
from trace_doctor.cli.outputs import default_sinks, emit, parse_outputs, report_options
from trace_doctor.cli.paths import spare
from trace_doctor.cli.progress import progress_on
from trace_doctor.errors import UsageError
from trace_doctor.reporters import OF_CAPTURES


def merge(
    *,
    store: Annotated[
        Path, typer.Argument(metavar="STORE", help="Folder of summaries that `analyze --shard` wrote.")
    ],
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="List the captures of missing shards as not read.")
    ] = False,
    url: Annotated[
        list[str] | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="Where the shards read: what is read once more is fetched from there.",
        ),
    ] = None,
    source: o.Source = None,
    output: o.Output = None,
    rules: o.Rules,
    rank: o.Rank = None,
    steps: o.Steps = None,
    device: o.Device = None,
    setup: o.Setup,
    no_source: o.NoSource = False,
    show_skipped: o.ShowSkipped = False,
    force: o.Force = False,
    rank_timeout: o.RankTimeout = None,
    console: ColorConsole,
    loading: o.Loading,
) -> None:
    """Diagnose the shards of a folder of summaries. Rules and options must be those of `analyze --shard`."""
    from trace_doctor.api import merge as api_merge

    config = setup.load(source=source, output=output, **rules.overrides, **loading.limits)
    sinks = parse_outputs(config.settings.output) or default_sinks(console.silent, force)
    if formats := [s.format for s in sinks if s.format in OF_CAPTURES]:
        raise UsageError(f"--output: {formats[0]} needs the captures themselves: use analyze")
    spare(sinks, [store], config)
    with progress_on(console, loading) as progress:
        result = api_merge(
            store, urls=url or (), source=source, config=config, rank=rank, steps=o.parse_steps(steps), device=device,
            allow_partial=allow_partial, with_source_lines=not no_source, rank_timeout=rank_timeout,
            progress=progress,
        )  # fmt: skip
    emit(
        console,
        result,
        sinks,
        report_options((), config.settings.source, show_skipped=show_skipped, no_zoom=True),
    )
