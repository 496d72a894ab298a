"""What a thread was busy with at each moment, as one cause of `model.IDLE_CAUSES`: why it had nothing launched yet."""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np
from msgspec import Struct, field

from trace_doctor.arrays import I64, U8, Bool
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.data_loading import loader_mask
from trace_doctor.evidence.idle.syncs import Syncs
from trace_doctor.evidence.intervals import clip, complement, overlaps, pairs, subtract
from trace_doctor.evidence.names.event_names import (
    is_allocator,
    is_compile,
    is_copy_call,
    is_optimizer,
    is_step,
    is_torch_mark,
)
from trace_doctor.evidence.trace.graph_captures import GraphCaptures
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting, ahead
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.evidence.trace.warmup import first_uses
from trace_doctor.model import IDLE_CAUSES
from trace_doctor.run import HOST_CATS, Cat, Run

CAUSE = {name: i for i, name in enumerate(IDLE_CAUSES)}
FIRST_USES = frozenset(["Lazy Function Loading", "Runtime Triggered Module Loading", "Driver Compiler"])
"""CUPTI files these under overhead, but they are the program's: CUDA loads or compiles a module at its first use."""
QUEUE_FULL = "Command Buffer Full"
"""Under overhead as well, and the program's: a launch waits until the device has taken what is queued before it (CUPTI
release notes, CUDA 12.3). The moment belongs to the launch call around it."""

PAUSE_NS = 1_000_000
"""Longer between two calls is one pause of the host, no work for the next launch: that takes 5 to 200 µs"""


class Cover(Struct, frozen=True):
    """Pieces that tile the window in order: [start, end) ns, cause (index in IDLE_CAUSES), event row or -1."""

    pieces: I64
    cause: U8
    row: I64

    def within(self, spans: I64) -> Cover:
        """The parts inside a set of intervals, cut at its borders."""
        cut, _, at = overlaps(spans, self.pieces)
        return Cover(cut, self.cause[at], self.row[at])


def joined(covers: list[Cover]) -> Cover:
    """Disjoint covers as one, in order of time."""
    pieces = np.concatenate([np.empty((0, 2), dtype=np.int64), *(c.pieces for c in covers)])
    order = np.argsort(pieces[:, 0], kind="stable")
    cause = np.concatenate([np.empty(0, dtype=np.uint8), *(c.cause for c in covers)])
    row = np.concatenate([np.empty(0, dtype=np.int64), *(c.row for c in covers)])
    return Cover(pieces[order], cause[order], row[order])


def uniform(pieces: I64, cause: str) -> Cover:
    """All of these intervals for one cause, owned by no event."""
    return Cover(
        pieces, np.full(len(pieces), CAUSE[cause], dtype=np.uint8), np.full(len(pieces), -1, dtype=np.int64)
    )


class HostCauses(Evidence, frozen=True):
    """A moment belongs to the first of these that is open on the thread: profiler, data loading, compilation,
    allocator, blocking call, cold start, optimizer, annotation (in which nothing is launched), dispatch, Python.
    Where a thread has nothing open, the main thread decides.

    Without recorded stacks `python` also means that nothing was recorded.
    """

    window: tuple[int, int]
    main: int | None
    run: Run
    _facts: Facts
    _nesting: Nesting
    _covers: dict[int | None, Cover] = field(default_factory=dict)

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, threads = facts.run, facts.get(Threads)
        return cls(facts[Steps].window, threads.main if threads else None, run, facts, facts[Nesting])

    def on(self, thread: int | None) -> Cover:
        """The window as this thread spent it (None: no thread is known)."""
        if thread not in self._covers:
            own = (
                self._painted(thread) if thread is not None else uniform(np.empty((0, 2), np.int64), "python")
            )
            holes = complement(own.pieces, *self.window)
            if thread == self.main:
                rest = self._unrecorded(thread, holes)
            else:
                rest = [self.on(self.main).within(holes)]
            self._covers[thread] = joined([own, *rest])
        return self._covers[thread]

    @cached_property
    def _layers(self) -> tuple[tuple[str, Bool], ...]:
        return _layers(self._facts)

    def _painted(self, thread: int) -> Cover:
        """What is open on the thread, by priority."""
        free = np.array([self.window], dtype=np.int64)
        covers = []
        own = ((cause, _disjoint(self.run, self._reaching(thread, mask))) for cause, mask in self._layers)
        everywhere = (
            (cause, _disjoint(self.run, ahead(self.run, rows))) for cause, rows in _everywhere(self._facts)
        )
        captures = ("compile", self._facts[GraphCaptures].on(thread))
        for cause, (spans, owners) in (*everywhere, captures, *own):
            pieces, _, at = overlaps(free, spans)
            free = subtract(free, spans)
            owner = owners[at]
            if cause in ("dispatch", "python"):
                owner = self._nesting.enclosing(thread, pieces)
            covers.append(Cover(pieces, np.full(len(pieces), CAUSE[cause], dtype=np.uint8), owner))
        return joined(covers)

    def _reaching(self, thread: int, chosen: Bool) -> I64:
        """Those of the mask on the thread that end later than all of it before them."""
        reaching = self._nesting.reaching(thread)
        if chosen[reaching].all():  # no other ends later than all of these before it
            return reaching.astype(np.int64)
        return ahead(self.run, self._nesting.on_thread(thread, chosen))

    def _unrecorded(self, thread: int | None, holes: I64) -> list[Cover]:
        """Between its first and last event the main thread ran Python; before and after, nothing is known."""
        if thread is None or not len(rows := self._nesting.thread_rows(thread)):
            return [uniform(holes, "unattributed")]
        alive = (int(self.run.ts[rows[0]]), int(self.run.end[self._nesting.reaching(thread)[-1]]))
        known = clip(holes, *alive)
        return [uniform(known, "python"), uniform(subtract(holes, known), "unattributed")]


