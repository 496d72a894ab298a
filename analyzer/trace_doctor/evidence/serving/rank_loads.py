"""How the requests of one server are spread over ranks that meet in collectives, and how long the less loaded ones wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.distributed.collectives import Collectives, kind_of
from trace_doctor.evidence.distributed.ranked_collectives import Match, RankedCollectives
from trace_doctor.evidence.intervals import NOTHING, intersect, pairs, union
from trace_doctor.evidence.rank_summary import JobEvidence, RankSummary
from trace_doctor.evidence.serving.engine_steps import EngineStep, EngineSteps

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
    graph: I64
    """of decode steps: 1 with a CUDA graph, 0 without, -1 where launches were not recorded; -2 of all others"""
    in_tokens: bool
    """whether the load is tokens, as the names of all steps say; else requests"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        engine = facts[EngineSteps]
        in_tokens = all(s.name.tokens is not None for s in engine.steps)
        spans = [
            (s.step.begun, s.step.done, s.name.tokens if in_tokens else s.name.requests, _graph(s))
            for s in engine.steps
        ]
        spans += [(start, end, 0, -2) for start, end in engine.other.tolist()]
        spans.sort(key=lambda span: span[:2])
        rows = [(a, b, -1 if n is None else n, how) for a, b, n, how in spans]
        start, end, load, graph = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        return cls(start, end, load, graph, in_tokens)

    def place(self, moments: I64) -> I64:
        """The position of the step at each moment (ns); -1 where there is none."""
        place = np.searchsorted(self.start, moments, side="right") - 1
        return np.where((place >= 0) & (moments < np.append(self.end, 0)[place]), place, -1)

    def at(self, moments: I64) -> I64:
        """The load of the step at each moment (ns); -1 where there is none, or its name does not say."""
        return np.append(self.load, -1)[self.place(moments)]


def _graph(step: EngineStep) -> int:
    if step.name.kind != "decode":
        return -2
    return int(step.graphs > 0) if step.graphs + step.launches else -1


class WithoutGraph(Struct, frozen=True):
    """Decode steps of one rank, by whether another rank of its server had no request meanwhile."""

    beside_idle: int
    beside_idle_eager: int
    """of these without a CUDA graph"""
    others: int
    others_eager: int
    unknown: int
    """beside an idle rank, whose launches were not recorded"""


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
    graphs: tuple[WithoutGraph, ...]
    """per rank"""

    @classmethod
    def build(cls, ranks: Sequence[RankSummary]) -> Self:
        ranked = RankedCollectives.build([r for r in ranks if r.get(EngineLoads) is not None])
        units = {member[EngineLoads].in_tokens for member in ranked.members}
        if len(units) > 1:
            raise NotCaptured("the names of steps count tokens on some ranks only")
        loads: list[list[I64]] = [[NOTHING[:0, 0]] for _ in ranked.ranks]
        waits: list[list[I64]] = [[NOTHING] for _ in ranked.ranks]
        beside_idle: list[dict[int, bool]] = [{} for _ in ranked.ranks]
        for match in ranked.matches:
            if kind_of(match.name) in _OF_EXPERTS:
                _add(ranked, match, loads, waits)
                _idle_beside(ranked, match, beside_idle)
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
            graphs=tuple(
                _without_graph(member[EngineLoads], of)
                for of, member in zip(beside_idle, ranked.members, strict=True)
            ),
        )


def _idle_beside(ranked: RankedCollectives, match: Match, beside_idle: list[dict[int, bool]]) -> None:
    """Notes for the steps of each rank whether another rank ran a dummy step in one of their collectives."""
    members = [ranked.members[i][EngineLoads] for i in match.members.tolist()]
    load = np.array([own.at(match.start[at]) for at, own in enumerate(members)], dtype=np.int64)
    known, idle = (load >= 0).all(axis=0), (load == 0).any(axis=0)
    for at, i in enumerate(match.members.tolist()):
        places = members[at].place(match.start[at])
        for place, is_idle in zip(places[known].tolist(), idle[known].tolist(), strict=True):
            beside_idle[i][place] = beside_idle[i].get(place, False) or is_idle


def _without_graph(own: EngineLoads, beside_idle: Mapping[int, bool]) -> WithoutGraph:
    counts = Counter((idle, int(own.graph[place])) for place, idle in beside_idle.items())
    return WithoutGraph(
        beside_idle=counts[True, 0] + counts[True, 1],
        beside_idle_eager=counts[True, 0],
        others=counts[False, 0] + counts[False, 1],
        others_eager=counts[False, 0],
        unknown=counts[True, -1],
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
