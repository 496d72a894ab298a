"""The library calls: `load` for columns, and `analyze`, `verify` and `diff` as the commands of these names."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from trace_doctor.config import Config, Settings, defaults
from trace_doctor.engine import conclude, judge, merged_findings, must_select, with_numbers
from trace_doctor.engine.detail.events import with_events
from trace_doctor.errors import NoCaptures, TraceDoctorError, UsageError, printable
from trace_doctor.evidence.base import Options
from trace_doctor.gate.suppressions import Suppressions
from trace_doctor.inputs.group_examination import SecondRequest
from trace_doctor.inputs.groups import groups_of
from trace_doctor.inputs.held import Held
from trace_doctor.inputs.reading import AS_NEEDED, Reading, reading_of
from trace_doctor.inputs.remote import is_url, remote
from trace_doctor.inputs.store import Shard, ShardDone, Store
from trace_doctor.inputs.streamed import MANY, NO_PANELS, Streamed
from trace_doctor.inputs.summaries import MergedShards
from trace_doctor.loaders.discover import discover
from trace_doctor.loaders.places import as_path
from trace_doctor.loaders.progress import Progress
from trace_doctor.loading import LoadOptions, load_inputs
from trace_doctor.loading.load_files import available_cores
from trace_doctor.memory_limit import memory_limit
from trace_doctor.model import Finding
from trace_doctor.model.captures import LinesRun
from trace_doctor.recording import lines_tsv
from trace_doctor.reporters.diagnosis import verdict as verdict_of
from trace_doctor.reporters.notebook import Result
from trace_doctor.run import Run
from trace_doctor.snapshot import Snapshot

if TYPE_CHECKING:
    from trace_doctor.model.comparison import Comparison
    from trace_doctor.model.difference import Difference
    from trace_doctor.model.verification import Verification


def load(path: str | Path) -> Run | Snapshot:
    """One trace or snapshot as columns. Raises NotACapture or DamagedCapture with one line that says why."""
    files = discover([path]).found
    if len(files) != 1:
        raise NoCaptures(f"{path}: {len(files)} captures below; name one file")
    [loaded] = load_inputs(files)
    if isinstance(loaded.outcome, TraceDoctorError):
        raise loaded.outcome
    return loaded.outcome  # type: ignore[return-value]  # of a TORCH_TRACE log: a CompileLog


def analyze(
    *paths: str | Path,
    source: str | Path | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    config: Config | None = None,
    rank: int | None = None,
    steps: tuple[int, int] | None = None,
    device: int | None = None,
    max_memory: str = "",
    with_source_lines: bool = True,
    perfetto: str | Path | None = None,
    critical_path: bool = False,
    detail: bool = False,
    summaries: str | Path | None = None,
    executor: str = "local",
    rank_timeout: float | None = None,
    progress: Progress | None = None,
) -> Result:
    """The diagnosis of all traces and snapshots below the paths; the library's twin of `trace-doctor analyze`.

    `source` is the folder or file of the training script: findings then name its lines and fixes carry their diff; not without
    `with_source_lines`, as a diff holds such lines: `trace_doctor.fixes.plan(result, source)` makes it where the script is.
    `perfetto` names a file for the trace again with causes and findings as tracks (gzip where it ends in .gz; of several
    traces a file each). `critical_path` adds HTA's, from one step of each trace; it needs the extra `hta` and pandas 2. `detail` collects what a page shows closer. `steps` is [first, last). `max_memory` ("4GB", "50%") bounds what loading takes. `summaries` names a folder of what is kept of each rank: what it holds is not read again. `executor` "dask:ADDRESS" reads captures on the workers of a Dask cluster, which see the same files; it needs the extra `cluster`. `rank_timeout` is in seconds: a rank that takes longer to read and examine is listed as not read (default: 3600 where ranks are read one after the other). Without `config` only defaults apply: no file and no environment is read.
    What was met and not read, or is missing, is in `Result.ignored`, `ranks` and `incomplete`. Raises NoCaptures where nothing
    readable is found. A path may be a URL (`s3://bucket/run1`): it needs the extra `remote` and the file system's own package.
    """
    if critical_path:
        from trace_doctor.hta.critical_path import usable

        usable()
    if config is None:
        config = defaults(select=list(select), ignore=list(ignore), max_memory=max_memory)
    in_memory = perfetto is not None or critical_path
    with remote(paths) as there:
        reading = reading_of(
            config.settings, summaries=summaries, executor=executor, rank_timeout=rank_timeout,
            in_memory=in_memory, remote=there,
        )  # fmt: skip
        part = _Part(source, rank, steps, device)
        loaded = _load(paths, config.settings, part, progress, in_memory=in_memory, reading=reading)
        result, numbers = _diagnosis(loaded, config, with_source_lines=with_source_lines, detail=detail)
    held = list(zip(numbers, loaded.inputs.facts, strict=True)) if loaded.inputs.facts else []
    traces = [(number, facts) for number, facts in held if facts.capture.run is not None]
    if perfetto is not None:
        from trace_doctor.inputs.tracks import write_tracks

        write_tracks(Path(perfetto), traces, result)
    if critical_path:
        result = _with_critical_path(result, [(n, c.run) for n, c in traces])
    return result


@dataclasses.dataclass(frozen=True)
class _Part:
    """What of the captures is looked at, and the script that made them."""

    source: str | Path | None
    rank: int | None
    steps: tuple[int, int] | None
    device: int | None


@dataclasses.dataclass(frozen=True)
class _Loaded:
    """What is diagnosed, under one configuration or several."""

    inputs: Held | Streamed
    script: Path | None
    rank: int | None
    options: Options
    progress: Progress


def _load(
    paths: Sequence[str | Path],
    settings: Settings,
    part: _Part,
    progress: Progress | None,
    *,
    in_memory: bool = False,
    reading: Reading = AS_NEEDED,
) -> _Loaded:
    """`in_memory`: whether the captures themselves are needed later, however many they are. `paths`: of a merge none."""
    script = Path(source) if (source := part.source or settings.source) else None
    options = _options(settings, source=script, steps=part.steps, device=part.device)
    load = LoadOptions(settings.jobs or available_cores(), memory_limit(settings.max_memory))
    progress = progress or Progress()
    if isinstance(shards := reading.summaries, MergedShards):
        discovery, paths = shards.discovery, shards.shards[0].paths
    elif reading.remote is not None:
        discovery = reading.remote.discovered(paths)
    else:
        discovery = discover(paths, strict=False)
    few = len(discovery.found) < MANY or len(groups_of(discovery.found)) < MANY
    inputs: Held | Streamed
    if in_memory or (few and not reading.asked):
        inputs = Held(discovery, paths, load, options, part.rank, progress)
    else:
        inputs = Streamed(discovery, paths, load, options, part.rank, reading)
    return _Loaded(inputs, script, part.rank, options, progress)


def _diagnosis(
    loaded: _Loaded, config: Config, *, with_source_lines: bool = True, detail: bool = False
) -> tuple[Result, list[int]]:
    """The result, and the number of each capture in it."""
    settings, inputs, script = config.settings, loaded.inputs, loaded.script
    rules = [config.rule(rule) for rule in settings.chosen()]
    examinations = judge(inputs.examine(rules, detail=detail, progress=loaded.progress), rules)
    must_select(examinations, loaded.options)
    merged = merged_findings(examinations, config)
    suppressions = Suppressions.of(settings.suppress, script)
    suppressed = suppressions.silenced(merged.findings, lambda findings: _located(findings, script))
    remaining = merged.without({s.finding.id for s in suppressed})
    asked = [
        SecondRequest(
            e.rank,
            e.summary.path,
            tuple(remaining.removals(number)),
            tuple(merged.owners(number, e.rank, e.summary.path)),
        )
        for number, e in with_numbers(examinations)
    ]
    retimed, owned = zip(*inputs.ask_again(asked), strict=True)
    scope = inputs.files.scope(loaded.rank)
    result = conclude(examinations, merged, retimed, owned, rules, config, suppressed=suppressed, scope=scope)
    result = replace(result, lines_run=_lines_run(inputs.files.recordings) or UNSET)
    numbers = [number for number, _ in with_numbers(examinations)]
    if detail and inputs.facts:
        result = with_events(result, list(zip(numbers, inputs.facts, strict=True)))
    elif detail:
        result = replace(result, limits=[*result.limits, NO_PANELS])
    if script is not None:
        from trace_doctor.fixes import with_diffs

        result = with_diffs(
            result, script, torch_version=settings.torch_version or None, lines=with_source_lines
        )
    # no settings, and as much a part of how this was diagnosed
    asked_for = {
        name: {"value": value, "origin": "argument"}
        for name, value in (("steps", loaded.options.steps), ("device", loaded.options.device))
        if value is not None
    }
    result = replace(result, config={**result.config, **asked_for})
    verdict = f"{'. '.join(verdict_of(result))}."
    result = replace(result, summary=replace(result.summary, verdict=verdict))
    return replace(result, limits=[*result.limits, *inputs.limits, *suppressions.said(result)]), numbers


def analyze_shard(
    *paths: str | Path,
    summaries: str | Path,
    shard: str,
    source: str | Path | None = None,
    config: Config | None = None,
    rank: int | None = None,
    steps: tuple[int, int] | None = None,
    device: int | None = None,
    rank_timeout: float | None = None,
    progress: Progress | None = None,
) -> ShardDone:
    """One part of the captures below the paths: `shard` is I/N, I from 0. What is kept of each is written to the folder
    `summaries`, and nothing is concluded: `merge` does, when all parts are done. Otherwise as `analyze`."""
    own, config = Shard.parse(shard), config or defaults()
    with remote(paths) as there:
        reading = reading_of(
            config.settings, summaries=summaries, rank_timeout=rank_timeout, remote=there, shard=own
        )
        loaded = _load(paths, config.settings, _Part(source, rank, steps, device), progress, reading=reading)
        assert isinstance(loaded.inputs, Streamed) and reading.summaries is not None
        rules = [config.rule(rule) for rule in config.settings.chosen()]
        for _ in loaded.inputs.examined(rules, loaded.progress):
            pass
        return reading.summaries.finish(loaded.inputs.discovery, paths)


def merge(
    summaries: str | Path,
    *,
    urls: Sequence[str] = (),
    source: str | Path | None = None,
    config: Config | None = None,
    rank: int | None = None,
    steps: tuple[int, int] | None = None,
    device: int | None = None,
    allow_partial: bool = False,
    with_source_lines: bool = True,
    rank_timeout: float | None = None,
    progress: Progress | None = None,
) -> Result:
    """The diagnosis of all shards of a folder of summaries, as `analyze` would make it of the captures. Rules and options are
    those that the shards were given. Raises UsageError where a shard is missing, unless `allow_partial` is set: its captures
    are then listed as not read. `urls`: where the shards read, if what is read once more may be fetched from there; a folder of
    summaries that names a URL is no leave to open a connection."""
    config = config or defaults()
    if wrong := [url for url in urls if not is_url(url)]:
        raise UsageError(f"{wrong[0]} is no URL")
    shards = MergedShards(Store(Path(summaries)), allow_partial=allow_partial)
    with remote(urls) as there:
        if there is not None:
            there.list_again(urls)
            shards.remote = there
        reading = reading_of(config.settings, rank_timeout=rank_timeout, remote=there)
        reading = dataclasses.replace(reading, summaries=shards)
        loaded = _load((), config.settings, _Part(source, rank, steps, device), progress, reading=reading)
        return _diagnosis(loaded, config, with_source_lines=with_source_lines)[0]


def _located(findings: Sequence[Finding], script: Path | None) -> Sequence[Finding]:
    """The findings with their places as the source names them."""
    from trace_doctor.fixes import with_diffs

    if script is None:
        return findings
    return with_diffs(Result(findings=list(findings)), script, lines=False).findings


def _with_critical_path(result: Result, runs: Sequence[tuple[int, Run]]) -> Result:
    """`runs`: (number of the input, its trace)."""
    from trace_doctor.hta.critical_path import critical_paths

    paths, limits = critical_paths(runs, result.steps)
    return replace(result, critical_path=paths, limits=[*result.limits, *limits])


def _options(settings: Settings, **given: Any) -> Options:
    """What the settings say about a capture, and what is said of this one."""
    return Options(
        loader_frames=tuple(settings.loader_frames),
        loader_annotations=tuple(settings.loader_annotations),
        device_bytes=settings.device_memory or None,
        torch_version=settings.torch_version or None,
        **given,
    )


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
    ranks: str = "",
    allow_partial: bool = False,
    progress: Progress | None = None,
) -> Verification:
    """Whether a fix did what its finding promised; the library's twin of `trace-doctor verify`.

    `before` and `after` are results, saved results (.json, .html), or captures and folders of them. `select` keeps
    findings of `before` by id, code prefix or name; raises UsageError where it names none of them. `fail_on` is the
    severity from which a new finding fails. What was not read or is missing on a side makes it undecided, unless
    `allow_partial` is set; `ranks` says how many each side must have (a number, or all). Otherwise as `analyze`.
    """
    from trace_doctor.fixes.plan import is_selected
    from trace_doctor.gate.verify import verify as compare

    part = _Part(source, rank, None, device)
    (old, whole_old), (new, whole_new) = (_results(r, config, part, progress) for r in (before, after))
    chosen = {f.id for f in old.findings if is_selected(f, select)}
    if select and not chosen:
        there = ", ".join(f.id for f in old.findings) or "none"
        raise UsageError(f"no finding of BEFORE is {', '.join(select)}; it has {there}")
    ranks = ranks or (config.settings.ranks if config is not None else "")
    verification = compare(
        old, new, chosen=chosen if select else None, fail_on=fail_on, ranks=ranks, allow_partial=allow_partial,
        whole_before=whole_old, whole_after=whole_new,
    )  # fmt: skip
    return _with_folders(verification, before, after)


def diff(
    before: str | Path | Result,
    after: str | Path | Result,
    *,
    source: str | Path | None = None,
    config: Config | None = None,
    rank: int | None = None,
    steps: tuple[int, int] | None = None,
    device: int | None = None,
    ranks: str = "",
    allow_partial: bool = False,
    progress: Progress | None = None,
) -> Difference:
    """What changed between two recordings of one job, beyond the noise; the library's twin of `trace-doctor diff`.

    `before` and `after` are as in `verify`: results, saved results, or captures and folders of them (several recordings
    of a job count as one side). `ranks` and `allow_partial` are as in `verify`. Otherwise as `analyze`.
    """
    from trace_doctor.gate.diff import difference

    part = _Part(source, rank, steps, device)
    old, new = (_results(r, config, part, progress, whole=False)[0] for r in (before, after))
    ranks = ranks or (config.settings.ranks if config is not None else "")
    return _with_folders(difference(old, new, ranks=ranks, allow_partial=allow_partial), before, after)


C = TypeVar("C", bound="Comparison")


def _with_folders(comparison: C, before: str | Path | Result, after: str | Path | Result) -> C:
    """Recordings have files of the same names: their folders are named with them, as far as the two differ."""
    if (
        isinstance(before, Result)
        or isinstance(after, Result)
        or comparison.before.paths != comparison.after.paths
    ):
        return comparison
    old, new = list(Path(before).parts), list(Path(after).parts)
    while len(old) > 1 and len(new) > 1 and old[0] == new[0]:
        del old[0], new[0]
    if old == new or not (Path(before).is_dir() and Path(after).is_dir()):
        return comparison
    sides = (
        replace(side, paths=[PurePosixPath(*parts, p).as_posix() for p in side.paths])
        for side, parts in ((comparison.before, old), (comparison.after, new))
    )
    return replace(comparison, **dict(zip(("before", "after"), sides, strict=True)))


def _results(
    target: str | Path | Result,
    config: Config | None,
    part: _Part,
    progress: Progress | None,
    *,
    whole: bool = True,
) -> tuple[Result, Result | None]:
    """A result as it is, a saved one, or what `analyze` makes of the captures. With `whole` also what it makes of captures
    without the settings that hide findings; None where none of these is set, or it cannot be known."""
    from trace_doctor.reporters.saved import saved_result

    if isinstance(target, Result):
        return target, None
    if (saved := saved_result(as_path(target))) is not None:
        return saved, None
    config = config or defaults()
    loaded = _load([target], config.settings, part, progress)
    open_config = config.hiding_nothing() if whole else None
    result, _ = _diagnosis(loaded, config)
    return result, None if open_config is None else _diagnosis(loaded, open_config)[0]


def _lines_run(folders: Sequence[tuple[Path, str]]) -> list[LinesRun]:
    """Of all recordings."""
    return [
        LinesRun(file=printable(file), sha256=digest, ranges=lines_tsv.ranges(lines))
        for folder, _ in folders
        for (file, digest), lines in sorted(lines_tsv.lines_run(folder).items())
    ]
