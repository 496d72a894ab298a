"""Plants host and GPU work into a recorded capture and re-times what comes behind it, so that the effect is known.

Each event keeps its duration, its order and its distance to what it waits for. The host is behind by `H`: everything that it
does moves by as much. The GPU is behind by `G`, which grows only where a launch comes too late for the time at which its
work started, or where planted GPU work is in the way: a queue hides what is planted on the host. A host that waits for the
GPU catches up with it, and one that waits for a batch of the loader's workers finds it there. What the steps are longer by in the end is the effect.

Times are microseconds of the capture's own clock.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]
GPU = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
WAITS = ("StreamSynchronize", "DeviceSynchronize", "EventSynchronize")
LATENCY = 3.0
"""from the launch call's begin to the earliest start of its work; a capture in which work started sooner keeps that"""


TAKEN = 300.0
"""to take a batch that is ready"""


@dataclass(frozen=True)
class Plant:
    """At the moment `at` the host waits for the GPU (`drains`), is busy for `host_us`, and launches GPU work of `gpu_us`, for
    which it waits too where it `blocks`. `made(begin, end, gpu_begin, gpu_end)` gives the events that record it."""

    at: float
    host_us: float = 0.0
    gpu_us: float = 0.0
    drains: bool = True
    blocks: bool = False
    stream: tuple[Any, Any] | None = None
    """the (pid, tid) whose work the GPU work comes after; without it after that of all"""
    until: float = 0.0
    """the GPU work ends then, if it would end sooner: it waits for another rank"""
    made: Callable[[float, float, float, float], list[Event]] | None = None


@dataclass(frozen=True)
class Planted:
    events: list[Event]
    longer_us: float
    """by how much the last thing of the capture ends later"""


@dataclass(frozen=True)
class _Work:
    ts: float
    end: float
    launch: float
    stream: tuple[Any, Any]


def marks(events: Sequence[Event]) -> list[Event]:
    """`ProfilerStep#n` of the host, by start."""
    found = [
        e
        for e in events
        if e.get("ph") == "X"
        and str(e.get("name")).startswith("ProfilerStep#")
        and e.get("cat") in ("user_annotation", "cpu_op")
    ]
    return sorted(found, key=lambda e: float(e["ts"]))


def step_us(events: Sequence[Event]) -> float:
    """Mean time from the first mark to the end of the last thing, per mark."""
    steps = marks(events)
    ends = [float(e["ts"]) + float(e["dur"]) for e in events if _is_step_work(e)]
    return (max(ends) - float(steps[0]["ts"])) / len(steps)


def boundaries(events: Sequence[Event]) -> list[list[float]]:
    """For each step the moments at which an outermost operator of the main thread begins that no annotation holds but the
    step's own mark: there a pause has no name. Not between two gradients, where no code of the user's runs."""
    steps = marks(events)
    thread = steps[0]["tid"]
    own = [
        e for e in events if e.get("ph") == "X" and e.get("tid") == thread and e.get("pid") == steps[0]["pid"]
    ]
    ops = sorted(
        (e for e in own if e.get("cat") == "cpu_op" and not _is_mark(e)),
        key=lambda e: (float(e["ts"]), -float(e["dur"])),
    )
    named = [
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]))
        for e in own
        if e.get("cat") in ("user_annotation", "cuda_runtime", "cuda_driver") and not _is_mark(e)
    ]
    held = _holes(named)
    outermost, reached = [], float("-inf")
    for op in ops:
        start, end = float(op["ts"]), float(op["ts"]) + float(op["dur"])
        if start >= reached:
            if not str(op["name"]).startswith("autograd::engine"):
                outermost.append(start)
            reached = end
    starts = [float(e["ts"]) for e in steps]
    ends = [float(e["ts"]) + float(e["dur"]) for e in steps]
    return [
        [m for m in outermost if start <= m < end and not _inside(held, m)]
        for start, end in zip(starts, ends, strict=True)
    ]


def inside_operators(events: Sequence[Event], moments: Sequence[Sequence[float]]) -> list[list[float]]:
    """The moments 0.1 us behind these begins of operators, or in the middle of shorter ones."""
    by_start = {
        float(e["ts"]): float(e["dur"]) for e in events if e.get("cat") == "cpu_op" and e.get("ph") == "X"
    }
    return [[m + min(0.1, by_start.get(m, 0.2) / 2) for m in step] for step in moments]


