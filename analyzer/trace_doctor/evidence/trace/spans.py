"""Stretches of a capture as people look them up: in the clock of the file, with the step they lie in."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import Self

from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model import Span


class Moments(Evidence, frozen=True):
    """Turns ns of the run into `model.Span`s."""

    base_ns: int
    """what the loader added to the file's timestamps"""
    steps: Steps

    @classmethod
    def build(cls, facts: Facts) -> Self:
        return cls(facts.run.base_ns, facts[Steps])

    def ts_us(self, t_ns: int) -> float:
        """A moment in the file's own clock, microseconds."""
        return (t_ns - self.base_ns) / 1e3

    def longest(
        self, spans: Iterable[tuple[int, int]], label: str, device: int | None = None, most: int = 10
    ) -> list[Span]:
        """The longest of some [start, end) ns, in order of time."""
        ranked = nsmallest(most, spans, key=lambda span: span[0] - span[1])
        return [self.span(start, end, label, device) for start, end in sorted(ranked)]

    def span(
        self, start: int, end: int, label: str, device: int | None = None, stream: int | None = None
    ) -> Span:
        """[start, end) ns of the run."""
        step = next((s.index for s in self.steps.steps if s.start <= start < s.end), None)
        return Span(
            ts_us=self.ts_us(start),
            dur_us=(end - start) / 1e3,
            label=label,
            device=device if device is not None and device >= 0 else None,
            stream=stream,
            step=step,
        )
