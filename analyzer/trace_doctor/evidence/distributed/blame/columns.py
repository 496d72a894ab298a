"""The collectives of all ranks in one step, as columns. Pure numpy: the columns need not come from a trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from trace_doctor.arrays import F64 as F64
from trace_doctor.arrays import I64, Bool

KINDS = (
    "send",
    "receive",
    "broadcast",
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "other",
    "end",
)
"""`end` is no collective: the end of a rank's step"""  # fmt: skip
SEND, RECEIVE, END = KINDS.index("send"), KINDS.index("receive"), KINDS.index("end")
SYMMETRIC = tuple(map(KINDS.index, ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")))
"""no rank leaves them before it has something of every other: they end together"""


class Rows(Struct, frozen=True):
    """Columns of equal length, by rank and start."""

    rank: I64
    """position among the ranks of the job"""
    group: I64
    """index of the process group"""
    kind: I64
    """index in KINDS"""
    seq: I64
    """number of the collective in its group; -1: not recorded"""
    start: I64
    """ns, on the clock of the rank"""
    end: I64
    size: I64
    """bytes or elements, as long as all ranks record the same"""
    before: I64
    """own time of the rank in this step up to the start, ns: compute, copies, and idle time that has a cause"""
    during: I64
    """own time beside it, ns"""
    busy: Bool
    """whether the rank computes at its end"""

    def take(self, rows: I64 | Bool) -> Rows:
        """These rows, in this order."""
        return Rows(*(getattr(self, name)[rows] for name in self.__struct_fields__))


def rows_of(table: I64) -> Rows:
    """From a table of the columns of `Rows`, in their order."""
    rank, group, kind, seq, start, end, size, before, during, busy = table.T
    return Rows(rank, group, kind, seq, start, end, size, before, during, busy > 0)


class StepColumns(Struct, frozen=True):
    """One step of all ranks. Arrays of ranks: 0 for a rank that does not have the step."""

    index: int
    rows: Rows
    present: Bool
    """per rank: whether the step was recorded"""
    begin: I64
    end: I64
    own: I64
    """own time of the whole step, ns"""
    parts: F64
    """ranks × parts of the step time breakdown, ns"""


class JobColumns(Struct, frozen=True):
    """A job: its steps, one after another, and its process groups."""

    steps: Sequence[StepColumns]
    ranks: tuple[int, ...]
    """numbers of the ranks that were read"""
    groups: tuple[tuple[int, ...], ...]
    """numbers of the ranks of each process group, read or not"""
    parts: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    """per rank: which host it runs on; empty where that is not known"""
    sizes: tuple[int, ...] = ()
    """of each group as recorded; `groups` may lack ranks that nothing names"""

    @property
    def members(self) -> I64:
        """Per group: how many ranks it has."""
        named = [len(group) for group in self.groups]
        return np.maximum(np.array(named, dtype=np.int64), np.array(self.sizes or named, dtype=np.int64))

    @property
    def world(self) -> int:
        """Ranks that any group names."""
        return len({rank for group in self.groups for rank in group} | set(self.ranks))


def with_ends(step: StepColumns) -> Rows:
    """The rows by rank and start, numbered, and one of kind `end` for each rank."""
    ranks = np.flatnonzero(step.present)
    none = np.zeros(len(ranks), dtype=np.int64)
    ends = Rows(
        ranks, none - 1, none + END, none, step.end[ranks], step.end[ranks], none, step.own[ranks], none, none > 0
    )  # fmt: skip
    rows = numbered(step.rows)
    both = Rows(
        *(np.concatenate([getattr(rows, name), getattr(ends, name)]) for name in rows.__struct_fields__)
    )
    return both.take(np.lexsort((both.kind == END, both.start, both.rank)))


def numbered(rows: Rows) -> Rows:
    """With numbers for those that have none: the place from the end among those of a rank, group and kind."""
    bare = np.flatnonzero(rows.seq < 0)
    if not len(bare):
        return rows
    seq = rows.seq.copy()
    seq[bare] = -1 - places(rows.rank[bare], rows.group[bare], rows.kind[bare], order=-rows.start[bare])
    return replace(rows, seq=seq)


def places(*keys: I64, order: I64) -> I64:
    """Of each row its place, by `order`, among the rows with equal keys: from 0."""
    by = np.lexsort((order, *keys))
    new = np.ones(len(by), dtype=bool)
    if len(by):
        new[1:] = np.any([key[by][1:] != key[by][:-1] for key in keys], axis=0)
    first = np.flatnonzero(new)
    place = np.empty(len(by), dtype=np.int64)
    place[by] = np.arange(len(by)) - np.repeat(first, np.diff(np.append(first, len(by))))
    return place


def classes(*keys: I64) -> tuple[I64, int]:
    """Of each row the number of its combination of keys, and how many combinations there are."""
    if not len(keys[0]):
        return np.zeros(0, dtype=np.int64), 0
    combined = np.zeros(len(keys[0]), dtype=np.int64)
    for key in keys:
        low, high = int(key.min()), int(key.max())
        if int(combined.max(initial=0) + 1) * (high - low + 1) > 1 << 62:
            combined = np.unique(combined, return_inverse=True)[1]
        combined = combined * (high - low + 1) + (key - low)
    values, of = np.unique(combined, return_inverse=True)
    return of, len(values)


def medians(values: npt.NDArray[np.number], of: I64, count: int) -> F64:
    """The median of each class. Of two the smaller: with one to compare, nobody knows which of them is usual."""
    by = np.lexsort((values, of))
    size = np.bincount(of, minlength=count)
    first = np.cumsum(size) - size
    low, high = first + (size - 1) // 2, first + size // 2
    high = np.where(size == 2, low, high)
    ordered = values[by].astype(np.float64)
    last = max(len(ordered) - 1, 0)
    if not len(ordered):
        return np.zeros(count)
    return np.asarray((ordered[np.clip(low, 0, last)] + ordered[np.clip(high, 0, last)]) / 2)
