"""What each device did when: the union over all its streams, by kind of work."""

from __future__ import annotations

from typing import Self

import numpy as np
from msgspec import field

from trace_doctor.arrays import I64, U8
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.intervals import clip, complement, pairs, union
from trace_doctor.evidence.names.event_names import is_collective_kernel
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat, Run

COMPUTE, COMM, COPY = 0, 1, 2
NO_GPU = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"


class GpuTimeline(Evidence, frozen=True):
    """GPU work clipped to the analyzed window, whoever launched it. Raises NotCaptured when there is none."""

    window: tuple[int, int]
    devices: tuple[int, ...]
    """those that worked in the window (only `options.device` when it is given)"""
    kind: U8
    """aligned with `run.gpu`: 0 compute, 1 communication, 2 copy or memset"""
    run: Run
    _busy: dict[int, I64] = field(default_factory=dict)

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, window = facts.run, facts[Steps].window
        gpu = run.gpu
        inside = (run.end[gpu] > window[0]) & (run.ts[gpu] < window[1]) & (run.dur[gpu] > 0)
        devices = np.unique(run.device[gpu[inside]]).tolist()
        if facts.options.device is not None:
            devices = [d for d in devices if d == facts.options.device]
        if not devices:
            raise NotCaptured("no GPU work in the analyzed window", NO_GPU)
        return cls(window, tuple(devices), work_kinds(run), run)

    def rows(self, device: int, kind: int | None = None) -> I64:
        """The GPU rows of a device that touch the window, by start; optionally of one kind."""
        gpu: I64 = self.run.gpu
        mask = (self.run.device[gpu] == device) & (self.run.end[gpu] > self.window[0])
        mask &= self.run.ts[gpu] < self.window[1]
        if kind is not None:
            mask &= self.kind == kind
        return np.asarray(gpu[mask])

    def work(self, device: int, kind: int) -> I64:
        """When the device did work of this kind in the window: a set of intervals (see `intervals`)."""
        rows = self.rows(device, kind)
        return union(clip(pairs(self.run.ts[rows], self.run.end[rows]), *self.window))

    def busy(self, device: int) -> I64:
        """When the device did anything in the window: a set of intervals."""
        if device not in self._busy:
            rows = self.rows(device)
            self._busy[device] = union(clip(pairs(self.run.ts[rows], self.run.end[rows]), *self.window))
        return self._busy[device]

    def gaps(self, device: int, start: int, end: int) -> I64:
        """When the device did nothing in [start, end): a set of intervals."""
        return complement(self.busy(device), start, end)


def work_kinds(run: Run) -> U8:
    """Kind of each of `run.gpu`: 0 compute, 1 communication, 2 copy or memset."""
    gpu = run.gpu
    kind = np.full(len(gpu), COMPUTE, dtype=np.uint8)
    kind[np.isin(run.name[gpu], run.name_ids(is_collective_kernel))] = COMM
    kind[run.cat[gpu] != Cat.KERNEL] = COPY
    return kind
