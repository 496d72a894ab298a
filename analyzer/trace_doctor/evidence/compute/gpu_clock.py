"""How the kernels of steady steps go with the clock of their GPU."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Self

import numpy as np
import numpy.typing as npt

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compute.gpu_counters import RECORD, SM_CLOCK, GpuCounters
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.intervals import covered, pairs
from trace_doctor.evidence.rank_summary import JobEvidence, RankSummary
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.steps import Steps

LEAST_SAMPLES = 8
"""of the clock in the steady steps: fewer show no course"""
LOWER = 0.05
"""share of the clock: it goes up and down by less at any load"""
LEAST_BUSY = 0.5
"""share of the time before a sample in which the GPU worked: an idle one lowers its clock by itself"""


class ClockedKernels(Evidence, frozen=True):
    """Kernels that come in every steady step, each with the clock at its begin. Raises NotCaptured where the clock was not sampled
    often enough, or steps are not known."""

    places: I64
    """in `kernels.rows`, of the kernels that come at the same place of at least two steps, with a known clock"""
    group: I64
    """number of the name and its place in the step: kernels of one group do the same work"""
    mhz: npt.NDArray[np.float64]
    kernels: Kernels
    counters: GpuCounters

    @classmethod
    def build(cls, facts: Facts) -> Self:
        kernels, counters, steps = facts[Kernels], facts[GpuCounters], facts[Steps]
        edges = np.array(steps.on_device("steady"), dtype=np.int64).reshape(-1, 2)
        if len(steps.steady) < 2:
            raise NotCaptured("fewer than two steady steps to compare", "prof.step() after each iteration")
        ts, _ = counters.of(kernels.device, SM_CLOCK)
        within = (ts >= edges[0, 0]) & (ts < edges[-1, 1])
        if int(within.sum()) < LEAST_SAMPLES:
            raise NotCaptured(
                f"the SM clock was sampled {int(within.sum())} times in the steady steps", RECORD
            )
        starts = kernels.run.ts[kernels.rows]
        step = np.searchsorted(edges[:, 0], starts, side="right") - 1
        group = _groups(step, kernels.run.name[kernels.rows])
        mhz = _while_busy(facts[GpuTimeline], counters, kernels.device, starts)
        known = (step >= 0) & ~np.isnan(mhz)
        counts = np.bincount(group[known], minlength=int(group.max(initial=0)) + 1)
        places = np.flatnonzero(known & (counts[group] > 1))
        return cls(places, group[places], mhz[places], kernels, counters)

    def ratio(self, slow: Bool, fast: Bool) -> float:
        """How many times as long kernels take in one state as in the other: medians of each group that has both, summed up;
        1 where none has."""
        took = self.kernels.run.dur[self.kernels.rows[self.places]]
        sums = [0.0, 0.0]
        both = np.intersect1d(self.group[slow], self.group[fast])
        for state, mask in enumerate((slow, fast)):
            chosen = np.flatnonzero(mask & np.isin(self.group, both))
            order = chosen[np.lexsort((took[chosen], self.group[chosen]))]
            first = np.flatnonzero(np.diff(self.group[order], prepend=-1))
            last = np.append(first[1:], len(order)) - 1
            sums[state] = float(took[order[(first + last) // 2]].sum())
        return sums[0] / sums[1] if sums[1] else 1.0


class GpuClock(Evidence, frozen=True):
    """At which clock the kernels of steady steps ran, on the device that works most. Raises NotCaptured where `ClockedKernels` does."""

    mhz: float
    """mean over their time"""
    device_name: str
    """clocks of two kinds of GPUs are not compared"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        clocked = facts[ClockedKernels]
        ns = clocked.kernels.ns[clocked.places]
        if not ns.any():
            raise NotCaptured("the SM clock was not sampled while the GPU worked", RECORD)
        return cls(float(np.average(clocked.mhz, weights=ns)), clocked.kernels.device_name)


class RankClocks(JobEvidence, frozen=True):
    """The clocks of the ranks of a job, of those that were sampled. Raises NotCaptured where none was."""

    of_each = (GpuClock,)

    clocks: dict[int, GpuClock]
    """by rank"""

    @classmethod
    def build(cls, ranks: Sequence[RankSummary]) -> Self:
        clocks = {r.rank: clock for r in ranks if (clock := r.get(GpuClock)) is not None}
        if not clocks:
            raise NotCaptured("the SM clock was not sampled", RECORD)
        return cls(clocks)

    def lower(self, ranks: Sequence[int], others: Sequence[int]) -> tuple[float, float] | None:
        """The clock (MHz) of these ranks and of the others, medians, where each of them is lower than any other by `LOWER`; None
        otherwise, where one was not sampled, and where the GPUs are of several kinds."""
        if not {*ranks, *others} <= self.clocks.keys():
            return None
        slow, fast = ([self.clocks[rank].mhz for rank in which] for which in (ranks, others))
        names = {self.clocks[rank].device_name for rank in (*ranks, *others)}
        lower = slow and fast and len(names) == 1 and max(slow) <= (1 - LOWER) * min(fast)
        return (median(slow), median(fast)) if lower else None


def _groups(step: I64, name: npt.NDArray[np.int32]) -> I64:
    """Of each kernel, which are by start, the number of (name, how many of that name came before it in its step)."""
    order = np.lexsort((np.arange(len(name)), step, name))
    changes = (np.diff(name[order], prepend=-1) != 0) | (np.diff(step[order], prepend=-2) != 0)
    run_start = np.maximum.accumulate(np.where(changes, np.arange(len(order)), 0))
    nth = np.empty(len(name), dtype=np.int64)
    nth[order] = np.arange(len(order)) - run_start
    _, group = np.unique(np.stack([name.astype(np.int64), nth]), axis=1, return_inverse=True)
    return np.asarray(group.reshape(-1), dtype=np.int64)


def _while_busy(
    timeline: GpuTimeline, counters: GpuCounters, device: int, moments: I64
) -> npt.NDArray[np.float64]:
    """The clock at these moments; NaN where the GPU had been idle for most of the time before its sample."""
    ts, mhz = counters.of(device, SM_CLOCK)
    before = pairs(np.append(ts[:1], ts[:-1]), ts)
    busy = covered(before, timeline.busy(device)) >= LEAST_BUSY * (before[:, 1] - before[:, 0])
    place = np.searchsorted(ts, moments, side="right")
    return np.append(np.nan, np.where(busy, mhz, np.nan))[place]
