"""Where an epoch ends and the loader's worker processes are started again for the next one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.data_loading import DataLoading
from trace_doctor.evidence.names.event_names import is_backward, is_optimizer_step, is_torch_mark
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat

_ITERATOR = re.compile(r"torch/utils/data/dataloader\.py\(\d+\): __init__")


class Border(Struct, frozen=True):
    """From a wait to the next one, with no training between, ns: the first may have ended an epoch."""

    place: int
    """of its first wait among all of them"""
    start: int
    end: int
    stopping: int
    """in the first wait, which ends the processes as well"""
    starting: int
    """until the next batch was asked for"""
    waiting: int
    """for that batch"""
    operators: int
    """outermost ones that begin between the two"""
    iterator: int
    """the longest `__init__` of a loader's iterator between the two, 0 where stacks show none"""

    @property
    def length(self) -> int:
        """How long the border lasts, ns."""
        return self.end - self.start


class WorkerRestarts(Evidence, frozen=True):
    """Raises NotCaptured where no loader with worker processes is iterated."""

    borders: tuple[Border, ...]
    """in the steady steps, whether or not an epoch ended there"""
    waits: I64
    """lengths of all waits in the steady steps, ns"""
    thread: int
    stacks: bool
    """whether frames of torch's loader were recorded: then a restart without one is none"""
    trained: I64
    """when something was trained, ns, ascending"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, loading = facts.run, facts[DataLoading]
        rows = loading.rows[[kind == "workers" for kind in loading.kinds]]
        if not len(rows):
            raise NotCaptured("no data loader with worker processes in the trace")
        rows = rows[facts[Steps].is_steady(run.ts[rows])]
        iterators = run.named(lambda n: _ITERATOR.fullmatch(n) is not None, Cat.PYTHON)
        iterators = iterators[run.thread[iterators] == loading.thread]
        frames = run.named(lambda n: n.startswith("torch/utils/data/dataloader.py("), Cat.PYTHON)
        between = run.end[rows[:-1]], run.ts[rows[1:]]
        operators = _operators(facts, loading.thread, between)
        borders = []
        trained = np.sort(run.ts[run.named(_trains, Cat.CPU_OP, Cat.USER_ANNOTATION)])
        for place in np.flatnonzero(_untrained(facts, trained, between)).tolist():
            last, first = rows[place : place + 2].tolist()
            begin, end = int(run.end[last]), int(run.ts[first])
            restarts = iterators[(run.ts[iterators] >= begin) & (run.ts[iterators] < end)]
            borders.append(
                Border(
                    place=place,
                    start=int(run.ts[last]),
                    end=int(run.end[first]),
                    stopping=int(run.dur[last]),
                    starting=end - begin,
                    waiting=int(run.dur[first]),
                    operators=int(operators[place]),
                    iterator=int(run.dur[restarts].max(initial=0)),
                )
            )
        return cls(tuple(borders), run.dur[rows], loading.thread, bool(len(frames)), trained)

    def median_wait(self, borders: Sequence[Border]) -> int | None:
        """Of all waits that are at none of these borders, ns; None without any."""
        at = [border.place + side for border in borders for side in (0, 1)]
        others = np.delete(self.waits, at)
        return int(np.median(others)) if len(others) else None

    def evaluates(self, borders: Sequence[Border]) -> bool:
        """Whether nothing is trained from one of these borders to the next: what began there was an evaluation."""
        ends = np.array([border.end for border in borders[:-1]], dtype=np.int64)
        starts = np.array([border.start for border in borders[1:]], dtype=np.int64)
        return bool((_between(self.trained, (ends, starts)) == 0).any())


def _trains(name: str) -> bool:
    return is_backward(name) or is_optimizer_step(name)


def _untrained(facts: Facts, trained: I64, between: tuple[I64, I64]) -> Bool:
    """Whether nothing happened between each two moments: no training, and no kernel was launched."""
    run, launch = facts.run, facts[Launches].launch
    kernels = np.sort(run.ts[launch[(run.cat[run.gpu] == Cat.KERNEL) & (launch >= 0)]])
    return np.asarray((_between(trained, between) == 0) & (_between(kernels, between) == 0))


def _operators(facts: Facts, thread: int, between: tuple[I64, I64]) -> I64:
    """How many outermost operators of the thread begin between each two moments."""
    run = facts.run
    rows = run.named(lambda n: not is_torch_mark(n), Cat.CPU_OP)
    outermost = facts[Nesting].outermost(rows[run.thread[rows] == thread])
    return _between(np.sort(run.ts[outermost]), between)


def _between(starts: I64, between: tuple[I64, I64]) -> I64:
    """How many of these moments, which ascend, lie between each two."""
    return np.asarray(np.searchsorted(starts, between[1]) - np.searchsorted(starts, between[0]))
