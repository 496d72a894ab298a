"""`trace-doctor report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trace_doctor.cli import common as c
from trace_doctor.cli.paths import spare
from trace_doctor.errors import UsageError


def report(
    saved: Annotated[
        Path, typer.Argument(metavar="RESULT", help="A result.json, or a report.html that holds one.")
    ],
    output: c.Output = None,
    show_skipped: c.ShowSkipped = False,
    no_zoom: c.NoZoom = False,
    color: c.Color = "auto",
    quiet: c.Quiet = 0,
    verbose: c.Verbose = 0,
) -> None:
    """Render a saved result again, in any format."""
    from trace_doctor.reporters.saved import read_saved

    c.set_verbosity(verbose)
    sinks = c.sinks_for(
        c.overrides(output=output or [])["output"], force=False, quiet=quiet, default_report=False
    )
    if c.tracks_of(sinks) is not None:
        raise UsageError(
            "--output: perfetto is made from the capture: trace-doctor analyze CAPTURE -o perfetto=FILE"
        )
    spare(sinks, [saved])
    c.emit(
        read_saved(saved),
        sinks,
        color=color,
        quiet=quiet,
        show_skipped=show_skipped,
        zoom=not no_zoom,
        given=c.as_given([str(saved)], None),
    )
