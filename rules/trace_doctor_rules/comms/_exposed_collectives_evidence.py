"""What one rank shows of collectives that run beside no compute, and what its replay gains without them."""

from __future__ import annotations

from typing import Self

from trace_doctor import NotCaptured, Saving, Span
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.distributed.collectives import Collectives, kind_of
from trace_doctor.evidence.distributed.parallelism import Parallelism
from trace_doctor.evidence.intervals import total
from trace_doctor.evidence.replay.what_if import Removal, Replay
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads


class CollectiveExposure(Evidence, frozen=True):
    """Raises NotCaptured where there is no collective, or nothing that could run beside one."""

    intervals: tuple[tuple[int, int], ...]
    """(start, end) ns of collectives in steady steps beside no compute, without the set-up of a communicator"""
    exposed_ns: float
    """the same, of a step"""
    steady_ns: float
    """of a step"""
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
    kinds: tuple[tuple[str, int, int], ...]
    """(kind, number, ns) of all collectives of the capture, the longest first"""
    spans: tuple[Span, ...]
    """the longest of the intervals"""
    removal: Removal
    ddp: bool
    fsdp: bool

    @classmethod
    def build(cls, facts: Facts) -> Self:
        own, steps, replay, moments = facts[Collectives], facts[Steps], facts[Replay], facts[Moments]
        if not own.compute:
            raise NotCaptured(
                "nothing but collectives is in the trace, so that nobody knows what ran beside them",
                "the trace as the profiler wrote it",
            )
        exposed = [(s, e) for s, e in own.lasting.tolist()]
        removal = _removal(facts, own)
        outcome = replay.without(removal)
        wrappers = facts.get(Parallelism)
        return cls(
            intervals=tuple(exposed),
            exposed_ns=total(own.lasting) / steps.count,
            steady_ns=sum(end - start for start, end in steps.spans("steady")) / steps.count,
            steps=steps.count,
            has_gpu=replay.graph is not None,
            usable=replay.usable,
            saving=outcome.saving(),
            saved_us=outcome.saved_us_per_step,
            share_of_step=outcome.share_of_step,
            kinds=_by_kind(own),
            spans=tuple(moments.longest(exposed, "communication without compute")),
            removal=removal,
            ddp=wrappers is not None and wrappers.ddp,
            fsdp=wrappers is not None and wrappers.fsdp,
        )


def _removal(facts: Facts, own: Collectives) -> Removal:
    if facts[Replay].graph is not None:
        return Removal(gpu_rows=tuple(own.rows[~own.set_up].tolist()))
    threads = facts.get(Threads)
    main = threads.main if threads is not None else -1
    return Removal(host_spans=tuple((main, s, e) for s, e in own.lasting.tolist()))


def _by_kind(own: Collectives) -> tuple[tuple[str, int, int], ...]:
    by_kind: dict[str, tuple[int, int]] = {}
    for (name, _), ns in zip(own.keys, (own.end - own.start).tolist(), strict=True):
        count, before = by_kind.get(kind_of(name), (0, 0))
        by_kind[kind_of(name)] = (count + 1, before + ns)
    return tuple(sorted(((k, n, ns) for k, (n, ns) in by_kind.items()), key=lambda f: (-f[2], f[0])))
