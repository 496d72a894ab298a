"""Where the GPU stands still at CUDA graphs for which the capture shows no reason."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.gaps import LATENCY_NS, IdleLedger
from trace_doctor.evidence.intervals import NOTHING, intersect, intervals, total, union
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.graph_replays import GraphReplays
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.steps import Steps


class GraphGaps(Evidence, frozen=True):
    """Idle time of the steady steps in which nodes of CUDA graphs may have run, on the device where that is most: it ends with the first
    node of a replay whose launch arrived long before, lies between two nodes, or follows a launch without any recorded node. Raises
    NotCaptured without GPU work."""

    device: int
    idle: I64
    """a set of intervals, ns"""
    launches: int
    """calls that launched these graphs"""
    length: int
    """of the steady steps together, ns"""
    count: int
    """number of steady steps"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, timeline, steps = facts.run, facts[GpuTimeline], facts[Steps]
        ledger, launches, replays = facts[IdleLedger], facts[Launches], facts[GraphReplays]
        steady = intervals(steps.on_device("steady"))
        best: tuple[int, I64, int] = (timeline.devices[0], NOTHING, 0)
        for device in timeline.devices:
            rows = timeline.rows(device)
            rows = rows[run.dur[rows] > 0]
            places = np.searchsorted(run.gpu, rows)
            pieces = ledger.pieces("unattributed", device)
            at = np.searchsorted(run.ts[rows], pieces[:, 1])
            pieces, at = pieces[at < len(rows)], at[at < len(rows)]
            _, between = replays.between_nodes(device, pieces)
            late = pieces[:, 1] - pieces[:, 0] >= LATENCY_NS
            ends = (replays.of_work[places[at]] >= 0) & (run.ts[rows[at]] == pieces[:, 1])
            chosen = ends & (between | (late & (launches.launch[places[at]] >= 0)))
            lost = replays.unrecorded(device)
            unseen = intersect(ledger.pieces("unattributed", device), lost)
            idle = intersect(union(np.concatenate([pieces[chosen], unseen])), steady)
            if total(idle) > total(best[1]):
                count = len(np.unique(replays.of_work[places[at]][chosen]))
                best = device, idle, count + len(replays.lost)
        return cls(*best, total(steady), steps.count)
