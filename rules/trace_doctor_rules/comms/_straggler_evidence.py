"""Who comes last to the collectives of a job, and what of the waiting was there when the first step began."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64
from trace_doctor.evidence.distributed.collectives import Collectives
from trace_doctor.evidence.distributed.ranked_collectives import (
    Match,
    RankedCollectives,
    steady_alone,
    steady_from,
)
from trace_doctor.evidence.distributed.ranks import IdlePieces
from trace_doctor.evidence.intervals import covered, intersect, intervals, pairs, total, union
from trace_doctor.evidence.rank_summary import RankSummary
from trace_doctor.evidence.trace.steps import Steps


class LateRank(Struct, frozen=True):
    """What the others do because of one rank, in all steady steps, ns; without what is from before the first of them."""

    last_to: int
    """collectives in which another one waits for it"""
    caused_ns: int
    """for how long the others together wait for it, with no compute beside it"""
    longest_ns: int
    """by how much it came later than the first"""


class Lateness(Struct, frozen=True):
    """Waiting for a rank that began the first steady step later is not its doing in these steps."""

    began_ns: tuple[int, ...]
    """per rank: by how much it began the first steady step after the first rank"""
    before_ns: tuple[int, ...]
    """per rank and steady step: the part of its wait that is there because they began at different times"""
    ranks: tuple[LateRank, ...]
    collectives: int


def lateness(ranked: RankedCollectives) -> Lateness:
    """Of each collective the part of the wait that would not be if all ranks had begun the first steady step together, and who
    is last for the rest."""
    began = _began(ranked)
    before = [np.zeros_like(match.start) for match in ranked.matches]
    shift = began.copy()
    for m, k in _in_order(ranked.matches):
        match = ranked.matches[m]
        wait, own = match.wait[:, k], shift[match.members]
        moved = int((wait + own).min())
        before[m][:, k] = np.clip(moved - own, 0, wait)
        shift[match.members] = moved
    alone = [steady_alone(member) for member in ranked.members]
    waits_before, caused, last_to, longest = np.zeros((4, len(alone)), dtype=np.int64)
    for match, part in zip(ranked.matches, before, strict=True):
        rest = match.wait - part
        for at, i in enumerate(match.members.tolist()):
            start = match.start[at]
            waits_before[i] += covered(pairs(start, start + part[at]), alone[i]).sum()
            np.add.at(caused, match.last, covered(pairs(start + part[at], start + match.wait[at]), alone[i]))
        np.add.at(last_to, match.last[rest.any(axis=0)], 1)
        np.maximum.at(longest, match.last, rest.max(axis=0))
    return Lateness(
        tuple(began.tolist()),
        tuple(
            min(ns // member[Steps].count, wait)
            for ns, member, wait in zip(waits_before.tolist(), ranked.members, ranked.wait_ns, strict=True)
        ),
        tuple(map(LateRank, last_to.tolist(), caused.tolist(), longest.tolist())),
        sum(match.start.shape[1] for match in ranked.matches),
    )


def _began(ranked: RankedCollectives) -> I64:
    """When each rank began its first steady step, after the first rank: by the clock that the ends of their collectives share."""
    apart: list[list[I64]] = [[np.zeros(0, dtype=np.int64)] for _ in ranked.ranks]
    for match in ranked.matches:
        later = match.end - match.end.min(axis=0)
        for at, i in enumerate(match.members.tolist()):
            apart[i].append(later[at])
    clocks = [int(np.median(own)) if len(own := np.concatenate(parts)) else 0 for parts in apart]
    began = np.array([_first_began(member) for member in ranked.members], dtype=np.int64)
    began -= np.array(clocks, dtype=np.int64)
    return np.asarray(began - began.min())


def _first_began(member: RankSummary) -> int:
    """On the device, which may still be busy with work from before; on the host, if the device then mostly waits for the host: what was
    left over did not delay this step."""
    on_device, steady = steady_from(member), member[Steps].steady
    pieces, own = member.get(IdlePieces), member[Collectives]
    until = own.start[own.start >= on_device]
    if not steady or pieces is None or not len(until):
        return on_device
    before = intervals([(on_device, int(until.min()))])
    idle = total(intersect(union(pairs(pieces.start, pieces.end)), before))
    return steady[0].start if 2 * idle > total(before) else on_device


def _in_order(matches: tuple[Match, ...]) -> list[tuple[int, int]]:
    """(match, place in it) of all collectives, by time."""
    ends = [
        (end, m, k) for m, match in enumerate(matches) for k, end in enumerate(match.end.max(axis=0).tolist())
    ]
    return [(m, k) for _, m, k in sorted(ends)]
