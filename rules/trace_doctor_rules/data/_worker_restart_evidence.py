"""Where an epoch ends and the loader's worker processes are started again for the next one."""

from __future__ import annotations

import re
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.data_loading import DataLoading
from trace_doctor.evidence.intervals import covered, intervals, pairs
from trace_doctor.evidence.names.event_names import is_backward, is_optimizer_step, is_torch_mark
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat, Run

OPERATORS = 10
"""Operators at most between the end of an epoch and the next one's first batch: seeds and a permutation are drawn"""
_STARTED = re.compile(r"torch/utils/data/dataloader\.py\(\d+\): __init__")
_AGAIN_NS = 1_000_000
"""An `__init__` of the iterator as long as this starts processes."""


class Restart(Struct, frozen=True):
    """From the call that ended an epoch to the first batch of the next, ns."""

    start: int
    end: int
    stopping: int
    """in the call that ended the epoch, which ends the processes as well"""
    starting: int
    """until the first batch was asked for"""
    waiting: int
    """for the first batch"""
    seen: bool
    """whether stacks show that an iterator with new processes was made"""

    @property
    def length(self) -> int:
        return self.end - self.start


class WorkerRestarts(Evidence, frozen=True):
    """Raises NotCaptured where no loader with worker processes is iterated."""

    epochs: tuple[Restart, ...]
    """borders between epochs in the steady steps, whether or not processes were started"""
    median_wait: int
    """of all other waits, ns"""
    length: int
    """of the steady steps together, ns"""
    thread: int
    stacks: bool
    """whether frames of torch's loader were recorded: then a restart without one is none"""
    run: Run

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, loading = facts.run, facts[DataLoading]
        workers = np.array([kind == "workers" for kind in loading.kinds], dtype=bool)
        rows = loading.rows[workers]
        if not len(rows):
            raise NotCaptured(
                "no data loader with worker processes in the trace", "DataLoader(..., num_workers=N)"
            )
        steady = intervals(facts[Steps].spans("steady"))
        rows = rows[covered(pairs(run.ts[rows], run.ts[rows] + 1), steady) > 0]
        border = _borders(facts, run, rows, loading.thread)
        made = run.named(lambda n: _STARTED.fullmatch(n) is not None, Cat.PYTHON)
        made = made[run.thread[made] == loading.thread]
        long = made[run.dur[made] >= _AGAIN_NS]
        found = []
        for last, first in zip(rows[:-1][border].tolist(), rows[1:][border].tolist(), strict=True):
            begin, end = int(run.end[last]), int(run.ts[first])
            inside = np.searchsorted(run.ts[long], end) > np.searchsorted(run.ts[long], begin)
            found.append(
                Restart(
                    start=int(run.ts[last]),
                    end=int(run.end[first]),
                    stopping=int(run.dur[last]),
                    starting=end - begin,
                    waiting=int(run.dur[first]),
                    seen=bool(inside),
                )
            )
        others = np.ones(len(rows), dtype=bool)
        others[:-1] &= ~border
        others[1:] &= ~border
        frames = run.named(lambda n: n.startswith("torch/utils/data/dataloader.py("), Cat.PYTHON)
        return cls(
            epochs=tuple(found),
            median_wait=int(np.median(run.dur[rows[others]])) if others.any() else 0,
            length=int((steady[:, 1] - steady[:, 0]).sum()),
            thread=loading.thread,
            stacks=bool(len(frames)),
            run=run,
        )


def _borders(facts: Facts, run: Run, rows: I64, thread: int) -> Bool:
    """For each wait but the last: whether no training happened until the next one."""
    nesting = facts[Nesting]
    between = run.end[rows[:-1]], run.ts[rows[1:]]
    trained = run.named(lambda n: is_backward(n) or is_optimizer_step(n), Cat.CPU_OP, Cat.USER_ANNOTATION)
    ops = run.named(lambda n: not is_torch_mark(n), Cat.CPU_OP)
    ops = nesting.outermost(ops[run.thread[ops] == thread])
    launch = facts[Launches].launch
    kernels = launch[(run.cat[run.gpu] == Cat.KERNEL) & (launch >= 0)]
    nothing = (_count(run, trained, between) == 0) & (_count(run, kernels, between) == 0)
    return np.asarray(nothing & (_count(run, ops, between) <= OPERATORS))


def _count(run: Run, rows: I64, between: tuple[I64, I64]) -> I64:
    starts = np.sort(run.ts[rows])
    return np.asarray(np.searchsorted(starts, between[1]) - np.searchsorted(starts, between[0]))
