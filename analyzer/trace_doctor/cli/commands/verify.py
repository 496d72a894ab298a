"""`trace-doctor verify`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from trace_doctor.cli import options as o
from trace_doctor.cli.console import ColorConsole
from trace_doctor.cli.outputs import deliver, sinks_among
from trace_doctor.cli.paths import spare
from trace_doctor.cli.progress import progress_on
from trace_doctor.errors import UsageError

if TYPE_CHECKING:
    from trace_doctor.model.verification import Verification
    from trace_doctor.reporters import Options


def verify(
    *,
    before: Annotated[
        str,
        typer.Argument(metavar="BEFORE", help="Capture, folder of captures, or saved result (JSON, report)."),
    ],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The same of the same job with the fix.")],
    source: o.Source = None,
    select: o.Findings = None,
    fail_on: Annotated[
        str, typer.Option(help="Severity from which a new finding fails: critical, warning, info, never.")
    ] = "warning",
    output: Annotated[list[str] | None, o.output_option("text or json; repeatable.")] = None,
    coverage: o.Coverage,
    device: o.Device = None,
    setup: o.Setup,
    console: ColorConsole,
    loading: o.Loading,
) -> None:
    """Compare predicted and measured effect of a fix. Exit 0 fixed, 1 not fixed or new, 2 no input, 3 inconclusive."""
    from trace_doctor.api import verify as api_verify
    from trace_doctor.reporters import Options

    if fail_on not in ("critical", "warning", "info", "never"):
        raise UsageError(f"--fail-on: {fail_on!r} is not critical, warning, info or never")
    sinks = sinks_among("verify", ("text", "json"), output)
    config = setup.load(source=source, ranks=coverage.ranks, **loading.limits)
    spare(sinks, [before, after], config)
    with progress_on(console, loading) as progress:
        verification = api_verify(
            before, after, source=source, select=o.in_parts(select, "select"), fail_on=fail_on, config=config,
            rank=coverage.rank, device=device, allow_partial=coverage.allow_partial, progress=progress,
        )  # fmt: skip
    for sink in sinks:
        deliver(console, sink, partial(_render, verification), Options())
    console.conclude(verification.verdict)
    raise typer.Exit(verification.code)


def _render(verification: Verification, fmt: str, options: Options) -> str:
    from trace_doctor.reporters.verification import render

    return verification.to_json().decode() if fmt == "json" else render(verification, options)
