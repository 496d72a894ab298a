"""Where the host stays away from launching in code that nothing names: by the operators before and behind."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compile.compile_regions import is_region
from trace_doctor.evidence.host.host_gaps import OPERATORS, HostPauses, Pause
from trace_doctor.evidence.idle.host_causes import CAUSE, PAUSE_NS, HostCauses
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


class UnnamedPauses(Evidence, frozen=True):
    """Stretches in which the host launched nothing (in a capture of the CPU alone: ran no operator) and the device idled for
    1 ms and more, that no frame and no annotation names, by their place in the program, most idle first. With Python stacks
    those in the user's functions themselves: what these call has a name.

    Raises NotCaptured where `HostPauses` does.
    """

    places: tuple[Pause, ...]
    """`name` is the place: `after aten::cat and before aten::to`; `site` the function whose own code it is, with stacks"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, seen = facts.run, facts[HostPauses]
        stretches = _stretches(facts, seen)
        idle = seen.blank
        if seen.device >= 0:
            views = [view_time(run, thread) for thread in (seen.thread, *facts[Threads].autograd)]
            idle = subtract(seen.rest, union(np.concatenate(views)))  # TD202's, however long
        stretches = stretches[covered(stretches, idle) >= PAUSE_NS]
        working = covered(stretches, _operators(run, seen.thread))
        stretches = stretches[working <= OPERATORS * (stretches[:, 1] - stretches[:, 0])]
        stretches = stretches[facts[Steps].steady_at(stretches[:, 0]) >= 0]
        groups: dict[tuple[str, Site | None], list[I64]] = {}
        around = _functions(facts, seen, stretches)
        for place, function, stretch in zip(_places(facts, run, stretches), around, stretches, strict=True):
            if place and (function is not None or not seen.stacks):
                groups.setdefault((place, function), []).append(stretch)
        found = []
        for (place, function), members in groups.items():
            cover = np.array(members, dtype=np.int64)
            found.append(
                Pause(
                    name=place,
                    site=function,
                    spans=tuple((int(s), int(e)) for s, e in members),
                    idle=intersect(idle, cover),
                    steps=len(np.unique(facts[Steps].steady_at(cover[:, 0]))),
                )
            )
        return cls(tuple(sorted(found, key=lambda p: (-p.idle_ns, p.name))))


def _stretches(facts: Facts, seen: HostPauses) -> I64:
    """When the main thread ran no operator for long, whatever annotation lies around it; where there is a device, none that
    launches."""
    cover = facts[HostCauses].on(seen.thread)
    causes = ("python", "annotation") if seen.device < 0 else ("python", "annotation", "dispatch")
    quiet = union(cover.pieces[np.isin(cover.cause, [CAUSE[cause] for cause in causes])])
    calls = facts[Launches].calls
    quiet = subtract(quiet, union(pairs(facts.run.ts[calls], facts.run.end[calls])))
    return quiet[quiet[:, 1] - quiet[:, 0] >= PAUSE_NS]


def _operators(run: Run, thread: int) -> I64:
    """When a thread is in operators or compiled code: what takes long there (a library that is loaded, a graph that is
    captured) is not Python code."""
    rows = run.is_cat(Cat.CPU_OP) & ~run.is_named(is_step, is_torch_mark) | run.is_named(is_region)
    rows &= run.thread == thread
    return union(pairs(run.ts[rows], run.end[rows]))


def _functions(facts: Facts, seen: HostPauses, stretches: I64) -> list[Site | None]:
    """The user's function that stands still in each stretch, where none that it calls does. All None without stacks."""
    sites, run, nesting = facts.get(CallSites), facts.run, facts[Nesting]
    if sites is None:
        return [None] * len(stretches)
    own = run.is_named(is_user_function)
    tenth = (stretches[:, 1] - stretches[:, 0]) // 10  # its ends belong to what comes before and behind
    most = pairs(stretches[:, 0] + tenth, stretches[:, 1] - tenth)
    return [
        sites.site(row) if row >= 0 and own[row] else None
        for row in nesting.enclosing(seen.thread, most).tolist()
    ]


def _places(facts: Facts, run: Run, stretches: I64) -> list[str]:
    """What the thread and that of autograd did last before each stretch, and first behind it. Empty at the start and the end
    of the capture, where the profiler is at work, and where autograd goes on behind it: that runs no code of the user's."""
    threads = facts[Threads]
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
