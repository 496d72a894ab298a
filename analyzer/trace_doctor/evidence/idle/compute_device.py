"""What the steps are computed on: a GPU, or the CPU alone."""

from __future__ import annotations

from typing import Self

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.cpu_timeline import CpuTimeline
from trace_doctor.evidence.trace.gpu_timeline import NO_GPU, GpuTimeline
from trace_doctor.run import Cat


class Processor(Evidence, frozen=True):
    """Raises NotCaptured where a GPU is there whose work was not recorded."""

    gpu: bool

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run = facts.run
        if facts.get(GpuTimeline) is not None:
            return cls(gpu=True)
        facts[CpuTimeline]  # refuses where another device than the one asked for worked
        if not len(run.gpu) and (run.device_names or run.is_cat(Cat.RUNTIME).any()):
            raise NotCaptured("the GPU was not recorded", NO_GPU)
        return cls(gpu=False)
