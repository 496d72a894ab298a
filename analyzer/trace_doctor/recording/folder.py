"""What lies in a recording, read by those who analyse it.

Manifests and tables of a recording are input like any other, often of strangers: sizes are bounded, names are looked up
inside the folder alone, fields that are missing or of another type read as unknown, and fields that nobody knows are
passed over.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from trace_doctor.errors import one_line
from trace_doctor.files import open_regular, read_regular
from trace_doctor.recording.lines_tsv import settings_of
from trace_doctor.recording.options import (
    COMMAND_FILE,
    ENVIRONMENT_FILE,
    LINES_FILE,
    OPTIONS_FILE,
    PLAN_FILE,
    RECORDING_FILE,
    STEPS_COLUMNS,
    STEPS_FILE,
    Role,
    capture_file,
    rank_file,
    rank_steps_file,
)
from trace_doctor.sound_json import loads

_LARGEST_MANIFEST = 1 << 20
_LARGEST_TABLE = 64 << 20
_MOST_RANKS = 4096
_MOST_PERIODS = 10_000
_MOST_IMPORTS = 2_000
_SHORTEST, _LONGEST = 1e-6, 7 * 86_400e3
"""ms that a step can take: the clock counts ns; a week"""
_PACKED = (".gz", ".zst")
_RANK = re.compile(r"rank(\d{1,6})\.(recording\.json|steps\.csv|\w+\.(?:json|pickle))")
_COMPANIONS = frozenset(
    {RECORDING_FILE, PLAN_FILE, OPTIONS_FILE, STEPS_FILE, ENVIRONMENT_FILE, COMMAND_FILE, LINES_FILE}
)


BUSY = 0.1
"""waiting for a CPU above this share of the time, host times are the machine's as much as the script's"""


@dataclass(frozen=True, slots=True)
class RecordedPhase:
    """One phase of one rank; -1 and None where the manifest does not say."""

    name: str
    first_step: int = -1
    last_step: int = -1
    seconds: float | None = None
    cpu_seconds: float | None = None
    """how long the training thread was on a CPU"""
    overhead: float | None = None
    """how much longer a step took than in the plain timing, as a share of that"""
    why_ended: str = ""


@dataclass(frozen=True, slots=True)
class PeriodicPlace:
    """A line of the function around the loop, what it calls, and its share of all periodic work, 0 to 1."""

    file: str
    function: str
    line: int
    calls: str
    share: float


@dataclass(frozen=True, slots=True)
class PeriodicWork:
    """What came at least twice, in steps that are long by it: evaluation, a rollout, a checkpoint. `share`: of the run's time."""

    steps: tuple[int, ...]
    every: float
    milliseconds: float
    """of the work each time, beside the step"""
    step_ms: float
    share: float
    places: tuple[PeriodicPlace, ...]


