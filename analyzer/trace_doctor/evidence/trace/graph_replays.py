"""Replays of CUDA graphs: one call launches all nodes of a graph, so that what lies between two of them is no work of the host."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I32, I64, Bool
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.intervals import NOTHING, covered, holds, pairs, union
from trace_doctor.evidence.names.event_arguments import count
from trace_doctor.evidence.names.event_names import is_graph_launch, is_synchronize
from trace_doctor.evidence.trace.graph_captures import GraphCaptures
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.run import Cat, Run

BETWEEN_NODES_NS = 5000
"""Nodes of one launch follow each other faster: in 12 public captures 99 % within 3.5 us, and 2 of 6,000 take longer than this."""
GRAPH_ID = "graph id"
"""argument of the nodes; 0 for work outside graphs"""
_MOST_REPLAYS = 2_000
"""whose arguments are read again from the file; of more it is not known which are of one graph"""
_NEVER = np.iinfo(np.int64).max


class GraphReplays(Evidence, frozen=True):
    """The replays of which nodes were recorded, and the launches of which none was. Empty where no graph ran.

    All nodes of a replay have the correlation id of its launch, which may have been before the recording.
    """

    of_work: I32
    """aligned with `run.gpu`: number of the replay that this is a node of, -1 for other work"""
    lost: I64
    """rows of the launches without recorded work, ascending. Launches that are captured into a graph are none."""
    launched: int
    """all launches of graphs, those lost included"""
    run: Run
    _launches: Launches

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, launches = facts.run, facts[Launches]
        calls = run.named(is_graph_launch, Cat.RUNTIME, Cat.DRIVER)
        calls = calls[~facts[GraphCaptures].holds(calls, run)]
        repeated = np.ones(len(calls), dtype=bool)  # a driver call inside the runtime call has its id
        repeated[np.unique(run.correlation[calls], return_index=True)[1]] = False
        calls = calls[~repeated | (run.correlation[calls] <= 0)]
        lost = calls[launches.first_work(calls) < 0] if len(launches.calls) else calls[:0]
        return cls(_replays(run, launches, calls), lost, len(calls), run, launches)

    def nodes(self, gpu_rows: I64) -> Bool:
        """Which of these GPU rows are nodes of a replay."""
        return np.asarray(self.of_work[np.searchsorted(self.run.gpu, gpu_rows)] >= 0)

    def between_nodes(self, device: int, gaps: I64) -> tuple[Bool, Bool]:
        """Which gaps of a device lie between the first and the last node of a replay; and of which of these it is not known
        whether nodes ran in them: the longer ones, unless a host node ran meanwhile, or the recording of that replay is whole."""
        run = self.run
        mine = np.flatnonzero((self.of_work >= 0) & (run.device[run.gpu] == device))
        inside = holds(self._spans(mine), gaps[:, 0])
        host_nodes = run.named(lambda name: name.startswith("HostNode"), Cat.OTHER)
        of_host = covered(gaps, union(pairs(run.ts[host_nodes], run.end[host_nodes])))
        unknown = inside & (gaps[:, 1] - gaps[:, 0] - of_host >= BETWEEN_NODES_NS)
        if unknown.any():
            unknown &= holds(self._spans(mine[~self._whole(self.of_work[mine])]), gaps[:, 0])
        return inside, unknown

    def unrecorded(self, device: int) -> I64:
        """When nodes of lost launches may have run on a device, a set of intervals (ns): from the call to the end of the next wait
        of its thread, or to the first recorded work that was launched after it."""
        run = self.run
        work = run.gpu[(run.device[run.gpu] == device) & (run.dur[run.gpu] > 0)]
        waits = run.named(lambda n: is_synchronize(n) and "Event" not in n, Cat.RUNTIME, Cat.DRIVER)
        spans = [NOTHING]
        for thread in np.unique(run.thread[self.lost]).tolist():
            begin = run.ts[self.lost[run.thread[self.lost] == thread]]
            own = waits[run.thread[waits] == thread]
            waited = _earliest(run.ts[own], run.end[own], begin)
            worked = _earliest(self._launches.launched_at(work), run.ts[work], begin)
            spans.append(pairs(begin, np.minimum(waited, worked)))
        return union(np.concatenate(spans))

    def _spans(self, places: I64) -> I64:
        """From the first to the last node of each replay, of these places in `run.gpu`: a set of intervals."""
        number, run = self.of_work[places], self.run
        order = np.argsort(number, kind="stable")
        rows = run.gpu[places[order]]
        first = np.flatnonzero(np.diff(number[order], prepend=-1))
        if not len(first):
            return NOTHING
        return union(
            pairs(np.minimum.reduceat(run.ts[rows], first), np.maximum.reduceat(run.end[rows], first))
        )

    def _whole(self, replays: I32) -> Bool:
        """Which of these replays are known to be recorded whole: of a graph that ran more than once, and never with more nodes."""
        places = np.flatnonzero(self.of_work >= 0)
        number, first, nodes = np.unique(self.of_work[places], return_index=True, return_counts=True)
        if not 0 < len(number) <= _MOST_REPLAYS:
            return np.zeros(len(replays), dtype=bool)
        arguments = self.run.args(self.run.gpu[places[first]].tolist())
        graph = np.array([count(each, GRAPH_ID) or 0 for each in arguments])
        _, which, times = np.unique(graph, return_inverse=True, return_counts=True)
        most = np.zeros(len(times), dtype=np.int64)
        np.maximum.at(most, which, nodes)
        whole = (graph > 0) & (times[which] > 1) & (nodes == most[which])
        return np.asarray(whole[np.searchsorted(number, replays)])


def _replays(run: Run, launches: Launches, calls: I64) -> I32:
    """Aligned with `run.gpu`: number of the replay, -1 for none. Kernels without a launch that share an id are nodes as well."""
    call = launches.launch.astype(np.int64)
    ids = run.correlation[run.gpu]
    orphans = (call < 0) & (ids > 0)
    shared, kernels = np.unique(ids[orphans & (run.cat[run.gpu] == Cat.KERNEL)], return_counts=True)
    key = np.where(np.isin(call, calls) & (call >= 0), call, -1)
    key = np.where(orphans & np.isin(ids, shared[kernels > 1]), len(run) + ids, key)
    known, number = np.unique(key, return_inverse=True)
    return (number - int(len(known) > 0 and known[0] < 0)).astype(np.int32)


def _earliest(begins: I64, until: I64, moments: I64) -> I64:
    """For each moment the least `until` of what begins at it or later; the end of time where nothing does."""
    order = np.argsort(begins, kind="stable")
    least = np.minimum.accumulate(until[order][::-1])[::-1]
    return np.append(least, _NEVER)[np.searchsorted(begins[order], moments)]
