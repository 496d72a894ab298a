"""Whether the device keeps waiting for the host to launch: many small kernels, each with its share of host work."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compile.compile_regions import CALLS
from trace_doctor.evidence.idle.gaps import IdleCauses, IdleLedger
from trace_doctor.evidence.idle.host_causes import PAUSE_NS
from trace_doctor.evidence.intervals import NOTHING, holds, intersect, intervals, total, union
from trace_doctor.evidence.replay.what_if import OWN_WORK, Removal, Replay, ReplayOutcome, view_time
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat, Run

OUTLASTS_NS = 50_000
"""a kernel of that length outlasts its launch call, which takes some 10 us"""
OTHER_WORK = ("cold_start", "compile", "data_loading", "allocator", "sync")
HALF = Removal(host_share=0.5)
"""What a fix of launching gives at least; and what a run with Python stacks would be without: the profiler then makes
host work two to three times as long"""


class HostBound(Evidence, frozen=True):
    """The steady steps of one device: the one that waits most for the host. Raises NotCaptured without GPU work."""

    device: int
    kernels: int
    """that ran in the steady steps"""
    median_kernel_us: float
    length: int
    """of the steady steps together, ns"""
    by_cause: dict[str, int]
    """idle ns in gaps shorter than a pause, while the host ran operators, Python or optimizer code; in longer ones, views"""
    other: int
    """idle ns that belongs to cold starts, compilation, loaders, the allocator or waits for the device"""
    owned: I64
    """the idle pieces of `by_cause`, and those of the launch calls themselves in such gaps: a set of intervals"""
    halved: ReplayOutcome
    """the steps with half of the host's own work"""
    lasting: float
    """share of the step that halving saves once more: with Python stacks recorded the profiler makes host work two to
    three times as long, so that only this is the program's own; without stacks the same as `halved`"""
    stacks: bool
    compiled: bool
    """whether code that torch.compile has made runs"""
    held_launches: int
    """of the kernels whose launch call is known: those whose call returned only when they had ended"""
    launched: int
    """all whose launch call is known"""
    held_share: float
    """of the launches, or of their kernels' time where that is less; 0 where every kernel is so short that it may end within an
    ordinary call"""
    returning: Removal
    """the launch calls return when their kernel begins"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, ledger, timeline, replay = facts.run, facts[IdleCauses].ledger, facts[GpuTimeline], facts[Replay]
        if replay.graph is None:
            raise NotCaptured(replay.limit, "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]")
        steady = intervals(facts[Steps].on_device("steady"))
        threads = np.unique(replay.graph.calls.thread).tolist()
        views = union(np.concatenate([NOTHING, *(view_time(run, t) for t in threads)]))
        best: tuple[int, dict[str, int], I64] = (-1, {}, steady[:0])
        for device in timeline.devices:
            pieces = _short(ledger, timeline, device, views)
            launching = pieces.pop("launch")
            own = {cause: total(intersect(some, steady)) for cause, some in pieces.items()}
            if best[0] < 0 or sum(own.values()) > sum(best[1].values()):
                every = union(np.concatenate([*pieces.values(), launching]))
                best = device, own, intersect(every, steady)
        device, own, owned = best
        rows = run.gpu[(run.cat[run.gpu] == Cat.KERNEL) & (run.device[run.gpu] == device)]
        rows = rows[holds(steady, run.ts[rows])]
        halved = replay.without(HALF)
        call = facts[Launches].launch[np.searchsorted(run.gpu, rows)].astype(np.int64)
        rows_known, call = rows[call >= 0], call[call >= 0]
        held = run.end[call] >= run.end[rows_known]
        spans = zip(run.thread[call], run.ts[rows_known], run.end[call], strict=True)
        stacks = with_stacks(run)
        return cls(
            device=device,
            kernels=len(rows),
            median_kernel_us=float(np.median(run.dur[rows])) / 1e3 if len(rows) else 0.0,
            length=total(steady),
            by_cause=own,
            other=sum(ledger.owned(cause, facts[Steps].on_device("steady"), device) for cause in OTHER_WORK),
            owned=owned,
            halved=halved,
            lasting=replay.beside(Removal(host_share=0.25), HALF) if stacks else halved.share_of_step,
            stacks=stacks,
            compiled=any(name.startswith(CALLS) for name in run.names),
            held_launches=int(held.sum()),
            launched=len(call),
            held_share=_held_share(held, run.dur[rows_known]),
            returning=Removal(host_spans=tuple((int(t), int(a), int(b)) for t, a, b in spans if b > a)),
        )

    @property
    def own(self) -> int:
        """Idle ns of the host's own work."""
        return sum(self.by_cause.values())

    @property
    def own_share(self) -> float:
        """The host's own work as a share of the steady time."""
        return self.own / self.length if self.length else 0.0


def _held_share(held: Bool, kernel_ns: I64) -> float:
    if not len(held) or kernel_ns.max() < OUTLASTS_NS:
        return 0.0
    return float(min(held.mean(), kernel_ns[held].sum() / kernel_ns.sum()))


def with_stacks(run: Run) -> bool:
    """Whether Python frames were recorded with these times, which slows the host down."""
    frames = run.is_cat(Cat.PYTHON)
    return bool((frames & run.own).any()) if frames.any() else bool(run.recorded.stacks)


def _short(ledger: IdleLedger, timeline: GpuTimeline, device: int, views: I64) -> dict[str, I64]:
    """The pieces of the host's own work in gaps of the device that are no pauses, or in views, by cause."""
    gaps = timeline.gaps(device, *timeline.window)
    by_part = {}
    for cause in (*OWN_WORK, "launch"):
        pieces = ledger.pieces(cause, device)
        at = np.maximum(np.searchsorted(gaps[:, 0], pieces[:, 0], side="right") - 1, 0)
        short = gaps[at, 1] - gaps[at, 0] < PAUSE_NS if len(gaps) else np.zeros(len(pieces), dtype=bool)
        by_part[cause] = union(np.concatenate([pieces[short], intersect(union(pieces[~short]), views)]))
    return by_part
