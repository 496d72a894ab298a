"""Kernel launches that stall while the GPU has nothing to do: the launching thread waits for a core, as the loader's does."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.intervals import covered, pairs, subtract, union
from trace_doctor.evidence.names.event_names import is_launch
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat

STALL_NS = 1_000_000
"""a launch takes 5 to 20 us (of a graph longer), or waits for a full queue while the GPU is busy; a scheduler gives others slices of 1 ms and more"""


class StarvedCores(Evidence, frozen=True):
    """Raises NotCaptured without GPU work."""

    share: float
    """of the steady steps, in launches that stall"""
    recurs: bool
    """whether half of several steady steps have such a launch: lazy initialization is in few, and one step shows no habit"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, timeline = facts.run, facts[GpuTimeline]
        rows = run.named(lambda name: is_launch(name) and "Graph" not in name, Cat.RUNTIME, Cat.DRIVER)
        rows = rows[(run.thread[rows] == facts[Threads].main) & (run.dur[rows] >= STALL_NS)]
        stalled = union(pairs(run.ts[rows], run.end[rows]))
        for device in timeline.devices:
            stalled = subtract(stalled, timeline.busy(device))
        steady = np.array(facts[Steps].spans("steady"), dtype=np.int64).reshape(-1, 2)
        by_step = covered(steady, stalled)
        recurs = len(by_step) > 1 and 2 * int((by_step >= STALL_NS).sum()) >= len(by_step)
        return cls(float(by_step.sum()) / max(int((steady[:, 1] - steady[:, 0]).sum()), 1), recurs)
