"""`trace-doctor analyze`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trace_doctor.cli import common as c
from trace_doctor.cli.paths import captures, spare
from trace_doctor.model import Result

if TYPE_CHECKING:
    from trace_doctor.config import Config
    from trace_doctor.loaders.progress import Progress


def analyze(
    paths: c.Paths,
    source: c.Source = None,
    output: c.Output = None,
    select: c.Select = None,
    ignore: c.Ignore = None,
    extend_select: c.ExtendSelect = None,
    preview: c.Preview = False,
    min_confidence: c.MinConfidence = None,
    min_saving: c.MinSaving = None,
    rank: c.Rank = None,
    steps: c.Steps = None,
    device: c.Device = None,
    torch_version: c.TorchVersion = None,
    config: c.ConfigFile = None,
    no_source: c.NoSource = False,
    critical_path: c.CriticalPath = False,
    no_zoom: c.NoZoom = False,
    show_skipped: c.ShowSkipped = False,
    force: c.Force = False,
    color: c.Color = "auto",
    jobs: c.Jobs = None,
    max_memory: c.MaxMemory = None,
    no_progress: c.NoProgress = False,
    quiet: c.Quiet = 0,
    verbose: c.Verbose = 0,
) -> None:
    """Diagnose traces and memory snapshots. Text goes to the terminal, an HTML report beside it."""
    from trace_doctor.config import load_config

    c.set_verbosity(verbose)
    c.wants_color(color)
    settings = load_config(
        file=config,
        overrides=c.overrides(
            select=select, ignore=ignore, extend_select=extend_select, preview=preview or None,
            min_confidence=min_confidence, min_saving=min_saving, torch_version=torch_version,
            output=output, source=str(source) if source else None, jobs=jobs, max_memory=max_memory,
        ),
    )  # fmt: skip
    sinks = c.sinks_for(settings.settings.output, force=force, quiet=quiet, default_report=True)
    spare(sinks, [*paths, settings.settings.source or None, config])
    with c.progress(quiet, not no_progress) as progress:
        result = run(
            paths,
            settings,
            source,
            rank,
            steps,
            device,
            no_source,
            progress,
            c.tracks_of(sinks),
            critical_path,
        )
    c.emit(
        result,
        sinks,
        color=color,
        quiet=quiet,
        show_skipped=show_skipped,
        zoom=not no_zoom,
        given=c.as_given(paths, settings.settings.source),
    )


def run(
    paths: list[str],
    config: Config,
    source: Path | None,
    rank: int | None,
    steps: str | None,
    device: int | None,
    no_source: bool,
    progress: Progress,
    perfetto: Path | None = None,
    critical_path: bool = False,
) -> Result:
    """What `analyze` and `check` do alike."""
    from trace_doctor.api import analyze as api_analyze

    with captures(paths) as files:
        return api_analyze(
            *files,
            config=config,
            source=source,
            rank=rank,
            steps=c.parse_steps(steps),
            device=device,
            with_source_lines=not no_source,
            perfetto=perfetto,
            critical_path=critical_path,
            progress=progress,
        )
