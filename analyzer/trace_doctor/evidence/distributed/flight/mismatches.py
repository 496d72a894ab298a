"""Collectives with one number that ranks called in different ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, Self

from msgspec import Struct

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.distributed.flight.groups import (
    Call,
    Dumps,
    GroupCalls,
    absent,
    call_of,
    dumps_of,
    groups_of,
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
    absent: tuple[int, ...] = ()
    """members of process groups without a dump"""

    @classmethod
    def build(cls, ranks: Sequence[RankSummary]) -> Self:
        dumps = dumps_of(ranks)
        if len(dumps) < 2:
            raise NotCaptured("fewer than two ranks with a flight recorder dump", HOW_TO_DUMP)
        groups = groups_of(dumps)
        found = [m for group in groups if (m := _first(group, dumps)) is not None]
        found.sort(key=lambda m: min(c.created for c in m.calls))
        return cls(tuple(found), absent(groups, dumps))


def _first(group: GroupCalls, dumps: Dumps) -> Mismatch | None:
    ways = {rank: _ways(dumps[rank]) for rank in group.calls}
    for sequence in sorted({sequence for own in group.calls.values() for sequence in own}):
        rows = {
            rank: own[sequence]
            for rank, own in group.calls.items()
            if sequence in own and not (rank in group.partly and sequence == min(own))  # may be cut
        }
        if len({len(own) for own in rows.values()}) > 1:  # coalesced calls, of which a dump may lack some
            rows = {rank: own[:1] for rank, own in rows.items()}
        called = {rank: tuple(ways[rank][row] for row in own) for rank, own in rows.items()}
        if len(set(called.values())) > 1:
            return _mismatch(sequence, rows, called, group, dumps)
    return None


Way = tuple[str, tuple[int, int], tuple[str, str]]
"""kind, and of what has to be alike on all ranks: elements in and out, dtypes in and out"""
_PARTS: tuple[What, ...] = ("kind", "size", "dtype")


def _ways(records: FlightRecords) -> list[Way]:
    columns = (records.kind, records.elements_in, records.elements_out, records.dtype)
    ways = []
    for kind, given, made, dtype in zip(*(column.tolist() for column in columns), strict=True):
        name, dtypes = records.kinds[kind], records.dtypes[dtype]
        alike_in, alike_out = name in _INPUTS_ALIKE, name in _OUTPUTS_ALIKE
        size = given * alike_in, made * alike_out
        ways.append((name, size, (dtypes[0] * alike_in, dtypes[1] * alike_out)))
    return ways


def _mismatch(
    sequence: int,
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
        what = _kind_mismatch(group, dumps, sequence, one, odd)
    calls = tuple(call_of(dumps, rank, own[0], group.words) for rank, own in rows.items())
    return Mismatch(what, calls, odd, majority)


def _kind_mismatch(group: GroupCalls, dumps: Dumps, sequence: int, one: int, odd: Sequence[int]) -> What:
    """Whether those that differ called two in another order, or what the others called next: then they left one out."""

    def kind(rank: int, number: int) -> str:
        rows, records = group.calls[rank].get(number), dumps[rank]
        return records.kinds[records.kind[rows[0]]] if rows else ""

    usual = kind(one, sequence), kind(one, sequence + 1)
    theirs = {(kind(rank, sequence), kind(rank, sequence + 1)) for rank in odd}
    if theirs == {(usual[1], usual[0])}:
        return "order"
    return "left out" if {first for first, _ in theirs} == {usual[1]} else "kind"
