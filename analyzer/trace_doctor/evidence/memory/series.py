"""Memory over time, reduced for drawing: min/max buckets never lose a peak."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from trace_doctor.arrays import I64
from trace_doctor.evidence.memory.blocks import DeviceBlocks
from trace_doctor.evidence.memory.timeline import DeviceHistory
from trace_doctor.model import MEMORY_CATEGORIES, MemoryMark, MemorySeries
from trace_doctor.run import MemoryEvents
from trace_doctor.snapshot import Action

MAX_POINTS = 400
MAX_MARKS = 60
_GROWS = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_SHRINKS = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


def series_of(blocks: DeviceBlocks, rank: int) -> MemorySeries:
    """One device of a snapshot. At every point the categories sum to the live bytes."""
    history = blocks.history
    at, unit = axis(history)
    points = points_of(history, at)
    by_category = {
        name: history.bytes_over_time(blocks.classes.where(i))[points].tolist()
        for i, name in enumerate(MEMORY_CATEGORIES)
        if blocks.classes.where(i).any()
    }
    return MemorySeries(
        rank=rank,
        device=history.device,
        unit="us" if unit == "us" else "entry",
        at=at[points].astype(np.float64).tolist(),
        live_by_category=by_category,
        reserved=[None] * len(points) if history.reserved is None else history.reserved[points].tolist(),
        peak_index=int(np.searchsorted(points, history.peak)),
        marks=_marks(blocks, at),
        shown=len(points),
        of=history.n + 1,
    )


def points_of(history: DeviceHistory, at: I64) -> I64:
    """The moments that a picture of the memory shows. `at`: as `axis` gives it."""
    return reduced(history.live, MAX_POINTS, *([] if history.reserved is None else [history.reserved]), at=at)


def series_of_trace(events: MemoryEvents, device: int, rank: int, start: int) -> MemorySeries:
    """One device of a trace with `[memory]` events: only totals are known. `start` is that of the window, ns."""
    rows = np.flatnonzero((events.device == device) & (events.total_allocated >= 0))
    live = events.total_allocated[rows]
    points = reduced(live, MAX_POINTS, events.total_reserved[rows], at=events.ts[rows])
    reserved = events.total_reserved[rows][points]
    return MemorySeries(
        rank=rank,
        device=device,
        unit="us",
        at=((events.ts[rows][points] - start) / 1000.0).tolist(),
        live_by_category={"unknown": live[points].tolist()},
        reserved=[r if r > 0 else None for r in reserved.tolist()],
        peak_index=int(np.searchsorted(points, int(live.argmax()))),
        marks=[MemoryMark((int(events.ts[rows][live.argmax()]) - start) / 1000.0, "peak")],
        shown=len(points),
        of=len(rows),
    )


def thinned(series: MemorySeries, most: int) -> MemorySeries:
    """The same series with at most `most` points, the peak among them."""
    if not series.at:
        return series
    live = np.sum([*series.live_by_category.values()], axis=0)
    reserved = np.array([r or 0 for r in series.reserved], dtype=np.int64)
    points = reduced(live, most, reserved, at=np.array(series.at, dtype=np.int64)).tolist()
    if len(points) == len(series.at):
        return series
    points = sorted({*points, series.peak_index})
    return replace(
        series,
        at=[series.at[i] for i in points],
        live_by_category={c: [values[i] for i in points] for c, values in series.live_by_category.items()},
        reserved=[series.reserved[i] for i in points],
        peak_index=points.index(series.peak_index),
        shown=len(points),
    )


def reduced(values: I64, most: int, *beside: I64, at: I64 | None = None) -> I64:
    """Positions of at most `most` points: both ends, and the first lowest and highest value of equal buckets, also of
    the values `beside` it: what the allocator gives back changes nothing that is live. With `at`, ascending, half of the
    buckets are of equal time, so that neither a burst nor what a long quiet time holds is lost."""
    n = len(values)
    if n <= most:
        return np.arange(n)
    buckets = (most - 3) // 2 // (1 + len(beside))
    if at is not None:
        buckets //= 2
    edges = np.linspace(0, n, buckets + 1).astype(np.int64)
    if at is not None:
        edges = np.unique([*edges, *np.searchsorted(at, np.linspace(at[0], at[-1], buckets + 1)[1:-1])])
    points = {0, n - 1, int(values.argmax())}
    for a, b in pairwise(edges.tolist()):
        for series in (values, *beside):
            points.add(a + int(series[a:b].argmin()))
            points.add(a + int(series[a:b].argmax()))
    return np.array(sorted(points), dtype=np.int64)


def axis(history: DeviceHistory) -> tuple[I64, str]:
    """The place of each moment: microseconds from the first entry, or its number where there is no clock."""
    clock = history.time_us
    if not len(clock) or (clock < 0).any():
        return np.arange(history.n + 1), "entry"
    since = np.maximum.accumulate(clock) - clock[0]
    return np.concatenate([[0], since]), "us"


def _marks(blocks: DeviceBlocks, at: I64) -> list[MemoryMark]:
    history = blocks.history
    marks = [MemoryMark(float(at[history.peak]), "peak")]
    marks += [MemoryMark(float(at[p + 1]), "oom") for p in np.flatnonzero(history.action == Action.OOM)]
    ends = blocks.phases.step_ends
    marks += [MemoryMark(float(at[end]), "step", f"step {i}") for i, end in _some(list(enumerate(ends)))]
    marks += _segment_marks(history, at, _GROWS, "segment_alloc")
    marks += _segment_marks(history, at, _SHRINKS, "segment_free")
    return sorted(marks, key=lambda m: (m.at, m.kind))


def _segment_marks(history: DeviceHistory, at: I64, kinds: Iterable[int], kind: str) -> list[MemoryMark]:
    """Segment events, those close together as one mark."""
    positions = np.flatnonzero(np.isin(history.action, list(kinds)))
    if not len(positions):
        return []
    bucket = at[positions + 1] * MAX_MARKS // max(int(at[-1]), 1)
    marks: list[MemoryMark] = []
    for b in np.unique(bucket):
        inside = positions[bucket == b]
        mib = int(history.entry_size[inside].sum()) / (1 << 20)
        label = f"{len(inside)} segment{'s' if len(inside) > 1 else ''}, {mib:.0f} MiB"
        marks.append(MemoryMark(float(at[inside[0] + 1]), kind, label))
    return marks


def _some(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return rows[:: -(-len(rows) // MAX_MARKS) or 1]
