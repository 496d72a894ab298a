"""Operators of a CPU that took far longer than their like: something else had the processor, or the memory, meanwhile."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.names.event_arguments import shapes
from trace_doctor.evidence.names.event_names import is_collective, is_step, is_torch_mark
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.operator_inputs import MOST
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat, Run

LEAST_LIKE = 10
"""operators alike, of which one in ten may be long"""


class StalledOperator(Struct, frozen=True):
    """One that took long."""

    name: str
    took_ns: int
    usual_ns: int
    """the median of its like"""
    start: int
    """of what it took beyond that, at its end"""
    end: int
    own_ns: int
    """of that outside of stalled operators in it"""


class StalledOperators(Evidence, frozen=True):
    """Operators of the main thread in steady steps, without a GPU. Raises NotCaptured with one: there the host's time is idle
    time of the device, and has other owners."""

    thread: int
    _facts: Facts

    @classmethod
    def build(cls, facts: Facts) -> Self:
        if len(facts.run.gpu):
            raise NotCaptured("a GPU worked")
        return cls(facts[Threads].main, facts)

    def longer(self, factor: float, least_ns: int) -> list[StalledOperator]:
        """Those of so many ns and more that took so many times as long as nine in ten of their like: of their name and shapes,
        or without shapes of their name and place in the step. The first of its like may set something up, and is left out."""
        facts, run = self._facts, self._facts.run
        rows = np.flatnonzero(run.is_cat(Cat.CPU_OP) & ~run.is_named(is_step, is_torch_mark, is_collective))
        rows = rows[run.thread[rows] == self.thread]
        rows = rows[facts[Steps].is_steady(run.ts[rows])]
        rows = rows[np.isin(run.name[rows], run.name[rows[run.dur[rows] >= least_ns]])][:MOST]
        alike: dict[Hashable, list[int]] = {}
        for row, key in zip(rows.tolist(), _kinds(facts, rows), strict=True):
            alike.setdefault(key, []).append(row)
        usual: dict[int, int] = {}
        for members in alike.values():
            if len(members) < LEAST_LIKE:
                continue
            later = np.array(members[1:])
            median, most = np.quantile(run.dur[later], (0.5, 0.9), method="lower").tolist()
            long = later[run.dur[later] >= max(factor * most, least_ns)]
            usual |= dict.fromkeys(long.tolist(), median)
        own = {row: int(run.dur[row]) - median for row, median in usual.items()}
        for row in sorted(usual):
            above = next((a for a in facts[Nesting].ancestors(row) if a in usual), None)
            if above is not None:
                own[above] -= int(run.dur[row]) - usual[row]
        return [
            StalledOperator(
                name=run.text(row),
                took_ns=int(run.dur[row]),
                usual_ns=usual[row],
                start=int(run.ts[row]) + usual[row],
                end=int(run.end[row]),
                own_ns=own[row],
            )
            for row in sorted(usual)
            if own[row] >= least_ns
        ]


def _kinds(facts: Facts, rows: I64) -> list[Hashable]:
    """What makes operators alike."""
    run = facts.run
    if run.recorded.shapes:
        return [
            (int(run.name[r]), shapes(args)) for r, args in zip(rows.tolist(), run.args(rows), strict=True)
        ]
    return _places(run, facts[Steps], rows)


def _places(run: Run, steps: Steps, rows: I64) -> list[Hashable]:
    """The name, and its number among those of that name in its step. In one step none is like another."""
    at = steps.steady_at(run.ts[rows])
    counts: dict[tuple[int, int], int] = {}
    kinds: list[Hashable] = []
    for name, step in zip(run.name[rows].tolist(), at.tolist(), strict=True):
        counts[name, step] = nth = counts.get((name, step), -1) + 1
        kinds.append((name, nth))
    return kinds