def plant(events: Sequence[Event], plants: Sequence[Plant]) -> Planted:
    """The capture with all of it, re-timed."""
    works = _works(events)
    waits = sorted(
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]))
        for e in events
        if e.get("ph") == "X" and str(e.get("name")).endswith(WAITS) and "dur" in e
    )
    blocking = _blocking_copies(events)
    batches = [
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]))
        for e in events
        if e.get("ph") == "X" and _is_batch(e)
    ]
    order = sorted(
        [(end, 0, (start, end)) for start, end in [*waits, *blocking]]
        + [(end, 1, (start, end)) for start, end in batches]
        + [(p.at, 2, p) for p in plants]
        + [(w.ts, 3, w) for w in works],
        key=lambda item: (item[0], item[1]),
    )
    behind = _Behind()
    launched = sorted(works, key=lambda w: w.launch)
    launches = [w.launch for w in launched]
    made: list[Event] = []
    for at, kind, item in order:
        if isinstance(item, _Work):
            behind.work(item)
        elif kind == 1:
            behind.fetched(*item)
        elif isinstance(item, Plant):
            pending = launched[
                max(0, bisect.bisect_right(launches, at) - 4096) : bisect.bisect_right(launches, at)
            ]
            made += behind.planted(item, pending)
        else:
            behind.waited(*item)
    moved = [behind.moved(e) for e in events]
    before = max(float(e["ts"]) + float(e["dur"]) for e in events if _is_step_work(e))
    after = max(float(e["ts"]) + float(e["dur"]) for e in moved if _is_step_work(e))
    return Planted([*moved, *made], after - before)


class _Behind:
    """How late host and GPU are, from moment to moment."""

    def __init__(self) -> None:
        self.host_at, self.host = [float("-inf")], [0.0]
        self.gpu_at, self.gpu = [float("-inf")], [0.0]
        self.free: dict[Any, float] = {}
        self.barriers: list[tuple[float, float, Any]] = []

    def host_of(self, moment: float, *, ends: bool = False) -> float:
        find = bisect.bisect_left if ends else bisect.bisect_right
        return self.host[find(self.host_at, moment) - 1]

    def gpu_of(self, moment: float) -> float:
        return self.gpu[bisect.bisect_right(self.gpu_at, moment) - 1]

    def _needed(self, work: _Work) -> float:
        """What the GPU is late by once this has started."""
        slack = max(work.ts - work.launch - LATENCY, 0.0)
        late = max(self.gpu[-1], self.host_of(work.launch) - slack)
        for launch, until, stream in self.barriers:
            if work.launch >= launch and stream in (None, work.stream):
                late = max(late, until - work.ts)
        return late

    def work(self, work: _Work) -> None:
        late = self._needed(work)
        self.barriers = [b for b in self.barriers if b[0] > work.launch or b[2] not in (None, work.stream)]
        if late > self.gpu[-1]:
            self.gpu_at.append(work.ts)
            self.gpu.append(late)
        self._busy(work.stream, work.end + self.gpu[-1])

    def _busy(self, stream: Any, until: float) -> None:
        self.free[stream] = max(self.free.get(stream, until), until)

    def waited(self, start: float, end: float) -> None:
        """The host waited for the GPU: it is as late as that, unless it came so late that nothing was left to wait for."""
        late = max(self.gpu[-1], self.host[-1] - max(end - start - 1.0, 0.0))
        self._late(end, late)

    def fetched(self, start: float, end: float) -> None:
        """The batch was made meanwhile: of the wait for it what the host is late by is gone."""
        late = max(self.host[-1] - max(end - start - TAKEN, 0.0), 0.0)
        self._late(end, late)

    def _late(self, end: float, late: float) -> None:
        """From just before the end of a wait on: what is planted at that moment comes after it."""
        if late != self.host[-1]:
            self.host_at.append(math.nextafter(end, -math.inf))
            self.host.append(late)

    def planted(self, plant: Plant, pending: Sequence[_Work]) -> list[Event]:
        begin = plant.at + self.host[-1]
        ahead = dict(self.free)
        late = self.gpu[-1]
        for work in pending:
            if work.ts >= plant.at:
                late = max(late, self._needed(work))
                ahead[work.stream] = max(ahead.get(work.stream, begin), work.end + late)
        drained = max(ahead.values(), default=begin)
        free = ahead.get(plant.stream, begin) if plant.stream else drained
        end = (max(begin, drained) if plant.drains else begin) + plant.host_us
        gpu_begin = gpu_end = 0.0
        if plant.gpu_us:
            gpu_begin = max(end + LATENCY, free)
            gpu_end = max(gpu_begin + plant.gpu_us, plant.until)
            self._busy(plant.stream, gpu_end)
            self.barriers.append((plant.at, gpu_end, plant.stream))
            end = gpu_end + 1.0 if plant.blocks else end + 2.0
        self.host_at.append(plant.at)
        self.host.append(self.host[-1] + end - begin)
        return plant.made(begin, end, gpu_begin, gpu_end) if plant.made else []

    def moved(self, event: Event) -> Event:
        made = dict(event)
        if "ts" not in event:
            return made
        start = float(event["ts"])
        if event.get("cat") in GPU or (
            event.get("ph") == "f"
            and "cpu" in str(event.get("cat")) + "ac2g"
            and event.get("cat") != "fwdbwd"
        ):
            made["ts"] = start + self.gpu_of(start)
            if event.get("cat") == "gpu_user_annotation":
                end = start + float(event["dur"])
                made["dur"] = end + self.gpu_of(end - 1e-3) - made["ts"]
        else:
            made["ts"] = start + self.host_of(start)
            if event.get("ph") == "X":
                end = start + float(event["dur"])
                made["dur"] = max(end + self.host_of(end, ends=True) - made["ts"], 0.0)
        return made


