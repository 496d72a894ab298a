"""Which host event encloses which, per thread."""

from __future__ import annotations

from functools import cached_property
from typing import Self, TypeVar

import numpy as np
from msgspec import field

from trace_doctor.arrays import I32, I64, Bool, begins, order_of
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.loaders import _accelerator
from trace_doctor.run import HOST_CATS, Cat, Run

R = TypeVar("R", I32, I64)


class Nesting(Evidence, frozen=True):
    """The call tree of each thread. One entry per row of the run; rows that are no host events are -1.

    Real tracks overlap by clock noise, so an event belongs to the innermost event that is open at its start and
    holds its middle.
    """

    kept = ("parent", "depth", "by_thread", "outer")

    parent: I32
    """nearest enclosing host event on the same thread, -1 for none"""
    depth: I32
    """number of enclosing events; -1 for rows that are no host events"""
    by_thread: I32
    """the host events by thread, then start"""
    outer: I32
    """nearest enclosing host event that is no Python frame, -1 for none; around a Python frame: any event"""
    run: Run
    _masks: dict[int, Bool] = field(
        default_factory=dict,
    )

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
                parent[rows] = np.where(above >= 0, rows[above], -1)
        return cls(parent, depth, by_thread.astype(np.int32), _past_frames(run, parent), run)

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
        first, behind = self._first_child[row], self._first_child[row + 1]
        return self._by_parent[first:behind].astype(np.int64)

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
        begun = np.searchsorted(
            self.run.ts, starts, side="right"
        )  # rows are by start: no copy of the thread's
        at = np.searchsorted(rows, begun.astype(np.int32)) - 1
        row = np.where(at >= 0, rows[np.maximum(at, 0)], -1).astype(np.int64)
        climbing = np.flatnonzero(row >= 0)
        while len(climbing := climbing[self.run.end[row[climbing]] < ends[climbing]]):
            row[climbing] = above = self.parent[row[climbing]]
            climbing = climbing[above >= 0]
        return row

    def thread_rows(self, thread: int) -> I32:
        """The host events of a thread, by start."""
        return self.by_thread[self._first_of_thread[thread] : self._first_of_thread[thread + 1]]

    def reaching(self, thread: int) -> I32:
        """The host events of a thread that end later than all before them, by start: what they cover, all cover."""
        known = self.run.derived
        if "reaching" not in known:
            each = [ahead(self.run, self.thread_rows(t)) for t in range(len(self.run.threads))]
            known["reaching"] = np.concatenate([self.by_thread[:0], *each])
        first = begins(self.run.thread, known["reaching"], len(self.run.threads))
        return known["reaching"][first[thread] : first[thread + 1]]

    def on_thread(self, thread: int, chosen: Bool) -> I64:
        """Those of the mask that are host events of a thread, by start."""
        return np.flatnonzero(chosen & self._of_thread(thread))

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
        up = self.parent if (chosen & self.run.is_cat(Cat.PYTHON)).any() else self.outer
        found = _accelerator.inside(up, chosen, rows)
        return inside(up, chosen, rows) if found is None else found

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

    def _of_thread(self, thread: int) -> Bool:
        mask = self._masks.get(thread)
        if mask is None:
            mask = self._masks[thread] = (self.run.thread == thread) & (self.depth >= 0)
        return mask


def _past_frames(run: Run, parent: I32) -> I32:
    """For each event that is no Python frame the nearest around it that is none either; for a frame its parent."""
    python, outer = run.is_cat(Cat.PYTHON), parent.copy()
    climbing = np.flatnonzero(~python & (parent >= 0))
    while len(climbing):
        above = outer[climbing]
        framed = (above >= 0) & python[above]
        climbing = climbing[framed]
        outer[climbing] = parent[above[framed]]
    return outer


