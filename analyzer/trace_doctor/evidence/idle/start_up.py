"""What of the window is the start of a program: it tells little about the steps that follow."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.gaps import IdleLedger
from trace_doctor.evidence.intervals import intervals, total, union
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat

CAUSES = ("cold_start", "compile")
"""idle time that a later step does not have"""


class StartUp(Evidence, frozen=True):
    """Warm-up steps; without marks of steps all that precedes the first kernel; and idle time in which modules are loaded,
    libraries initialised or code is compiled. Raises NotCaptured where there is no time ledger."""

    by_device: dict[int, I64]
    """sets of intervals, ns of the run"""
    window: tuple[int, int]

    @classmethod
    def build(cls, facts: Facts) -> Self:
        steps, ledger = facts[Steps], facts[IdleLedger]
        common = intervals(steps.on_device("warmup"))
        by_device = {}
        for device in ledger.devices:
            before = _before_the_first_kernel(facts, device) if steps.source == "none" else []
            causes = [ledger.pieces(cause, device) for cause in CAUSES]
            by_device[device] = union(np.concatenate([common, *causes, intervals(before)]))
        if not by_device:
            raise NotCaptured("no idle time in the analysed window")
        return cls(by_device, steps.window)

    def on(self, device: int) -> I64:
        """When the device waited for the start: a set of intervals."""
        return self.by_device.get(device, intervals([]))

    @property
    def share(self) -> float:
        """Of the window, on the device where it is most."""
        length = max(self.window[1] - self.window[0], 1)
        return max(total(spans) for spans in self.by_device.values()) / length


def _before_the_first_kernel(facts: Facts, device: int) -> list[tuple[int, int]]:
    timeline, run = facts.get(GpuTimeline), facts.run
    if timeline is None:
        return []
    rows = timeline.rows(device)
    kernels = rows[run.cat[rows] == Cat.KERNEL]
    first = int(run.ts[kernels].min()) if len(kernels) else timeline.window[0]
    return [(timeline.window[0], first)] if first > timeline.window[0] else []
