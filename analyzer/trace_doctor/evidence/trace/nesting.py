"""Which host event encloses which, per thread."""

from __future__ import annotations

from functools import cached_property
from typing import Self, TypeVar

import numpy as np

from trace_doctor.arrays import I32, I64, Bool, at_rows, begins, order_of
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.loaders import _accelerator
from trace_doctor.run import HOST_CATS, Run

R = TypeVar("R", I32, I64)


class Nesting(Evidence, frozen=True):
    """The call tree of each thread. One entry per row of the run; rows that are no host events are -1.

    Real tracks overlap by clock noise, so an event belongs to the innermost event that is open at its start and
    holds its middle.
    """

    derived_columns = ("parent", "depth", "by_thread")

    parent: I32
    """nearest enclosing host event on the same thread, -1 for none"""
    depth: I32
    """number of enclosing events; -1 for rows that are no host events"""
    by_thread: I32
    """the host events by thread, then start"""
    run: Run

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run = facts.run
        parent = np.full(len(run), -1, dtype=np.int32)
        depth = np.full(len(run), -1, dtype=np.int32)
        host = np.flatnonzero(run.is_cat(*HOST_CATS))
        by_thread = host[order_of(run.thread[host], len(run.threads))]
        borders = np.flatnonzero(np.diff(run.thread[by_thread])) + 1
        for rows in np.split(by_thread, borders):
            if not _accelerator.nest(run.ts, run.dur, rows, parent, depth):
                above, depth[rows] = nest(run.ts[rows], run.end[rows])
                parent[rows] = at_rows(rows, above, -1)
        return cls(parent, depth, by_thread.astype(np.int32), run)

    def ancestors(self, row: int) -> list[int]:
        """The enclosing events, inner to outer; of no row (-1) none."""
        chain = [row]
        while chain[-1] >= 0:
            chain.append(int(self.parent[chain[-1]]))
        return chain[1:-1]

    def children(self, row: int) -> I64:
        """The rows directly inside, by start."""
        first, behind = self._first_child[row], self._first_child[row + 1]
        return self._by_parent[first:behind].astype(np.int64)

    def innermost(self, thread: int, moments: I64) -> I64:
        """The innermost event of a thread (index in `run.threads`) that is open at each moment (ns), -1 where none is."""
        return self._climbed(thread, moments, moments + 1)

    def enclosing(self, thread: int, pieces: I64) -> I64:
        """The innermost event of a thread that is open all through each (start, end) ns, -1 where none is."""
        return self._climbed(thread, pieces[:, 0], pieces[:, 1])

    def _climbed(self, thread: int, starts: I64, ends: I64) -> I64:
        """From the last event begun by each start outwards to the first that lasts until the end."""
        rows = self.thread_rows(thread)
        # Rows are by start, so that places in all rows do: no copy of the thread's times.
        begun = np.searchsorted(self.run.ts, starts, side="right")
        at = np.searchsorted(rows, begun.astype(np.int32)) - 1
        row = at_rows(rows, at, -1).astype(np.int64)
        climbing = np.arange(len(row))
        while len(
            climbing := climbing[at_rows(self.run.end, row[climbing], ends[climbing]) < ends[climbing]]
        ):
            row[climbing] = self.parent[row[climbing]]
        return row

    def around(self, rows: I32 | I64, wanted: Bool) -> I64:
        """Each row, or the nearest event around it, that is wanted; -1 where none is, or there is no row (-1)."""
        found: I64 = rows.astype(np.int64)
        climbing = np.arange(len(found))
        while len(climbing := climbing[~at_rows(wanted, found[climbing], True)]):
            found[climbing] = self.parent[found[climbing]]
        return found

    def thread_rows(self, thread: int) -> I32:
        """The host events of a thread, by start."""
        return self.by_thread[self._first_of_thread[thread] : self._first_of_thread[thread + 1]]

    def reaching(self, thread: int) -> I32:
        """The host events of a thread that end later than all before them, by start: what they cover, all cover."""
        return ahead(self.run, self.thread_rows(thread))

    def on_thread(self, thread: int, chosen: Bool) -> I64:
        """Those of the mask that are host events of a thread, by start."""
        return np.flatnonzero(chosen & (self.run.thread == thread) & (self.depth >= 0))

    def started(self, thread: int, start: int, end: int) -> I64:
        """The host events of a thread that start in [start, end) ns, by start."""
        rows = self.thread_rows(thread)
        first, behind = np.searchsorted(rows, np.searchsorted(self.run.ts, [start, end]).astype(np.int32))
        return rows[first:behind].astype(np.int64)

    def outermost(self, rows: I64) -> I64:
        """Those of the rows (ascending) that lie in no other of them."""
        chosen = np.zeros(len(self.parent), dtype=bool)
        chosen[rows] = True
        return rows[~self.inside(rows, chosen)]

    def inside(self, rows: I64, chosen: Bool) -> Bool:
        """Which of the rows lie in an event of the mask (their own place in it does not count)."""
        matches = _accelerator.inside(self.parent, chosen, rows)
        return inside(self.parent, chosen, rows) if matches is None else matches

    @cached_property
    def _by_parent(self) -> I32:
        return np.argsort(self.parent, kind="stable").astype(np.int32)

    @cached_property
    def _first_child(self) -> I32:
        """For each row, where its children begin in `_by_parent`; one entry more for the end of the last."""
        counts = np.bincount(self.parent + 1, minlength=len(self.parent) + 1)
        return np.cumsum(counts).astype(np.int32)

    @cached_property
    def _first_of_thread(self) -> I64:
        return begins(self.run.thread, self.by_thread, len(self.run.threads))


def inside(up: I32, chosen: Bool, rows: I64) -> Bool:
    """Which of the rows lie in an event of the mask. `up` has the event around each, -1 for none."""
    matches = np.zeros(len(rows), dtype=bool)
    open_, above = np.arange(len(rows)), up[rows]
    while len(open_):
        open_, above = open_[above >= 0], above[above >= 0]
        matches[open_] = is_inside = chosen[above]
        open_, above = open_[~is_inside], up[above[~is_inside]]
    return matches


def ahead(run: Run, rows: R) -> R:
    """Of these rows (by start) those that end later than all before them."""
    reach = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, run.ts[rows] + run.dur[rows]))
    return rows[reach[1:] > reach[:-1]]


def nest(ts: I64, end: I64) -> tuple[I32, I32]:
    """Parent (a place in the same arrays, -1 for none) and depth of one thread's events (ns), by start, longer first.

    The parent is the nearest event before that is open at the start and holds the middle. On the way back to it an
    event jumps over what those on its way have already walked past.
    """
    starts, until = ts.tolist(), [*end.tolist(), np.iinfo(np.int64).max]  # the last, place -1, encloses all
    longer: list[int] = []
    """of each event the nearest before it that ends later"""
    parents: list[int] = []
    depths: list[int] = []
    for event, start in enumerate(starts):
        stop = until[event]
        middle = max(start + (stop - start) // 2, start + 1)
        before, parent = event - 1, None
        while until[before] <= stop:
            if parent is None and until[before] >= middle:
                parent = before
            before = longer[before]
        longer.append(before)
        parents.append(before if parent is None else parent)
        depths.append(depths[parents[-1]] + 1 if parents[-1] >= 0 else 0)
    return np.array(parents, dtype=np.int32), np.array(depths, dtype=np.int32)
