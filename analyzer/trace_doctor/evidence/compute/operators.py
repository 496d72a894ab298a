"""Where the host's own time goes: operators and runtime calls, without what they call."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64, order_of
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.per_step import deviation_us, mean_us
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.model import OperatorRow
from trace_doctor.run import Cat, Run

TOP_OPERATORS = 20


class Operators(Evidence, frozen=True):
    """Operators and runtime calls of the training and autograd threads that start in the window. Raises NotCaptured
    where there is none."""

    names: I64
    """ids of the names, longest first"""
    _self: I64
    """summed self time of each, ns"""
    _facts: Facts
    _rows: I64
    """by name"""
    _own: I64
    """self time of each row, ns"""
    _first: I64
    """where the rows of each name begin"""
    _behind: I64

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, threads = facts.run, facts[Threads]
        rows = np.flatnonzero(run.is_cat(Cat.CPU_OP, Cat.RUNTIME, Cat.DRIVER))
        first, behind = np.searchsorted(rows, np.searchsorted(run.ts, facts[Steps].window))
        rows = rows[first:behind]
        rows = rows[np.isin(run.thread[rows], [threads.main, *threads.autograd])]
        if not len(rows):
            raise NotCaptured("no operators on the host", "activities=[ProfilerActivity.CPU]")
        own = self_time(run, facts[Nesting], rows)
        by_name = order_of(run.name[rows], len(run.names))
        rows, own = rows[by_name], own[by_name]
        there, begin = np.unique(run.name[rows], return_index=True)
        sums = np.add.reduceat(own, begin)
        order = np.lexsort(([run.names[n] for n in there.tolist()], -sums))
        return cls(
            there[order].astype(np.int64),
            sums[order],
            facts,
            rows,
            own,
            begin[order],
            np.append(begin[1:], len(rows))[order],
        )

    def calls(self, n: int) -> tuple[I64, I64]:
        """Of the n-th name: the rows of the run, and the self time of each, ns."""
        own_rows = slice(self._first[n], self._behind[n])
        return self._rows[own_rows], self._own[own_rows]

    def rows(self, most: int = TOP_OPERATORS) -> list[OperatorRow]:
        """The longest by self time."""
        return [self._row(n) for n in range(min(most, len(self.names)))]

    def _row(self, n: int) -> OperatorRow:
        run, steps, name = self._facts.run, self._facts[Steps], int(self.names[n])
        rows, own = self.calls(n)
        by_step = np.zeros(len(steps.steady), dtype=np.int64)
        if steps.steps:
            step = steps.steady_at(run.ts[rows])
            np.add.at(by_step, step[step >= 0], own[step >= 0])
        return OperatorRow(
            rank=self._facts.capture.rank,
            name=run.names[name],
            kind="operator" if (run.cat[rows] == Cat.CPU_OP).any() else "runtime",
            count=len(rows),
            self_us=float(self._self[n]) / 1e3,
            share=float(self._self[n]) / max(int(self._self.sum()), 1),
            step_us=mean_us(by_step),
            step_sd_us=deviation_us(by_step),
        )


def self_time(run: Run, nesting: Nesting, rows: I64) -> I64:
    """Time of these host events (ascending) outside of the host events directly in them, ns."""
    counts = np.zeros(len(run) + 1, dtype=bool)  # the last one, -1, is no event
    counts[rows] = True
    inside = np.flatnonzero(counts[nesting.parent])
    inner_ns = np.bincount(
        np.searchsorted(rows, nesting.parent[inside]), weights=run.dur[inside], minlength=len(rows)
    )
    own: I64 = np.maximum(run.dur[rows] - inner_ns.astype(np.int64), 0)
    return own
