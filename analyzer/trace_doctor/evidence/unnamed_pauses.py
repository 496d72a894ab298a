"""Where the host stays away from launching in code that nothing names: by the operators before and behind."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.event_names import is_step, is_torch_mark
from trace_doctor.evidence.host_causes import CAUSE, HostCauses
from trace_doctor.evidence.host_pauses import HostPauses, Pause
from trace_doctor.evidence.intervals import covered, intersect, pairs, subtract, union
from trace_doctor.evidence.launches import Launches
from trace_doctor.evidence.nesting import Nesting
from trace_doctor.evidence.replay import view_time
from trace_doctor.evidence.retime import PAUSE_NS
from trace_doctor.evidence.steps import Steps
from trace_doctor.evidence.threads import Threads
from trace_doctor.run import I64, Cat, Run


class UnnamedPauses(Evidence, frozen=True):
    """Stretches in which the host launched nothing (in a capture of the CPU alone: ran no operator) and the device idled for
    1 ms and more, that no frame and no annotation names, by their place in the program, most idle first.

    Raises NotCaptured where `HostPauses` does.
    """

    places: tuple[Pause, ...]
    """`name` is the place: `after aten::cat and before aten::to`"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, seen = facts.run, facts[HostPauses]
        stretches = _stretches(facts, seen)
        idle = seen.blank
        if seen.device >= 0:
            views = [view_time(run, thread) for thread in (seen.thread, *facts[Threads].autograd)]
            idle = subtract(seen.rest, union(np.concatenate(views)))  # TD202's, however long
        stretches = stretches[covered(stretches, idle) >= PAUSE_NS]
        stretches = stretches[facts[Steps].steady_at(stretches[:, 0]) >= 0]
        groups: dict[str, list[I64]] = {}
        for place, stretch in zip(_places(facts, run, stretches), stretches, strict=True):
            if place:
                groups.setdefault(place, []).append(stretch)
        found = []
        for place, members in groups.items():
            cover = np.array(members, dtype=np.int64)
            found.append(
                Pause(
                    name=place,
                    site=None,
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


def _places(facts: Facts, run: Run, stretches: I64) -> list[str]:
    """What the thread and that of autograd did last before each stretch, and first behind it. Empty at the start and the end
    of the capture, where the profiler is at work."""
    threads = facts[Threads]
    marks = run.is_named(lambda n: is_step(n) or is_torch_mark(n))
    on = np.isin(run.thread, [threads.main, *threads.autograd])
    rows = facts[Nesting].outermost(np.flatnonzero(run.is_cat(Cat.CPU_OP) & ~marks & on))
    rows = rows[np.argsort(run.ts[rows], kind="stable")]
    before = np.searchsorted(run.ts[rows], stretches[:, 0], side="right") - 1
    behind = np.searchsorted(run.ts[rows], stretches[:, 1])
    return [
        f"after {run.text(int(rows[a]))} and before {run.text(int(rows[b]))}"
        if a >= 0 and b < len(rows)
        else ""
        for a, b in zip(before.tolist(), behind.tolist(), strict=True)
    ]
