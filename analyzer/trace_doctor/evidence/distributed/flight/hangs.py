"""Which collectives did not end, and which ranks did not come to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from trace_doctor.evidence.distributed.flight.groups import (
    Call,
    Dumps,
    GroupCalls,
    call_of,
    dumps_of,
    groups_of,
    unknown,
    words_of,
)
from trace_doctor.evidence.distributed.flight.records import FlightRecords
from trace_doctor.evidence.rank_summary import JobEvidence, RankSummary

_JOINT = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""collectives that end on no rank before all have called them"""
_LATEST_DUMP = 1.25
"""of the timeout: the watchdog looks each second and waits up to a minute for the dumps of all ranks"""
_FILE_TIME_NS = 2 * 10**9
"""File systems and archives keep the time of a file in whole seconds, some in two"""
_MOST_HANGS = 100
"""of a job: each is a finding, and what is wrong shows in the first to begin"""
Why = Literal["missing", "unknown", "entered"]


class Hang(Struct, frozen=True):
    """A collective, or a send or receive, that did not end."""

    why: Why
    """`missing`: ranks did not call it; `unknown`: all ranks of which that is known did, and there may be others; `entered`: all did"""
    calls: tuple[Call, ...]
    """of the ranks that called it, the first to come first"""
    missing: tuple[int, ...]
    """ranks that did not call it"""
    unknown: tuple[int, ...]
    """members of the group of which nobody knows: without a dump, or with one that is too short or too old; none where the dumps do
    not say who the members are"""
    last: tuple[tuple[int, Call], ...]
    """of the ranks that did not: the last call of each, in any group"""
    waited: int | None
    """ns that the ranks that called it have waited at most; None where no time was recorded, or the file says an earlier one. A
    file that was copied counts from its copy"""
    timed_out: bool
    peer: bool = False
    """a send or receive"""
    behind: tuple[Hang, ...] = ()
    """hangs that are there because of this one, or of the same ranks"""
    circle: tuple[Hang, ...] = ()
    """other hangs of a circle: each waits for ranks that wait in the next"""

    @property
    def first(self) -> Call:
        """The call of the rank that came first."""
        return self.calls[0]

    @property
    def waiting(self) -> tuple[int, ...]:
        """The ranks that called it, and on which it had not ended as far as that is known."""
        ended = not any(c.pending for c in self.calls)
        return tuple(sorted(c.rank for c in self.calls if c.pending or ended))

    @property
    def past_timeout(self) -> bool:
        """Whether a rank gave up, or its dump was written when the timeout was over. A file from long after that may be a copy of one
        that was written at any time."""
        timeout = self.first.timeout * 1e6
        return self.timed_out or (
            self.waited is not None and 0 < 0.9 * timeout <= self.waited <= _LATEST_DUMP * timeout
        )

    @property
    def copied(self) -> bool:
        """Whether the time of the file may be that of a copy."""
        timeout = self.first.timeout * 1e6
        return not self.timed_out and self.waited is not None and 0 < _LATEST_DUMP * timeout < self.waited


class Hangs(JobEvidence, frozen=True):
    """Raises NotCaptured without dumps."""

    of_each = (FlightRecords,)
    of_dumps = True

    ranks: tuple[int, ...]
    """with a dump"""
    hangs: tuple[Hang, ...]
    """those that wait for no other hang, the first to begin first; one of each circle"""
    unknown: str = ""
    """why finding nothing would say nothing: no dump of some ranks, entries that were not read; empty otherwise"""

    @classmethod
    def build(cls, ranks: Sequence[RankSummary]) -> Self:
        dumps = dumps_of(ranks)
        groups = groups_of(dumps)
        hangs = [h for group in groups if (h := _hang(group, dumps)) is not None]
        hangs += _peers(dumps)
        hangs.sort(key=lambda h: (h.first.created, h.first.rank))
        return cls(tuple(dumps), tuple(_first_causes(hangs)[:_MOST_HANGS]), unknown(groups, dumps))


def _hang(group: GroupCalls, dumps: Dumps) -> Hang | None:
    """What did not end in a group; None where all did, or nobody knows."""
    last = {rank: group.last(rank) for rank in group.calls}
    known = {rank: sequence for rank, sequence in last.items() if sequence is not None}
    waits = {
        rank: next(iter(own.numbers[dumps[rank].pending[own.ends]].tolist()), None)
        for rank, own in group.calls.items()
    }
    pending = [sequence for sequence in waits.values() if sequence is not None]
    if pending:
        at = min(pending)
    elif (ahead := _ahead(group, dumps, known)) is not None:
        at = ahead
    else:
        return None
    calls = [
        call_of(dumps, rank, rows[-1], group.words)
        for rank, own in group.calls.items()
        if (rows := own.of(at))
    ]
    calls.sort(key=lambda c: (c.created, c.rank))
    called = {c.rank for c in calls}
    begun = calls[0].created
    absent = [rank for rank, sequence in known.items() if sequence < at]
    old = [rank for rank in absent if dumps[rank].written < begun]
    missing = sorted(set(absent) - set(old))
    unknown = sorted(set(group.ranks) - called - set(missing) - {r for r, s in known.items() if s > at})
    return Hang(
        why="missing" if missing else "unknown" if unknown or not group.known else "entered",
        calls=tuple(calls),
        missing=tuple(missing),
        unknown=tuple(unknown),
        last=tuple((rank, call) for rank in missing if (call := _last_call(rank, dumps)) is not None),
        waited=_waited(begun, dumps, missing or sorted(called)),
        timed_out=any(c.timed_out for c in calls),
    )


