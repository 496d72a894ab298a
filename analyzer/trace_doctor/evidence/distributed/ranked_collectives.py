"""The collectives of all ranks side by side: which are one, who waited for whom, and how long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import F64, I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.distributed.clock_offsets import clock_offsets
from trace_doctor.evidence.distributed.collectives import Collectives, Key, how_to_record_others
from trace_doctor.evidence.intervals import NOTHING, covered, intersect, intervals, pairs, subtract, union
from trace_doctor.evidence.rank_summary import JobEvidence, RankSummary
from trace_doctor.evidence.trace.steps import Steps

ALIGNED = 0.95
"""Share of the time in collectives of one kind that those which coincide on all ranks must take for a match to be
believed: whether one of 10 us coincides, clocks that differ by as much cannot tell"""


class Match(Struct, frozen=True, dict=True):
    """Collectives of one kind on the ranks that took part: arrays of ranks × collectives, in order of time."""

    name: str
    members: I64
    """positions in `RankedCollectives.ranks`"""
    start: I64
    end: I64
    elements: I64
    """of each collective, -1 where the files hold none"""
    read: tuple[int, int]
    """how many ranks of its process group were read, and how many there are: alike where nothing says"""

    @cached_property
    def shortest(self) -> I64:
        """Of each collective the time on the rank that came last, ns: the transfer itself, without waiting."""
        return np.asarray((self.end - self.start).min(axis=0))

    @cached_property
    def wait(self) -> I64:
        """How long each rank waited for the last to come, ns."""
        return np.asarray(self.end - self.start - self.shortest)

    @cached_property
    def transfer(self) -> I64:
        """Of each collective what is known to be transfer, ns: all of `shortest`, but where a rank was not read, which may
        have come later, only as much as the fastest of its size took."""
        if self.read[0] >= self.read[1]:
            return self.shortest
        _, of_size = np.unique(self.elements, return_inverse=True)
        fastest = np.full(of_size.max(initial=-1) + 1, np.iinfo(np.int64).max)
        np.minimum.at(fastest, of_size, self.shortest)
        return np.asarray(fastest[of_size])

    @cached_property
    def last(self) -> I64:
        """Position of the rank that came last to each."""
        return np.asarray(self.members[np.argmin(self.end - self.start, axis=0)])


class RankedCollectives(JobEvidence, frozen=True):
    """The collectives of all ranks of a job, matched: the k-th of a kind counted from the end of the capture.

    Raises NotCaptured for one rank alone, or where those of a kind that coincide on all ranks (overlap in time, or end
    nearer to one another than to the next) take less than 95 % of its time.
    """

    of_each = (Collectives, Steps)

    ranks: tuple[int, ...]
    matches: tuple[Match, ...]
    wait_ns: tuple[int, ...]
    """per rank and steady step: time in which it did nothing but wait for another rank in a collective"""
    transfer_ns: tuple[int, ...]
    """per rank and steady step: time in collectives that is no waiting, with no compute beside it"""
    untold_ns: tuple[int, ...]
    """per rank and steady step: the same, but it may also be waiting for a rank that was not read"""
    caused_ns: tuple[int, ...]
    """per rank: for how long the others together did nothing but wait for it, in all steady steps"""
    clock_ns: tuple[int | None, ...]
    """per rank: by how much its clock is ahead of that of the first, as the ends of numbered collectives show; None where
    they do not"""
    members: tuple[RankSummary, ...]

    @classmethod
    def build(cls, ranks: Sequence[RankSummary]) -> Self:
        members = [m for m in ranks if m.get(Collectives) is not None]
        if len(members) < 2:
            raise NotCaptured("the collectives of one rank only", how_to_record_others(ranks))
        world = max((m.world or 0 for m in ranks), default=0)
        clocks = clock_offsets(members)
        matches = [
            m
            for key, rows in _steady_of_kinds(members).items()
            if (m := _matched(members, key, rows, world, clocks)) is not None
        ]
        if not matches:
            raise NotCaptured(
                "the collectives of the ranks do not overlap in time",
                "record the same steps on every rank, with clocks that agree",
            )
        parts = [_alone(*each) for each in zip(members, _shares_of(len(members), matches), strict=True)]
        waits, transfers, untold = zip(*parts, strict=True)
        return cls(
            ranks=tuple(m.rank for m in members),
            matches=tuple(matches),
            wait_ns=waits,
            transfer_ns=transfers,
            untold_ns=untold,
            caused_ns=_caused(members, matches),
            clock_ns=clocks,
            members=tuple(members),
        )

    @property
    def read(self) -> tuple[int, int]:
        """How many ranks were read, and how many there are, of the process group of which most is missing."""
        return max((match.read for match in self.matches), key=lambda read: read[1] - read[0])

    @cached_property
    def in_collectives_ns(self) -> tuple[int, ...]:
        """Per rank and steady step: waiting and transfer, with no compute beside them."""
        parts = zip(self.wait_ns, self.transfer_ns, self.untold_ns, strict=True)
        return tuple(sum(each) for each in parts)

    @cached_property
    def wait_share(self) -> tuple[float, ...]:
        """Per rank: `wait_ns` as a share of its steady step."""
        return tuple(
            wait / max(member[Steps].step_ns, 1)
            for wait, member in zip(self.wait_ns, self.members, strict=True)
        )

    def saved_without(self, late: Sequence[int]) -> float:
        """ns of a steady step by which every other rank gets through earlier if these (positions in `ranks`) never come last.

        The collectives are gone through in order of time. Each begins as much earlier as the last of the other ranks comes
        earlier: by what it waited, and by what it is ahead from before. What held it until then may be the collective before, however
        long ago that ended: something between them (a copy into a bucket, a launch) may follow on it. A rank with compute alongside gains nothing by that, and one
        that waits for the end of a collective no more than the time it is exposed. Other ranks of their own do not get faster, so
        this is a bound.
        """
        steps = self.members[0][Steps].count
        return float(np.delete(self._without(late)[0], late).min()) / steps

    def _without(self, late: Sequence[int]) -> tuple[F64, list[F64]]:
        """As `saved_without`: (per rank ns by which it gets through all steps earlier, per match ranks × collectives the ns of each wait
        that are no more). A rank that comes last may only hand on what it waited elsewhere."""
        ahead, through = np.zeros((2, len(self.ranks)))
        spared = [np.zeros(match.start.shape) for match in self.matches]
        for (m, k), members, wait, exposed_ns in self._in_order:
            on_time = ~np.isin(members, late)
            if not on_time.any():
                continue
            own = ahead[members]
            earlier = (wait + np.maximum(own, through[members]))[on_time].min()
            spared[m][:, k] = np.where(on_time, np.clip(earlier - own, 0, wait), 0)
            ahead[members] = np.where(exposed_ns > 0, np.minimum(own + exposed_ns, earlier), own)
            through[members] = earlier
        return ahead, spared

    @cached_property
    def _ahead(self) -> I64:
        return _known(self.clock_ns)

    @cached_property
    def _in_order(self) -> list[tuple[tuple[int, int], I64, I64, I64]]:
        """((match, place in it), members, wait, time beside no compute) of each collective, by time. A gap behind the one before belongs to it: what
        leads from one to the other moves with them."""
        alone = [steady_alone(m) for m in self.members]
        ends = [
            np.sort(np.concatenate([NOTHING.ravel(), *(match.end[at] for match, at in shares)]))
            for shares in self._shares
        ]
        found: list[tuple[int, tuple[tuple[int, int], I64, I64, I64]]] = []
        for m, match in enumerate(self.matches):
            exposed_ns = np.zeros_like(match.start)
            for at, i in enumerate(match.members.tolist()):
                start = match.start[at]
                before = ends[i][np.maximum(np.searchsorted(ends[i], start, side="right") - 1, 0)]
                exposed_ns[at] = covered(pairs(start, match.end[at]), alone[i])
                exposed_ns[at] += covered(
                    pairs(np.minimum(before, start), start), self.members[i][Collectives].gaps
                )
            columns = zip(match.wait.T, exposed_ns.T, strict=True)
            found += [
                (end, ((m, k), match.members, *column))
                for k, (end, column) in enumerate(
                    zip(
                        (match.end - self._ahead[match.members, None]).max(axis=0).tolist(),
                        columns,
                        strict=True,
                    )
                )
            ]
        return [collective for _, collective in sorted(found, key=lambda each: each[0])]

    @cached_property
    def _shares(self) -> list[list[Share]]:
        return _shares_of(len(self.ranks), self.matches)

    def waits_for(self, late: Sequence[int], rank: int) -> I64:
        """When a rank (its number) waited in a collective for one of these (positions in `ranks`) to come, or for one that had
        waited for them elsewhere: a set."""
        if (key := frozenset(late)) not in self._spared:
            self._spared[key] = self._without(late)[1]
        spared = {id(match): part for match, part in zip(self.matches, self._spared[key], strict=True)}
        parts = [NOTHING]
        for match, at in self._shares[self.ranks.index(rank)]:
            handed_on = np.rint(spared[id(match)][at]).astype(np.int64)
            wait = np.where(np.isin(match.last, late), match.wait[at], handed_on)
            parts.append(pairs(match.start[at], match.start[at] + wait))
        return union(np.concatenate(parts))

    @cached_property
    def _spared(self) -> dict[frozenset[int], list[F64]]:
        """What `_without` found for some late ranks: it is asked for every rank."""
        return {}


Share = tuple[Match, int]
"""one rank's part of a match: its row there"""


