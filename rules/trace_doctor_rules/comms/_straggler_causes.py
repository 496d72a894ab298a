"""What stragglers do longer than the others, and where to look then."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from trace_doctor import Fix
from trace_doctor.evidence.distributed.ranks import PARTS, Ranks, listed, named
from trace_doctor.evidence.durations import milliseconds


class Cause(Struct, frozen=True):
    """What stragglers do longer than the others. ns of a step."""

    parts: tuple[str, ...]
    covered_ns: float
    lost_ns: float
    """by how much they come later"""
    untold: bool = False
    """whether nothing recorded tells how long they waited for a CPU"""

    def __str__(self) -> str:
        """Without the share where it is all, or as good as all."""
        if not self.parts:
            return "not explained"
        doubt = " (CPU contention was not recorded)" if self.untold and HOST & set(self.parts) else ""
        text = listed(self.parts) + doubt
        if self.covered_ns >= self.lost_ns:
            return text
        shares = f"{milliseconds(self.covered_ns / 1e3)} of {milliseconds(self.lost_ns / 1e3)}"
        return f"{text}, {shares}, the rest unexplained"


def lost_spans(
    ranks: Ranks, rank: int, causes: Sequence[tuple[Cause, Sequence[int]]]
) -> list[tuple[int, int]]:
    """When a straggler was idle for what makes it late: as much as it comes later, in its longest pieces."""
    return [
        span
        for cause, late in causes
        if rank in late
        for part in cause.parts
        for span in ranks.idle(rank, part, cause.covered_ns)
    ]


CONTENTION = "CPU contention"


HOST = frozenset(PARTS) - {"compute", "copies", "cold start"}
"""parts that take longer where threads outnumber cores"""


def by_ranks(causes: Sequence[tuple[Cause, Sequence[int]]]) -> str:
    if len(causes) == 1:
        return str(causes[0][0])
    return "; ".join(f"{named(ranks).lower()} {cause}" for cause, ranks in causes)


LOOK = {
    "compute": "They compute longer. Compare what they work on (sequence lengths, shards, experts) and how fast their "
    "GPU runs (`nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE`): the table shows whether they launch more kernels.",
    "data loading": "Their loader is slow: a slower disk, larger samples, fewer cores, or workers that share them. "
    "Balance the shards by size, and pin each rank to its own cores.",
    CONTENTION: "More threads run than there are cores. Start fewer processes per host, set OMP_NUM_THREADS and the "
    "number of workers to what the cores allow, or give the job more cores (`nproc`, the limits of its container).",
}


def record_more() -> Fix:
    return Fix(
        title="Record more steps of all ranks",
        kind="advice",
        safety="display",
        text="A rank that delays the others is late in every step. What ranks wait for in the first step was there before "
        "it: start the profilers after a barrier, and record ten steps. If the last rank changes from step to step, balance "
        "the work of each step (sequence lengths, samples, tables) over the ranks.",
        verify="record all ranks again: the wait is shorter, or TD602 names a straggler",
        risk="none: nothing is changed",
    )


def advice(who: str, causes: Sequence[tuple[Cause, Sequence[int]]]) -> Fix:
    look = [
        f"{named(ranks)}: {text}" if len(causes) > 1 else text
        for cause, ranks in causes
        for text in where_to_look(cause.parts)
    ]
    return Fix(
        title=f"Investigate {who[0].lower() + who[1:]}",
        kind="advice",
        safety="display",
        text="\n".join(look),
        verify="record all ranks again: no rank causes most of the waiting",
        risk="none: nothing is changed",
    )


def where_to_look(causes: Sequence[str]) -> list[str]:
    if look := [text for cause, text in LOOK.items() if cause in causes]:
        return look
    if causes:
        return [
            f"They lose the time in {listed(causes)}. Check the findings of these ranks, and what else runs on "
            "their host: other jobs, shared cores, a NUMA node far from their GPU. `trace-doctor record` measures how "
            "long each rank waits for a CPU."
        ]
    return [
        "Their own time breakdown does not explain it. Check what else runs on their host, the pinning to cores and NUMA "
        "nodes, and the link of their GPU (`nvidia-smi topo -m`, `nvidia-smi nvlink -s`)."
    ]
