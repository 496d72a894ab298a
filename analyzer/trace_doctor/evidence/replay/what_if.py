"""What-if replay: how long the captured steps would have taken without a cause.

Idle time does not say what removing its cause would give: on a host-bound run the idle only moves. So the captured
window is re-timed without it (the idea of Daydream, USENIX ATC 2020, and Lumos, MLSys 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain, pairwise
from math import ceil
from typing import Any, Self, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.idle.data_loading import DataLoading
from trace_doctor.evidence.idle.host_causes import CAUSE, PAUSE_NS, HostCauses
from trace_doctor.evidence.intervals import (
    NOTHING,
    clip,
    covered,
    intersect,
    intervals,
    pairs,
    subtract,
    total,
    union,
)
from trace_doctor.evidence.names.event_names import is_view
from trace_doctor.evidence.replay.dependency_graph import ReplayGraph
from trace_doctor.evidence.replay.retime import LeftOut, retime
from trace_doctor.evidence.trace.steps import Step, Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.model import Basis, Column, Saving, Table
from trace_doctor.run import Cat, Run

UNEXPLAINED_NS = 50_000
"""A delay that nothing explains counts from here on."""
MOST_BASE_ERROR = 0.01
MOST_UNEXPLAINED = 0.03
OWN_WORK = ("dispatch", "python", "optimizer")
"""What a host does itself: less of it is what faster launching means."""
LATE_NS = 3_000_000
"""A wait for workers from here on is one for a batch that is still being made: to take one that is ready (unpickling, mapping
shared memory) took up to 2.5 ms in captures whose workers keep up."""
T = TypeVar("T", bound=Any)


class Removal(Struct, frozen=True):
    """What a fix takes out of a run, for the replay to leave out.

    `host_spans`: (thread, start ns, end ns) of host time that would not be spent any more.
    `make_async`: rows of blocking calls that would no longer wait.
    `gpu_rows`: rows of GPU operations that would not run.
    `gpu_shorter`: (row, ns) of GPU operations that would take that much less.
    `host_share`: the share of the host's own work (operators, Python, optimizer code) that would be left, pauses of
    1 ms and more apart, unless they are filled with views of tensors.
    """

    host_spans: tuple[tuple[int, int, int], ...] = ()
    make_async: tuple[int, ...] = ()
    gpu_rows: tuple[int, ...] = ()
    gpu_shorter: tuple[tuple[int, int], ...] = ()
    host_share: float = 1.0

    def __or__(self, other: Removal) -> Removal:
        shorter: dict[int, int] = {}
        for row, ns in (*self.gpu_shorter, *other.gpu_shorter):
            shorter[row] = max(ns, shorter.get(row, 0))
        return Removal(
            _either(self.host_spans, other.host_spans),
            _either(self.make_async, other.make_async),
            _either(self.gpu_rows, other.gpu_rows),
            tuple(sorted(shorter.items())),
            min(self.host_share, other.host_share),
        )


def _either(some: tuple[T, ...], others: tuple[T, ...]) -> tuple[T, ...]:
    """What is in one of the two, sorted: mostly both are, and sorting two sorted parts takes no time."""
    return tuple(dict.fromkeys(sorted(some + others)))


class ReplayOutcome(Struct, frozen=True):
    """The steady steps without a removal: a bound for what takes just that out, and puts nothing in its place."""

    window_ns: int
    """length of the steady steps together, after"""
    step_us: float
    """mean steady step, after"""
    saved_us_per_step: float
    share_of_step: float
    basis: Basis
    how: str
    """the sentence that derives it"""

    @property
    def before_us(self) -> float:
        """Mean steady step, as captured."""
        return self.step_us + self.saved_us_per_step

    def saving(self) -> Saving:
        """What a finding claims."""
        return Saving(
            time_us_per_step=self.saved_us_per_step,
            share_of_step=self.share_of_step,
            basis=self.basis,
            how=self.how,
        )

    def saving_between(self, least: ReplayOutcome, most: ReplayOutcome) -> Saving:
        """The same of a fix that takes out no less than one removal and no more than another: an estimate."""
        share = max(self.share_of_step, 1e-9)
        saving = replace(self.saving(), how=self.how.replace(" per step at best", " per step"))
        return saving.about(least.share_of_step / share, most.share_of_step / share)

    def table(self, title: str, change: str) -> Table:
        """The step as captured and with the change, for a finding's evidence."""
        return Table(
            title=title,
            columns=[Column("step"), Column("takes", "us"), Column("saved", "share")],
            rows=[["as captured", self.before_us, 0.0], [change, self.step_us, self.share_of_step]],
        )


