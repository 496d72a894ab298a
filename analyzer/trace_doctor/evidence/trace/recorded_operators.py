"""Whether operators of PyTorch, and the launches of the GPU's work, were recorded at all."""

from __future__ import annotations

from typing import Self

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model.captures import LEAST_LAUNCHES as LEAST_LAUNCHES
from trace_doctor.run import Cat

_EVERYTHING = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"


class RecordedOperators(Evidence, frozen=True):
    """For rules that find nothing where no operator is: in a trace without any that is no *passed*. Raises NotCaptured there."""

    count: int
    """of the whole file"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        count = int(facts.run.is_cat(Cat.CPU_OP).sum())
        if not count:
            raise NotCaptured("the trace has no operator of PyTorch", _EVERYTHING)
        return cls(count)


class RecordedLaunches(Evidence, frozen=True):
    """For rules that lay time to what the host did. Raises NotCaptured where most GPU work in the window has no launch in the
    trace: what the host did before it is not known then, and no cause is ruled out."""

    share: float
    """of the GPU work in the window; 1 without any, for the main thread is its own host then"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        linked, work = facts[Launches].known(*facts[Steps].window)
        if linked < LEAST_LAUNCHES * work:
            raise NotCaptured(
                f"the launches of {work - linked:,} of {work:,} GPU events are not in the trace, so what the GPU waited for is not known",
                _EVERYTHING,
            )
        return cls(linked / work if work else 1.0)
