"""What optimizers do in the steady steps: their `step()` and `zero_grad()`, the operators and the GPU work in them."""

from __future__ import annotations

import re
from typing import Self

import numpy as np

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.names.event_names import is_optimizer, is_optimizer_step
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat, Run

_CLASS = re.compile(r"Optimizer\.(?:step|zero_grad)#(\w+)\.")


class OptimizerWork(Evidence, frozen=True):
    """Raises NotCaptured where no step() or zero_grad() of an optimizer starts in a steady step."""

    steps: I64
    """rows of `Optimizer.step#…`"""
    zero_grads: I64
    """rows of `Optimizer.zero_grad#…`"""
    run: Run
    nesting: Nesting
    launches: Launches

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run = facts.run
        marks = run.named(is_optimizer, Cat.USER_ANNOTATION, Cat.CPU_OP)
        marks = marks[facts[Steps].is_steady(run.ts[marks])]
        if not len(marks):
            raise NotCaptured(
                "no step of an optimizer was recorded",
                "profile whole training steps: torch.optim marks Optimizer.step by itself",
            )
        stepping = run.is_named(is_optimizer_step)[marks]
        return cls(marks[stepping], marks[~stepping], run, facts[Nesting], facts[Launches])

    def optimizer(self, mark: int) -> str:
        """The class: `AdamW`."""
        return optimizer_class(self.run.text(mark))

    def operators(self, marks: I64) -> I64:
        """The outermost operators inside these, by start."""
        operators = np.flatnonzero(self.run.is_cat(Cat.CPU_OP))
        chosen = self._mask(marks)
        operators = operators[~chosen[operators]]
        return self.nesting.outermost(operators[self.nesting.inside(operators, chosen)])

    def gpu_rows(self, rows: I64) -> I64:
        """The GPU work launched inside these host events."""
        return launched_in(self.run, self.nesting, self.launches, rows)

    def _mask(self, rows: I64) -> Bool:
        mask = np.zeros(len(self.run), dtype=bool)
        mask[rows] = True
        return mask


def optimizer_class(name: str) -> str:
    """`AdamW` of `Optimizer.step#AdamW.step`; empty for other names."""
    match = _CLASS.match(name)
    return match.group(1) if match else ""


def launched_in(run: Run, nesting: Nesting, launches: Launches, rows: I64) -> I64:
    """The GPU work launched inside these host events."""
    mask = np.zeros(len(run), dtype=bool)
    mask[rows] = True
    inside = launches.calls[nesting.inside(launches.calls, mask)]
    return np.asarray(run.gpu[np.isin(launches.launch, inside)])
