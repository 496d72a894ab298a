"""Whether operators of PyTorch, and the launches of the GPU's work, were recorded at all."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.intervals import intersect, total
from trace_doctor.evidence.names.event_arguments import count
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.graph_replays import GraphReplays
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model.captures import LEAST_LAUNCHES as LEAST_LAUNCHES
from trace_doctor.run import Cat

WHOLE = "the trace as the profiler wrote it"
_WITHOUT_GRAPHS = (
    "some steps without CUDA graphs, or with a newer driver and torch, which record more of a graph"
)
_OUTSIDE_GRAPHS = "some steps without CUDA graphs"
_EVERYTHING = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"

MOST_IN_GRAPHS = 0.5
"""of the GPU's time: what rules that know operators find is less than half of the work"""
MOST_UNKNOWN = 0.10
"""of the window, as `max_unattributed` of the rules about time"""


class RecordedOperators(Evidence, frozen=True):
    """For rules that find nothing where no operator is: in a trace without any that is no *passed*. Raises NotCaptured there."""

    count: int
    """of the whole file"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        count = int(facts.run.is_cat(Cat.CPU_OP).sum())
        if not count:
            raise NotCaptured("the trace has no operator of PyTorch", _EVERYTHING)
        return cls(count)


class OperatorsOfWork(Evidence, frozen=True):
    """For rules that know work by the operator that launched it. Raises NotCaptured where most of the GPU's time in the window is in
    replays of CUDA graphs, whose nodes have none."""

    share: float
    """of the GPU's time, in such replays"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, (start, end) = facts.run, facts[Steps].window
        inside = (run.ts[run.gpu] < end) & (run.end[run.gpu] > start)
        ns = run.dur[run.gpu] * inside
        share = float(ns[facts[GraphReplays].of_work >= 0].sum() / max(int(ns.sum()), 1))
        if share > MOST_IN_GRAPHS:
            raise NotCaptured(
                f"{share:.0%} of the GPU's time is in CUDA graphs, whose operators are not recorded",
                _OUTSIDE_GRAPHS,
            )
        return cls(share)


LEAST_OPERATORS = 0.5
"""Of the operators that the profiler numbered: where fewer are in the file, most were taken out. Whole public captures have 77 % and more,
cut ones 35 % and less."""
LEAST_NUMBERED = 1000
"""Files with lower numbers are written by hand, as tests of other tools are."""
LEAST_HOLES = 0.1
"""of the operators that are there: what was taken out leaves holes all over, a pause between two windows leaves one"""
MOST_NUMBERED = 2000
"""operators whose arguments are read again from the file"""


class OperatorNumbers(Evidence, frozen=True):
    """How many of the operators that the profiler recorded are in the file. It numbers them one by one: a number that is missing is an
    operator that was taken out. Raises NotCaptured where the file has no numbers."""

    present: int
    numbered: int
    holes: int
    """places in the order of the numbers at which some are missing"""

    @classmethod
    def of(cls, ids: I64) -> Self:
        """`ids`: those that are there, each once and rising."""
        return cls(len(ids), int(ids[-1] - ids[0]) + 1, int((np.diff(ids) > 1).sum()))

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run = facts.run
        rows = np.flatnonzero(run.is_cat(Cat.CPU_OP, Cat.USER_ANNOTATION) & (run.external_id > 0) & run.own)
        if not len(rows):
            raise NotCaptured("operators have no numbers", "the trace as the profiler wrote it")
        numbers = cls.of(np.unique(run.external_id[rows]))
        if (
            numbers.most_missing
        ):  # Kineto for ROCm counts calls of the runtime as well: another number is the operators' own
            rows = rows[np.argsort(run.external_id[rows], kind="stable")][:MOST_NUMBERED]
            own = sorted({n for args in run.args(rows) if (n := count(args, "Record function id"))})
            if len(own) > 1:
                return cls.of(np.array(own, dtype=np.int64))
        return numbers

    @property
    def most_missing(self) -> bool:
        """Whether most of them were taken out."""
        few = self.numbered >= LEAST_NUMBERED and self.present < LEAST_OPERATORS * self.numbered
        return few and self.holes >= LEAST_HOLES * self.present


class RecordedLaunches(Evidence, frozen=True):
    """For rules that lay time to what the host did. Raises NotCaptured where most GPU work in the window has no launch in the
    trace, or most operators were taken out of it: what the host did is not known then, and no cause is ruled out. Or where most
    launches of CUDA graphs have no work in it: when the GPU was idle is not known then."""

    share: float
    """of the GPU work in the window; 1 without any, for the main thread is its own host then"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        linked, work = facts[Launches].with_launch(*facts[Steps].window)
        if linked < LEAST_LAUNCHES * work:
            raise NotCaptured(
                f"the launches of {work - linked:,} of {work:,} GPU events are not in the trace, so what the GPU waited for is not known",
                _EVERYTHING,
            )
        if why := _graphs_lost(facts):
            raise NotCaptured(why, _WITHOUT_GRAPHS)
        numbers = facts.get(OperatorNumbers)
        if numbers is not None and numbers.most_missing:
            raise NotCaptured(
                f"{numbers.numbered - numbers.present:,} of {numbers.numbered:,} operators were taken out of the trace, so what the host did is not known",
                WHOLE,
            )
        return cls(linked / work if work else 1.0)


def _graphs_lost(facts: Facts) -> str:
    """Why it is not known when the GPU was idle; "" where that is known for all but a tenth of the window."""
    replays, timeline = facts[GraphReplays], facts.get(GpuTimeline)
    if timeline is None or len(replays.lost) <= LEAST_LAUNCHES * replays.launched:
        return ""
    start, end = timeline.window
    unknown = max(
        total(intersect(timeline.gaps(d, start, end), replays.unrecorded(d))) for d in timeline.devices
    )
    if unknown < MOST_UNKNOWN * (end - start):
        return ""
    return (
        f"the work of {len(replays.lost):,} of {replays.launched:,} launches of CUDA graphs is not in the trace, so it is not known "
        f"when the GPU was idle ({unknown / (end - start):.0%} of the window)"
    )
