"""Where the GPU stands still at CUDA graphs for which the capture shows no reason."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.gaps import LATENCY_NS, IdleLedger
from trace_doctor.evidence.intervals import NOTHING, intersect, intervals, total, union
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat


class GraphGaps(Evidence, frozen=True):
    """Idle time of the steady steps that ends with work of a CUDA graph whose launch arrived long before, on the device where that is
    most. Raises NotCaptured without GPU work."""

    device: int
    idle: I64
    """a set of intervals, ns: before the first recorded node of a graph, and between two"""
    launches: int
    """calls that launched these graphs"""
    length: int
    """of the steady steps together, ns"""
    count: int
    """number of steady steps"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, timeline, steps = facts.run, facts[GpuTimeline], facts[Steps]
        ledger, launches = facts[IdleLedger], facts[Launches]
        steady = intervals(steps.on_device("steady"))
        is_graph = np.zeros(len(run) + 1, dtype=bool)  # the last row: no call
        is_graph[run.named(lambda name: name.endswith("GraphLaunch"), Cat.RUNTIME, Cat.DRIVER)] = True
        best: tuple[int, I64, int] = (timeline.devices[0], NOTHING, 0)
        for device in timeline.devices:
            rows = timeline.rows(device)
            rows = rows[run.dur[rows] > 0]
            pieces = ledger.pieces("unattributed", device)
            pieces = pieces[
                pieces[:, 1] - pieces[:, 0] >= LATENCY_NS
            ]  # nodes follow each other within some us
            at = np.searchsorted(run.ts[rows], pieces[:, 1])
            pieces, at = pieces[at < len(rows)], at[at < len(rows)]
            call = launches.launch[np.searchsorted(run.gpu, rows[at])]
            chosen = is_graph[call] & (run.ts[rows[at]] == pieces[:, 1])
            idle = intersect(union(pieces[chosen]), steady)
            if total(idle) > total(best[1]):
                best = device, idle, len(np.unique(call[chosen]))
        return cls(*best, total(steady), steps.count)
