"""Which thread drives the training loop, and which run autograd."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.names.engine_step_names import is_engine_step
from trace_doctor.evidence.names.event_names import is_backward, is_loader, is_optimizer_step, is_step
from trace_doctor.run import HOST_CATS, Cat, Run

LEAST_WORK = 0.01
"""share of the operators and calls outside autograd's threads: a thread with less drives no loop, whatever it marks"""
_FEW = 10
"""operators and calls: fewer show no loop"""


class Threads(Evidence, frozen=True):
    """Raises NotCaptured when the capture holds no host events."""

    main: int
    """index in `run.threads`"""
    autograd: frozenset[int]
    """other threads that run backward functions"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run = facts.run
        host = run.is_cat(*(cat for cat in HOST_CATS if cat != Cat.OVERHEAD))
        if not host.any():
            raise NotCaptured(
                "no host events in the trace", "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
            )
        engine = run.named(is_backward, Cat.CPU_OP)
        autograd = frozenset(np.unique(run.thread[engine]).tolist())
        main = _marked(run, autograd)
        if main is None:
            main = _by_habit(run, host, autograd)
        return cls(main, autograd - {main})


def _marked(run: Run, autograd: frozenset[int]) -> int | None:
    """The thread of the marks of steps, loaders, optimizers or engines; of several kinds the first whose thread does any work."""
    working = np.bincount(run.thread[_work(run)], minlength=len(run.threads))
    others = int(working.sum() - working[list(autograd)].sum())
    idle = None
    for is_mark in (is_step, is_loader, is_optimizer_step, is_engine_step):
        marks = run.named(is_mark, Cat.USER_ANNOTATION, Cat.CPU_OP)
        if len(marks):
            thread = int(np.bincount(run.thread[marks]).argmax())
            if others < _FEW or thread in autograd or working[thread] >= LEAST_WORK * others:
                return thread
            idle = thread
    if idle is None:
        return None
    working[list(autograd)] = 0  # the marks are on a thread that only watches
    return int(working.argmax())


def _work(run: Run) -> Bool:
    """Operators and calls. Marks of steps, which some profilers note as operators, are no work."""
    work = run.is_cat(Cat.CPU_OP, Cat.RUNTIME, Cat.DRIVER)
    work[run.named(is_step, Cat.CPU_OP)] = False
    return work


def _by_habit(run: Run, host: Bool, autograd: frozenset[int]) -> int:
    """The process's first thread (pid = tid), else the busiest; autograd's own threads only if there is no other.

    A CPU backward runs on the thread that called it: pid = tid outweighs the autograd marks there.
    """
    events = np.bincount(run.thread[host], minlength=len(run.threads))
    first = [t for t in np.flatnonzero(events).tolist() if run.threads[t].pid == run.threads[t].tid]
    if not first:
        first = [t for t in np.flatnonzero(events).tolist() if t not in autograd]
    candidates = first or np.flatnonzero(events).tolist()
    return max(candidates, key=lambda t: int(events[t]))
