"""What the caching allocator did with the driver: segments taken, given back, and taken again.

Growing to a new maximum is what an allocator is for, however long it takes. Churn is taking again what was given back:
an episode is one run of giving back followed by taking below the earlier maximum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.memory.timeline import DeviceHistory, MemoryTimeline
from trace_doctor.evidence.names.event_names import is_segment_alloc, is_segment_free
from trace_doctor.evidence.replay.what_if import Removal
from trace_doctor.loaders.recorded_environment import ALLOCATOR_SETTINGS
from trace_doctor.run import Cat, Run
from trace_doctor.snapshot import NO_STACK, Action, Snapshot

ADVICE = (
    "a snapshot (torch.cuda.memory._record_memory_history(), some steps after warm-up, _dump_snapshot), or a trace with "
    "activities=[CPU, CUDA] and profile_memory=True"
)
Cause = Literal["pressure", "empty_cache", "gc_threshold", "unknown"]
_GROWS = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_SHRINKS = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


class Episode(Struct, frozen=True):
    """Memory given back and taken again. Positions are entries of a snapshot, or ns of a trace."""

    given: int
    """where giving back began"""
    taken: int
    """where taking again ended"""
    bytes: int
    """taken again below the earlier maximum"""
    cause: Cause = "unknown"
    stack: int = NO_STACK
    """of the first segment freed (snapshot)"""


class DeviceActivity(Struct, frozen=True):
    """One device's segments."""

    device: int
    source: Literal["snapshot", "trace"]
    max_reserved: int
    episodes: tuple[Episode, ...]
    takes: int
    """how often a segment was taken, and given back"""
    gives: int


class DriverCalls(Struct, frozen=True):
    """Calls of a trace that take memory from the driver or give it back, in time order: cudaMalloc, cuMemCreate, hipFree
    and their like. Stream-ordered ones (`…Async`) are not among them: they are cheap by design."""

    row: I64
    thread: I64
    start: I64
    end: I64
    takes: Bool
    """else it gives back"""
    name: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.row)

    def within(self, start: int, end: int) -> DriverCalls:
        """Those that lie wholly in [start, end) ns."""
        inside = np.flatnonzero((self.start >= start) & (self.end <= end))
        return DriverCalls(
            self.row[inside],
            self.thread[inside],
            self.start[inside],
            self.end[inside],
            self.takes[inside],
            tuple(self.name[i] for i in inside),
        )

    def removal(self) -> Removal:
        """These calls, for the replay to leave out."""
        return Removal(
            host_spans=tuple(zip(self.thread.tolist(), self.start.tolist(), self.end.tolist(), strict=True))
        )

    @classmethod
    def of(cls, run: Run) -> DriverCalls:
        """The calls of a trace, by start; those of the asynchronous allocator are no part of it."""
        takes = run.named(lambda n: is_segment_alloc(n) and "Async" not in n, Cat.RUNTIME, Cat.DRIVER)
        gives = run.named(lambda n: is_segment_free(n) and "Async" not in n, Cat.RUNTIME, Cat.DRIVER)
        rows = np.union1d(takes, gives)
        return cls(
            rows,
            run.thread[rows].astype(np.int64),
            run.ts[rows],
            run.end[rows],
            np.isin(rows, takes),
            tuple(run.text(int(r)) for r in rows),
        )


class AllocatorActivity(Evidence, frozen=True):
    """Segment events of a snapshot, reserved totals of a trace, and the driver calls of a trace.

    Raises NotCaptured where none of them was recorded.
    """

    devices: tuple[DeviceActivity, ...]
    calls: DriverCalls | None = None
    """of the trace; None without one"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """of the allocator, as far as a snapshot or what lies beside the trace says"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        device_activities: list[DeviceActivity] = []
        timeline, snapshot, run = facts.get(MemoryTimeline), facts.capture.snapshot, facts.capture.run
        if timeline is not None and snapshot is not None:
            device_activities += [a for h in timeline.devices if (a := of_history(h, snapshot)) is not None]
        settings = {
            **(run.meta.get(ALLOCATOR_SETTINGS, {}) if run else {}),
            **(snapshot.allocator_settings if snapshot else {}),
        }
        if run is None:
            if not device_activities:
                facts[MemoryTimeline]  # raises with the reason
                raise NotCaptured("the snapshot's segment events contradict its segments", ADVICE)
            return cls(tuple(device_activities), settings=settings)
        of_trace = _of_trace(run)
        calls = run.is_cat(Cat.RUNTIME, Cat.DRIVER)
        if not device_activities and not of_trace and (not calls.any() or not len(run.gpu)):
            raise NotCaptured("no GPU memory events, driver calls or snapshot", ADVICE)
        return cls(tuple(device_activities or of_trace), DriverCalls.of(run), settings)


