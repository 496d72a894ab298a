"""What one rank shows of collectives that run beside no compute, and what its replay gains without them."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor import NotCaptured, Saving, Span
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.distributed.collectives import Collectives, kind_of
from trace_doctor.evidence.distributed.parallelism import Parallelism
from trace_doctor.evidence.intervals import covered, holds, intervals, pairs, total
from trace_doctor.evidence.replay.what_if import Removal, Replay
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads


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
        first = own.rows[np.array(asked) == kinds[0][0]]
        in_steady = holds(intervals(steady), run.ts[first])
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
        )


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
    launches, nesting = facts.get(Launches), facts.get(Nesting)
    if launches is None or nesting is None:
        return kinds
    for at, (row, kind) in enumerate(zip(own.rows.tolist(), kinds, strict=True)):
        if kind not in ("collectives", "send and receive") or nesting.run.device[row] < 0:
            continue
        call = launches.launch_of(row)
        above = map(nesting.run.text, nesting.ancestors(call)) if call >= 0 else ()
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