def _shares_of(count: int, matches: Iterable[Match]) -> list[list[Share]]:
    """Per rank (position) its parts of the matches."""
    shares: list[list[Share]] = [[] for _ in range(count)]
    for match in matches:
        for at, i in enumerate(match.members.tolist()):
            shares[i].append((match, at))
    return shares


def _steady_of_kinds(members: list[RankSummary]) -> dict[Key, dict[int, I64]]:
    """What at least two ranks have, in the order first seen: by rank (position), the places in `Collectives` of those of the kind
    from the first steady step on."""
    kinds: dict[Key, dict[int, I64]] = {}
    for i, summary in enumerate(members):
        own = summary[Collectives]
        rows: dict[Key, list[int]] = {key: [] for key in own.keys}
        for row in np.flatnonzero(own.start >= steady_from(summary)).tolist():
            rows[own.keys[row]].append(row)
        for key, places in rows.items():
            kinds.setdefault(key, {})[i] = np.array(places, dtype=np.int64)
    return {key: of for key, of in kinds.items() if len(of) > 1}


def _known(clocks: Sequence[int | None]) -> I64:
    return np.array([clock or 0 for clock in clocks], dtype=np.int64)


def _matched(
    members: list[RankSummary],
    key: Key,
    rows: Mapping[int, I64],
    world: int,
    clocks: Sequence[int | None],
) -> Match | None:
    """The collectives of one kind in the steady steps of all ranks that have it; None where they do not fit together. They
    are counted from the end of the capture, or from where the first of the captures ended. `rows`: by rank, their places.
    `world`: ranks of the job, 0 where nothing says. `clocks`: as `RankedCollectives.clock_ns`."""
    taking = [i for i, own in rows.items() if len(own)]
    if len(taking) < 2:
        return None
    of_each = [(members[i][Collectives], rows[i]) for i in taking]
    own = [(c.start[of], c.end[of], c.sequence[of]) for c, of in of_each]
    ahead = _known(clocks)[taking, None]
    size = max(int(c.group_size[of].max()) for c, of in of_each)
    if size <= 0:
        size = world if len(members) < world else len(taking)
    on_one_clock = [(start - by, end - by) for (start, end, _), by in zip(own, ahead, strict=True)]
    for places in _places([numbers for _, _, numbers in own], *_in_common(on_one_clock)):
        start = np.array([each[0][at] for each, at in zip(own, places, strict=True)])
        end = np.array([each[1][at] for each, at in zip(own, places, strict=True)])
        elements = np.array([c.elements[of][at] for (c, of), at in zip(of_each, places, strict=True)])
        lasting = (end - start).max(axis=0)
        if start.size and lasting[_together(start - ahead, end - ahead)].sum() >= ALIGNED * lasting.sum():
            read = (len(taking), max(size, len(taking)))
            return Match(key[0], np.array(taking), start, end, elements.max(axis=0), read)
    return None


