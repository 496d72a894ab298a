"""How the requests of one server are spread over ranks that meet in collectives, and how long the less loaded ones wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.distributed.collectives import Collectives, Match, RankedCollectives, kind_of
from trace_doctor.evidence.intervals import NOTHING, intersect, pairs, union
from trace_doctor.evidence.rank_summary import JobEvidence, RankSummary
from trace_doctor.evidence.serving.engine_steps import EngineSteps

DIFFERENCE = 0.1
"""by how much less of the largest load a rank must have: ranks of a balanced server differ by a request or so"""
_OF_EXPERTS = (
    "all-to-all",
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "expert dispatch",
    "expert combine",
)
"""collectives around expert layers. Not send and receive: stages of a pipeline have other requests at a time"""


class EngineLoads(Evidence, frozen=True):
    """The steps of one rank on its device, by start, dummy steps included. Raises NotCaptured as `EngineSteps` does."""

    start: I64
    end: I64
    load: I64
    """0 in dummy steps, -1 where the name does not say"""
    in_tokens: bool
    """whether the load is tokens, as the names of all steps say; else requests"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        engine = facts[EngineSteps]
        in_tokens = all(s.name.tokens is not None for s in engine.steps)
        spans = [
            (s.step.begun, s.step.done, s.name.tokens if in_tokens else s.name.requests) for s in engine.steps
        ]
        spans += [(start, end, 0) for start, end in engine.other.tolist()]
        spans.sort(key=lambda span: span[:2])
        rows = np.array([(a, b, -1 if n is None else n) for a, b, n in spans], dtype=np.int64).reshape(-1, 3)
        return cls(rows[:, 0], rows[:, 1], rows[:, 2], in_tokens)

    def at(self, moments: I64) -> I64:
        """The load of the step at each moment (ns); -1 where there is none, or its name does not say."""
        place = np.searchsorted(self.start, moments, side="right") - 1
        inside = (place >= 0) & (moments < np.append(self.end, 0)[place])
        return np.where(inside, np.append(self.load, -1)[place], -1)


class RankLoads(JobEvidence, frozen=True):
    """Raises NotCaptured for one rank alone, where the ranks meet in no collective, and where no load is known, or another one on some
    ranks."""

    of_each = (EngineLoads, *RankedCollectives.of_each)

    ranks: tuple[int, ...]
    load: tuple[float, ...]
    """per rank: mean in the collectives that are compared"""
    in_tokens: bool
    """whether that is tokens, else requests"""
    without: tuple[float, ...]
    """per rank: share of these that lie in dummy steps"""
    waits: tuple[I64, ...]
    """per rank: when it waited, with no compute beside it, for one with a larger load, which came last and has the largest: a
    set, ns"""

    @classmethod
    def build(cls, ranks: Sequence[RankSummary]) -> Self:
        ranked = RankedCollectives.build([r for r in ranks if r.get(EngineLoads) is not None])
        units = {member[EngineLoads].in_tokens for member in ranked.members}
        if len(units) > 1:
            raise NotCaptured("the names of steps count tokens on some ranks only")
        loads: list[list[I64]] = [[NOTHING[:0, 0]] for _ in ranked.ranks]
        waits: list[list[I64]] = [[NOTHING] for _ in ranked.ranks]
        for match in ranked.matches:
            if kind_of(match.name) in _OF_EXPERTS:
                _add(ranked, match, loads, waits)
        every = [np.concatenate(of) for of in loads]
        if not all(len(of) for of in every):
            raise NotCaptured("collectives in steps whose names count requests are not on all ranks")
        return cls(
            ranks=ranked.ranks,
            load=tuple(float(of.mean()) for of in every),
            in_tokens=units == {True},
            without=tuple(float((of == 0).mean()) for of in every),
            waits=tuple(
                intersect(union(np.concatenate(of)), member[Collectives].alone)
                for of, member in zip(waits, ranked.members, strict=True)
            ),
        )


def _add(ranked: RankedCollectives, match: Match, loads: list[list[I64]], waits: list[list[I64]]) -> None:
    """The loads of all ranks in the collectives of one kind, and who waits for a larger one."""
    members = match.members.tolist()
    load = np.array(
        [ranked.members[i][EngineLoads].at(match.start[at]) for at, i in enumerate(members)], dtype=np.int64
    )
    known = (load >= 0).all(axis=0)
    largest = load.max(axis=0)
    of_last = load[np.argmin(match.end - match.start, axis=0), np.arange(load.shape[1])]
    for at, i in enumerate(members):
        less = known & (of_last == largest) & (load[at] < (1 - DIFFERENCE) * largest)
        loads[i].append(load[at][known])
        waits[i].append(pairs(match.start[at][less], (match.start[at] + match.wait[at])[less]))
