"""Memory that rises from step to step, by the `[memory]` events of a trace: what a snapshot tells better, where one is."""

from __future__ import annotations

from collections import Counter
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.memory.blocks import MemoryBlocks
from trace_doctor.evidence.memory.timeline import CAPTURE_ADVICE
from trace_doctor.evidence.trace.call_sites import CallSites, Site
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads

ADVICE = f"profile(..., profile_memory=True) over at least four steps, or on a GPU {CAPTURE_ADVICE}"


class Risen(Struct, frozen=True):
    """One device, -1 being the CPU."""

    device: int
    live: I64
    """bytes at the end of each step, against the start of the record"""
    peak: int
    """most bytes in use, as far as the events say"""
    step: I64
    """of the blocks that a step allocates and nobody frees: the number of the step"""
    size: I64
    ts: I64

    @property
    def rises(self) -> I64:
        """Bytes more from one step to the next."""
        return np.diff(self.live)


class TraceGrowth(Evidence, frozen=True):
    """Raises NotCaptured without steps or `[memory]` events with addresses."""

    devices: tuple[Risen, ...]
    steps: Steps
    nesting: Nesting
    main: int
    sites: CallSites | None

    @classmethod
    def build(cls, facts: Facts) -> Self:
        events, steps = facts.run.memory, facts[Steps]
        ends = [s.end for s in steps.steps]
        if not (events.addr > 0).any():
            raise NotCaptured("allocations not recorded", ADVICE)
        growths = []
        for device in np.unique(events.device).tolist():
            rows = np.flatnonzero(events.device == device)
            live = np.cumsum(events.bytes[rows])
            at = np.searchsorted(events.ts[rows], ends)
            unfreed = rows[_never_freed(events.addr[rows], events.bytes[rows])]
            step = np.searchsorted(ends, events.ts[unfreed])
            inside = (step > 0) & (step < len(ends))
            growths.append(
                Risen(
                    device=device,
                    live=np.append(0, live)[at],
                    peak=max(int(events.total_allocated[rows].max()), int(live.max())),
                    step=step[inside],
                    size=events.bytes[unfreed][inside],
                    ts=events.ts[unfreed][inside],
                )
            )
        return cls(tuple(growths), steps, facts[Nesting], facts[Threads].main, facts.get(CallSites))

    def explained(self, risen: Risen, share: float) -> bool:
        """Whether blocks that each step has left behind make up at least this share of what it added."""
        added = np.bincount(risen.step, weights=risen.size, minlength=len(risen.live))[1:]
        return bool((added >= share * risen.rises).all())

    def site(self, risen: Risen, share: float) -> Site | None:
        """The innermost function of the user in which at least this share of every rise was allocated."""
        if self.sites is None:
            return None
        by_site: dict[Site, Counter[int]] = {}
        depth: dict[Site, int] = {}
        rows = self.nesting.innermost(self.main, risen.ts)
        for row, step, size in zip(rows.tolist(), risen.step.tolist(), risen.size.tolist(), strict=True):
            stack = self.sites.stack(row)
            for level, site in enumerate(reversed(stack)):
                by_site.setdefault(site, Counter())[step] += size
                depth[site] = max(depth.get(site, 0), level)
        least = {step: share * rise for step, rise in enumerate(risen.rises.tolist(), 1)}
        fitting = [s for s, by_step in by_site.items() if all(by_step[i] >= v for i, v in least.items())]
        return max(fitting, key=lambda s: (depth[s], sum(by_site[s].values()), str(s)), default=None)


class AllocationRecord(Evidence, frozen=True):
    """The blocks of a snapshot, else the growth that a trace shows. Raises NotCaptured where neither was recorded."""

    blocks: MemoryBlocks | None
    trace: TraceGrowth | None

    @classmethod
    def build(cls, facts: Facts) -> Self:
        blocks = facts.get(MemoryBlocks)
        trace = None if blocks is not None else facts.get(TraceGrowth)
        if trace is None:
            blocks = facts[MemoryBlocks]  # raises with the reason
        return cls(blocks, trace)


def _never_freed(addr: I64, size: I64) -> I64:
    """Positions of allocations that nothing at their address follows, by time."""
    order = np.lexsort((np.arange(len(addr)), addr))
    last = np.append(addr[order][1:] != addr[order][:-1], True)
    ends = order[last]
    return np.sort(ends[size[ends] > 0])
