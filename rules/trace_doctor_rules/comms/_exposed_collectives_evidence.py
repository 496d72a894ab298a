"""What one rank shows of collectives that run beside no compute, and what its replay gains without them."""

from __future__ import annotations

import re
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor import NotCaptured, Saving, Span
from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.distributed.collectives import Collectives, kind_of
from trace_doctor.evidence.distributed.parallelism import Parallelism
from trace_doctor.evidence.intervals import covered, holds, intersect, intervals, pairs, total, union
from trace_doctor.evidence.names.event_names import is_backward
from trace_doctor.evidence.names.kernel_names import kernel_class
from trace_doctor.evidence.replay.what_if import Removal, Replay
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat


class ExposedKind(Struct, frozen=True):
    """The collectives of one kind in process groups of one kind."""

    name: str
    """as people call it: `all-reduce`"""
    parallelism: str
    """whose they are: TENSOR, DATA, or empty where nothing says"""
    count: int
    """of the capture"""
    ns: int
    """of the capture"""
    intervals: tuple[tuple[int, int], ...]
    """(start, end) ns of them in `CollectiveExposure.intervals`"""
    per_step: float
    """in a steady step"""
    group_size: int | None
    """ranks of the largest process group, where the file names it"""

    @property
    def exposed_ns(self) -> int:
        """Of all steady steps."""
        return sum(end - start for start, end in self.intervals)

    def __str__(self) -> str:
        name = "other collectives" if self.name == "collectives" else self.name
        return f"{name} of {self.parallelism}" if self.parallelism else name


