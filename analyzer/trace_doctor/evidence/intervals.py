"""Sets of half-open time intervals as (n, 2) int64 arrays of [start, end) nanoseconds.

A *set* is sorted by start, disjoint, without empty intervals: what `union` returns. Every function takes and returns
sets, except where it says that raw intervals (any order, overlapping, empty) are taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np
import numpy.typing as npt

from trace_doctor.arrays import I64, Bool

NOTHING: I64 = np.empty((0, 2), dtype=np.int64)


def intervals(pairs: Iterable[tuple[int, int]]) -> I64:
    """The set that covers these (start, end) pairs: raw intervals in, a set out."""
    return union(np.fromiter(chain.from_iterable(pairs), dtype=np.int64).reshape(-1, 2))


def pairs(starts: npt.ArrayLike, ends: npt.ArrayLike) -> I64:
    """Two columns side by side as raw intervals, in their order."""
    return np.stack([np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)], axis=1)


def union(raw: I64) -> I64:
    """The set that covers all raw intervals; intervals that touch become one."""
    start, end = raw[:, 0], raw[:, 1]
    if not (some := end > start).all():
        start, end = start[some], end[some]
    if not len(start):
        return NOTHING
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.append(True, start[1:] > reach[:-1]))
    return pairs(start[first], reach[np.append(first[1:], len(start)) - 1])


def total(some: I64) -> int:
    """Sum of the lengths, ns."""
    return int((some[:, 1] - some[:, 0]).sum())


def clip(some: I64, start: int, end: int) -> I64:
    """What lies within [start, end). Raw intervals keep their order and may overlap; empty ones go."""
    cut = np.clip(some, start, end)
    return cut[cut[:, 1] > cut[:, 0]]


def complement(some: I64, start: int, end: int) -> I64:
    """[start, end) without the set."""
    cut = clip(some, start, end)
    edges = np.concatenate([[start], cut.ravel(), [end]]).reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]


def overlaps(a: I64, b: I64) -> tuple[I64, I64, I64]:
    """All non-empty overlaps of intervals of two sets: (pieces, index into a, index into b), in order of time.

    `a` may be any raw intervals (then pieces come in the order of `a`); `b` must be a set.
    """
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")
    behind = np.searchsorted(b[:, 0], a[:, 1], side="left")
    count = np.maximum(behind - first, 0)
    of_a = np.repeat(np.arange(len(a)), count)
    of_b = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    pieces = pairs(np.maximum(a[of_a, 0], b[of_b, 0]), np.minimum(a[of_a, 1], b[of_b, 1]))
    real = pieces[:, 1] > pieces[:, 0]
    return pieces[real], of_a[real], of_b[real]


def intersect(a: I64, b: I64) -> I64:
    """What both sets cover."""
    return overlaps(a, b)[0]


def subtract(a: I64, b: I64) -> I64:
    """What set `a` covers and set `b` does not."""
    if not len(a) or not len(b):
        return a
    start, end = int(min(a[0, 0], b[0, 0])), int(max(a[-1, 1], b[-1, 1]))
    return intersect(a, complement(b, start, end))


def holds(some: I64, moments: I64) -> Bool:
    """Which of the moments (ns, in any order) the set covers."""
    return np.asarray(np.searchsorted(some.ravel(), moments, side="right") % 2 == 1)


def covered(raw: I64, some: I64) -> I64:
    """How much of each raw interval the set covers, ns (same order and length as `raw`)."""
    if not len(some):
        return np.zeros(len(raw), dtype=np.int64)
    edges = some.ravel()
    filled = np.concatenate([[0], np.cumsum(some[:, 1] - some[:, 0])])

    def before(t: I64) -> I64:
        """Covered time before each moment."""
        at = np.searchsorted(edges, t, side="right")
        whole = filled[at // 2]
        inside = np.where(at % 2 == 1, t - edges[np.maximum(at - 1, 0)], 0)
        return np.asarray(whole + inside, dtype=np.int64)

    return before(raw[:, 1]) - before(raw[:, 0])