class Replay(Evidence, frozen=True):
    """Re-times the steady steps. Raises NotCaptured without a window; without GPU work it gives bounds only."""

    window: tuple[int, int]
    """of the steady steps, [start, end) ns: of those of an inference engine the longest stretch in which it does not wait for
    requests, which the host cannot do any earlier"""
    count: int
    """number of steps in it, 1 without a step source"""
    base_error: float | None
    """share of the window that is lost when every unexplained delay is cut; None without GPU work"""
    unexplained_share: float | None
    """share of the window in delays of the GPU that no stream, launch or other stream explains"""
    step_ns: int
    """mean steady step"""
    main: int
    """thread, -1 when nothing says"""
    cores: int | None
    """of the captured machine, where a recording says so"""
    on_cpu: float
    """at most this share of its time the main thread needs a CPU; 1 where that was not recorded"""
    base_ns: int
    """the window as replayed with nothing removed"""
    graph: ReplayGraph | None
    loading: I64
    """the waits for data on the main thread: a set of intervals"""
    causes: HostCauses | None
    engines: tuple[Bool, ...]
    """masks over the GPU operations of what runs beside each other once nothing holds it"""
    arrivals: I64 = NOTHING
    """waits on the main thread for worker processes that were behind, (n, 2) ns"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, steps = facts.run, facts[Steps]
        steady = _longest_stretch(steps.steady)
        window = (steady[0].start, steady[-1].end) if steady else steps.window
        threads = facts.get(Threads)
        graph = ReplayGraph.build(facts, window)
        errors: tuple[float | None, float | None] = (None, None)
        length = again = window[1] - window[0]
        if len(graph.ops):
            again, cut = retime(graph), retime(graph, keep_unexplained=False)
            errors = (abs(length - cut) / length, _unexplained(graph) / length)
        waits = facts.get(DataLoading)
        cores = facts.options.extra.get("cpu_count", run.meta.get("cpu_count"))
        on_cpu = facts.capture.record.on_cpu if facts.capture.record is not None else None
        return cls(
            window=window,
            count=len(steady) or 1,
            base_error=errors[0],
            unexplained_share=errors[1],
            step_ns=steps.step_ns,
            main=threads.main if threads is not None else -1,
            cores=cores if isinstance(cores, int) and cores > 0 else None,
            on_cpu=1.0 if on_cpu is None else on_cpu,
            base_ns=again,
            graph=graph if len(graph.ops) else None,
            loading=intervals(waits.waits([window])) if waits is not None else NOTHING,
            causes=facts.get(HostCauses),
            engines=_engines(run, graph.ops.row),
            arrivals=_arrivals(waits, window) if waits is not None else NOTHING,
        )

    @property
    def usable(self) -> bool:
        """Whether the model explains this capture well enough for a saving with basis `replay`."""
        if self.base_error is None or self.unexplained_share is None:
            return False
        return self.base_error <= MOST_BASE_ERROR and self.unexplained_share <= MOST_UNEXPLAINED

    @property
    def limit(self) -> str:
        """Why outcomes are bounds; empty where they are not."""
        if self.base_error is None or self.unexplained_share is None:
            return "the capture has no GPU work to re-time"
        if self.usable:
            return ""
        return (
            f"the replay does not explain this capture well enough (base error {self.base_error:.1%}, "
            f"unexplained GPU delays {self.unexplained_share:.1%} of the window)"
        )

    @cached_property
    def _known(self) -> dict[Removal, ReplayOutcome]:
        return {}

    def without(self, removal: Removal) -> ReplayOutcome:
        """The steady steps without the removal. Parts of it outside them change nothing."""
        if removal not in self._known:
            length = self.window[1] - self.window[0]
            new_ns = self._host_bound(removal) if self.graph is None else self._retimed(self.graph, removal)
            self._known[removal] = self._outcome(min(max(new_ns, 0), length))
        return self._known[removal]

    def beside(self, removal: Removal, done: Removal) -> float:
        """What a removal saves once another is made: a share of the steps as they are then."""
        first, both = self.without(done), self.without(removal | done)
        return (first.window_ns - both.window_ns) / first.window_ns if first.window_ns else 0.0

    def _retimed(self, graph: ReplayGraph, removal: Removal) -> int:
        """Never below the work that stays for the busiest engine of the GPU, never a saving that the arithmetic alone makes."""
        calls = np.array(removal.make_async, dtype=np.int64)
        ops = np.array(removal.gpu_rows, dtype=np.int64)
        left_out = LeftOut.of(graph, removal.host_spans, calls, ops)
        if removal.gpu_shorter:
            left_out = replace(left_out, shorter=_shorter(graph, removal))
        if removal.host_share < 1 and self.causes is not None:
            own = {int(t): own_work(self.causes, int(t)) for t in np.unique(graph.calls.thread)}
            views = {t: view_time(self.causes.run, t) for t in own}
            left_out = replace(left_out, own=own, own_share=removal.host_share, views=views)
        if len(self.arrivals):
            gone = covered(self.arrivals, left_out.host.get(self.main, NOTHING))
            waits = self.arrivals[2 * gone < self.arrivals[:, 1] - self.arrivals[:, 0]]
            left_out = replace(left_out, arrivals={self.main: waits})
        stays = ~np.isin(graph.ops.row, ops)
        ends = graph.ops.end - (left_out.shorter if left_out.shorter is not None else 0)
        work = pairs(graph.ops.start, ends)
        floor = max(total(union(clip(work[stays & own], *self.window))) for own in self.engines)
        new_ns = retime(graph, left_out) if removal != Removal() else self.base_ns
        saved = max(self.base_ns - new_ns, 0)
        return max(self.window[1] - self.window[0] - saved, floor)

    def _host_bound(self, removal: Removal) -> int:
        """Without a GPU the main thread is the resource. Loading moves to workers only as far as there are cores:
        with unknown cores it may all go, with n cores (and so many workers) loading takes at least 1/n, and so does
        all work together, but for what the thread does not spend on a CPU: a loader that waits for a disk needs none."""
        length = self.window[1] - self.window[0]
        spans = np.fromiter(chain.from_iterable(removal.host_spans), dtype=np.int64).reshape(-1, 3)
        removed_ns = clip(union(spans[spans[:, 0] == self.main, 1:]), *self.window)
        new_ns = length - total(removed_ns)
        if removal.host_share < 1 and self.causes is not None:
            own = clip(subtract(own_work(self.causes, self.main), removed_ns), *self.window)
            own = own[own[:, 1] - own[:, 0] < PAUSE_NS]
            new_ns -= int((1 - removal.host_share) * total(own))
        loading = total(intersect(removed_ns, self.loading))
        if loading and self.cores is not None:
            needed = min(new_ns + loading, ceil(length * self.on_cpu))
            new_ns = max(new_ns, -(-max(needed, loading) // self.cores))
        return new_ns

    def _outcome(self, new_ns: int) -> ReplayOutcome:
        saved = self.window[1] - self.window[0] - new_ns
        before = self.step_ns / 1e3
        per_step = min(saved / self.count / 1e3, before)
        after = before - per_step
        basis: Basis = "replay" if self.usable else "bound"
        steps = f"{self.count} steady step{'s' if self.count > 1 else ''}"
        if self.graph is None:
            how = f"main-thread time removed from {steps}"
            if self.cores is not None:
                how += f", loading moved to workers on {self.cores} cores"
        else:
            how = f"{steps} simulated without it"
        how += f": {milliseconds(before)} → {milliseconds(after)} per step at best"
        if self.limit:
            how += f"; not simulated, because {self.limit}"
        return ReplayOutcome(
            window_ns=new_ns,
            step_us=after,
            saved_us_per_step=per_step,
            share_of_step=per_step / before if before else 0.0,
            basis=basis,
            how=how,
        )


def _longest_stretch(steady: Sequence[Step]) -> Sequence[Step]:
    """Of the steps those that follow one another, the most of them."""
    borders = [n for n in range(1, len(steady)) if steady[n].start != steady[n - 1].end]
    parts = [steady[a:b] for a, b in pairwise([0, *borders, len(steady)])]
    return max(parts, key=len)


def _engines(run: Run, rows: I64) -> tuple[Bool, ...]:
    """Copies to the host, copies to the device, and the rest: the GPU has an engine for each. Which kernels would fit beside
    others than they ran with nobody knows."""
    to_host = run.is_named(lambda name: "DtoH" in name)[rows]
    to_device = run.is_named(lambda name: "HtoD" in name)[rows]
    return to_host, to_device, ~(to_host | to_device)


def _arrivals(loading: DataLoading, window: tuple[int, int]) -> I64:
    run, rows = loading.run, loading.rows[[kind == "workers" for kind in loading.kinds]]
    rows = rows[(run.dur[rows] >= LATE_NS) & (run.ts[rows] >= window[0]) & (run.end[rows] <= window[1])]
    return pairs(run.ts[rows], run.end[rows])


def own_work(causes: HostCauses, thread: int) -> I64:
    """When a thread (-1: none is known) runs operators, Python or optimizer code, and nothing else holds it: a set."""
    cover = causes.on(thread if thread >= 0 else causes.main)
    return union(cover.pieces[np.isin(cover.cause, [CAUSE[c] for c in OWN_WORK])])


def view_time(run: Run, thread: int) -> I64:
    """When a thread is in operators that look at memory anew: a set."""
    rows = run.named(is_view, Cat.CPU_OP)
    rows = rows[run.thread[rows] == thread]
    return union(pairs(run.ts[rows], run.end[rows]))


def _shorter(graph: ReplayGraph, removal: Removal) -> I64:
    """For each operation of the graph how much less it takes, ns; never more than it takes."""
    rows, less = np.array(removal.gpu_shorter, dtype=np.int64).T
    at = np.minimum(np.searchsorted(rows, graph.ops.row), len(rows) - 1)
    shortening = np.where(rows[at] == graph.ops.row, less[at], 0)
    return np.asarray(np.minimum(shortening, graph.ops.end - graph.ops.start))


def _unexplained(graph: ReplayGraph) -> int:
    """Time in long delays that nothing explains, ns: as a union, so that parallel streams do not count twice."""
    ops = graph.ops
    long = ops.unexplained > UNEXPLAINED_NS
    return total(union(clip(pairs((ops.start - ops.unexplained)[long], ops.start[long]), *graph.window)))
