"""Collectives with one number that ranks called in different ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, Self

import numpy as np
from msgspec import Struct

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.distributed.flight.groups import (
    Call,
    Dumps,
    GroupCalls,
    call_of,
    dumps_of,
    groups_of,
    unknown,
)
from trace_doctor.evidence.distributed.flight.records import HOW_TO_DUMP, FlightRecords
from trace_doctor.evidence.rank_summary import JobEvidence, RankSummary

What = Literal["kind", "order", "left out", "size", "dtype"]
_INPUTS_ALIKE = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather"})
"""collectives into which every rank puts equally many elements: into scatter the source alone puts any, and an all_to_all may be uneven"""
_OUTPUTS_ALIKE = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "scatter"})


class Mismatch(Struct, frozen=True):
    """The first number of a process group at which its ranks do not call the same."""

    what: What
    calls: tuple[Call, ...]
    """one of each rank of which it is known, by rank"""
    odd: tuple[int, ...]
    """the ranks that differ from most; where no way is that of most, all but those of the first"""
    majority: bool
    """whether more than half of the ranks called it in one way"""

    def call(self, odd: bool) -> Call:
        """That of the first rank that differs, or that does not."""
        return next(c for c in self.calls if (c.rank in self.odd) == odd)


class Mismatches(JobEvidence, frozen=True):
    """Of each process group the first. Raises NotCaptured with fewer than two dumps."""

    of_each = (FlightRecords,)
    of_dumps = True

    mismatches: tuple[Mismatch, ...]
    unknown: str = ""
    """why finding nothing would say nothing: no dump of some ranks, entries that were not read; empty otherwise"""

    @classmethod
    def build(cls, ranks: Sequence[RankSummary]) -> Self:
        dumps = dumps_of(ranks)
        if len(dumps) < 2:
            raise NotCaptured("fewer than two ranks with a flight recorder dump", HOW_TO_DUMP)
        groups = groups_of(dumps)
        found = [m for group in groups if (m := _first(group, dumps)) is not None]
        found.sort(key=lambda m: min(c.created for c in m.calls))
        return cls(tuple(found), unknown(groups, dumps))


def _first(group: GroupCalls, dumps: Dumps) -> Mismatch | None:
    for number in _differing(group, dumps):
        rows = {
            rank: own.of(number)
            for rank, own in group.calls.items()
            if own.of(number) and not (rank in group.partly and number == own.numbers[0])  # may be cut
        }
        if len({len(own) for own in rows.values()}) > 1:  # coalesced calls, of which a dump may lack some
            rows = {rank: own[:1] for rank, own in rows.items()}
        called = {rank: tuple(_way(dumps[rank], row) for row in own) for rank, own in rows.items()}
        if len(set(called.values())) > 1:
            return _mismatch(number, rows, called, group, dumps)
    return None


Way = tuple[str, tuple[int, int], tuple[str, str]]
"""kind, and of what has to be alike on all ranks: elements in and out, dtypes in and out"""
_PARTS: tuple[What, ...] = ("kind", "size", "dtype")


def _way(records: FlightRecords, row: int) -> Way:
    kind, dtypes = records.kinds[records.kind[row]], records.dtypes[records.dtype[row]]
    alike_in, alike_out = kind in _INPUTS_ALIKE, kind in _OUTPUTS_ALIKE
    size = int(records.elements_in[row]) * alike_in, int(records.elements_out[row]) * alike_out
    return kind, size, (dtypes[0] * alike_in, dtypes[1] * alike_out)


def _differing(group: GroupCalls, dumps: Dumps) -> list[int]:
    """The numbers at which two ranks of the group differ in anything that is compared, or in how many calls share a number."""
    places: dict[Way | tuple[int, ...], int] = {}
    called = []
    for rank, own in group.calls.items():
        if len(own.rows):
            r = dumps[rank]
            columns = np.stack([c[own.rows] for c in (r.kind, r.elements_in, r.elements_out, r.dtype)])
            _, first, which = np.unique(columns, axis=1, return_index=True, return_inverse=True)
            ways = [places.setdefault(_way(r, int(own.rows[n])), len(places)) for n in first]
            way_of_row = np.array(ways)[which.ravel()]
            way = way_of_row[own.start]
            counts = np.diff(own.start, append=len(own.rows))
            for n in np.flatnonzero(counts > 1).tolist():  # coalesced: all of them together
                all_of_it = way_of_row[own.start[n] : own.start[n] + counts[n]]
                way[n] = places.setdefault(tuple(all_of_it.tolist()), len(places))
            called.append(np.stack([own.numbers, way]))
    if not called:
        return []
    numbers = np.unique(np.concatenate(called, axis=1), axis=1)[0]
    return sorted(set(numbers[1:][numbers[1:] == numbers[:-1]].tolist()))


def _mismatch(
    number: int,
    rows: Mapping[int, Sequence[int]],
    called: Mapping[int, tuple[Way, ...]],
    group: GroupCalls,
    dumps: Dumps,
) -> Mismatch:
    parts = [{rank: tuple(way[n] for way in own) for rank, own in called.items()} for n in range(3)]
    what, ways = next((w, p) for w, p in zip(_PARTS, parts, strict=True) if len(set(p.values())) > 1)
    usual, count = Counter(ways.values()).most_common(1)[0]
    odd = tuple(rank for rank, way in ways.items() if way != usual)
    majority = 2 * count > len(ways)
    if what == "kind" and majority:
        one = next(rank for rank, way in ways.items() if way == usual)
        what = _kind_mismatch(group, dumps, number, one, odd)
    calls = tuple(call_of(dumps, rank, own[0], group.words) for rank, own in rows.items())
    return Mismatch(what, calls, odd, majority)


def _kind_mismatch(group: GroupCalls, dumps: Dumps, number: int, one: int, odd: Sequence[int]) -> What:
    """Whether those that differ called two in another order, or what the others called next: then they left one out."""

    def kind(rank: int, at: int) -> str:
        rows, records = group.calls[rank].of(at), dumps[rank]
        return records.kinds[records.kind[rows[0]]] if rows else ""

    usual = kind(one, number), kind(one, number + 1)
    theirs = {(kind(rank, number), kind(rank, number + 1)) for rank in odd}
    if theirs == {(usual[1], usual[0])}:
        return "order"
    return "left out" if {first for first, _ in theirs} == {usual[1]} else "kind"
