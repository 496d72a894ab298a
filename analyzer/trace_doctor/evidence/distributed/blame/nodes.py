"""Which rows are one collective, on one clock: who arrives last, and how long the transfer takes."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.distributed.blame.columns import (
    END,
    RECEIVE,
    SEND,
    SYMMETRIC,
    Rows,
    classes,
    medians,
    places,
)

SAMPLE = 300_000
"""rows that are enough to tell the clocks by"""


class Nodes(Struct, frozen=True):
    """The collectives of a step. Arrays of nodes, but for `of`."""

    of: I64
    """of each row its node"""
    count: int
    group: I64
    kind: I64
    size: I64
    whole: Bool
    """whether all ranks of the group were read"""
    arrival: I64
    """when the last rank came, ns on the common clock"""
    transfer: I64
    """from then on, ns"""


def node_of(rows: Rows) -> tuple[I64, int]:
    """Of each row its node, and how many nodes there are. A send is one collective with its receive."""
    pair = np.where(rows.kind == SEND, RECEIVE, rows.kind)
    own = np.where(rows.kind == END, rows.rank, -1)
    return classes(rows.group, pair, rows.seq, own)


def nodes(rows: Rows, clocks: I64, members: I64) -> Nodes:
    """`clocks`: per rank what is added to its times, ns. `members`: per group how many ranks it has."""
    of, count = node_of(rows)
    arrival = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(arrival, of, rows.start + clocks[rows.rank])
    ends = rows.end + clocks[rows.rank]
    last, first = arrival.copy(), np.full(count, np.iinfo(np.int64).max)
    np.maximum.at(last, of, ends)
    np.minimum.at(first, of, ends)
    some = np.zeros(count, dtype=np.int64)
    some[of] = np.arange(len(of))
    group, kind = rows.group[some], np.where(rows.kind[some] == SEND, RECEIVE, rows.kind[some])
    expected = np.where(kind == END, 1, np.append(members, 1)[group])
    done = np.where(kind == RECEIVE, first, last)
    return Nodes(
        of=of,
        count=count,
        group=group,
        kind=kind,
        size=rows.size[some],
        whole=np.bincount(of, minlength=count) >= expected,
        arrival=arrival,
        transfer=np.where(kind == END, 0, np.maximum(done - arrival, 0)),
    )


class Clocks(Struct, frozen=True):
    """What brings the ranks to one clock."""

    add: I64
    """per rank, ns"""
    known: Bool
    """per rank: whether it ends a collective together with others that lead to most ranks"""
    residual: int
    """median difference of the ends that remains, ns"""


def clocks(rows: Rows, ranks: int, members: I64) -> Clocks:
    """By the ends of collectives that end on all ranks together, from the largest groups on; ranks that these do not connect, as
    stages of a pipeline, by the ends of sends and receives."""
    of, _ = node_of(rows)
    add, part = np.zeros(ranks), np.arange(ranks)
    size = np.append(members, 0)[rows.group]
    together = np.isin(rows.kind, SYMMETRIC) & (size > 1)
    kinds, _ = classes(size, slots(rows))
    of_kinds = [(kinds == n) & together for n in np.unique(kinds[together])[::-1].tolist()]
    for chosen in (*of_kinds, (rows.kind == SEND) | (rows.kind == RECEIVE)):
        if len(np.unique(part[rows.rank])) > 1 and chosen.any():
            add, part = _aligned(rows, of, chosen, add, part)
    counts = np.bincount(part[np.unique(rows.rank)], minlength=ranks)
    residual = _residual(rows, of, np.isin(rows.kind, SYMMETRIC), add)
    return Clocks(np.rint(add).astype(np.int64), part == counts.argmax(), residual)


def slots(rows: Rows) -> I64:
    """Of each row, of how manieth group of its rank it is, by first use: ranks that do the same use theirs in one order."""
    if not len(rows.rank):
        return np.zeros(0, dtype=np.int64)
    groups, count = classes(rows.rank, rows.group)
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, groups, np.arange(len(groups)))
    return places(rows.rank[first], order=first)[groups]


def _aligned(
    rows: Rows, of: I64, chosen: Bool, add: np.ndarray, part: I64
) -> tuple[np.ndarray, I64]:  # fmt: skip
    """Clocks of the parts that `chosen` rows connect, from the first part of each on, next neighbors first; parts keep their inner
    clocks."""
    at = np.flatnonzero(chosen)
    if len(at) > SAMPLE:
        at = at[of[at] % (len(at) // SAMPLE + 1) == 0]
    node, count = classes(of[at])
    unit, base = part[rows.rank[at]], rows.end[at].min()
    ends = (rows.end[at] - base) + add[rows.rank[at]]
    joined = _connected(node, count, unit, len(add))
    shift, known = np.zeros(len(add)), joined == np.arange(len(add))
    while True:
        told = known[unit]
        fixed, reached = np.zeros(count), np.zeros(count, dtype=bool)
        reached[node[told]] = True
        at_clock = np.flatnonzero(told)
        nodes_told, of_told = np.unique(node[at_clock], return_inverse=True)
        fixed[nodes_told] = medians_between((ends + shift[unit])[at_clock], of_told, len(nodes_told))
        new = np.flatnonzero(~told & reached[node])
        if not len(new):
            break
        units, of_new = np.unique(unit[new], return_inverse=True)
        shift[units] = medians_between(fixed[node[new]] - ends[new], of_new, len(units))
        known[units] = True
    return add + shift[part], joined[part]


def medians_between(values: np.ndarray, of: I64, count: int) -> np.ndarray:
    """As `medians`; of two their mean."""
    by = np.lexsort((values, of))
    size = np.bincount(of, minlength=count)
    first = np.cumsum(size) - size
    last = len(values) - 1
    low, high = np.clip(first + (size - 1) // 2, 0, last), np.clip(first + size // 2, 0, last)
    return np.asarray((values[by][low] + values[by][high]) / 2)


def _connected(node: I64, count: int, unit: I64, units: int) -> I64:
    """Of each unit the smallest that nodes connect it with."""
    part = np.arange(units)
    while True:
        least = np.full(count, units)
        np.minimum.at(least, node, part[unit])
        lower = part.copy()
        np.minimum.at(lower, unit, least[node])
        lower = lower[lower]
        if (lower == part).all():
            return np.asarray(part)
        part = lower


def _residual(rows: Rows, of: I64, chosen: Bool, add: np.ndarray) -> int:
    at = np.flatnonzero(chosen)
    if not len(at):
        return 0
    at = at[:SAMPLE]
    ends = (rows.end[at] - rows.end[at].min()) + add[rows.rank[at]]
    node, count = classes(of[at])
    return int(np.median(np.abs(ends - medians(ends, node, count)[node])))
