"""What the steps are computed on; and of a capture without GPU work, whose resource is the main thread, its time."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.host_causes import CAUSE, HostCauses
from trace_doctor.evidence.intervals import clip, pairs, subtract, union
from trace_doctor.evidence.names.event_names import (
    is_collective,
    is_compile,
    is_host_collective,
    is_loader,
    is_optimizer,
    is_step,
)
from trace_doctor.evidence.trace.gpu_timeline import NO_GPU, GpuTimeline
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat, Run

CPU = -1
"""the device number of the host in ledgers"""


class CpuTimeline(Evidence, frozen=True):
    """Raises NotCaptured when the window holds GPU work (then the GPU is the resource), or no host event."""

    compute: I64
    """operators of the main and autograd threads outside the loader, compilation and collectives: a set"""
    comm: I64
    """collectives (gloo, MPI; they run on threads of their own) that no operator runs beside: a set"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, threads, window = facts.run, facts[Threads], facts[Steps].window
        gpu = run.gpu
        if ((run.end[gpu] > window[0]) & (run.ts[gpu] < window[1]) & (run.dur[gpu] > 0)).any():
            chosen = facts.options.device
            raise NotCaptured(
                "the GPU did work" if chosen is None else f"device {chosen} did no work in the window"
            )
        collective = run.named(is_collective, Cat.CPU_OP, Cat.USER_ANNOTATION)
        everywhere = _cover(run, run.named(is_host_collective, Cat.CPU_OP, Cat.USER_ANNOTATION))
        marks = run.is_named(is_collective, is_compile, is_loader, is_optimizer, is_step)
        operators = np.flatnonzero(run.is_cat(Cat.CPU_OP) & ~marks)
        computing, waiting = [], [everywhere]
        for thread in sorted({threads.main, *threads.autograd}):
            waits = _cover(run, collective[run.thread[collective] == thread])
            waiting.append(waits)
            computing.append(subtract(_cover(run, operators[run.thread[operators] == thread]), waits))
        cover = facts[HostCauses].on(threads.main)
        is_cause = np.isin(cover.cause, [CAUSE["data_loading"], CAUSE["compile"], CAUSE["profiler"]])
        elsewhere = cover.pieces[is_cause]
        compute = subtract(clip(union(np.concatenate(computing)), *window), elsewhere)
        comm = subtract(subtract(clip(union(np.concatenate(waiting)), *window), elsewhere), compute)
        return cls(compute, comm)


class Processor(Evidence, frozen=True):
    """What the steps are computed on: a GPU, or the CPU alone. Raises NotCaptured where a GPU is there whose work was not
    recorded."""

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


def _cover(run: Run, rows: I64) -> I64:
    return union(pairs(run.ts[rows], run.end[rows]))
