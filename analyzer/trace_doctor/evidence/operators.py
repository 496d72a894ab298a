"""Where the host's own time goes: operators and runtime calls, without what they call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.nesting import Nesting
from trace_doctor.evidence.step_sums import deviation_us, mean_us, steady_spans
from trace_doctor.evidence.steps import Steps
from trace_doctor.evidence.threads import Threads
from trace_doctor.model import OperatorRow
from trace_doctor.run import I64, Cat, Run

TOP_OPERATORS = 20


@dataclass(frozen=True)
class Operators(Evidence):
    """Operators and runtime calls of the training and autograd threads that start in the window. Raises NotCaptured
    where there is none."""

    names: I64
    """ids of the names, longest first"""
    _self: I64 = field(repr=False)
    """summed self time of each, ns"""
    _facts: Facts = field(repr=False)
    _rows: I64 = field(repr=False)
    _own: I64 = field(repr=False)
    """self time of each row, ns"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, threads, (start, end) = facts.run, facts[Threads], facts[Steps].window
        mine = run.is_cat(Cat.CPU_OP, Cat.RUNTIME, Cat.DRIVER) & (run.ts >= start) & (run.ts < end)
        rows = np.flatnonzero(mine)
        rows = rows[np.isin(run.thread[rows], [threads.main, *threads.autograd])]
        if not len(rows):
            raise NotCaptured("no operators on the host", "activities=[ProfilerActivity.CPU]")
        own = self_time(run, facts[Nesting])[rows]
        sums = np.zeros(len(run.names), dtype=np.int64)
        np.add.at(sums, run.name[rows], own)
        there = np.unique(run.name[rows]).astype(np.int64)
        order = np.lexsort(([run.names[n] for n in there.tolist()], -sums[there]))
        return cls(there[order], sums[there[order]], facts, rows, own)

    def rows(self, most: int = TOP_OPERATORS) -> list[OperatorRow]:
        """The longest by self time."""
        return [self._row(n) for n in range(min(most, len(self.names)))]

    def _row(self, n: int) -> OperatorRow:
        run, spans, name = self._facts.run, steady_spans(self._facts[Steps]), int(self.names[n])
        mine = run.name[self._rows] == name
        rows, own = self._rows[mine], self._own[mine]
        by_step = np.zeros(len(spans), dtype=np.int64)
        if len(spans):
            step = np.searchsorted(spans[:, 0], run.ts[rows], side="right") - 1
            inside = (step >= 0) & (run.ts[rows] < spans[np.maximum(step, 0), 1])
            np.add.at(by_step, step[inside], own[inside])
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


def self_time(run: Run, nesting: Nesting) -> I64:
    """Time of each host event outside of the host events directly in it, ns."""
    inner = np.flatnonzero(nesting.parent >= 0)
    held = np.bincount(nesting.parent[inner], weights=run.dur[inner], minlength=len(run))
    own: I64 = np.maximum(run.dur - held.astype(np.int64), 0)
    return own
