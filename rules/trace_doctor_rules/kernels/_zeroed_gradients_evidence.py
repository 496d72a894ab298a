"""Where gradients are filled with zeros: in an optimizer's `zero_grad()`, in that of a module, or in a loop over parameters."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compute.optimizer_work import OptimizerWork, launched_in
from trace_doctor.evidence.compute.update_loops import (
    TENSORS,
    gradients_by_step,
    over_parameters,
    plain_operators,
)
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.run import Run

_ZEROING = ("aten::zero_", "aten::_foreach_zero_")


class GradientFills(Evidence, frozen=True):
    """Of the steady steps. Raises NotCaptured where nothing of an optimizer was recorded and no such loop is there."""

    runs: tuple[I64, ...]
    """`zero_` operators of each execution, by start"""
    names: tuple[str, ...]
    """aligned with `runs`: class of the optimizer; empty for a module's zero_grad() and loops"""
    run: Run
    nesting: Nesting
    launches: Launches

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, loops = facts.run, _loops(facts)
        marked: list[tuple[I64, str]] = []
        try:
            marked = _in_optimizers(facts[OptimizerWork])
        except NotCaptured:
            if not loops:
                raise
        fills = sorted([*marked, *((rows, "") for rows in loops)], key=lambda each: int(each[0][0]))
        runs, names = (tuple(rows for rows, _ in fills), tuple(name for _, name in fills))
        return cls(runs, names, run, facts[Nesting], facts[Launches])

    @property
    def operators(self) -> I64:
        """All of them, by start."""
        return np.concatenate([np.empty(0, dtype=np.int64), *self.runs])

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """From the first to the last operator of each execution, ns."""
        return tuple((int(self.run.ts[rows[0]]), int(self.run.end[rows[-1]])) for rows in self.runs)

    def gpu_rows(self) -> I64:
        """The GPU work that they launched."""
        return launched_in(self.run, self.nesting, self.launches, self.operators)


def _in_optimizers(work: OptimizerWork) -> list[tuple[I64, str]]:
    rows = work.operators(work.zero_grads)
    rows = rows[work.run.is_named(_ZEROING.__contains__)[rows]]
    of = np.searchsorted(work.run.ts[work.zero_grads], work.run.ts[rows], side="right") - 1
    return [(rows[of == at], work.optimizer(int(work.zero_grads[at]))) for at in np.unique(of).tolist()]


def _loops(facts: Facts) -> list[I64]:
    """Runs of `zero_` and nothing else on the main thread, outside of optimizers, one for each of the model's gradients."""
    run = facts.run
    ops, step, mark = plain_operators(facts)
    gradients = gradients_by_step(facts)
    zero = run.is_named(_ZEROING[0].__eq__)[ops] & (mark < 0)
    new = np.ones(len(ops), dtype=bool)
    new[1:] = (zero[1:] != zero[:-1]) | (step[1:] != step[:-1])
    first = np.flatnonzero(new)
    behind = np.append(first[1:], len(ops))
    long = zero[first] & (behind - first >= TENSORS)
    loops = []
    for a, b in zip(first[long].tolist(), behind[long].tolist(), strict=True):
        if over_parameters(run, ops[a:b], b - a, gradients.get(int(step[a]), 0)):
            loops.append(ops[a:b])
    return loops