def _ahead(group: GroupCalls, dumps: Dumps, known: Mapping[int, int]) -> int | None:
    """The first collective that a rank has not called, where the backend does not say that it ended on the others and it cannot have."""
    first = min(known.values(), default=0) + 1
    rows = [(dumps[rank], rows[-1]) for rank, own in group.calls.items() if (rows := own.of(first))]
    open_ended = rows and not any(records.followed[row] for records, row in rows)
    return first if open_ended and all(r.kinds[r.kind[row]] in _JOINT for r, row in rows) else None


def _waited(begun: int, dumps: Dumps, until: Sequence[int]) -> int | None:
    """From the first call until the dumps of these ranks, at least one of which did not show the end. A file from before the
    call has lost its time, as in an archive: that tells nothing, and no short wait."""
    waited = min(dumps[rank].written for rank in until) - begun
    return max(0, waited) if begun and waited >= -_FILE_TIME_NS else None


def _last_call(rank: int, dumps: Dumps) -> Call | None:
    records = dumps[rank]
    if not len(records.group):
        return None
    group = records.groups[records.group[-1]]
    return call_of(dumps, rank, len(records.group) - 1, words_of(group.name, group.description))


# -- sends and receives ----------------------------------------------------------------------------------------------


def _peers(dumps: Dumps) -> Iterator[Hang]:
    """Sends and receives that did not end, and whose peer has no open one for them: had it called, both would have ended or wait."""
    for rank, records in dumps.items():
        rows = np.flatnonzero(
            records.p2p & records.pending & (records.destination >= 0) & (records.source >= 0)
        )
        for row in rows[:1].tolist():
            group = records.groups[records.group[row]]
            ends = int(records.source[row]), int(records.destination[row])
            if max(ends) >= len(group.ranks):
                continue  # the dump does not say which ranks these are
            one, other = (group.ranks[end] for end in ends)
            peer = other if rank == one else one
            call = call_of(dumps, rank, row, f"group {group.description or group.name}")
            theirs = dumps.get(peer)
            if theirs is not None and _answers(theirs, group.name, ends):
                continue
            is_known = theirs is not None and theirs.written >= call.created
            last = _last_call(peer, dumps) if is_known else None
            yield Hang(
                why="missing" if is_known else "unknown",
                calls=(call,),
                missing=(peer,) if is_known else (),
                unknown=() if is_known else (peer,),
                last=((peer, last),) if last is not None else (),
                waited=_waited(call.created, dumps, [peer if is_known else rank]),
                timed_out=call.timed_out,
                peer=True,
            )


def _answers(records: FlightRecords, group: str, ends: tuple[int, int]) -> bool:
    """Whether a rank has an open send or receive between these ends."""
    names = np.array([g.name == group for g in records.groups], dtype=bool)
    return bool(
        (
            records.p2p
            & records.pending
            & names[records.group]
            & (records.source == ends[0])
            & (records.destination == ends[1])
        ).any()
    )


# -- which hang is the cause -------------------------------------------------------------------------------------------


def _first_causes(hangs: Sequence[Hang]) -> list[Hang]:
    """Those for which ranks are missing that wait in no other hang, or none is, with what waits behind them; of each circle, and of
    those with the same missing ranks, the first to begin."""
    waits_in: dict[int, int] = {}
    for n, hang in enumerate(hangs):
        for rank in hang.waiting:
            waits_in.setdefault(rank, n)
    behind: dict[int, dict[int, None]] = {}
    circles: dict[int, list[int]] = {}
    first_of: dict[tuple[int, ...], int] = {}
    for n in range(len(hangs)):
        path, free = _followed(n, hangs, waits_in)
        if free is None:
            circle = path[path.index(path[-1]) : -1]
            cause = min(circle)
            circles[cause] = sorted(circle)
        else:
            cause = first_of.setdefault(free, path[-1]) if free else path[-1]
        apart = {cause, *circles.get(cause, ())}
        behind.setdefault(cause, {}).update(dict.fromkeys(other for other in path if other not in apart))
    causes = [
        replace(
            hangs[n],
            missing=tuple(r for r in hangs[n].missing if n in circles or r not in waits_in),
            behind=tuple(hangs[other] for other in waiting),
            circle=tuple(hangs[other] for other in circles.get(n, ()) if other != n),
        )
        for n, waiting in behind.items()
    ]
    return sorted(causes, key=lambda h: (h.first.created, h.first.rank))


def _followed(
    n: int, hangs: Sequence[Hang], waits_in: Mapping[int, int]
) -> tuple[list[int], tuple[int, ...] | None]:
    """From a hang to that in which its missing ranks wait, and so on; with the ranks that are missing at the end and wait nowhere, or
    None where it ends with a hang that it came by."""
    path = [n]
    while True:
        missing = hangs[path[-1]].missing
        free = tuple(r for r in missing if r not in waits_in)
        if free or not missing:
            return path, free
        path.append(waits_in[missing[0]])
        if path[-1] in path[:-1]:
            return path, None