def _places(numbers: list[I64], counts: list[int], all_of: list[int]) -> Iterator[list[I64]]:
    """Which collectives of each rank may be the same, place by place: by their numbers, else counted from the end."""
    if all((n >= 0).all() and len(np.unique(n)) == len(n) for n in numbers):
        common = numbers[0]
        for other in numbers[1:]:
            common = np.intersect1d(common, other)
        yield [np.flatnonzero(np.isin(n, common)) for n in numbers]
        return
    for ends in (all_of, counts):
        least = min(ends)
        yield [np.arange(end - least, end) for end in ends]


def _in_common(by_rank: list[tuple[I64, I64]]) -> tuple[list[int], list[int]]:
    """How many collectives each rank began before the first of the captures ended, and how many it has."""
    ended = min(int(end.max()) for _, end in by_rank)
    return [int(np.searchsorted(start, ended)) for start, _ in by_rank], [len(start) for start, _ in by_rank]


def _together(start: I64, end: I64) -> Bool:
    """Per column of ranks × collectives whether it is one collective: it overlaps in time on all ranks, or ends on
    all of them nearer to one another than to the one before or after. The clocks of the GPUs of one host differ by
    some 10 us, and the rank that comes last may take less than that."""
    first, last = end.min(axis=0), end.max(axis=0)
    overlap: Bool = start.max(axis=0) < first
    if len(first) < 2:
        return overlap
    apart = np.pad(first[1:] - last[:-1], 1, mode="edge")
    return np.asarray(overlap | (last - first < np.minimum(apart[:-1], apart[1:])))


