"""One capture with everything that was found on it, and the rows that its evidence adds to the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from trace_doctor.engine.executor import Verdict
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model import StepRow

R = TypeVar("R", bound=msgspec.Struct)


@dataclass(frozen=True)
class Examined:
    """One capture with everything that was found on it."""

    number: int
    """of its first file in Result.inputs"""
    facts: Facts
    verdicts: list[Verdict]
    further: tuple[Facts, ...] = ()
    """of the other files of its recording"""

    @property
    def rank(self) -> int:
        return self.facts.capture.rank


def rows_of(examined: Sequence[Examined], kind: type[Any], rows: Callable[[Any], Sequence[R]]) -> list[R]:
    """The rows of one evidence over all captures, each with the number of its input."""
    found: list[R] = []
    for e in examined:
        if (evidence := e.facts.get(kind)) is not None:
            found += [replace(row, input=e.number, rank=e.rank) for row in rows(evidence)]
    return found


def steps_of(examined: Sequence[Examined]) -> list[StepRow]:
    found = []
    for e in examined:
        if (steps := e.facts.get(Steps)) is None or steps.source == "none":
            continue
        zero = steps.window[0]
        found += [
            StepRow(
                input=e.number,
                rank=e.rank,
                index=s.index,
                start_us=(s.start - zero) / 1e3,
                dur_us=(s.end - s.start) / 1e3,
                pace_us=s.pace / 1e3,
                warmup=s.warmup,
            )
            for s in steps.steps
        ]
    return found
