"""Whether operators of PyTorch were recorded at all."""

from __future__ import annotations

from typing import Self

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.run import Cat


class RecordedOperators(Evidence, frozen=True):
    """For rules that find nothing where no operator is: in a trace without any that is no *passed*. Raises NotCaptured there."""

    count: int
    """of the whole file"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        count = int(facts.run.is_cat(Cat.CPU_OP).sum())
        if not count:
            raise NotCaptured(
                "the trace has no operator of PyTorch",
                "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
            )
        return cls(count)
