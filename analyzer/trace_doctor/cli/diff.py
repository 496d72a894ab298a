"""`trace-doctor diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trace_doctor.cli import common as c
from trace_doctor.cli.paths import spare
from trace_doctor.errors import UsageError

if TYPE_CHECKING:
    from trace_doctor.model.difference import Difference
    from trace_doctor.reporters import Options

_FORMATS = ("text", "json", "markdown", "html")


def diff(
    before: Annotated[
        str,
        typer.Argument(metavar="A", help="Capture, folder of captures, or saved result (JSON, report)."),
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="The same of the same job, recorded later.")],
    source: c.Source = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output", "--format", "-o", metavar="FORMAT[=PATH]",
            help="text, json, markdown or html; repeatable; at most one without PATH goes to stdout.",
        ),
    ] = None,
    rank: c.Rank = None,
    ranks: c.Ranks = None,
    allow_partial: c.AllowPartial = False,
    steps: c.Steps = None,
    device: c.Device = None,
    torch_version: c.TorchVersion = None,
    config: c.ConfigFile = None,
    color: c.Color = "auto",
    jobs: c.Jobs = None,
    max_memory: c.MaxMemory = None,
    no_progress: c.NoProgress = False,
    quiet: c.Quiet = 0,
    verbose: c.Verbose = 0,
) -> None:  # fmt: skip
    """What changed between two recordings, beyond the noise. Exit 0 whatever changed (`check` gates), 2 no input, 3 a side
    is not whole."""
    from trace_doctor.api import diff as api_diff
    from trace_doctor.config import load_config

    c.set_verbosity(verbose)
    wants_color = c.wants_color(color)
    sinks = c.parse_outputs(c.overrides(output=output or [])["output"]) or [c.Sink("text", None)]
    if wrong := [s.format for s in sinks if s.format not in _FORMATS]:
        raise UsageError(f"--output: diff writes {', '.join(_FORMATS)}, not {wrong[0]}")
    settings = load_config(
        file=config,
        overrides=c.overrides(
            torch_version=torch_version,
            ranks=ranks,
            source=str(source) if source else None,
            jobs=jobs,
            max_memory=max_memory,
        ),
    )
    spare(sinks, [before, after, source, config])
    with c.progress(quiet, not no_progress) as progress:
        made = api_diff(
            before, after, source=source, config=settings, rank=rank, steps=c.parse_steps(steps), device=device,
            allow_partial=allow_partial, progress=progress,
        )  # fmt: skip
    for sink in sinks:
        c.deliver(lambda o, f=sink.format: _render(made, f, o), sink, color=wants_color, quiet=quiet)  # type: ignore[misc]
        if sink.path is not None and not quiet:
            c.note(f"{sink.format} report: {sink.path}")
    if quiet < 2 and not any(s.format == "text" and s.path is None for s in sinks):
        c.note(made.verdict)
    raise typer.Exit(made.code)


def _render(made: Difference, fmt: str, options: Options) -> str:
    from trace_doctor.reporters.difference import render

    return render(made, fmt, options)
