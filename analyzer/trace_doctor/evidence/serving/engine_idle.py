"""Where the GPU idles in the steps of an inference engine: between the kernels of a step, and between two steps."""

from __future__ import annotations

from itertools import pairwise
from typing import Self

import numpy as np

from trace_doctor.arrays import I64, U8, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.gaps import IdleLedger
from trace_doctor.evidence.idle.host_causes import CAUSE
from trace_doctor.evidence.intervals import covered, pairs, total, union
from trace_doctor.evidence.names.engine_step_names import is_engine_step
from trace_doctor.evidence.names.event_names import is_step
from trace_doctor.evidence.serving.engine_steps import EngineStep, EngineSteps
from trace_doctor.evidence.trace.engine_marks import engine_marks
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.model import IDLE_CAUSES, PART_NAMES
from trace_doctor.run import Cat, Run

OF_THE_HOST = ("python", "dispatch", "launch", "sync", "annotation", "optimizer")
"""causes of idle time that a CUDA graph, or a scheduler that runs ahead, takes away"""


class EngineIdle(Evidence, frozen=True):
    """Idle pieces of the engine's device for which the host is the reason, one entry each, by start. A gap between two steps
    counts for the later one; between a step and a wait for requests there is none. Raises NotCaptured where no engine marks
    its steps, and where its idle time is not known."""

    start: I64
    end: I64
    step: I64
    """position in `EngineSteps.steps`"""
    between: Bool
    """whether it lies before the first kernel of its step, behind the last one of the step before"""
    cause: U8
    """index in `model.IDLE_CAUSES`"""
    row: I64
    """event that owns the piece, -1 where none does"""
    sync_row: I64
    """the blocking call that it is charged to, -1 where none is"""
    work: I64
    """events: the outermost functions and annotations on the engine's thread that hold no step, by start"""

    run: Run

    @classmethod
    def build(cls, facts: Facts) -> Self:
        engine, ledger = facts[EngineSteps], facts[IdleLedger]
        engine.must_know_idle_time()
        mine = (ledger.device == engine.device) & np.isin(ledger.cause, [CAUSE[c] for c in OF_THE_HOST])
        rows = np.flatnonzero(mine & (ledger.end > ledger.start))
        rows = rows[np.argsort(ledger.start[rows], kind="stable")]
        first, last = _kernels_of(facts, engine)
        begin = _begin(engine.steps, first, last)
        at = np.searchsorted(begin, ledger.start[rows], side="right") - 1
        inside = (at >= 0) & (ledger.start[rows] < last[at])
        rows, at = rows[inside], at[inside]
        return cls(
            start=ledger.start[rows],
            end=ledger.end[rows],
            step=at,
            between=ledger.start[rows] < first[at],
            cause=ledger.cause[rows],
            row=ledger.row[rows],
            sync_row=ledger.sync_row[rows],
            work=_work(facts, engine),
            run=facts.run,
        )

    def pieces(self, mask: Bool) -> I64:
        """The intervals of some entries, (n, 2) ns."""
        return pairs(self.start[mask], self.end[mask])

    def by_host_event(self, mask: Bool) -> list[tuple[str, float]]:
        """What the host did meanwhile and how long, us, the longest first: the outermost function or annotation around no step,
        else the event that owns an entry, else its cause."""
        sums: dict[str, float] = {}

        def add(name: str, ns: int) -> None:
            sums[name] = sums.get(name, 0.0) + ns / 1e3

        frames = pairs(self.run.ts[self.work], self.run.end[self.work])
        held = covered(frames, union(self.pieces(mask)))
        for row, ns in zip(self.work[held > 0].tolist(), held[held > 0].tolist(), strict=True):
            add(self.run.text(row), ns)
        left = self.end - self.start - covered(pairs(self.start, self.end), union(frames))
        for ns, cause, row in zip(
            left[mask].tolist(), self.cause[mask].tolist(), self.row[mask].tolist(), strict=True
        ):
            if ns:
                add(self.run.text(row) if row >= 0 else PART_NAMES[IDLE_CAUSES[cause]], ns)
        return sorted(sums.items(), key=lambda item: -item[1])

    def us(self, mask: Bool) -> float:
        """Length of some entries together, us."""
        return total(self.pieces(mask)) / 1e3


def _work(facts: Facts, engine: EngineSteps) -> I64:
    """Functions and annotations of the engine's thread outside each other, without the loop around the steps and their marks."""
    run, begins = facts.run, np.array([s.step.start for s in engine.steps], dtype=np.int64)
    rows = np.flatnonzero(
        (run.thread == facts[Threads].main)
        & run.is_cat(Cat.PYTHON, Cat.USER_ANNOTATION)
        & ~run.is_named(lambda name: is_engine_step(name) or is_step(name))
    )
    holds = np.searchsorted(begins, run.end[rows]) > np.searchsorted(begins, run.ts[rows])
    rows = facts[Nesting].outermost(rows[~holds])
    return np.asarray(rows[np.argsort(run.ts[rows], kind="stable")])


def _kernels_of(facts: Facts, engine: EngineSteps) -> tuple[I64, I64]:
    """Begin of the first and end of the last kernel that each step launched within its mark, ns; its `begun` twice where there is
    none. What is launched between two marks prepares the next batch and handles the last one's tokens."""
    run, launches = facts.run, facts[Launches]
    begun = np.array([s.step.begun for s in engine.steps], dtype=np.int64)
    kernels = run.gpu[
        (run.cat[run.gpu] == Cat.KERNEL) & (run.device[run.gpu] == engine.device) & (launches.launch >= 0)
    ]
    if not len(kernels):
        raise NotCaptured(
            "the launches of the engine's kernels are not in the trace",
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    moments = launches.launched_at(kernels)
    at = engine.place_of(moments)
    marks = engine_marks(facts)
    if len(marks):
        mark = np.searchsorted(run.ts[marks], moments, side="right") - 1
        at = np.where((mark >= 0) & (moments < run.end[marks[mark]]), at, -1)
    kernels, at = kernels[at >= 0], at[at >= 0]
    first = np.full(len(begun), np.iinfo(np.int64).max, dtype=np.int64)
    last = np.full(len(begun), np.iinfo(np.int64).min, dtype=np.int64)
    np.minimum.at(first, at, run.ts[kernels])
    np.maximum.at(last, at, run.end[kernels])
    none = first > last
    return np.where(none, begun, first), np.where(none, begun, last)


def _begin(steps: tuple[EngineStep, ...], first: I64, last: I64) -> I64:
    """From when on idle time counts for each step: the last kernel of the step before, where nothing lies between them."""
    follows = np.array([False, *(a.step.end == b.step.start for a, b in pairwise(steps))])
    before = np.append(first[:1], last[:-1])
    return np.maximum.accumulate(np.where(follows[: len(first)], np.minimum(before, first), first))