def steady_from(summary: RankSummary) -> int:
    """When the first steady step begins on the device, ns."""
    return next(iter(summary[Steps].on_device("steady")), summary[Steps].window)[0]


def steady_alone(summary: RankSummary) -> I64:
    """When a collective ran in a steady step and no compute beside it: a set."""
    return intersect(summary[Collectives].alone, intervals(summary[Steps].on_device("steady")))


def _alone(member: RankSummary, shares: Iterable[Share]) -> tuple[int, int, int]:
    """(waiting, transfer, one of the two) of one rank per steady step, where no compute ran beside it, ns."""
    waiting, untold, transferring = [NOTHING], [NOTHING], [NOTHING]
    for match, at in shares:
        arrived, moves = match.start[at] + match.wait[at], match.end[at] - match.transfer
        waiting.append(pairs(match.start[at], arrived))
        untold.append(pairs(arrived, moves))
        transferring.append(pairs(moves, match.end[at]))
    alone, count = steady_alone(member), member[Steps].count
    moving = union(np.concatenate(transferring))
    either = subtract(union(np.concatenate(untold)), moving)
    still = subtract(subtract(union(np.concatenate(waiting)), moving), either)
    still_ns, moving_ns, either_ns = (
        int(covered(part, alone).sum()) // count for part in (still, moving, either)
    )
    return still_ns, moving_ns, either_ns


def _caused(members: list[RankSummary], matches: list[Match]) -> tuple[int, ...]:
    """Of each rank the waiting of all others, beside no compute, in collectives to which it came last, ns."""
    caused = np.zeros(len(members), dtype=np.int64)
    for match in matches:
        for at, i in enumerate(match.members.tolist()):
            waiting = pairs(match.start[at], match.start[at] + match.wait[at])
            np.add.at(caused, match.last, covered(waiting, members[i][Collectives].alone))
    return tuple(caused.tolist())