def _works(events: Sequence[Event]) -> list[_Work]:
    """GPU work by start. A stream works in order: what ran on it before something else was launched no later than that, also
    where its own launch is not in the capture, or was written down late."""
    launched = {
        e["args"]["correlation"]: float(e["ts"])
        for e in events
        if str(e.get("cat")).endswith(("_runtime", "_driver")) and "correlation" in (e.get("args") or {})
    }
    latest: dict[Any, float] = {}
    works = []
    for e in sorted(
        (e for e in events if e.get("cat") in GPU[:3] and e.get("ph") == "X"), key=lambda e: -float(e["ts"])
    ):
        ts, stream = float(e["ts"]), (e["pid"], e["tid"])
        known = launched.get((e.get("args") or {}).get("correlation"), ts)
        latest[stream] = min(known, ts, latest.get(stream, ts))
        works.append(_Work(ts, ts + float(e["dur"]), latest[stream], stream))
    return works[::-1]


def _blocking_copies(events: Sequence[Event]) -> list[tuple[float, float]]:
    """Calls of copies that return when the copy is done."""
    ends = {
        e["args"]["correlation"]: float(e["ts"]) + float(e["dur"])
        for e in events
        if e.get("cat") == "gpu_memcpy" and "correlation" in (e.get("args") or {})
    }
    calls = []
    for e in events:
        if "Memcpy" in str(e.get("name")) and str(e.get("cat")).endswith(("_runtime", "_driver")):
            start, end = float(e["ts"]), float(e["ts"]) + float(e["dur"])
            done = ends.get((e.get("args") or {}).get("correlation"), float("inf"))
            if start < done <= end + 0.5:
                calls.append((start, end))
    return calls


def _is_batch(event: Event) -> bool:
    return "_MultiProcessingDataLoaderIter.__next__" in str(event.get("name"))


def _is_mark(event: Event) -> bool:
    return str(event.get("name")).startswith("ProfilerStep#")


def _is_step_work(event: Event) -> bool:
    return (
        event.get("ph") == "X"
        and (event.get("cat") in (*GPU[:3], "cpu_op") or _is_mark(event))
        and "dur" in event
    )


def _holes(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _inside(spans: Sequence[tuple[float, float]], moment: float) -> bool:
    at = bisect.bisect_right([start for start, _ in spans], moment) - 1
    return at >= 0 and spans[at][0] < moment < spans[at][1]
