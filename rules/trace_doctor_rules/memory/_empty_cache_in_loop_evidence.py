"""Where `torch.cuda.empty_cache()` gives memory back to the driver: bursts of freed segments."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, Self

import numpy as np
from msgspec import Struct

from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.memory.allocator import AllocatorActivity, DriverCalls, caused_by
from trace_doctor.evidence.memory.timeline import DeviceHistory, MemoryTimeline
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.recorded_operators import RecordedOperators
from trace_doctor.run import Cat, Run
from trace_doctor.snapshot import NO_STACK, Action, Snapshot

_EMPTY_CACHE = re.compile(r"(?:.*[\\/])?(?:cuda|xpu|hpu|musa)[\\/]memory\.py\(\d+\): empty_cache")
_GRAPH_CAPTURE = re.compile(r"cuda[\\/]graphs\.py")
"""`torch.cuda.graph` empties the cache before each capture: a cost of the capture, and nobody's call."""
_SHRINKS = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


class Burst(Struct, frozen=True):
    """Segments given back one after another, with no allocation in between."""

    start: int
    """entry of a snapshot, or ns of a trace"""
    end: int
    segments: int
    bytes: int | None = None
    """None in a trace, whose calls do not say"""
    stack: int = NO_STACK
    """of the first segment (snapshot)"""
    row: int = -1
    """of the Python frame of empty_cache, else of the first call (trace)"""


class CacheEmptying(Evidence, frozen=True):
    """Bursts that empty_cache() makes. Raises NotCaptured where segments were not recorded."""

    source: Literal["snapshot", "trace"]
    by_device: dict[int, tuple[Burst, ...]]
    """of a snapshot by device; of a trace all under -1"""
    named: bool
    """frames name empty_cache(); else it is told by calls outside of every operator"""
    unnamed: int = 0
    """times that segments were given back whose frames a snapshot lacks, on the device where it is most"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        activity = facts[AllocatorActivity]
        if (timeline := facts.get(MemoryTimeline)) is not None:
            snapshot = facts.snapshot
            by_device = {h.device: of_history(h, snapshot) for h in timeline.devices}
            unnamed = max((len(_without_frames(h, snapshot)) for h in timeline.devices), default=0)
            return cls("snapshot", by_device, True, unnamed)
        calls = activity.calls
        if calls is None:
            return cls("trace", {}, False)
        frames = facts.run.named(lambda n: _EMPTY_CACHE.fullmatch(n) is not None, Cat.PYTHON)
        captures = facts.run.is_named(lambda n: _GRAPH_CAPTURE.search(n) is not None)
        frames = frames[~facts[Nesting].inside(frames, captures)]
        if facts.run.is_cat(Cat.PYTHON).any():
            return cls("trace", {-1: _in_frames(facts.run, calls, frames.tolist())}, True)
        if not calls.takes.all():
            facts[RecordedOperators]  # else nobody knows what asked
        return cls("trace", {-1: _outside_operators(facts.run, facts[Nesting], calls)}, False)


def of_history(history: DeviceHistory, snapshot: Snapshot) -> tuple[Burst, ...]:
    """Runs of freed segments under frames of empty_cache()."""
    own = _given_back(
        history,
        lambda s: (
            caused_by(s, snapshot) == "empty_cache"
            and not any(_GRAPH_CAPTURE.search(f.filename) for f in snapshot.frames_of(s))
        ),
    )
    return tuple(
        Burst(
            run[0],
            run[-1] + 1,
            len(run),
            int(history.entry_size[run].sum()),
            stack=int(history.entry_stack[run[0]]),
        )
        for run in own
    )


def _without_frames(history: DeviceHistory, snapshot: Snapshot) -> list[list[int]]:
    return _given_back(history, lambda s: not snapshot.frames_of(s))


def _given_back(history: DeviceHistory, by: Callable[[int], bool]) -> list[list[int]]:
    """Entries of segments that are freed under stacks which `by` takes: one list for each time between allocations."""
    gives = np.flatnonzero(np.isin(history.action, _SHRINKS))
    stacks = {s for s in np.unique(history.entry_stack[gives]).tolist() if by(s)}
    own = [int(g) for g in gives if int(history.entry_stack[g]) in stacks]
    allocations = np.cumsum(history.action == Action.ALLOC)
    return _runs(own, lambda a, b: bool(allocations[a] == allocations[b]))


def _in_frames(run: Run, calls: DriverCalls, frames: Sequence[int]) -> tuple[Burst, ...]:
    """Frames of empty_cache() in which at least one segment was given back."""
    bursts = []
    for row in frames:
        inside = (
            (calls.thread == run.thread[row]) & (calls.start >= run.ts[row]) & (calls.end <= run.end[row])
        )
        count = int((inside & ~calls.takes).sum())
        if count:
            bursts.append(Burst(int(run.ts[row]), int(run.end[row]), count, row=row))
    return tuple(bursts)


def _outside_operators(run: Run, nesting: Nesting, calls: DriverCalls) -> tuple[Burst, ...]:
    """Without Python frames: malloc gives segments back inside the operator that asks; empty_cache() outside of all."""
    gives = np.flatnonzero(~calls.takes)
    operators = run.is_cat(Cat.CPU_OP)
    outside = gives[~nesting.inside(calls.row[gives], operators)]
    starts = np.sort(run.ts[operators])
    behind = np.searchsorted(starts, calls.start)  # operators begun before each call
    return tuple(
        Burst(int(calls.start[b[0]]), int(calls.end[b[-1]]), len(b), row=int(calls.row[b[0]]))
        for b in _runs(outside.tolist(), lambda i, j: bool(behind[i] == behind[j]))
    )


def _runs(positions: Sequence[int], together: Callable[[int, int], bool]) -> list[list[int]]:
    """Neighbours that belong together, as lists."""
    runs: list[list[int]] = [[positions[0]]] if len(positions) else []
    for before, here in pairwise(positions):
        if together(before, here):
            runs[-1].append(here)
        else:
            runs.append([here])
    return runs
