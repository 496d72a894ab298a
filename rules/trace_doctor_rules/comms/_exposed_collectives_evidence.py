"""What one rank shows of collectives that run beside no compute, and what its replay gains without them."""

from __future__ import annotations

import re
from typing import Self

import numpy as np

from trace_doctor import NotCaptured, Saving, Span
from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.distributed.collectives import Collectives, kind_of
from trace_doctor.evidence.distributed.parallelism import Parallelism
from trace_doctor.evidence.intervals import covered, holds, intervals, pairs, total
from trace_doctor.evidence.names.event_names import is_backward
from trace_doctor.evidence.names.kernel_names import kernel_class
from trace_doctor.evidence.replay.what_if import Removal, Replay
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat


class CollectiveExposure(Evidence, frozen=True):
    """Raises NotCaptured where there is no collective, or nothing that could run beside one."""

    intervals: tuple[tuple[int, int], ...]
    """(start, end) ns of collectives in steady steps beside no compute, without the set-up of a communicator"""
    exposed_ns: float
    """the same, of a step"""
    steady: tuple[tuple[int, int], ...]
    """(start, end) ns of each steady step on the device"""
    per_step: float
    """collectives of the kind that has most of it, of a step"""
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
    kinds: tuple[tuple[str, int, int, int], ...]
    """(kind, number, ns, ns of it in `intervals`) of all collectives of the capture, the one with most in them first"""
    spans: tuple[Span, ...]
    """the longest of the intervals"""
    removal: Removal
    ddp: bool
    fsdp: bool
    deepspeed: bool
    sparse_pipeline: bool
    """TorchRec's TrainPipelineSparseDist"""
    tensor_parallel: bool
    """whether the kind that has most of it belongs to layers that are split over ranks"""
    trains: bool
    """whether the capture has a backward pass"""
    group_size: int | None
    """ranks of the process group of that kind, where the file names it"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, own, steps, replay = facts.run, facts[Collectives], facts[Steps], facts[Replay]
        if not own.compute:
            raise NotCaptured(
                "concurrent work not recorded",
                "the trace as the profiler wrote it",
            )
        exposed = [(s, e) for s, e in own.lasting.tolist()]
        removal = _removal(facts, own)
        outcome = replay.without(removal)
        wrappers = facts[Parallelism]
        steady = tuple(steps.on_device("steady"))
        asked = _asked_for(facts, own)
        kinds = _by_kind(own, asked)
        of_first = np.array(asked) == kinds[0][0]
        in_steady = holds(intervals(steady), run.ts[own.rows[of_first]])
        group_size = int(own.group_size[of_first].max())
        return cls(
            intervals=tuple(exposed),
            exposed_ns=total(own.lasting) / steps.count,
            steady=steady,
            per_step=int(in_steady.sum()) / steps.count,
            steady_ns=steps.step_ns,
            steps=steps.count,
            has_gpu=replay.graph is not None,
            usable=replay.usable,
            saving=outcome.saving(),
            saved_us=outcome.saved_us_per_step,
            share_of_step=outcome.share_of_step,
            kinds=kinds,
            spans=tuple(facts[Moments].longest(exposed, "exposed communication")),
            removal=removal,
            ddp=wrappers.ddp,
            fsdp=wrappers.fsdp,
            deepspeed=wrappers.deepspeed,
            sparse_pipeline=wrappers.sparse_pipeline,
            tensor_parallel=_of_split_layers(facts, own, of_first, kinds[0][0]),
            trains=bool(run.is_named(is_backward).any()),
            group_size=group_size if group_size > 0 else None,
        )


_SPLIT = ("all-reduce", "all-gather", "reduce-scatter")
_NAMED = re.compile(r"(?:^|[^a-z])tp(?:$|[^a-z])|tensor", re.IGNORECASE)
_PER_STEP = 2
"""a split layer has one in its forward at least, a model more than one such layer; a loss or a norm is averaged once"""


def _of_split_layers(facts: Facts, own: Collectives, of_kind: Bool, kind: str) -> bool:
    """Whether most of the exposed time is of groups that say so; else of collectives that alternate with matrix products in forward
    (and are as many in backward). Those of gradients come in backward or behind it."""
    run, steps, rows = facts.run, facts[Steps], own.rows[of_kind]
    if kind not in _SPLIT or run.device[rows[0]] < 0:
        return False
    exposed = covered(pairs(run.ts[rows], run.end[rows]), own.lasting)
    groups = [str(args.get("Process Group Description", "")) for args in run.args(rows)]
    if any(groups):
        named = np.array([_NAMED.search(group) is not None for group in groups])
        return bool(2 * exposed[named].sum() > exposed.sum())
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


def _by_kind(own: Collectives, kinds: list[str]) -> tuple[tuple[str, int, int, int], ...]:
    of = np.array(kinds)
    took, exposed = own.end - own.start, covered(pairs(own.start, own.end), own.lasting)
    rows = [
        (kind, int((of == kind).sum()), int(took[of == kind].sum()), int(exposed[of == kind].sum()))
        for kind in sorted(set(kinds))
    ]
    return tuple(sorted(rows, key=lambda r: (-r[3], -r[2], r[0])))
