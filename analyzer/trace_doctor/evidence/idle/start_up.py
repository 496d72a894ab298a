"""What of the window is the start of a program: it tells little about the steps that follow."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.gaps import LATENCY_NS, IdleLedger
from trace_doctor.evidence.intervals import covered, intervals, total, union
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat

CAUSES = ("cold_start", "compile")
"""idle time that a later step does not have, where it does not come back in each"""


class StartUp(Evidence, frozen=True):
    """Warm-up steps; without marks of steps, and in engines, all that precedes the first kernel; and idle time in which modules are loaded,
    libraries initialised or code is compiled, unless every step has some. Raises NotCaptured where there is no time ledger."""

    by_device: dict[int, I64]
    """sets of intervals, ns of the run"""
    queued: dict[int, int]
    """of it, ns in which the first work that was recorded waited behind what was queued before the recording"""
    window: tuple[int, int]

    @classmethod
    def build(cls, facts: Facts) -> Self:
        steps, ledger = facts[Steps], facts[IdleLedger]
        common = intervals(steps.on_device("warmup"))
        by_device, queued = {}, {}
        for device in ledger.devices:
            before = _before_the_first_kernel(facts, device) if steps.source in ("none", "engine") else []
            causes = [ledger.pieces(cause, device) for cause in CAUSES]
            once = [pieces for pieces in causes if not _in_each_step(steps, pieces)]
            by_device[device] = union(np.concatenate([common, *once, intervals(before)]))
            queued[device] = _behind_a_queue(facts, device) if before else 0
        if not by_device:
            raise NotCaptured("no idle time in the analyzed window")
        return cls(by_device, queued, steps.window)

    def on(self, device: int) -> I64:
        """When the device waited for the start: a set of intervals."""
        return self.by_device.get(device, intervals([]))

    @property
    def share(self) -> float:
        """Of the window, on the device where it is most."""
        return self._of_the_window(max(total(spans) for spans in self.by_device.values()))

    @property
    def queued_share(self) -> float:
        """Of the window, on the device where it is most."""
        return self._of_the_window(max(self.queued.values()))

    def _of_the_window(self, ns: int) -> float:
        return ns / max(self.window[1] - self.window[0], 1)


def _in_each_step(steps: Steps, pieces: I64) -> bool:
    """Whether each of several steady steps has some of it."""
    spans = np.array(steps.on_device("steady"), dtype=np.int64).reshape(-1, 2)
    return len(spans) > 1 and bool((covered(spans, pieces) > 0).all())


def _behind_a_queue(facts: Facts, device: int) -> int:
    """How long the first work on the device waited after its launch had returned: nothing that was recorded ran there."""
    timeline, run = facts.get(GpuTimeline), facts.run
    if timeline is None:
        return 0
    rows = timeline.rows(device)
    call = facts[Launches].launch_of(int(rows[0])) if len(rows) else -1
    return max(int(run.ts[rows[0]]) - int(run.end[call]) - LATENCY_NS, 0) if call >= 0 else 0


def _before_the_first_kernel(facts: Facts, device: int) -> list[tuple[int, int]]:
    timeline, run = facts.get(GpuTimeline), facts.run
    if timeline is None:
        return []
    rows = timeline.rows(device)
    kernels = rows[run.cat[rows] == Cat.KERNEL]
    first = int(run.ts[kernels].min()) if len(kernels) else timeline.window[0]
    return [(timeline.window[0], first)] if first > timeline.window[0] else []