def inside(up: I32, chosen: Bool, rows: I64) -> Bool:
    """Which of the rows lie in an event of the mask. `up` has the event around each, -1 for none."""
    around = up[rows]
    change = np.flatnonzero(around[1:] != around[:-1]) + 1  # those beside each other share what they lie in
    first = np.append(np.zeros(min(len(rows), 1), dtype=np.int64), change)
    found = np.zeros(len(first), dtype=bool)
    live, above = np.arange(len(first)), around[first]
    while len(live):
        held, free = chosen[above], above < 0
        found[live] = held & ~free
        rising = np.flatnonzero(~(held | free))
        live, above = live[rising], up[above[rising]]
    return np.repeat(found, np.diff(np.append(first, len(rows))))


def ahead(run: Run, rows: R) -> R:
    """Of these rows (by start) those that end later than all before them."""
    found, reached = [rows[:0]], np.iinfo(np.int64).min
    for first in range(0, len(rows), BLOCK):
        block = rows[first : first + BLOCK]
        reach = np.maximum.accumulate(np.append(reached, run.ts[block] + run.dur[block]))
        found.append(block[reach[1:] > reach[:-1]])
        reached = reach[-1]
    return np.concatenate(found)


BLOCK = 1 << 16
"""events whose parents are sought together: their columns stay in the processor's cache"""
_FEW = 8
_LAST = np.iinfo(np.int64).max


def nest(ts: I64, end: I64) -> tuple[I32, I32]:
    """Parent (a place in the same arrays, -1 for none) and depth of one thread's events (ns), by start, longer first.

    The parent is the nearest event before that is open at the start and holds the middle. All events of a block walk
    back to theirs together, and jump over what an event on their way has already walked past.
    """
    count = len(ts)
    until = np.append(end, _LAST)  # and, as place -1, what encloses all
    longer = np.arange(-1, count, dtype=np.int32)
    parent = np.empty(count, dtype=np.int32)
    depth = np.full(count + 1, -1, dtype=np.int32)
    for first in range(0, count, BLOCK):
        block = slice(first, min(first + BLOCK, count))
        parent[block] = _walk_back(first, ts[block], end[block], until, longer)
        depth[block] = _depths(first, parent[block], depth)
    return parent, depth[:-1]


def _walk_back(first: int, start: I64, end: I64, until: I64, longer: I32) -> I32:
    """The parents of the block of events from place `first` on.

    `longer` holds a place before each event such that everything between the two ends no later than the event. Here
    it moves to the nearest event that ends later, which is the parent as well, unless events overlap.
    """
    own = longer[first : first + len(start)]
    walking, at = np.arange(first, first + len(start), dtype=np.int32), own.copy()
    needed = np.maximum(start + (end - start) // 2, start + 1)
    overlaps: list[tuple[int, int]] = []
    while len(walking) > _FEW:
        over = np.flatnonzero(until[at] <= end)
        walking, at, end, needed = walking[over], at[over], end[over], needed[over]
        holds = np.flatnonzero(until[at] >= needed)
        if len(holds):
            overlaps += zip(walking[holds].tolist(), at[holds].tolist(), strict=True)
            needed[holds] = _LAST
        at = longer[at]
        longer[walking] = at
    left = (walking.tolist(), at.tolist(), end.tolist(), needed.tolist())
    for event, before, stop, need in zip(*left, strict=True):
        while until[before] <= stop:
            if until[before] >= need:
                overlaps.append((event, before))
                need = _LAST
            before = longer[before]
        longer[event] = before
    parent = own.copy()
    for event, before in overlaps:
        parent[event - first] = before
    return parent


def _depths(first: int, parent: I32, depth: I32) -> I32:
    """Depths of the block of events from place `first` on: each event doubles the way that it has climbed."""
    climbed, at = np.ones(len(parent), dtype=np.int32), parent.copy()
    while len(inside := np.flatnonzero(at >= first)):
        above = at[inside] - first
        climbed[inside] += climbed[above]
        at[inside] = at[above]
    return climbed + depth[at]
