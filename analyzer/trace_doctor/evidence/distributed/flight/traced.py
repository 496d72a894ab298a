"""The collectives of flight recorder dumps that traces of the same ranks show as well."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.distributed.collectives import Collectives
from trace_doctor.evidence.distributed.flight.records import FlightRecords
from trace_doctor.evidence.rank_summary import JobEvidence, RankSummary


class TracedCalls(Struct, frozen=True):
    """Collectives of one kind and process group on one rank that are in its trace and in its dump."""

    rank: int
    group: str
    """name of the process group"""
    kind: str
    sequences: tuple[int, int]
    """the first and the last of them"""
    count: int
    median_ns: float
    longest_ns: int


class TracedCollectives(JobEvidence, frozen=True):
    """A collective of a trace is that of the dump with the same process group name and number (`Seq`). Raises NotCaptured where none
    is in both."""

    of_each = (FlightRecords, Collectives)
    of_dumps = True

    calls: tuple[TracedCalls, ...]

    @classmethod
    def build(cls, ranks: Sequence[RankSummary]) -> Self:
        calls = tuple(call for summary in ranks for call in _of_rank(summary))
        if not calls:
            raise NotCaptured(
                "no collective is in a flight recorder dump and in a trace of its rank",
                "record the steps before the hang with torch.profiler, into the folder of the dumps",
            )
        return cls(calls)


def _of_rank(summary: RankSummary) -> list[TracedCalls]:
    dump, trace = summary.get(FlightRecords), summary.get(Collectives)
    if dump is None or trace is None:
        return []
    called = {
        (dump.groups[dump.group[row]].name, int(dump.sequence[row])): dump.kinds[dump.kind[row]]
        for row in np.flatnonzero(~dump.p2p).tolist()
    }
    both: dict[tuple[str, str], dict[int, int]] = {}
    for (_, group), sequence, start, end in zip(
        trace.keys, trace.sequence.tolist(), trace.start.tolist(), trace.end.tolist(), strict=True
    ):
        name = group.split(" ", 1)[0]
        if (kind := called.get((name, sequence))) is not None:
            both.setdefault((name, kind), {})[sequence] = end - start
    return [
        TracedCalls(
            summary.rank, name, kind, (min(own), max(own)), len(own), median(own.values()), max(own.values())
        )
        for (name, kind), own in both.items()
    ]
