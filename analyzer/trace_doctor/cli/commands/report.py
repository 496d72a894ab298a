"""`trace-doctor report`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trace_doctor.cli import options as o
from trace_doctor.cli.console import ColorConsole
from trace_doctor.cli.outputs import Sink, emit, parse_outputs, report_options
from trace_doctor.cli.paths import spare
from trace_doctor.errors import UsageError


def report(
    *,
    saved: Annotated[
        Path, typer.Argument(metavar="RESULT", help="A result.json, or a report.html that holds one.")
    ],
    output: o.Output = None,
    show_skipped: o.ShowSkipped = False,
    no_zoom: o.NoZoom = False,
    console: ColorConsole,
) -> None:
    """Render a saved result in any format."""
    from trace_doctor.reporters.saved import read_saved

    sinks = parse_outputs(o.in_parts(output, "output")) or [Sink("text")]
    if any(s.format == "perfetto" for s in sinks):
        raise UsageError(
            "--output: perfetto is made from the capture: trace-doctor analyze CAPTURE -o perfetto=FILE"
        )
    spare(sinks, [saved])
    options = report_options([str(saved)], None, show_skipped=show_skipped, no_zoom=no_zoom)
    options = replace(options, saved=True)
    emit(console, read_saved(saved), sinks, options)
