"""`trace-doctor verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trace_doctor.cli import common as c
from trace_doctor.cli.paths import spare
from trace_doctor.errors import UsageError

if TYPE_CHECKING:
    from trace_doctor.model.verification import Verification
    from trace_doctor.reporters import Options


def verify(
    before: Annotated[
        str,
        typer.Argument(metavar="BEFORE", help="Capture, folder of captures, or saved result (JSON, report)."),
    ],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The same of the same job with the fix.")],
    source: c.Source = None,
    select: Annotated[
        list[str] | None, typer.Option(help="Only these findings: ids (TD101-1), codes, prefixes, names.")
    ] = None,
    fail_on: Annotated[
        str, typer.Option(help="Severity from which a new finding fails: critical, warning, info, never.")
    ] = "warning",
    output: Annotated[
        list[str] | None,
        typer.Option("--output", "--format", "-o", metavar="FORMAT[=PATH]", help="text or json; repeatable."),
    ] = None,
    rank: c.Rank = None,
    ranks: c.Ranks = None,
    allow_partial: c.AllowPartial = False,
    device: c.Device = None,
    torch_version: c.TorchVersion = None,
    config: c.ConfigFile = None,
    color: c.Color = "auto",
    jobs: c.Jobs = None,
    max_memory: c.MaxMemory = None,
    no_progress: c.NoProgress = False,
    quiet: c.Quiet = 0,
    verbose: c.Verbose = 0,
) -> None:
    """Say whether a fix kept its promise. Exit 0 gone, 1 still there or new, 2 no input, 3 cannot tell."""
    from trace_doctor.api import verify as api_verify
    from trace_doctor.config import load_config

    c.set_verbosity(verbose)
    wants_color = c.wants_color(color)
    if fail_on not in ("critical", "warning", "info", "never"):
        raise UsageError(f"--fail-on: {fail_on!r} is not critical, warning, info or never")
    sinks = c.parse_outputs(c.overrides(output=output or [])["output"]) or [c.Sink("text", None)]
    if any(s.format not in ("text", "json") for s in sinks):
        raise UsageError("--output: verify writes text or json")
    overrides = c.overrides(
        torch_version=torch_version,
        ranks=ranks,
        source=str(source) if source else None,
        jobs=jobs,
        max_memory=max_memory,
    )
    settings = load_config(file=config, overrides=overrides)
    spare(sinks, [before, after, source, config])
    with c.progress(quiet, not no_progress) as progress:
        made = api_verify(
            before, after, source=source, select=c.overrides(select=select or [])["select"], fail_on=fail_on,
            config=settings, rank=rank, device=device, allow_partial=allow_partial,
            progress=progress,
        )  # fmt: skip
    for sink in sinks:
        to_json = sink.format == "json"
        c.deliver(lambda o, j=to_json: _render(made, o, j), sink, color=wants_color, quiet=quiet)  # type: ignore[misc]
    if quiet < 2:
        c.note(made.verdict)
    raise typer.Exit(made.code)


def _render(made: Verification, options: Options, to_json: bool) -> str:
    from trace_doctor.reporters.verification import render

    return made.to_json().decode() if to_json else render(made, options)
