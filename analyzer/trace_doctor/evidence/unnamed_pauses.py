"""Where the host stays away from launching in code that nothing names: by the operators before and behind."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.event_names import is_step, is_torch_mark
from trace_doctor.evidence.host_causes import CAUSE, HostCauses
from trace_doctor.evidence.host_pauses import HostPauses, Pause
from trace_doctor.evidence.intervals import covered, intersect, intervals, union
from trace_doctor.evidence.nesting import Nesting
from trace_doctor.evidence.retime import PAUSE_NS
from trace_doctor.evidence.steps import Steps
from trace_doctor.evidence.threads import Threads
from trace_doctor.run import I64, Cat, Run


class UnnamedPauses(Evidence, frozen=True):
    """Stretches of 1 ms and more in which the main thread ran Python that no frame and no annotation names, by their place
    in the program, most idle first; those that come once are left out. Raises NotCaptured where `HostPauses` does.
    """

    places: tuple[Pause, ...]
    """`name` is the place: `between aten::cat and aten::to`"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, seen = facts.run, facts[HostPauses]
        steps = np.array(facts[Steps].spans("steady"), dtype=np.int64).reshape(-1, 2)
        quiet = _quiet(facts[HostCauses], seen.thread)
        quiet = quiet[covered(quiet, seen.blank) >= PAUSE_NS]
        quiet = quiet[covered(quiet, intervals(steps)) > 0]
        groups: dict[str, list[I64]] = {}
        for place, stretch in zip(_places(facts, run, quiet), quiet, strict=True):
            groups.setdefault(place, []).append(stretch)
        found = []
        for place, members in groups.items():
            cover = np.array(members, dtype=np.int64)
            if len(members) > 1:
                found.append(
                    Pause(
                        name=place,
                        site=None,
                        spans=tuple((int(s), int(e)) for s, e in members),
                        idle=intersect(seen.blank, cover),
                        steps=int((covered(steps, cover) > 0).sum()),
                    )
                )
        return cls(tuple(sorted(found, key=lambda p: (-p.idle_ns, p.name))))


def _quiet(causes: HostCauses, thread: int) -> I64:
    """When a thread ran no operator for long, whatever annotation lies around it."""
    cover = causes.on(thread)
    quiet = union(cover.pieces[np.isin(cover.cause, [CAUSE["python"], CAUSE["annotation"]])])
    return quiet[quiet[:, 1] - quiet[:, 0] >= PAUSE_NS]


def _places(facts: Facts, run: Run, stretches: I64) -> list[str]:
    """What the thread and that of autograd did before each stretch and behind it."""
    threads = facts[Threads]
    marks = run.is_named(lambda n: is_step(n) or is_torch_mark(n))
    on = np.isin(run.thread, [threads.main, *threads.autograd])
    rows = facts[Nesting].outermost(np.flatnonzero(run.is_cat(Cat.CPU_OP) & ~marks & on))
    rows = rows[np.argsort(run.ts[rows], kind="stable")]
    before = np.searchsorted(run.ts[rows], stretches[:, 0], side="right") - 1
    behind = np.searchsorted(run.ts[rows], stretches[:, 1])
    return [
        " and ".join(
            part
            for part in (
                f"after {run.text(int(rows[a]))}" if a >= 0 else "",
                f"before {run.text(int(rows[b]))}" if b < len(rows) else "",
            )
            if part
        )
        for a, b in zip(before.tolist(), behind.tolist(), strict=True)
    ]
