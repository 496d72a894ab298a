"""Which host event encloses which, per thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np

from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.run import HOST_CATS, I32, I64, Run


@dataclass(frozen=True)
class Nesting(Evidence):
    """The call tree of each thread. One entry per row of the run; rows that are no host events are -1.

    Real tracks overlap by clock noise, so an event belongs to the innermost event that is open at its start and
    holds its middle.
    """

    parent: I32
    """nearest enclosing host event on the same thread, -1 for none"""
    depth: I32
    """number of enclosing events; -1 for rows that are no host events"""
    run: Run = field(repr=False)

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run = facts.run
        parent = np.full(len(run), -1, dtype=np.int32)
        depth = np.full(len(run), -1, dtype=np.int32)
        host = np.flatnonzero(run.is_cat(*HOST_CATS))
        by_thread = host[np.argsort(run.thread[host], kind="stable")]
        borders = np.flatnonzero(np.diff(run.thread[by_thread])) + 1
        for rows in np.split(by_thread, borders):
            parent[rows], depth[rows] = _nest(rows, run.ts[rows], run.end[rows])
        return cls(parent, depth, run)

    def ancestors(self, row: int) -> list[int]:
        """The enclosing events, inner to outer."""
        found: list[int] = []
        above = int(self.parent[row])
        while above >= 0:
            found.append(above)
            above = int(self.parent[above])
        return found

    def children(self, row: int) -> I64:
        """The rows directly inside, by start."""
        first, behind = np.searchsorted(self._parents_sorted, [row, row + 1])
        return self._by_parent[first:behind]

    def open_at(self, thread: int, t_ns: int) -> list[int]:
        """The events of a thread (index in `run.threads`) open at a moment, outer to inner."""
        row = int(self.innermost(thread, np.array([t_ns], dtype=np.int64))[0])
        return [*reversed(self.ancestors(row)), row] if row >= 0 else []

    def innermost(self, thread: int, moments: I64) -> I64:
        """The innermost event of a thread that is open at each moment (ns), -1 where none is."""
        return self._climbed(thread, moments, moments + 1)

    def enclosing(self, thread: int, pieces: I64) -> I64:
        """The innermost event of a thread that is open all through each (start, end) ns, -1 where none is."""
        return self._climbed(thread, pieces[:, 0], pieces[:, 1])

    def _climbed(self, thread: int, starts: I64, ends: I64) -> I64:
        """From the last event begun by each start outwards to the first that lasts until the end."""
        rows = self.thread_rows(thread)
        if not len(rows):
            return np.full(len(starts), -1, dtype=np.int64)
        at = np.searchsorted(self.run.ts[rows], starts, side="right") - 1
        row = np.where(at >= 0, rows[np.maximum(at, 0)], -1)
        while True:
            over = (row >= 0) & (self.run.end[np.maximum(row, 0)] < ends)
            if not over.any():
                return row
            row[over] = self.parent[row[over]]

    def thread_rows(self, thread: int) -> I64:
        """The host events of a thread, by start."""
        first, behind = np.searchsorted(self._threads_sorted, [thread, thread + 1])
        return self._by_thread[first:behind]

    def outermost(self, rows: I64) -> I64:
        """Those of the rows (ascending) that lie in no other of them."""
        chosen = np.zeros(len(self.parent), dtype=bool)
        chosen[rows] = True
        inside = np.zeros(len(rows), dtype=bool)
        above = self.parent[rows].astype(np.int64)
        while True:
            live = np.flatnonzero((above >= 0) & ~inside)
            if not len(live):
                return rows[~inside]
            inside[live] = chosen[above[live]]
            above[live] = self.parent[above[live]]

    @cached_property
    def _by_parent(self) -> I64:
        return np.argsort(self.parent, kind="stable")

    @cached_property
    def _parents_sorted(self) -> I32:
        return self.parent[self._by_parent]

    @cached_property
    def _by_thread(self) -> I64:
        host = np.flatnonzero(self.depth >= 0)
        return host[np.argsort(self.run.thread[host], kind="stable")]

    @cached_property
    def _threads_sorted(self) -> I32:
        return self.run.thread[self._by_thread]


def _nest(rows: I64, ts: I64, end: I64) -> tuple[list[int], list[int]]:
    """Parent and depth of one thread's events, given by start, longer first."""
    middle = (ts + (end - ts) // 2).tolist()
    parents: list[int] = []
    depths: list[int] = []
    stack: list[tuple[int, int, int]] = []  # (end, row, depth)
    for row, start, stop, mid in zip(rows.tolist(), ts.tolist(), end.tolist(), middle, strict=True):
        while stack and stack[-1][0] <= start:
            stack.pop()
        at = len(stack) - 1
        while at >= 0 and stack[at][0] < mid:
            at -= 1
        above, depth = (stack[at][1], stack[at][2] + 1) if at >= 0 else (-1, 0)
        parents.append(above)
        depths.append(depth)
        stack.append((stop, row, depth))
    return parents, depths
