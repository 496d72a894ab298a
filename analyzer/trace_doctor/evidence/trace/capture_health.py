"""Whether the file itself is whole, and whether the GPU that it names was recorded."""

from __future__ import annotations

import re
from typing import Self

import numpy as np

from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import GPU_CATS, Cat, Damage

_CPU_LIBRARY = re.compile(r"(?:aten::|mkldnn::)_?(?:mkldnn|nnpack)\w*|mkldnn::\w+")
"""Operators of oneDNN and NNPACK: there is no GPU implementation of them."""
_COMPUTES = re.compile(
    rf"{_CPU_LIBRARY.pattern}|aten::(?:mm|addmm|bmm|baddbmm|linear|matmul|conv\w*|_?scaled_dot_product\w*)"
)
_LAUNCH = re.compile(r"(?:cuda|hip|cu|musa)(?:\w*Launch\w*|Memcpy\w*|Memset\w*)")


class CaptureHealth(Evidence, frozen=True):
    """Counts over the whole file, except where the window is named."""

    events: int
    """all that were read, allocations included"""
    damage: Damage
    devices: tuple[str, ...]
    """one entry per device in deviceProperties: its name, or "" where the file leaves it empty; without any, the GPU that the
    recorded script used"""
    gpu_events: int
    """kernels, copies and memsets in the file"""
    gpu_events_in_window: int
    launch_calls: int
    """runtime or driver calls that start GPU work, in the window"""
    unanswered_calls: int
    """of these, calls whose GPU work is not in the file"""
    runtime: bool
    """calls of the GPU's runtime or driver are in the file: the profiler was asked for the GPU"""
    ran_on_cpu: bool
    """nothing was launched, and operators of a CPU library ran, or products and convolutions while the GPU's calls were
    recorded: the model was on the CPU"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run = facts.run
        steps = facts.get(Steps)
        start, end = steps.window if steps is not None else (0, np.iinfo(np.int64).max)
        inside = (run.ts < end) & (run.end > start)
        calls = run.named(lambda n: _LAUNCH.fullmatch(n) is not None, Cat.RUNTIME, Cat.DRIVER)
        launched = int(inside[calls].sum())
        asked_for = bool(run.is_cat(Cat.RUNTIME, Cat.DRIVER).any())
        computing = _COMPUTES if asked_for and not len(calls) else _CPU_LIBRARY
        return cls(
            events=int(np.count_nonzero(run.own)) + len(run.memory),
            damage=run.damage,
            devices=tuple(p.get("name", "") for p in run.device_properties) or _used(facts),
            gpu_events=len(run.gpu),
            gpu_events_in_window=int((run.is_cat(*GPU_CATS) & inside).sum()),
            launch_calls=launched,
            unanswered_calls=int((facts[Launches].first_work(calls[inside[calls]]) < 0).sum()),
            runtime=asked_for,
            ran_on_cpu=not launched
            and bool(len(run.named(lambda n: computing.fullmatch(n) is not None, Cat.CPU_OP))),
        )

    @property
    def may_be_off(self) -> float:
        """Share of the window that the time ledger may have wrong, estimated: the share of events that were lost or
        have no duration, and of a file that ends early the share of launch calls whose GPU work is missing. 0 for a
        sound file."""
        missing = self.damage.lost + self.damage.clamped
        share = missing / max(self.events + self.damage.lost, 1)
        if self.damage.truncated and self.gpu_events_in_window:
            share = max(share, self.unanswered_calls / max(self.launch_calls, 1))
        return share


def _used(facts: Facts) -> tuple[str, ...]:
    """A profiler that was built without its GPU side lists no device; the recorder asks torch."""
    record = facts.capture.record
    return (record.device,) if record is not None and record.device else ()
