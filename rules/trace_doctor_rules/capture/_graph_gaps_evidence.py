"""Where the GPU stands still at CUDA graphs for which the capture shows no reason."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.gaps import LATENCY_NS, IdleLedger
from trace_doctor.evidence.intervals import NOTHING, intersect, intervals, pairs, total, union
from trace_doctor.evidence.names.event_names import is_graph_launch
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat

BETWEEN_NODES_NS = 5000
"""Nodes of one launch follow each other faster: in 12 public captures 99 % within 3.5 us, and 2 of 6,000 take longer than this."""


class GraphGaps(Evidence, frozen=True):
    """Idle time of the steady steps that ends with work of a CUDA graph whose launch arrived long before, or with a node of one whose
    nodes have begun, on the device where that is most. Raises NotCaptured without GPU work."""

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
        is_graph[run.named(is_graph_launch, Cat.RUNTIME, Cat.DRIVER)] = True
        best: tuple[int, I64, int] = (timeline.devices[0], NOTHING, 0)
        for device in timeline.devices:
            rows = timeline.rows(device)
            rows = rows[run.dur[rows] > 0]
            calls = launches.launch[np.searchsorted(run.gpu, rows)]
            ended, begun = np.maximum.accumulate(run.end[rows])[:-1], run.ts[rows][1:]
            between = (begun - ended >= BETWEEN_NODES_NS) & (calls[1:] == calls[:-1]) & is_graph[calls[1:]]
            pieces = ledger.pieces("unattributed", device)
            pieces = pieces[pieces[:, 1] - pieces[:, 0] >= LATENCY_NS]
            at = np.searchsorted(run.ts[rows], pieces[:, 1])
            pieces, at = pieces[at < len(rows)], at[at < len(rows)]
            chosen = is_graph[calls[at]] & (run.ts[rows[at]] == pieces[:, 1])
            gaps = np.concatenate([pieces[chosen], pairs(ended[between], begun[between])])
            idle = intersect(union(gaps), steady)
            if total(idle) > total(best[1]):
                here = np.concatenate([calls[at][chosen], calls[1:][between]])
                best = device, idle, len(np.unique(here))
        return cls(*best, total(steady), steps.count)
