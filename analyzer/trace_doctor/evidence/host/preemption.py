"""How long a thread stood still in code that usually works: the machine gave its processor to others."""

from __future__ import annotations

import numpy as np

from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.idle.host_causes import PAUSE_NS
from trace_doctor.evidence.intervals import NOTHING, pairs
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.run import Run


def held_up(run: Run, nesting: Nesting, rows: I64, thread: int) -> I64:
    """ns for each of the rows (ascending, of one thread): stretches of 1 ms and more in which nothing begins or ends, in
    an event of a name that stands still in fewer than half of the cases of the row's own name. What a function waits for
    lies in the same callee each time; who loses the processor loses it anywhere."""
    found: dict[tuple[int, int], dict[int, int]] = {}
    for row in nesting.outermost(rows).tolist():
        holes = _still(run, nesting, row, thread)
        for inner, length in zip(nesting.enclosing(thread, holes).tolist(), _lengths(holes), strict=True):
            for around in _with(nesting, inner, row):
                held = found.setdefault((int(run.name[around]), int(run.name[inner])), {})
                held[around] = held.get(around, 0) + length
    alike = run.by_name.rows(np.unique(run.name[rows]).tolist())
    cases = np.bincount(run.name[alike[run.thread[alike] == thread]], minlength=len(run.names))
    lost = dict.fromkeys(rows.tolist(), 0)
    for (name, _), held in found.items():
        if 2 * len(held) < cases[name]:
            for around, length in held.items():
                if around in lost:
                    lost[around] += length
    return np.array(list(lost.values()), dtype=np.int64)


def _still(run: Run, nesting: Nesting, row: int, thread: int) -> I64:
    """The stretches within an event in which nothing begins or ends for long."""
    start, end = int(run.ts[row]), int(run.end[row])
    inside = nesting.started(thread, start, end)
    begun = np.concatenate([[start], run.ts[inside], [end]])
    long = np.flatnonzero(np.diff(begun) >= PAUSE_NS)  # few: only what ends in these is looked at
    if not len(long):
        return NOTHING
    low, high = begun[long], begun[long + 1]
    ends = run.end[inside]
    ends = ends[_within(ends, low, high)]
    edges = np.unique(np.concatenate([low, high, ends]))
    holes = pairs(edges[:-1], edges[1:])
    return holes[(holes[:, 1] - holes[:, 0] >= PAUSE_NS) & _within(edges[:-1], low, high)]


def _within(moments: I64, low: I64, high: I64) -> Bool:
    """Which lie in [low, high) of one of these disjoint stretches, which are in order of time."""
    at = np.searchsorted(low, moments, side="right") - 1
    return np.asarray((at >= 0) & (moments < high[at]))


def _lengths(holes: I64) -> list[int]:
    return (holes[:, 1] - holes[:, 0]).tolist()  # type: ignore[no-any-return]


def _with(nesting: Nesting, inner: int, row: int) -> list[int]:
    """An event, and those around it up to a row."""
    chain = [inner, *nesting.ancestors(inner)]
    return chain[: chain.index(row) + 1] if row in chain else []
