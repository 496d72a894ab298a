"""`trace-doctor diff`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from trace_doctor.cli import options as o
from trace_doctor.cli.console import ColorConsole
from trace_doctor.cli.outputs import deliver_all, on_terminal, sinks_among
from trace_doctor.cli.paths import spare
from trace_doctor.cli.progress import progress_on


def diff(
    *,
    before: Annotated[
        str, typer.Argument(metavar="A", help="Capture, folder of captures, or saved result (JSON, report).")
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="The same of the same job, recorded later.")],
    source: o.Source = None,
    output: Annotated[
        list[str] | None,
        o.output_option("text, json, markdown or html; repeatable; at most one without PATH goes to stdout."),
    ] = None,
    coverage: o.Coverage,
    steps: o.Steps = None,
    device: o.Device = None,
    setup: o.Setup,
    console: ColorConsole,
    loading: o.Loading,
) -> None:
    """Show what changed between two recordings beyond the noise. Exit 0 whatever changed (`check` gates), 2 no input, 3 a side
    is not whole."""
    from trace_doctor.api import diff as api_diff
    from trace_doctor.reporters.difference import FORMATS, render

    sinks = sinks_among("diff", FORMATS, output)
    config = setup.load(source=source, ranks=coverage.ranks, **loading.limits)
    spare(sinks, [before, after], config)
    with progress_on(console, loading) as progress:
        difference = api_diff(
            before, after, source=source, config=config, rank=coverage.rank, steps=o.parse_steps(steps),
            device=device, allow_partial=coverage.allow_partial, progress=progress,
        )  # fmt: skip
    deliver_all(console, sinks, partial(render, difference))
    if not on_terminal(sinks):
        console.conclude(difference.verdict)
    raise typer.Exit(difference.code)
