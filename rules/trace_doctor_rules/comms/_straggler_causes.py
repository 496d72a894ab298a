"""What stragglers do longer than the others, and where to look then."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from trace_doctor import Fix
from trace_doctor.evidence.compute.gpu_clock import RankClocks
from trace_doctor.evidence.distributed.ranked_collectives import RankedCollectives
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
    clocks: tuple[float, float] | None = None
    """MHz: the SM clock of these ranks and of the others, where that is why they compute longer"""

    def __str__(self) -> str:
        """Without the share where it is all, or as good as all."""
        if not self.parts:
            return "not explained"
        doubt = " (CPU contention was not recorded)" if self.untold and HOST & set(self.parts) else ""
        text = listed([self._named(part) for part in self.parts]) + doubt
        if self.covered_ns >= self.lost_ns:
            return text
        shares = f"{milliseconds(self.covered_ns / 1e3)} of {milliseconds(self.lost_ns / 1e3)}"
        return f"{text}, {shares}, the rest unexplained"

    def _named(self, part: str) -> str:
        if part != THROTTLING or self.clocks is None:
            return part
        return f"{THROTTLING} (SM clock {self.clocks[0]:,.0f} MHz, others {self.clocks[1]:,.0f} MHz)"


class Limits(Protocol):
    """Thresholds of `straggler`."""

    min_explained: float
    min_part: float
    max_causes: int


def causes_of(
    collectives: RankedCollectives,
    ranks: Ranks,
    clocks: RankClocks | None,
    late: Sequence[int],
    limits: Limits,
) -> list[tuple[Cause, list[int]]]:
    """What the stragglers do longer than the others, and which of them: apart where their main causes differ. `late`: positions."""
    on_time = [i for i in range(len(collectives.ranks)) if i not in late]
    waits = collectives.wait_ns

    def cause(of: Sequence[int]) -> Cause:
        lost = mean(waits[i] for i in on_time) - mean(waits[i] for i in of)
        own, others = ([collectives.ranks[i] for i in places] for places in (of, on_time))
        return _at_clock(_cause(ranks, own, others, lost, limits), lower_clock(ranks, clocks, own, others))

    by_main_cause: dict[str, list[int]] = {}
    for i in late:
        by_main_cause.setdefault(next(iter(cause([i]).parts), ""), []).append(i)
    return [(cause(of), [collectives.ranks[i] for i in of]) for of in by_main_cause.values()]


def _cause(ranks: Ranks, own: Sequence[int], others: Sequence[int], lost: float, limits: Limits) -> Cause:
    """What covers so many ns of a step: waiting for a CPU, else the fewest parts, else the longest part, if it is half."""
    waits, usual = ranks.waits_for_cpu(own), ranks.waits_for_cpu(others)
    if waits is not None and usual is not None and waits - usual >= limits.min_part * lost > 0:
        return Cause((CONTENTION,), min(waits - usual, lost), lost)
    more = ranks.excess(own, others)
    parts = tuple(more)[: limits.max_causes]
    for count in range(1, len(parts) + 1):
        if sum(more[p] for p in parts[:count]) >= limits.min_explained * lost:
            return Cause(parts[:count], lost, lost, waits is None)
    longest = parts[:1] if parts and more[parts[0]] >= limits.min_part * lost else ()
    return Cause(longest, sum(more[p] for p in longest), lost, waits is None)


def lower_clock(
    ranks: Ranks, clocks: RankClocks | None, own: Sequence[int], others: Sequence[int]
) -> tuple[float, float] | None:
    """SM clocks (MHz) of these ranks and of the others, where theirs is lower and most of what they compute longer is due to it, which
    is at most as much as the clock is lower: the rest may be work of theirs."""
    found = clocks.lower(own, others) if clocks is not None else None
    if found is None:
        return None
    due = (1 - found[0] / found[1]) * median(ranks.of(rank, "compute") for rank in own)
    return found if due >= _BY_CLOCK * ranks.excess(own, others)["compute"] else None


def _at_clock(cause: Cause, clocks: tuple[float, float] | None) -> Cause:
    """With throttling for compute, where the clock is why it takes longer."""
    if clocks is None or "compute" not in cause.parts:
        return cause
    parts = tuple(THROTTLING if part == "compute" else part for part in cause.parts)
    return replace(cause, parts=parts, clocks=clocks)


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


_BY_CLOCK = 0.8
"""of the compute that some ranks take longer"""
CONTENTION, THROTTLING = "CPU contention", "throttling"
LOWER_CLOCK = (
    "The GPU computes at a lower clock: ask the driver for the reason (`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER,CLOCK`, "
    '"Clocks Event Reasons"). Then improve cooling, or raise the power limit (`nvidia-smi -pl`) as far as the machine allows.'
)

HOST = frozenset(PARTS) - {"compute", "copies", "cold start"}
"""parts that take longer where threads outnumber cores"""


def by_ranks(causes: Sequence[tuple[Cause, Sequence[int]]]) -> str:
    if len(causes) == 1:
        return str(causes[0][0])
    return "; ".join(f"{named(ranks).lower()} {cause}" for cause, ranks in causes)


LOOK = {
    "compute": "Compute takes longer. Compare with the other ranks what is computed (sequence lengths, shards, experts) and how fast the "
    "GPU runs (`nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE`): the table shows whether more kernels are launched.",
    "data loading": "The loader is slow: a slower disk, larger samples, fewer cores, or workers that share them. "
    "Balance the shards by size, and pin each rank to its own cores.",
    THROTTLING: LOWER_CLOCK,
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
            f"The time goes into {listed(causes)}. Check the findings of this rank, and what else runs on "
            "the host: other jobs, shared cores, a NUMA node far from the GPU. `trace-doctor record` measures how "
            "long each rank waits for a CPU."
        ]
    return [
        "The time breakdown does not explain it. Check what else runs on the host, the pinning to cores and NUMA "
        "nodes, and the link of the GPU (`nvidia-smi topo -m`, `nvidia-smi nvlink -s`)."
    ]
