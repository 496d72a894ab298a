"""What a rank comes from when it arrives at a collective, and its own time since."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.distributed.blame.columns import END, RECEIVE, SEND, Rows, classes, places
from trace_doctor.evidence.distributed.blame.nodes import Nodes, slots

TOGETHER_NS = 20_000
"""a collective that ends so little after the start of another may still be what it waited for"""


class Gates(Struct, frozen=True):
    """Arrays of rows."""

    gate: I64
    """the row of the same rank that ended last before; -1: the begin of the step"""
    second: I64
    """the other half of a batched send and receive; else -1"""
    after: I64
    """own time of the rank since the gate ended, ns: without gaps for which nothing recorded tells a cause"""
    since: I64
    """own time since the gate began on this rank, ns: more than `after` where compute goes on beside it"""
    place: I64
    """number of (how manieth group of the rank, kind, how manieth of these): alike on ranks that do the same"""


def place_of(rows: Rows) -> I64:
    """As `Gates.place`."""
    groups, _ = classes(rows.rank, rows.group)
    ordinal = places(groups, rows.kind, order=np.arange(len(groups)))
    return classes(slots(rows), rows.kind, ordinal)[0]


def gates(rows: Rows, found: Nodes) -> Gates:
    """One place for all members of a collective, that of most of them: where collectives overlap with compute, which one a
    rank was last to see end is chance, and what differs between the ranks would be taken for own time."""
    place = place_of(rows)
    gate = _last_ended(rows, found)
    gate = _of_most(rows, found, gate, place)
    begun = np.where(gate >= 0, rows.before[gate], 0)
    during = np.where(gate >= 0, rows.during[gate], 0)
    since = np.maximum(rows.before - begun, 0)
    return Gates(
        gate=gate,
        second=_second(rows, gate),
        after=np.maximum(rows.before - begun - during, 0),
        since=since,
        place=place,
    )


def _may_gate(rows: Rows) -> Bool:
    """A send beside which the rank computes on holds nobody up there."""
    return np.asarray(~((rows.kind == SEND) & rows.busy) & (rows.kind != END))


def _last_ended(rows: Rows, found: Nodes) -> I64:
    """Of each row the row of its rank that ended last before it."""
    base, span = rows.start.min(), int(rows.end.max() - rows.start.min()) + TOGETHER_NS + 2
    may = np.flatnonzero(_may_gate(rows))
    ended = rows.rank[may] * span + (rows.end[may] - base)
    by = np.lexsort((-rows.kind[may], ended))
    ended, may = ended[by], may[by]
    at = np.searchsorted(ended, rows.rank * span + (rows.start - base) + TOGETHER_NS, side="right") - 1
    arrival = found.arrival[found.of]
    open_ = np.arange(len(at))
    for _ in range(64):
        candidate = may[np.maximum(at[open_], 0)] if len(may) else np.zeros(len(open_), dtype=np.int64)
        same = (at[open_] >= 0) & (rows.rank[candidate] == rows.rank[open_])
        later = same & ((arrival[candidate] >= arrival[open_]) | (rows.start[candidate] >= rows.start[open_]))
        at[open_[~same]] = -1
        open_ = open_[later]
        if not len(open_):
            break
        at[open_] -= 1
    at[open_] = -1
    return np.where(at >= 0, may[np.maximum(at, 0)] if len(may) else -1, -1)


def _of_most(rows: Rows, found: Nodes, gate: I64, place: I64) -> I64:
    """The gates, with those of the minority replaced by their row at the place of the majority."""
    seen = np.where(gate >= 0, place[gate], -1)
    pair, count = classes(found.of, seen)
    votes = np.bincount(pair, minlength=count)
    node, voted = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    node[pair], voted[pair] = found.of, seen
    most = np.full(found.count, -2)
    size = np.bincount(found.of, minlength=found.count)
    decided = (2 * votes > size[node]) & (found.kind[node] != RECEIVE)
    most[node[decided]] = voted[decided]
    wanted = most[found.of]
    odd = np.flatnonzero((wanted >= 0) & (wanted != seen))
    if not len(odd):
        return gate
    width = int(place.max()) + 1
    key = rows.rank * width + place
    by = np.argsort(key, kind="stable")
    at = np.minimum(np.searchsorted(key[by], rows.rank[odd] * width + wanted[odd]), len(by) - 1)
    other = by[at]
    arrival = found.arrival[found.of]
    fits = (key[other] == rows.rank[odd] * width + wanted[odd]) & (arrival[other] < arrival[odd])
    changed = gate.copy()
    changed[odd[fits]] = other[fits]
    return changed


def _second(rows: Rows, gate: I64) -> I64:
    """Of a gate that is half of a batched send and receive the other half."""
    second = np.full(len(gate), -1)
    point = (rows.kind == SEND) | (rows.kind == RECEIVE)
    for step in (-1, 1):
        other = np.clip(gate + step, 0, len(gate) - 1)
        batched = (
            (gate >= 0) & (other != gate) & point[gate] & point[other] & (rows.rank[other] == rows.rank[gate])
        )
        batched &= (rows.start[other] == rows.start[gate]) & (rows.end[other] == rows.end[gate])
        second = np.where(batched, other, second)
    return second
