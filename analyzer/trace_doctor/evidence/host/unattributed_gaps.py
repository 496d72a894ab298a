"""Where the host stays away from launching in code that nothing names: by the operators before and behind."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compile.compile_regions import is_region
from trace_doctor.evidence.host.host_gap_filters import GapLimits
from trace_doctor.evidence.host.host_gaps import HostGap, HostGaps, NamedGaps
from trace_doctor.evidence.idle.host_causes import CAUSE, HostCauses
from trace_doctor.evidence.intervals import covered, intersect, pairs, subtract, union
from trace_doctor.evidence.names.event_names import is_step, is_torch_mark
from trace_doctor.evidence.replay.what_if import view_time
from trace_doctor.evidence.trace.call_sites import CallSites, Site
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat, Run
from trace_doctor.user_frames import is_user_function

_AUTOGRAD = "autograd::engine::evaluate_function"
EDGES = 10
"""A part in so many at each end of a stretch may belong to what comes before and behind: events are written late."""


class UnattributedGaps(Evidence, frozen=True):
    """Stretches in which the host launched nothing (in a capture of the CPU alone: ran no operator) and the device idled for
    long, that no frame and no annotation names, by their place in the program. With Python stacks those in the user's
    functions themselves: what these call has a name.

    Raises NotCaptured where `HostGaps` does.
    """

    _facts: Facts

    @classmethod
    def build(cls, facts: Facts) -> Self:
        facts[HostGaps]
        return cls(facts)

    def places(self, named: NamedGaps, limits: GapLimits) -> list[HostGap]:
        """By place, most idle first: `name` is `after aten::cat and before aten::to`, `site` the function whose own code it
        is, with stacks."""
        facts, run, host, steps = self._facts, self._facts.run, self._facts[HostGaps], self._facts[Steps]
        stretches = _stretches(facts, host, limits.gap_ns)
        idle = named.blank
        if host.device >= 0:
            views = [view_time(run, thread) for thread in (host.thread, *facts[Threads].autograd)]
            idle = subtract(named.rest, union(np.concatenate(views)))  # TD202's, however long
        stretches = stretches[covered(stretches, idle) >= limits.gap_ns]
        working = covered(stretches, _operators(run, host.thread))
        stretches = stretches[working <= limits.operator_share * (stretches[:, 1] - stretches[:, 0])]
        stretches = stretches[steps.steady_at(stretches[:, 0]) >= 0]
        groups: dict[tuple[str, Site | None], list[tuple[int, int]]] = {}
        around = zip(_places(facts, stretches), _functions(facts, host, stretches), strict=True)
        for (place, function), (start, end) in zip(around, stretches.tolist(), strict=True):
            if place and (function is not None or not host.stacks):
                groups.setdefault((place, function), []).append((start, end))
        gaps = [
            HostGap(
                name=place,
                site=function,
                spans=tuple(spans),
                idle=intersect(idle, cover := np.array(spans, dtype=np.int64)),
                steps=len(np.unique(steps.steady_at(cover[:, 0]))),
            )
            for (place, function), spans in groups.items()
        ]
        return sorted(gaps, key=lambda gap: (-gap.idle_ns, gap.name))


def _stretches(facts: Facts, host: HostGaps, gap_ns: int) -> I64:
    """When the main thread ran no operator for long, whatever annotation lies around it; where there is a device, none that
    launches."""
    cover = facts[HostCauses].on(host.thread)
    causes = ("python", "annotation") if host.device < 0 else ("python", "annotation", "dispatch")
    quiet = union(cover.pieces[np.isin(cover.cause, [CAUSE[cause] for cause in causes])])
    calls = facts[Launches].calls
    quiet = subtract(quiet, union(pairs(facts.run.ts[calls], facts.run.end[calls])))
    return quiet[quiet[:, 1] - quiet[:, 0] >= gap_ns]


def _operators(run: Run, thread: int) -> I64:
    """When a thread is in operators or compiled code: what takes long there (a library that is loaded, a graph that is
    captured) is not Python code."""
    rows = run.is_cat(Cat.CPU_OP) & ~run.is_named(is_step, is_torch_mark) | run.is_named(is_region)
    rows &= run.thread == thread
    return union(pairs(run.ts[rows], run.end[rows]))


def _functions(facts: Facts, host: HostGaps, stretches: I64) -> list[Site | None]:
    """The user's function that stands still in each stretch, where none that it calls does. All None without stacks."""
    sites, run, nesting = facts.get(CallSites), facts.run, facts[Nesting]
    if sites is None:
        return [None] * len(stretches)
    own = run.is_named(is_user_function)
    edge = (stretches[:, 1] - stretches[:, 0]) // EDGES
    most = pairs(stretches[:, 0] + edge, stretches[:, 1] - edge)
    return [
        sites.site(row) if row >= 0 and own[row] else None
        for row in nesting.enclosing(host.thread, most).tolist()
    ]


def _places(facts: Facts, stretches: I64) -> list[str]:
    """What the thread and that of autograd did last before each stretch, and first behind it. Empty at the start and the end
    of the capture, where the profiler is at work, and where autograd goes on behind it: that runs no code of the user's."""
    run, threads = facts.run, facts[Threads]
    marks = run.is_named(is_step, is_torch_mark)
    on = np.isin(run.thread, [threads.main, *threads.autograd])
    rows = facts[Nesting].outermost(np.flatnonzero(run.is_cat(Cat.CPU_OP) & ~marks & on))
    rows = rows[np.argsort(run.ts[rows], kind="stable")]
    before = np.searchsorted(run.ts[rows], stretches[:, 0], side="right") - 1
    behind = np.searchsorted(run.ts[rows], stretches[:, 1])
    return [
        f"after {run.text(int(rows[a]))} and before {run.text(int(rows[b]))}"
        if a >= 0 and b < len(rows) and not run.text(int(rows[b])).startswith(_AUTOGRAD)
        else ""
        for a, b in zip(before.tolist(), behind.tolist(), strict=True)
    ]
