"""`trace-doctor load`."""

from __future__ import annotations

from typing import Annotated

import typer

from trace_doctor.cli import common as c
from trace_doctor.errors import one_line


def load(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Traces, snapshots, folders and globs that hold them."),
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Tell files apart by a hash of all their bytes, not of samples.")
    ] = False,
    jobs: c.Jobs = None,
    cache_dir: c.CacheDir = None,
    max_memory: c.MaxMemory = None,
    config: c.ConfigFile = None,
    no_progress: c.NoProgress = False,
    quiet: c.Quiet = 0,
    verbose: c.Verbose = 0,
) -> None:
    """Read captures and keep their columns. Later commands on the same files begin at once."""
    from trace_doctor.api import keep
    from trace_doctor.config import load_config

    c.set_verbosity(verbose)
    settings = load_config(file=config, overrides=c.overrides(**c.loading(jobs, True, cache_dir, max_memory)))
    with c.progress(quiet, not no_progress) as progress:
        kept = keep(*paths, config=settings, full=verify, progress=progress)
    if quiet:
        return
    for one in kept.files:
        size = "not kept" if one.kept is None else f"{one.kept / 1e6:,.1f} MB of columns"
        state = " (already there)" if one.cached else ""
        typer.echo(
            f"{one_line(one.found.display)}: {one.size / 1e6:,.1f} MB, {one.count:,} {one.unit}, {size}{state}"
        )
    for other in kept.ignored:
        typer.echo(f"{one_line(other.path)}: {one_line(other.reason)}")
    typer.echo(f"cache: {kept.folder} ({kept.entries} entries, {kept.bytes / 1e6:,.1f} MB); safe to delete")