class CollectiveExposure(Evidence, frozen=True):
    """Raises NotCaptured where there is no collective, or nothing that could run beside one."""

    intervals: tuple[tuple[int, int], ...]
    """(start, end) ns of collectives in steady steps beside no compute, without the set-up of a communicator"""
    exposed_ns: float
    """the same, of a step"""
    steady: tuple[tuple[int, int], ...]
    """(start, end) ns of each steady step on the device"""
    steady_ns: int
    """of a step: its length"""
    steps: int
    has_gpu: bool
    """whether GPU work was replayed; else the main thread was"""
    usable: bool
    """whether the replay explains this capture well enough"""
    saving: Saving
    """of the replay without these collectives"""
    saved_us: float
    """per step"""
    share_of_step: float
    kinds: tuple[ExposedKind, ...]
    """all collectives of the capture, those with most exposed time first"""
    launched_late: bool
    """whether the work behind most of the intervals was launched too late to begin half of them earlier"""
    spans: tuple[Span, ...]
    """the longest of the intervals"""
    removal: Removal
    ddp: bool
    fsdp: bool
    deepspeed: bool
    sparse_pipeline: bool
    """TorchRec's TrainPipelineSparseDist"""
    trains: bool
    """whether the capture has a backward pass"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, own, steps, replay = facts.run, facts[Collectives], facts[Steps], facts[Replay]
        if not own.compute:
            raise NotCaptured("concurrent work not recorded", "the trace as the profiler wrote it")
        exposed = [(s, e) for s, e in own.lasting.tolist()]
        removal = _removal(facts, own)
        outcome = replay.without(removal)
        wrappers = facts[Parallelism]
        steady = tuple(steps.on_device("steady"))
        return cls(
            intervals=tuple(exposed),
            exposed_ns=total(own.lasting) / steps.count,
            steady=steady,
            steady_ns=steps.step_ns,
            steps=steps.count,
            has_gpu=replay.graph is not None,
            usable=replay.usable,
            saving=outcome.saving(),
            saved_us=outcome.saved_us_per_step,
            share_of_step=outcome.share_of_step,
            kinds=_by_kind(facts, own),
            launched_late=_launched_late(facts, own),
            spans=tuple(facts[Moments].longest(exposed, "exposed communication")),
            removal=removal,
            ddp=wrappers.ddp,
            fsdp=wrappers.fsdp,
            deepspeed=wrappers.deepspeed,
            sparse_pipeline=wrappers.sparse_pipeline,
            trains=bool(run.is_named(is_backward).any()),
        )


TENSOR, DATA = "tensor-parallel layers", "data-parallel replicas"
_SPLIT = ("all-reduce", "all-gather", "reduce-scatter")
_NAMES = {
    TENSOR: re.compile(r"(?:^|[^a-z])tp(?:$|[^a-z])|tensor", re.IGNORECASE),
    DATA: re.compile(r"(?:^|[^a-z])(?:[hf]s|d)?dp(?:$|[^a-z])|data", re.IGNORECASE),
}
_PER_STEP = 2
"""a split layer has one in its forward at least, a model more than one such layer; a loss or a norm is averaged once"""


def _parallelism(facts: Facts, own: Collectives, kinds: list[str]) -> list[str]:
    """TENSOR, DATA or nothing for each collective: as its process group says, else tensor parallel where the collectives of the
    group alternate with matrix products."""
    found = [""] * len(kinds)
    silent: dict[tuple[str, str], list[int]] = {}
    for at, args in enumerate(facts.run.args(own.rows)):
        if kinds[at] not in _SPLIT:
            continue
        description, name = (str(args.get(f"Process Group {each}", "")) for each in ("Description", "Name"))
        named = [each for each, pattern in _NAMES.items() if pattern.search(description or name)]
        if len(named) == 1:
            found[at] = named[0]
        elif not description:
            silent.setdefault((kinds[at], own.keys[at][1]), []).append(at)
    for places in silent.values():
        of_group = np.isin(np.arange(len(kinds)), places)
        if _alternates(facts, own, of_group):
            for at in places:
                found[at] = TENSOR
    return found


def _alternates(facts: Facts, own: Collectives, of_group: Bool) -> bool:
    """Whether most of the exposed time is of collectives that alternate with matrix products in forward (and are as many in
    backward). Those of gradients come in backward or behind it."""
    run, steps, rows = facts.run, facts[Steps], own.rows[of_group]
    if run.device[rows[0]] < 0:
        return False
    exposed = covered(pairs(run.ts[rows], run.end[rows]), own.lasting)
    trains, forward = _in_forward(facts, rows)
    products = np.sort(run.ts[run.named(lambda name: kernel_class(name).kind == "gemm", Cat.KERNEL)])
    alternating = np.diff(np.searchsorted(products, np.append(run.ts[rows[forward]], steps.window[1]))) > 0
    ns = exposed[forward][alternating].sum() * (2 if trains else 1)
    return bool(alternating.sum() >= _PER_STEP * steps.count and 2 * ns > exposed.sum())


def _in_forward(facts: Facts, rows: I64) -> tuple[bool, Bool]:
    """Whether the capture has a backward pass, and which of these GPU rows were launched outside and before the last of their
    step; without one, all of the steady steps."""
    run, steps = facts.run, facts[Steps]
    backward = run.is_named(is_backward)
    if not backward.any():
        return False, steps.is_steady(run.ts[rows])
    launches, nesting = facts[Launches], facts[Nesting]
    calls = [launches.launch_of(row) for row in rows.tolist()]
    last = np.full(steps.count, -1)
    begins = run.ts[backward]
    of_step = steps.steady_at(begins)
    np.maximum.at(last, of_step[of_step >= 0], begins[of_step >= 0])
    at = run.ts[np.maximum(calls, 0)]
    own = steps.steady_at(at)
    apart = [
        call >= 0
        and not any(backward[row] or "BatchNorm" in run.text(row) for row in nesting.ancestors(call))
        for call in calls
    ]
    return True, np.array(apart) & (own >= 0) & (at < last[own])


def _launched_late(facts: Facts, own: Collectives) -> bool:
    run, launches = facts.run, facts[Launches]
    rows = np.setdiff1d(run.gpu, own.rows)
    rows = rows[np.argsort(run.ts[rows], kind="stable")]
    behind = np.searchsorted(run.ts[rows], own.lasting[:, 1])
    has_next = behind < len(rows)
    spans = own.lasting[has_next]
    calls = np.array([launches.launch_of(row) for row in rows[behind[has_next]].tolist()], dtype=np.int64)
    launched = np.where(calls >= 0, run.end[np.maximum(calls, 0)], spans[:, 0])
    earlier = np.clip(spans[:, 1] - launched, 0, spans[:, 1] - spans[:, 0])
    return bool(2 * earlier.sum() < total(spans))


def _removal(facts: Facts, own: Collectives) -> Removal:
    if facts[Replay].graph is not None:
        return Removal(gpu_rows=tuple(own.rows[~own.set_up].tolist()))
    threads = facts.get(Threads)
    main = threads.main if threads is not None else -1
    return Removal(host_spans=tuple((main, s, e) for s, e in own.lasting.tolist()))


def _asked_for(facts: Facts, own: Collectives) -> list[str]:
    """The kind of each: of its kernel, and where that is one for several (NCCL sends an all-to-all as sends and receives, and
    has kernels for everything) of the operator that asked for it."""
    kinds = [kind_of(name) for name, _ in own.keys]
    launches, nesting = facts[Launches], facts[Nesting]
    for at, (row, kind) in enumerate(zip(own.rows.tolist(), kinds, strict=True)):
        if kind not in ("collectives", "send and receive") or nesting.run.device[row] < 0:
            continue
        call = launches.launch_of(row)
        above = map(nesting.run.text, nesting.ancestors(call))
        asked = next((kind_of(name) for name in above if name.startswith(("nccl:", "c10d::"))), kind)
        kinds[at] = kind if asked == "collectives" else asked
    return kinds


def _by_kind(facts: Facts, own: Collectives) -> tuple[ExposedKind, ...]:
    kinds = _asked_for(facts, own)
    of = list(zip(kinds, _parallelism(facts, own, kinds), strict=True))
    steps = facts[Steps]
    steady = holds(intervals(steps.on_device("steady")), own.start)
    found = []
    for kind in sorted(set(of)):
        rows = np.array([each == kind for each in of])
        spans = pairs(own.start[rows], own.end[rows])
        size = int(own.group_size[rows].max())
        found.append(
            ExposedKind(
                *kind,
                count=len(spans),
                ns=int((spans[:, 1] - spans[:, 0]).sum()),
                intervals=tuple((s, e) for s, e in intersect(union(spans), own.lasting).tolist()),
                per_step=int((rows & steady).sum()) / steps.count,
                group_size=size if size > 0 else None,
            )
        )
    return tuple(sorted(found, key=lambda each: (-each.exposed_ns, -each.ns, each.name)))
