"""The library calls behind the commands: `analyze`, `verify` and `load`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trace_doctor.config import Config, defaults
from trace_doctor.engine import diagnose
from trace_doctor.errors import DamagedCapture, NoCaptures, NotACapture, UsageError
from trace_doctor.evidence.base import Options
from trace_doctor.loaders.discover import Found, discover
from trace_doctor.model import Ignored, Result
from trace_doctor.registry import choose
from trace_doctor.run import Capture, Run
from trace_doctor.snapshot import Snapshot

if TYPE_CHECKING:
    from trace_doctor.verification import Verification

Progress = Callable[[str, str], None]


def load(path: str | Path) -> Run | Snapshot:
    """One trace or snapshot as columns. Raises NotACapture or DamagedCapture with one line that says why."""
    found = discover([path]).found
    if len(found) != 1:
        raise NoCaptures(f"{path}: {len(found)} captures below; name one file")
    return _read(found[0])  # type: ignore[no-any-return]


def analyze(
    *paths: str | Path,
    source: str | Path | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    config: Config | None = None,
    rank: int | None = None,
    steps: tuple[int, int] | None = None,
    device: int | None = None,
    with_source_lines: bool = True,
    progress: Progress = lambda phase, what: None,
) -> Result:
    """The diagnosis of all traces and snapshots below the paths; the library's twin of `trace-doctor analyze`.

    `source` is the folder or file of the training script: findings then name its lines and fixes carry their diff.
    `steps` is [first, last). Without `config` only defaults apply: no file and no environment is read.
    Raises NoCaptures where nothing readable is found.
    """
    if config is None:
        config = defaults(select=list(select), ignore=list(ignore))
    settings = config.settings
    rules = choose(settings.select, settings.ignore, settings.extend_select, preview=settings.preview)
    script = Path(source) if source else Path(settings.source) if settings.source else None
    options = Options(
        source=script,
        steps=steps,
        device=device,
        loader_frames=tuple(settings.loader_frames),
        loader_annotations=tuple(settings.loader_annotations),
        device_bytes=settings.device_memory or None,
        torch_version=settings.torch_version or None,
    )
    captures, ignored = read_captures(paths, rank=rank, progress=progress)
    result = diagnose(captures, rules, config, options, ignored=ignored, progress=progress)
    if script is not None:
        from trace_doctor.fixes import with_diffs

        result = with_diffs(
            result, script, torch_version=settings.torch_version or None, excerpts=with_source_lines
        )
    return result


def verify(
    before: str | Path | Result,
    after: str | Path | Result,
    *,
    source: str | Path | None = None,
    select: Sequence[str] = (),
    fail_on: str = "warning",
    config: Config | None = None,
    rank: int | None = None,
    device: int | None = None,
    progress: Progress = lambda phase, what: None,
) -> Verification:
    """Whether a fix did what its finding promised; the library's twin of `trace-doctor verify`.

    `before` and `after` are results, saved results (.json, .html), or captures and folders of them. `select` keeps
    findings of `before` by id, code prefix or name; raises UsageError where it names none of them. `fail_on` is the
    severity from which a new finding fails. Otherwise as `analyze`.
    """
    from trace_doctor.fixes.plan import selected
    from trace_doctor.gate import verify as compare

    def result(given: str | Path | Result) -> Result:
        if isinstance(given, Result):
            return given
        saved = _saved(Path(given))
        if saved is not None:
            return saved
        return analyze(given, source=source, config=config, rank=rank, device=device, progress=progress)

    old, new = result(before), result(after)
    chosen = {f.id for f in old.findings if selected(f, select)}
    if select and not chosen:
        there = ", ".join(f.id for f in old.findings) or "none"
        raise UsageError(f"no finding of BEFORE is {', '.join(select)}; it has {there}")
    return compare(old, new, chosen=chosen, fail_on=fail_on)


def _saved(path: Path) -> Result | None:
    """The result in a file that `--output json` or `html` wrote; None for anything else that ends like one."""
    from trace_doctor.reporters.saved import read_saved

    if path.suffix not in (".json", ".html") or not path.is_file():
        return None
    try:
        return read_saved(path)
    except NotACapture:
        if path.suffix == ".html":
            raise
        return None


def read_captures(
    paths: Sequence[str | Path], *, rank: int | None = None, progress: Progress = lambda phase, what: None
) -> tuple[list[Capture], list[Ignored]]:
    """Discovers and loads. A trace and a snapshot of the same rank in one folder, one of each, are one capture.

    A damaged file found by walking a folder is listed in the second value; one given by name raises.
    """
    discovery = discover(paths)
    ignored = [Ignored(path=i.display, reason=i.reason) for i in discovery.ignored]
    loaded: list[tuple[Found, Any]] = []
    for found in discovery.found:
        progress("reading", found.display)
        try:
            loaded.append((found, _read(found)))
        except (NotACapture, DamagedCapture) as error:
            if found.named:
                raise
            ignored.append(Ignored(path=found.display, reason=_without_path(str(error), found.display)))
    if rank is not None:
        loaded = [(f, c) for f, c in loaded if f.kind == "torch_trace" or c.rank == rank]
    captures = _paired(loaded)
    if not captures:
        raise NoCaptures(
            _nothing_readable(paths, ignored)
            if rank is None
            else f"no capture of rank {rank} below the paths given"
        )
    return captures, sorted(ignored, key=lambda i: i.path)


def _read(found: Found) -> Any:
    if found.kind == "trace":
        from trace_doctor.loaders.environment import with_environment
        from trace_doctor.loaders.kineto import load_trace

        run = load_trace(found.path, found.display, rank=found.rank, rank_how=found.rank_how)
        return with_environment(run, found.path)
    if found.kind == "snapshot":
        from trace_doctor.loaders.snapshot import load_snapshot

        return load_snapshot(found.path, found.display, rank=found.rank, rank_how=found.rank_how)
    from trace_doctor.loaders.torch_trace import load_torch_trace

    return load_torch_trace(found.path, found.display)


def _paired(loaded: Sequence[tuple[Found, Any]]) -> list[Capture]:
    logs = tuple(c for f, c in loaded if f.kind == "torch_trace")
    by_place: dict[tuple[str, int], dict[str, list[Any]]] = {}
    for found, content in loaded:
        if found.kind != "torch_trace":
            place = (str(found.path.parent), content.rank)
            by_place.setdefault(place, {"trace": [], "snapshot": []})[found.kind].append(content)
    captures: list[Capture] = []
    for (_, rank), kinds in by_place.items():
        runs, snapshots = kinds["trace"], kinds["snapshot"]
        if len(runs) == len(snapshots) == 1:
            captures.append(Capture(rank=rank, run=runs[0], snapshot=snapshots[0], torch_logs=logs))
        else:
            captures += [Capture(rank=rank, run=run, torch_logs=logs) for run in runs]
            captures += [Capture(rank=rank, snapshot=snapshot) for snapshot in snapshots]
    return sorted(captures, key=lambda c: (c.rank, c.path))


def _without_path(message: str, path: str) -> str:
    return message.removeprefix(f"{path}: ")


def _nothing_readable(paths: Sequence[str | Path], ignored: Sequence[Ignored]) -> str:
    where = ", ".join(str(p) for p in paths)
    seen = "; ".join(f"{i.path}: {i.reason}" for i in ignored[:3])
    return f"no readable capture in {where}" + (f" ({seen})" if seen else "")