def of_history(history: DeviceHistory, snapshot: Snapshot) -> DeviceActivity | None:
    """A snapshot's device; None where its reserved bytes are not known."""
    if history.reserved is None:
        return None
    action = history.action
    grows, shrinks = np.isin(action, _GROWS), np.isin(action, _SHRINKS)
    marks = np.flatnonzero(grows | shrinks | (action == Action.OOM))
    episodes = [
        _explained(e, history, snapshot)
        for e in episodes_of(
            marks, history.reserved[marks], history.reserved[marks + 1], action[marks] == Action.OOM
        )
    ]
    return DeviceActivity(
        device=history.device,
        source="snapshot",
        max_reserved=int(history.reserved.max()),
        episodes=tuple(episodes),
        takes=int(grows.sum()),
        gives=int(shrinks.sum()),
    )


def growths(history: DeviceHistory) -> I64:
    """Entries at which the allocator took memory from the driver."""
    return np.flatnonzero(np.isin(history.action, _GROWS))


def asker(history: DeviceHistory, growth: int) -> int:
    """The stack of the allocation that memory was taken for: the one right behind it."""
    allocations = np.flatnonzero(history.action[growth:] == Action.ALLOC)
    return int(history.entry_stack[growth + allocations[0] if len(allocations) else growth])


def asked_again(history: DeviceHistory, episodes: Iterable[Episode]) -> dict[int, list[int]]:
    """stack -> sizes of the allocations for which a segment was taken again."""
    grows = np.isin(history.action, _GROWS)
    by_stack: dict[int, list[int]] = defaultdict(list)
    for episode in episodes:
        positions = np.arange(episode.given + 1, min(episode.taken + 2, history.n))
        for at in positions[(history.action[positions] == Action.ALLOC) & grows[positions - 1]]:
            by_stack[int(history.entry_stack[at])].append(int(history.entry_size[at]))
    return dict(by_stack)


def episodes_of(at: I64, before: I64, after: I64, failed: Bool) -> list[Episode]:
    """Episodes in a series of changes of the reserved bytes. `failed` marks failures (out of memory): what was given
    back in retries before one, and taken again behind it, is not churn."""
    episodes: list[Episode] = []
    highest = int(before[0]) if len(before) else 0
    given = -1  # where giving back began, while nothing was taken again yet
    shrinking = True  # no episode is open
    for where, b, a, oom in zip(at.tolist(), before.tolist(), after.tolist(), failed.tolist(), strict=True):
        if oom:
            highest, given, shrinking = a, -1, True
        elif a < b:
            given = where if given < 0 else given
        elif (again := min(a, highest) - b) > 0:
            if given >= 0:
                episodes.append(Episode(given, where, again))
            elif episodes and not shrinking:
                episodes[-1] = replace(episodes[-1], taken=where, bytes=episodes[-1].bytes + again)
            given, shrinking = -1, False
        highest = max(highest, a)
    return episodes


def _explained(episode: Episode, history: DeviceHistory, snapshot: Snapshot) -> Episode:
    stack = int(history.entry_stack[episode.given])
    return replace(episode, cause=caused_by(stack, snapshot), stack=stack)


def caused_by(stack: int, snapshot: Snapshot) -> Cause:
    """Who gave a segment back: a call of empty_cache, or malloc itself when the driver had nothing left. Files of torch
    2.1 and before have no frames there."""
    names = [f.name for f in snapshot.frames_of(stack)]
    if any("emptyCache" in n or n == "empty_cache" for n in names):
        return "empty_cache"
    if any("garbage_collect_cached_blocks" in n for n in names):
        return "gc_threshold"
    if any("::malloc(" in n or "cached_blocks" in n for n in names) or (
        names and snapshot.frames_kind == "python"
    ):
        return "pressure"
    return "unknown"


def _of_trace(run: Run) -> list[DeviceActivity]:
    """Devices with reserved totals in the `[memory]` events, in time order."""
    events = run.memory
    known = (events.device >= 0) & (events.total_reserved > 0)
    device_activities: list[DeviceActivity] = []
    for device in np.unique(events.device[known]).tolist():
        rows = np.flatnonzero(known & (events.device == device))
        reserved = events.total_reserved[rows]
        changes = np.flatnonzero(np.diff(reserved)) + 1
        episodes = episodes_of(
            events.ts[rows][changes],
            reserved[changes - 1],
            reserved[changes],
            np.zeros(len(changes), np.bool_),
        )
        grew = reserved[changes] > reserved[changes - 1]
        device_activities.append(
            DeviceActivity(
                device, "trace", int(reserved.max()), tuple(episodes), int(grew.sum()), int((~grew).sum())
            )
        )
    return device_activities