def _disjoint(run: Run, reaching: I64) -> tuple[I64, I64]:
    """Rows of which each ends later than all before it as a set of intervals, each with its row; the outer event wins."""
    start, end = run.ts[reaching], run.ts[reaching] + run.dur[reaching]
    start[1:] = np.maximum(start[1:], end[:-1])
    real = end > start
    return pairs(start[real], end[real]), reaching[real]


def _everywhere(facts: Facts) -> tuple[tuple[str, I64], ...]:
    """The profiler's overhead, which has a track of its own and holds every thread."""
    run, syncs = facts.run, facts[Syncs]
    overhead = run.is_cat(Cat.OVERHEAD)
    lazy = run.is_named(FIRST_USES.__contains__)
    own = np.union1d(profilers_own(run), syncs.profilers)
    return ("profiler", own), ("cold_start", np.flatnonzero(overhead & lazy))


def profilers_own(run: Run) -> I64:
    """Rows of what recording costs, as the profiler marks it."""
    of_the_program = run.is_named(lambda n: n in FIRST_USES or n == QUEUE_FULL)
    return np.flatnonzero(run.is_cat(Cat.OVERHEAD) & ~of_the_program)


def _layers(facts: Facts) -> tuple[tuple[str, Bool], ...]:
    """(cause, mask of the rows that are of it), by priority."""
    run = facts.run
    notes = run.is_cat(Cat.USER_ANNOTATION, Cat.CPU_OP)
    calls = run.is_cat(Cat.RUNTIME, Cat.DRIVER)

    steps, optimizer, compiling = map(run.is_named, (is_step, is_optimizer, is_compile))
    loader = loader_mask(run, facts.options)
    allocator = run.is_named(is_allocator) & calls
    blocking = np.zeros(len(run), dtype=bool)
    blocking[facts[Syncs].rows] = True
    cold = first_uses(run, facts[Launches], facts[Nesting])
    cold[_host_to_device(run, facts[Launches])] = False
    marks = steps | loader | optimizer
    torch_marks = run.is_named(is_torch_mark) & ~steps
    labels = run.is_cat(Cat.USER_ANNOTATION) & ~marks & ~torch_marks & ~compiling
    labels[labels] = _idle_inside(facts, np.flatnonzero(labels))
    return (
        ("data_loading", loader),
        ("compile", compiling & run.is_cat(*HOST_CATS) | run.is_named(_is_graph_instantiation) & calls),
        ("allocator", allocator),
        ("sync", blocking),
        ("cold_start", cold & ~allocator & ~blocking),
        ("optimizer", optimizer & notes),
        ("annotation", labels),
        ("dispatch", (run.is_cat(Cat.CPU_OP) & ~marks) | calls | (torch_marks & notes)),
        ("python", run.is_cat(Cat.PYTHON, Cat.USER_ANNOTATION, Cat.CPU_OP)),
    )


def _is_graph_instantiation(name: str) -> bool:
    return "GraphInstantiate" in name


def _host_to_device(run: Run, launches: Launches) -> I64:
    """Copy calls from memory that may be pageable: these hold the host as long as the copy takes."""
    copies = run.named(is_copy_call, Cat.RUNTIME, Cat.DRIVER)
    work = launches.first_work(copies)
    pageable = run.name_ids(lambda n: "HtoD" in n and "Pinned" not in n)
    return np.asarray(copies[np.isin(run.name_ids_at(work), pageable)])


def _idle_inside(facts: Facts, rows: I64) -> Bool:
    """During which of the rows no thread launched GPU work (in a capture of the CPU alone: ran no operator)."""
    run = facts.run
    calls = facts[Launches].calls
    if not len(calls) and not len(run.gpu):
        calls = np.flatnonzero(run.is_cat(Cat.CPU_OP))
    elif not len(calls):
        return np.zeros(len(rows), dtype=bool)
    starts = run.ts[calls]
    return np.asarray(np.searchsorted(starts, run.end[rows]) == np.searchsorted(starts, run.ts[rows]))
