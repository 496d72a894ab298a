"""The steps of a job, ready to be timed again with other own times and transfers."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.distributed.blame.columns import F64, JobColumns, Rows, classes, medians, with_ends
from trace_doctor.evidence.distributed.blame.gates import gates
from trace_doctor.evidence.distributed.blame.nodes import Clocks, Nodes, clocks, nodes
from trace_doctor.evidence.distributed.blame.retime import Graph, graph, path, retime, step_ends
from trace_doctor.evidence.distributed.blame.roles import Own, own_times, roles, usual_transfer

ENOUGH = 0.95
"""share of the ranks that were read which a step must have: what the rest did in it is not known"""


class StepModel(Struct, frozen=True):
    """One step. Own times: by row; transfers: by node; ns."""

    index: int
    rows: Rows
    nodes: Nodes
    graph: Graph
    own: Own
    usual_own: Own
    transfer: F64
    usual_transfer: F64


class Timing(Struct, frozen=True):
    """One run through all steps."""

    total: float
    """ns of all steps"""
    rank_excess: F64
    """steps × ranks: own time on the critical path beyond that of the role, ns"""
    group_excess: F64
    """steps × groups: transfer on the critical path beyond the usual, ns"""


class JobModel(Struct, frozen=True, dict=True):
    """All steps that were read of enough ranks."""

    job: JobColumns
    steps: tuple[StepModel, ...]
    role: I64
    """per rank"""
    begin: F64
    """per rank: how much later than the first it began the first step, ns"""
    clocks: Clocks

    @cached_property
    def own(self) -> F64:
        """Steps × ranks: own time, ns."""
        indexes = {step.index for step in self.steps}
        return np.array([step.own for step in self.job.steps if step.index in indexes], dtype=np.float64)

    @cached_property
    def excess(self) -> F64:
        """Steps × ranks: own time beyond the median of the role, on the critical path or not, ns. 0 for one that lacks the step."""
        indexes = {step.index for step in self.steps}
        present = np.array([step.present for step in self.job.steps if step.index in indexes])
        return beyond_role(self.own, present, self.role)

    def total(
        self, ranks: Collection[int] = (), groups: Collection[int] = (), *, own: bool = False, transfer: bool = False
    ) -> float:  # fmt: skip
        """ns that all steps take if these ranks (positions) take no longer than their role, and transfers of these groups no longer than
        usual. `own`, `transfer`: all ranks, all groups take the usual time."""
        begin = self.begin
        for step in self.steps:
            own_times = step.usual_own if own else _own(step, ranks)
            usual = transfer | np.isin(step.nodes.group, list(groups))
            transfers = np.where(usual, step.usual_transfer, step.transfer)
            begin = step_ends(step.graph, retime(step.graph, own_times, transfers, begin), begin)
        return float(begin.max() - self.begin.min())

    def timing(self, ranks: Collection[int] = ()) -> Timing:
        """With the critical path, from the rank that ends last backwards. `ranks`: as for `total`."""
        begins, times = [self.begin], []
        for step in self.steps:
            times.append(retime(step.graph, _own(step, ranks), step.transfer, begins[-1]))
            begins.append(step_ends(step.graph, times[-1], begins[-1]))
        by_rank = np.zeros((len(self.steps), len(self.job.ranks)))
        by_group = np.zeros((len(self.steps), len(self.job.groups)))
        rank = int(begins[-1].argmax())
        for n in range(len(self.steps) - 1, -1, -1):
            step = self.steps[n]
            if step.graph.ends[rank] < 0:
                continue
            own = _own(step, ranks)
            found = path(step.graph, own, times[n], rank)
            excess = np.where(
                found.after, (own.after - step.usual_own.after)[found.rows], (own.since - step.usual_own.since)[found.rows]
            )  # fmt: skip
            np.add.at(by_rank[n], step.rows.rank[found.rows], excess)
            met = found.nodes[step.nodes.group[found.nodes] >= 0]
            np.add.at(by_group[n], step.nodes.group[met], (step.transfer - step.usual_transfer)[met])
            rank = found.rank
        return Timing(float(begins[-1].max() - self.begin.min()), by_rank, by_group)


def beyond_role(own: F64, present: Bool, role: I64) -> F64:
    """Steps × ranks: beyond the median of the role in the step; 0 for a rank that lacks it."""
    of, count = classes(role)
    excess = np.zeros_like(own)
    for n, have in enumerate(present):
        excess[n][have] = own[n][have] - medians(own[n][have], of[have], count)[of[have]]
    return excess


def _own(step: StepModel, ranks: Collection[int]) -> Own:
    """With these ranks no slower than their role."""
    if not ranks:
        return step.own
    them, own, usual = np.isin(step.rows.rank, list(ranks)), step.own, step.usual_own
    return Own(
        np.where(them, np.minimum(own.after, usual.after), own.after),
        np.where(them, np.minimum(own.since, usual.since), own.since),
    )


def model(job: JobColumns) -> JobModel:
    """Raises ValueError where no step was read of enough ranks."""
    ranks = len(job.ranks)
    enough = [step for step in job.steps if enough_ranks(step.present)]
    if not enough:
        raise ValueError("no step of enough ranks")
    prepared = [with_ends(step) for step in enough]
    clock = clocks(prepared[0], ranks, job.members)
    role = roles(prepared[0], job.groups, job.ranks)
    begin = np.where(enough[0].present, enough[0].begin + clock.add, np.iinfo(np.int64).max)
    late = np.where(enough[0].present, begin - begin.min(), 0).astype(np.float64)
    return JobModel(
        job, tuple(_step(job, step.index, rows, clock, role) for step, rows in zip(enough, prepared, strict=True)),
        role, late, clock,
    )  # fmt: skip


def enough_ranks(present: Bool) -> bool:
    """Whether a step was read of enough ranks to tell who is late in it."""
    return bool(present.any() and present.mean() >= ENOUGH)


def _step(job: JobColumns, index: int, rows: Rows, clock: Clocks, role: I64) -> StepModel:
    found = nodes(rows, clock.add, job.members)
    gate = gates(rows, found)
    own, usual_own = own_times(rows, gate, role)
    return StepModel(
        index=index,
        rows=rows,
        nodes=found,
        graph=graph(rows, found, gate, len(job.ranks)),
        own=own,
        usual_own=usual_own,
        transfer=found.transfer.astype(np.float64),
        usual_transfer=usual_transfer(found, job.members),
    )