@dataclass(frozen=True, slots=True)
class RankRecord:
    """What the agent of one rank said of its recording."""

    rank: int
    pid: int | None = None
    world_size: int | None = None
    device: str = ""
    """the GPU that the recorded script used, of the first rank to say so; empty without one"""
    found_steps_by: str = ""
    accumulation: int | None = None
    """optimizer steps are so many batches apart; None: not seen"""
    ended: str = ""
    peak_allocated_bytes: int | None = None
    """of the device of this process that held most, from its start to the end of the recording"""
    imports: tuple[str, ...] = ()
    """files of Python that it had loaded in the end, but for installed packages; empty where that was not asked for"""
    settings: Mapping[str, tuple[bool | int | float | str | None, ...]] = field(default_factory=dict)
    """what its DataLoaders, optimizers and flags of torch were set to in the end: name -> values; empty where not recorded"""
    phases: tuple[RecordedPhase, ...] = ()
    impossible: tuple[str, ...] = ()
    """phases that this machine cannot record, each with why: no shortcoming of the recording"""
    warnings: tuple[str, ...] = ()
    observed: bool = False
    """whether periodic work would have been seen, had it come twice in the recorded steps"""
    periodic: PeriodicWork | None = None
    waited_for_cpu: float | None = None
    """share of the time that its main thread could have run and did not, because others did; None: not known"""

    def phase(self, name: str) -> RecordedPhase | None:
        """The phase of this name; None where the rank did not come to it."""
        return next((p for p in self.phases if p.name == name), None)

    @property
    def on_cpu(self) -> float | None:
        """Share of the plain timing that the training thread was on a CPU, and did not wait for anything, 0 to 1."""
        timed = [p for p in self.phases if p.name == "timing" and p.seconds and p.cpu_seconds is not None]
        elapsed = sum(p.seconds or 0.0 for p in timed)
        return min(max(sum(p.cpu_seconds or 0.0 for p in timed) / elapsed, 0.0), 1.0) if elapsed else None


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A row of `steps.csv`."""

    step: int
    phase: str
    milliseconds: float
    loss: float | None = None


@dataclass(frozen=True)
class Recording:
    """A folder that `record` wrote, whole or as far as it came."""

    folder: Path
    ranks: Mapping[int, RankRecord]
    steps: Mapping[int, tuple[RecordedStep, ...]]
    """by rank, in the order of the file"""
    exit_code: int | None = None
    warnings: tuple[str, ...] = ()

    def timed(self, rank: int) -> tuple[float, ...]:
        """Milliseconds of the steps that ran without the profiler, at a settled pace."""
        return self.step_ms(rank).get("timing", ())

    def step_ms(self, rank: int) -> dict[str, tuple[float, ...]]:
        """Phase -> milliseconds of its steps."""
        by_phase: dict[str, list[float]] = {}
        for step in self.steps.get(rank, ()):
            by_phase.setdefault(step.phase, []).append(step.milliseconds)
        return {phase: tuple(times) for phase, times in by_phase.items()}


def is_recording(folder: Path) -> bool:
    """Whether a launcher or an agent has written here: one may have died before it could."""
    try:
        return (folder / RECORDING_FILE).is_file() or any(folder.glob("rank*.recording.json"))
    except OSError:
        return False


def is_manifest(name: str) -> bool:
    """Whether a file of this name makes its folder a recording."""
    match = _RANK.fullmatch(name)
    return name == RECORDING_FILE or (match is not None and name == rank_file(int(match[1])))


def role_of(name: str) -> tuple[int, Role] | None:
    """Rank and role of a capture by the name of its file, packed or unpacked since; None for any other name."""
    plain = _unpacked(name)
    match = _RANK.fullmatch(plain)
    if match is None:
        return None
    rank = int(match[1])
    roles: tuple[Role, ...] = get_args(Role)
    return next(((rank, r) for r in roles if capture_file(rank, r).removesuffix(".gz") == plain), None)


def _unpacked(name: str) -> str:
    """The name of a file before it was packed."""
    return next((name.removesuffix(suffix) for suffix in _PACKED if name.endswith(suffix)), name)


def is_companion(name: str) -> bool:
    """Whether this file of a recording is no capture, and nothing to speak of."""
    match = _RANK.fullmatch(name)
    return (
        name in _COMPANIONS
        or is_manifest(name)
        or (match is not None and name == rank_steps_file(int(match[1])))
    )


def read(folder: Path) -> Recording | None:
    """The recording in a folder; None where there is none."""
    if not is_recording(folder):
        return None
    manifest = _object(folder / RECORDING_FILE)
    waited = manifest.get("waited_for_cpu")
    ranks = {r.rank: r for r in _rank_records(folder, waited if isinstance(waited, dict) else {})}
    return Recording(
        folder=folder,
        ranks=ranks,
        steps=_steps(folder, ranks),
        exit_code=_whole(manifest.get("exit_code")),
        warnings=_texts(manifest.get("warnings")),
    )


def listed(folder: Path) -> tuple[list[int], list[str]]:
    """Ranks that the manifests of a recording name, sorted, and the names of manifests that hold no object, ranks or
    captures that are none or of another rank, or no rank beside files of one: what those would name is not known."""
    manifests = dict(_rank_manifests(folder))
    names = [(RECORDING_FILE, None), *((path.name, rank) for rank, path in manifests.items())]
    unreadable = [
        n
        for n, rank in names
        if os.path.lexists(folder / n) and not ((manifest := _object(folder / n)) and _is_of(manifest, rank))
    ]
    joined = _object(folder / RECORDING_FILE)
    ranks = _ranks(joined.get("ranks", []))
    none_named = "ranks" in joined and not ranks
    if ranks is None or (none_named and any(role_of(path.name) for path in folder.iterdir())):
        unreadable.append(RECORDING_FILE)
    return sorted({*manifests, *(ranks or ())}), unreadable


def summed_up(folder: Path) -> list[int]:
    """The ranks that `recording.json` lists, which was written when the last of them had ended; none where it does not say."""
    return _ranks(_object(folder / RECORDING_FILE).get("ranks", [])) or []


def missing_captures(folder: Path) -> list[tuple[int, str]]:
    """Captures that the manifests say were written and that lie there no more, packed or unpacked, and manifests of ranks that
    `recording.json` lists: rank and name."""
    manifests = dict(_rank_manifests(folder))
    missing = [(rank, rank_file(rank)) for rank in summed_up(folder) if rank not in manifests]
    for rank, path in manifests.items():
        files = _object(path).get("files")
        for name in files.values() if isinstance(files, dict) else ():
            role = role_of(name) if isinstance(name, str) else None
            if role is None or role[0] != rank:
                continue
            plain = str(folder / _unpacked(name))
            if not any(os.path.lexists(plain + suffix) for suffix in ("", *_PACKED)):
                missing.append((rank, name))
    return missing


def _is_of(manifest: Mapping[str, Any], rank: int | None) -> bool:
    """Whether a manifest says that it is of this rank, if of any, and has captures of it alone, by their names."""
    files = manifest.get("files", {})
    return (
        rank in (None, manifest.get("rank", rank))
        and isinstance(files, dict)
        and all(
            isinstance(name, str) and role_of(name) == (role_of(name) if rank is None else (rank, role))
            for role, name in files.items()
            if role in get_args(Role)
        )
    )


def contradictions(folder: Path, processes: Mapping[int, Collection[str]]) -> list[tuple[int, str]]:
    """What manifests of ranks say that the others, or the traces of the rank, do not: rank and line. `processes`: rank -> those that
    its traces hold, where they hold any."""
    ranks = list(_rank_records(folder, {}))
    sizes = Counter(r.world_size for r in ranks if r.world_size is not None)
    usual = max(sizes, key=lambda size: (sizes[size], size), default=None)
    lines = []
    for r in ranks:
        own, name = processes.get(r.rank), rank_file(r.rank)
        if r.world_size not in (None, usual):
            what = f"says that its job has {r.world_size} ranks, others that it has {usual}"
            lines.append((r.rank, f"{name} {what}"))
        if r.pid is not None and own and str(r.pid) not in own:
            what = f"is of process {r.pid}, and the traces of its rank are of {', '.join(sorted(own)[:4])}"
            lines.append((r.rank, f"{name} {what}"))
    return lines


def _rank_manifests(folder: Path) -> list[tuple[int, Path]]:
    numbered = ((int(m[1]), p) for p in folder.glob("rank*.recording.json") if (m := _RANK.fullmatch(p.name)))
    return sorted(numbered)[:_MOST_RANKS]


def _rank_records(folder: Path, waited: Mapping[str, Any]) -> Iterator[RankRecord]:
    device = one_line(_text(_object(folder / ENVIRONMENT_FILE).get("device"))[:100])
    for rank, path in _rank_manifests(folder):
        manifest = _object(path)
        phases, without = manifest.get("phases"), manifest.get("without")
        yield RankRecord(
            rank=rank,
            pid=_whole(manifest.get("pid")),
            world_size=_count(manifest.get("world_size"), least=1),
            device="" if device == "cpu" else device,
            found_steps_by=_text(manifest.get("found_steps_by")),
            accumulation=_count(manifest.get("accumulation"), least=1),
            ended=_text(manifest.get("ended")),
            peak_allocated_bytes=_count(manifest.get("peak_allocated_bytes")),
            imports=_texts(manifest.get("imports"), _MOST_IMPORTS),
            settings=settings_of(manifest.get("settings")),
            phases=tuple(
                _phase(p) for p in (phases if isinstance(phases, list) else []) if isinstance(p, dict)
            ),
            impossible=_texts(
                [f"{phase}: not captured: {why}" for phase, why in without.items()]
                if isinstance(without, dict)
                else None
            ),
            warnings=_texts(manifest.get("warnings")),
            observed=isinstance(manifest.get("periodic"), dict),
            periodic=periodic_work(manifest.get("periodic")),
            waited_for_cpu=_share(waited.get(str(rank))),
        )


def _phase(entry: dict[str, Any]) -> RecordedPhase:
    overhead = entry.get("overhead")
    first, last = _whole(entry.get("first_step")), _whole(entry.get("last_step"))
    return RecordedPhase(
        name=_text(entry.get("name")),
        first_step=-1 if first is None else first,
        last_step=-1 if last is None else last,
        seconds=_amount(entry.get("seconds")),
        cpu_seconds=_amount(entry.get("cpu_seconds")),
        overhead=_number(overhead.get("share")) if isinstance(overhead, dict) else None,
        why_ended=_text(entry.get("why_ended")),
    )


def periodic_work(entry: Any) -> PeriodicWork | None:
    """What a manifest says of periodic work; None where it says of none, or not all of it."""
    entry = entry if isinstance(entry, dict) else {}
    steps, places = entry.get("steps"), entry.get("places")
    numbers = [_count(n) for n in steps[:_MOST_PERIODS]] if isinstance(steps, list) else []
    every, each, step = (_amount(entry.get(name)) for name in ("every", "milliseconds", "step_ms"))
    share = _share(entry.get("share"))
    read = (
        [_place(p) for p in places[:_MOST_PERIODS] if isinstance(p, dict)] if isinstance(places, list) else []
    )
    if (
        not every
        or each is None
        or step is None
        or share is None
        or None in numbers
        or len(numbers) < 2
        or not read
    ):
        return None
    return PeriodicWork(tuple(n for n in numbers if n is not None), every, each, step, share, tuple(read))


def _place(entry: dict[str, Any]) -> PeriodicPlace:
    file, function, calls = (_text(entry.get(name)) for name in ("file", "function", "calls"))
    return PeriodicPlace(
        file, function, _count(entry.get("line")) or 0, calls, _share(entry.get("share")) or 0.0
    )


def _steps(folder: Path, ranks: Mapping[int, RankRecord]) -> dict[int, tuple[RecordedStep, ...]]:
    """From `steps.csv`; where the launcher did not come to writing it, from those of the ranks."""
    joined = list(_rows(folder / STEPS_FILE))
    rows = joined or [row for rank in ranks for row in _rows(folder / rank_steps_file(rank))]
    by_rank: dict[int, list[RecordedStep]] = {}
    for rank, step in rows:
        by_rank.setdefault(rank, []).append(step)
    return {rank: tuple(steps) for rank, steps in sorted(by_rank.items())}


def _rows(path: Path) -> Iterator[tuple[int, RecordedStep]]:
    """Rows with rank, step, phase and a possible time; others, and one without an end (a killed job cuts the last one), are left out."""
    try:
        with open_regular(path) as data:
            if os.fstat(data.fileno()).st_size > _LARGEST_TABLE:
                return
            file = io.TextIOWrapper(data, encoding="utf-8", errors="replace", newline="")
            for row in csv.DictReader(line for line in file if line.endswith("\n")):
                values = [row.get(column) or "" for column in STEPS_COLUMNS]
                try:
                    rank, step, milliseconds = int(values[0]), int(values[1]), float(values[3])
                    loss = float(values[4]) if values[4] else None
                except ValueError:
                    continue
                if rank >= 0 and _SHORTEST <= milliseconds <= _LONGEST:
                    yield rank, RecordedStep(step, values[2], milliseconds, loss)
    except (OSError, csv.Error):
        return


# -- values of a manifest ----------------------------------------------------------------------------------------


def _object(path: Path) -> dict[str, Any]:
    try:
        decoded = loads(read_regular(path, _LARGEST_MANIFEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", decoded) if isinstance(decoded, dict) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None


def _count(value: Any, least: int = 0) -> int | None:
    number = _whole(value)
    return number if number is not None and number >= least else None


def _ranks(value: Any) -> list[int] | None:
    """None for anything but a list of ranks."""
    numbers = [_whole(v) for v in value[:_MOST_RANKS]] if isinstance(value, list) else [None]
    ranks = [rank for rank in numbers if rank is not None and 0 <= rank < 10**6]
    return ranks if len(ranks) == len(numbers) else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return float(value) if is_number and math.isfinite(value) else None
    except OverflowError:
        return None


def _amount(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and number >= 0 else None


def _share(value: Any) -> float | None:
    amount = _amount(value)
    return amount if amount is not None and amount <= 1 else None


def _text(value: Any) -> str:
    return value[:1000] if isinstance(value, str) else ""


def _texts(value: Any, most: int = 100) -> tuple[str, ...]:
    return tuple(_text(v) for v in value[:most] if _text(v)) if isinstance(value, list) else ()
