"""The process groups of a job, each with what its ranks called, from the dumps of the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import NO_DUMP
from trace_doctor.evidence.distributed.flight.records import HOW_TO_DUMP, NO_GROUP, FlightRecords, Group
from trace_doctor.evidence.rank_summary import RankSummary
from trace_doctor.model import ranks_text
from trace_doctor.user_frames import Frame

Dumps = Mapping[int, FlightRecords]
"""rank -> its dump"""
Key = tuple[str, str, tuple[int, ...]]
"""name, description and members of a group"""
_STATES: tuple[Literal["scheduled", "started", "completed"], ...] = ("scheduled", "started", "completed")


class Call(Struct, frozen=True):
    """One call of a rank."""

    rank: int
    kind: str
    sequence: int
    group: str
    """in words"""
    group_name: str
    elements: tuple[int, int]
    """in and out"""
    dtypes: tuple[str, str]
    state: str
    """as recorded; "" where the backend does not follow its work"""
    pending: bool
    """it had not ended, as far as that is known"""
    timed_out: bool
    created: int
    """ns since the epoch; 0 where not recorded"""
    timeout: int
    """ms; 0 where not recorded"""
    stack: tuple[Frame, ...]

    @property
    def site(self) -> Frame | None:
        """The innermost frame of the user, else of any; None where stacks were not recorded."""
        return self.stack[0] if self.stack else None

    @property
    def words(self) -> str:
        """`all_reduce #118 of group tp`."""
        number = "" if self.kind in ("send", "recv") else f" #{self.sequence:,}"
        return f"{self.kind}{number} of {self.group}"

    @property
    def at(self) -> str:
        """` at train.py:41`; "" where no stack was recorded."""
        if (site := self.site) is None:
            return ""
        file = site.file.replace("\\", "/").rpartition("/")[2]
        return f" at {file}:{site.line}" if site.line else f" at {file}"


class Calls(Struct, frozen=True):
    """The collectives of one rank in one group, by number."""

    numbers: I64
    """each once, rising"""
    start: I64
    """aligned with `numbers`: where its first row is in `rows`"""
    rows: I64
    """of the dump, by number and record: those of coalesced calls share one"""

    def of(self, number: int) -> tuple[int, ...]:
        """The rows with this number; none where it is not there."""
        at = int(np.searchsorted(self.numbers, number))
        if at == len(self.numbers) or self.numbers[at] != number:
            return ()
        end = int(self.start[at + 1]) if at + 1 < len(self.start) else len(self.rows)
        return tuple(self.rows[int(self.start[at]) : end].tolist())

    @property
    def ends(self) -> I64:
        """Aligned with `numbers`: its last row in the dump."""
        return self.rows[np.append(self.start[1:], len(self.rows)) - 1] if len(self.rows) else self.rows


class GroupCalls(Struct, frozen=True):
    """One process group, with the collectives of each of its ranks that has a dump: sends and receives are not numbered alike on
    all ranks, and are left out."""

    words: str
    """how people call it: `the default group`, `group tp`"""
    name: str
    ranks: tuple[int, ...]
    """its members, with a dump or without; where no dump says so, those that called something in it"""
    known: bool
    """whether a dump says who the members are"""
    calls: Mapping[int, Calls]
    """by rank"""
    partly: frozenset[int]
    """ranks with calls that their ring may have overwritten: what is older than their first is not known, and of one without any nothing"""

    def last(self, rank: int) -> int | None:
        """The last number of a rank; 0 where it called nothing, None where that is not known."""
        own = self.calls[rank].numbers
        if len(own):
            return int(own[-1])
        return None if rank in self.partly else 0


def dumps_of(ranks: Sequence[RankSummary]) -> dict[int, FlightRecords]:
    """The dumps of a job. Raises NotCaptured without any."""
    dumps = {r.rank: records for r in ranks if (records := r.get(FlightRecords)) is not None}
    if not dumps:
        raise NotCaptured(NO_DUMP, HOW_TO_DUMP)
    return dumps


def groups_of(dumps: Dumps) -> list[GroupCalls]:
    """Groups are the same on two ranks if name, description and members are: names are given again to other ranks. Where a dump does
    not name the members, they are those that another dump names and that the rank is one of."""
    members: dict[tuple[str, str], dict[tuple[int, ...], None]] = {}
    for records in dumps.values():
        for g in records.groups:
            if g.ranks:
                members.setdefault((g.name, g.description), {})[g.ranks] = None
    calls: dict[Key, dict[int, Calls]] = {}
    for rank, records in dumps.items():
        numbered = np.flatnonzero(~records.p2p & (records.sequence > 0))
        numbered = numbered[np.argsort(records.group[numbered], kind="stable")]
        edges = np.searchsorted(records.group[numbered], np.arange(len(records.groups) + 1)).tolist()
        for g, first, end in zip(records.groups, edges[:-1], edges[1:], strict=True):
            key = _key(g, rank, members)
            calls.setdefault(key, {})[rank] = _calls(records, numbered[first:end])
    return [_group(key, own, dumps) for key, own in calls.items()]


def _calls(records: FlightRecords, rows: I64) -> Calls:
    rows = rows[np.argsort(records.sequence[rows], kind="stable")]
    return Calls(*np.unique(records.sequence[rows], return_index=True), rows)


def _key(group: Group, rank: int, members: Mapping[tuple[str, str], Iterable[tuple[int, ...]]]) -> Key:
    ranks = group.ranks
    if not ranks:
        others = [m for m in members.get((group.name, group.description), ()) if rank in m]
        ranks = others[0] if len(others) == 1 else ()
    return group.name, group.description, ranks


def _group(key: Key, own: Mapping[int, Calls], dumps: Dumps) -> GroupCalls:
    name, description, ranks = key
    everyone = description == "default_pg"  # all ranks of the job, whether or not a dump says so
    members = set(ranks) | (set(dumps) if everyone else set()) | set(own)
    nothing = np.zeros(0, dtype=np.int64)
    calls = {rank: own.get(rank) or Calls(nothing, nothing, nothing) for rank in sorted(members & set(dumps))}
    return GroupCalls(
        words=words_of(name, description),
        name=name,
        ranks=tuple(sorted(members)),
        known=bool(ranks) or everyone,
        calls=calls,
        partly=frozenset(rank for rank in calls if dumps[rank].overwritten),
    )


def words_of(name: str, description: str) -> str:
    """How people call a group: `the default group`, `group tp`."""
    if description == "default_pg":
        return "the default group"
    return f"group {name if description in NO_GROUP else description}"


def unknown(groups: Sequence[GroupCalls], dumps: Dumps) -> str:
    """Why nothing found is not nothing there: members of groups have no dump, or entries were not read. "" for neither."""
    if absent := sorted({rank for group in groups for rank in group.ranks} - set(dumps)):
        return f"no dump of {ranks_text(absent)}"
    damaged = sorted(rank for rank, dump in dumps.items() if dump.unread)
    return f"entries in the dump of {ranks_text(damaged)} were not read" if damaged else ""


def call_of(dumps: Dumps, rank: int, row: int, group: str) -> Call:
    """One row of a dump."""
    r = dumps[rank]
    return Call(
        rank=rank,
        kind=r.kinds[r.kind[row]],
        sequence=int(r.sequence[row]),
        group=group,
        group_name=r.groups[r.group[row]].name,
        elements=(int(r.elements_in[row]), int(r.elements_out[row])),
        dtypes=r.dtypes[r.dtype[row]],
        state=_STATES[r.state[row]] if r.followed[row] else "",
        pending=bool(r.pending[row]),
        timed_out=bool(r.timed_out[row]),
        created=int(r.created[row]),
        timeout=int(r.timeout[row]),
        stack=r.stacks[r.stack[row]],
    )
