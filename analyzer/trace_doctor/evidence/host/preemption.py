"""How long a thread stood still in code that usually works: the machine gave its processor to others."""

from __future__ import annotations

import numpy as np

from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.intervals import NOTHING, pairs
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.run import Run


def held_up(run: Run, nesting: Nesting, rows: I64, thread: int, gap_ns: int, callee_share: float) -> I64:
    """ns for each of the rows (ascending, of one thread): stretches of `gap_ns` and more in which nothing begins or ends, in
    an event of a name that stands still in less than `callee_share` of the cases of the row's own name. What a function
    waits for lies in the same callee each time; who loses the processor loses it anywhere."""
    still: dict[tuple[int, int], dict[int, int]] = {}
    """by the names of an event and of the one in it that stands still: ns by the row of the former"""
    for row in nesting.outermost(rows).tolist():
        holes = _still(run, nesting, row, thread, gap_ns)
        lengths = (holes[:, 1] - holes[:, 0]).tolist()
        for inner, length in zip(nesting.enclosing(thread, holes).tolist(), lengths, strict=True):
            chain = [inner, *nesting.ancestors(inner)]
            for around in chain[: chain.index(row) + 1] if row in chain else ():
                by_row = still.setdefault((int(run.name[around]), int(run.name[inner])), {})
                by_row[around] = by_row.get(around, 0) + length
    alike = run.by_name.rows(np.unique(run.name[rows]).tolist())
    cases = np.bincount(run.name[alike[run.thread[alike] == thread]], minlength=len(run.names))
    lost = dict.fromkeys(rows.tolist(), 0)
    for (name, _), by_row in still.items():
        if len(by_row) < callee_share * cases[name]:
            for around, length in by_row.items():
                if around in lost:
                    lost[around] += length
    return np.array(list(lost.values()), dtype=np.int64)


def _still(run: Run, nesting: Nesting, row: int, thread: int, gap_ns: int) -> I64:
    """The stretches within an event in which nothing begins or ends for so long."""
    start, end = int(run.ts[row]), int(run.end[row])
    inside = nesting.started(thread, start, end)
    begun = np.concatenate([[start], run.ts[inside], [end]])
    long = np.flatnonzero(np.diff(begun) >= gap_ns)  # few: only what ends in these is looked at
    if not len(long):
        return NOTHING
    low, high = begun[long], begun[long + 1]
    ends = run.end[inside]
    edges = np.unique(np.concatenate([low, high, ends[_within(ends, low, high)]]))
    holes = pairs(edges[:-1], edges[1:])
    return holes[(holes[:, 1] - holes[:, 0] >= gap_ns) & _within(edges[:-1], low, high)]


def _within(moments: I64, low: I64, high: I64) -> Bool:
    """Which lie in [low, high) of one of these disjoint stretches, which are in order of time."""
    at = np.searchsorted(low, moments, side="right") - 1
    return np.asarray((at >= 0) & (moments < high[at]))
