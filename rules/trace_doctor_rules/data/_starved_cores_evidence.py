"""Kernel launches that stall while the GPU has nothing to do: the launching thread waits for a core, as the loader's does."""

from __future__ import annotations

from typing import Self

from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.intervals import covered, intervals, pairs, subtract, total, union
from trace_doctor.evidence.names.event_names import is_launch
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat

STALL_NS = 1_000_000
"""a launch takes 5 to 20 us, or waits for a full queue while the GPU is busy; a scheduler gives others slices of 1 ms and more"""


class StarvedCores(Evidence, frozen=True):
    """Raises NotCaptured without GPU work."""

    share: float
    """of the steady steps, in launches that stall"""
    steps: float
    """share of the steady steps with such a launch: lazy initialization is in few"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, timeline = facts.run, facts[GpuTimeline]
        rows = run.named(is_launch, Cat.RUNTIME, Cat.DRIVER)
        rows = rows[(run.thread[rows] == facts[Threads].main) & (run.dur[rows] >= STALL_NS)]
        stalled = union(pairs(run.ts[rows], run.end[rows]))
        for device in timeline.devices:
            stalled = subtract(stalled, timeline.busy(device))
        steady = intervals(facts[Steps].spans("steady"))
        by_step = covered(steady, stalled)
        return cls(float(by_step.sum()) / max(total(steady), 1), float((by_step >= STALL_NS).mean()))
