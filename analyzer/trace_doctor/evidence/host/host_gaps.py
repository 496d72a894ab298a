"""Where the main thread stays away from launching for long: named frames and annotations in which no kernel is launched."""

from __future__ import annotations

import re
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.host.host_gap_filters import GapLimits, Search, collectives, stretches
from trace_doctor.evidence.idle.cpu_timeline import CpuTimeline, Processor
from trace_doctor.evidence.idle.gaps import IdleCauses
from trace_doctor.evidence.idle.host_causes import CAUSE, HostCauses
from trace_doctor.evidence.intervals import (
    NOTHING,
    covered,
    intersect,
    intervals,
    pairs,
    subtract,
    total,
    union,
)
from trace_doctor.evidence.trace.call_sites import CallSites, Site
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat
from trace_doctor.user_frames import called, python_frame

CAUSES = ("python", "annotation", "dispatch", "optimizer")


class HostGap(Struct, frozen=True):
    """Stretches of one name."""

    name: str
    """the frame or annotation, numbers in annotations left out"""
    site: Site | None
    """the user's function around it, or itself"""
    spans: tuple[tuple[int, int], ...]
    """[start, end) ns of each, in steady steps"""
    idle: I64
    """the idle of the device meanwhile (CPU alone: of the main thread): a set of intervals"""
    steps: int
    """number of steady steps that have one"""
    works: bool = False
    """whether operators take most of it: its name alone says that it is no part of the step"""
    nameless: bool = False
    """whether nothing that was open meanwhile is known: its name is where it lies"""

    @property
    def inside(self) -> Site | None:
        """The user's function around it; None where it is that function itself."""
        itself = self.site is not None and self.name.startswith(f"{self.site.function} of ")
        return None if itself else self.site

    @property
    def idle_ns(self) -> int:
        """Idle time of the device that belongs to it, ns."""
        return total(self.idle)

    @property
    def host_ns(self) -> int:
        """Of all stretches together."""
        return sum(end - start for start, end in self.spans)


class NamedGaps(Struct, frozen=True):
    """What has a name, and the idle time that has none, under some limits."""

    gaps: tuple[HostGap, ...]
    """most idle first"""
    blank: I64
    """long idle gaps for which Python was to blame and nothing here is the name: a set of intervals"""
    rest: I64
    """all idle time of the host's own work that nothing here names: a set of intervals"""


class HostGaps(Evidence, frozen=True):
    """Stretches on the main thread in steady steps in which it launches nothing, by name.

    Raises NotCaptured where the GPU was not recorded."""

    thread: int
    device: int
    """-1 in a capture without GPU work"""
    length: int
    """of the steady steps together, ns"""
    stacks: bool
    """whether Python frames of the thread were recorded"""
    _facts: Facts

    @classmethod
    def build(cls, facts: Facts) -> Self:
        facts[Processor]  # refuses where a GPU worked that was not recorded
        ledger, spans = facts[IdleCauses].ledger, facts[Steps].on_device("steady")
        run, thread = facts.run, facts[Threads].main
        return cls(
            thread=thread,
            device=max(
                ledger.devices, key=lambda d: sum(ledger.owned(c, spans, d) for c in CAUSES), default=-1
            ),
            length=total(intervals(spans)),
            stacks=bool((run.is_cat(Cat.PYTHON) & (run.thread == thread)).any()),
            _facts=facts,
        )

    def named(self, limits: GapLimits) -> NamedGaps:
        """All that counts by these limits."""
        facts, run = self._facts, self._facts.run
        search = Search(facts, self.thread, limits)
        steady = intervals(facts[Steps].spans("steady"))
        on_device = intervals(facts[Steps].on_device("steady"))
        idle = intersect(self._idle(*CAUSES), on_device)
        computing = facts[CpuTimeline].compute if self.device < 0 else NOTHING
        rows = stretches(search)
        sites = facts.get(CallSites)
        groups: dict[tuple[str, Site | None], list[int]] = {}
        for row in rows.tolist():
            site = sites.site(row) if sites is not None else None
            groups.setdefault((readable_name(run.text(row)), site), []).append(row)
        gaps = []
        for (name, site), members in groups.items():
            spans = pairs(run.ts[members], run.end[members])
            cover = intersect(union(spans), steady)
            works = total(intersect(computing, cover)) > limits.operator_share * total(cover)
            gaps.append(
                HostGap(
                    name=name,
                    site=site,
                    spans=tuple((int(s), int(e)) for s, e in spans),
                    works=works,
                    idle=intersect(union(np.concatenate([idle, computing])) if works else idle, cover),
                    steps=int((covered(np.array(facts[Steps].spans("steady")), cover) > 0).sum()),
                )
            )
        meeting = facts[Nesting].parent[collectives(search)]
        named = np.concatenate([rows, meeting[meeting >= 0]])
        cover = union(pairs(run.ts[named], run.end[named]))
        blank = subtract(intersect(self._idle("python", "annotation"), on_device), cover)
        long_ns = limits.gap_ns if self.device < 0 and self.stacks else limits.nameless_ns
        return NamedGaps(
            gaps=tuple(sorted(gaps, key=lambda gap: (-gap.idle_ns, gap.name))),
            blank=blank[blank[:, 1] - blank[:, 0] >= long_ns],
            rest=subtract(idle, cover),
        )

    def own(self, gap: HostGap) -> I64:
        """What of its stretches is the host's own work: a loader, a blocking call or a compiler inside has its own cause of idle
        time, and another finding. A set of intervals."""
        cover = self._facts[HostCauses].on(self.thread)
        others = cover.pieces[~np.isin(cover.cause, [CAUSE[cause] for cause in CAUSES])]
        return subtract(intervals(gap.spans), others)

    def _idle(self, *causes: str) -> I64:
        ledger = self._facts[IdleCauses].ledger
        return union(np.concatenate([ledger.pieces(cause, self.device) for cause in causes]))


def readable_name(text: str) -> str:
    """A frame as `function() (file)`, an operator as it is, an annotation without its numbers."""
    if text.startswith(("aten::", "c10d::", "autograd::")):
        return text
    frame = python_frame(text)
    if frame is not None:
        return f"{called(frame.function)} ({frame.file})"
    if text.startswith("<built-in"):
        function = re.match(r"<built-in (?:method|function) (\w+)", text)
        return function.group(1) if function else text
    return re.sub(r"\d+", "#", text)
