"""Where the host stays away from launching in code that nothing names: by the operators before and behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compile.compile_regions import is_region
from trace_doctor.evidence.host.host_gap_filters import GapLimits, is_step_part
from trace_doctor.evidence.host.host_gaps import CAUSES as HOST_CAUSES
from trace_doctor.evidence.host.host_gaps import HostGap, HostGaps, NamedGaps, readable_name
from trace_doctor.evidence.idle.gaps import IdleCauses
from trace_doctor.evidence.idle.host_causes import CAUSE, HostCauses
from trace_doctor.evidence.intervals import covered, intersect, intervals, overlaps, pairs, subtract, union
from trace_doctor.evidence.names.event_names import is_optimizer, is_step, is_torch_mark, is_view
from trace_doctor.evidence.trace.call_sites import CallSites, Site
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat, Run
from trace_doctor.user_frames import is_user_function

_AUTOGRAD = "autograd::engine::evaluate_function"
LONG = 10
"""In gaps that many times longer than the shortest the host stayed away since its last event; in shorter ones as much may be its
ordinary work, and the idle part alone counts"""
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
        """By place, most idle first: `name` is what the host was in, an operator or a compiled region, or where there is none
        `after aten::cat and before aten::to`; `site` the user's function around it, with stacks."""
        by_place = _of_device if self._facts[HostGaps].device >= 0 else _of_cpu
        gaps = [
            HostGap(
                name=name,
                site=site,
                spans=tuple((start, end) for start, end in spans),
                idle=intervals(idle),
                steps=len(np.unique(self._facts[Steps].steady_at(np.array(spans, dtype=np.int64)[:, 0]))),
                nameless=nameless,
            )
            for (name, site, nameless), spans, idle in by_place(self._facts, named, limits)
        ]
        return sorted(gaps, key=lambda gap: (-gap.idle_ns, gap.name))


Spans = list[tuple[int, int]]
Place = tuple[str, Site | None, bool]
"""what it is called, the user's function, and whether the name is only what lies around it"""


def _of_device(facts: Facts, named: NamedGaps, limits: GapLimits) -> Iterator[tuple[Place, Spans, Spans]]:
    """Gaps of a GPU that hold so much idle time of the host's own work, by what was open on the thread that ended them: each
    place with its stretches of the host and the idle time of the device. Where a gap is long, the host stayed away since its
    last event: the GPU went on for a while with what was queued."""
    host, steps, ledger, run = facts[HostGaps], facts[Steps], facts[IdleCauses].ledger, facts.run
    threads = (host.thread, *facts[Threads].autograd)
    views = run.is_named(is_view) & np.isin(run.thread, threads) & (run.dur < limits.gap_ns)
    idle = subtract(
        named.rest, union(pairs(run.ts[views], run.end[views]))
    )  # many views are TD202's, however long
    returns = np.sort(run.end[run.is_cat(Cat.CPU_OP, Cat.RUNTIME, Cat.DRIVER) & np.isin(run.thread, threads)])
    gaps = facts[GpuTimeline].gaps(host.device, *steps.window)
    gaps = gaps[(covered(gaps, idle) >= limits.nameless_ns) & steps.is_steady(gaps[:, 0])]
    own = ledger.device == host.device
    pieces, of_gap, _ = overlaps(gaps, idle)
    tiles, at, tile = overlaps(pieces, pairs(ledger.start[own], ledger.end[own]))
    rows = np.where(np.isin(ledger.cause[own][tile], _CAUSES), ledger.row[own][tile], -1)
    no_name = run.is_named(is_step, is_torch_mark, is_step_part) & ~run.is_named(is_region, is_optimizer)
    rows[(rows >= 0) & no_name[rows]] = -1
    by_place: dict[Place, tuple[Spans, Spans]] = {}
    around = _places(facts, gaps)
    for members in np.split(np.arange(len(tiles)), np.flatnonzero(np.diff(of_gap[at])) + 1):
        if not len(members):
            continue
        place = _place(facts, rows[members], tiles[members], around[of_gap[at[members[0]]]])
        if place is not None:
            spans, taken = by_place.setdefault(place, ([], []))
            first, last = int(tiles[members[0], 0]), int(tiles[members[-1], 1])
            before = int(np.searchsorted(returns, first, side="right")) - 1
            if before >= 0 and last - first >= LONG * limits.gap_ns:
                first = max(int(returns[before]), steps.window[0])
            spans.append((first, last))
            taken += [(int(a), int(b)) for a, b in tiles[members]]
    return ((place, *spans) for place, spans in by_place.items())


def _place(facts: Facts, rows: I64, tiles: I64, around: str) -> Place | None:
    """What was open (a row, or -1) during most of the idle time of a gap; where nothing was, what lies around it. None where
    that is not known either."""
    run, sites = facts.run, facts.get(CallSites)
    kinds, which = np.unique(rows, return_inverse=True)
    most = int(kinds[np.bincount(which, weights=tiles[:, 1] - tiles[:, 0]).argmax()])
    site = sites.site(most) if sites is not None else None
    if most >= 0 and run.cat[most] != Cat.PYTHON:
        return readable_name(run.text(most)), site, False
    return (around, site, True) if around else None


_CAUSES = [CAUSE[cause] for cause in HOST_CAUSES]


def _of_cpu(facts: Facts, named: NamedGaps, limits: GapLimits) -> Iterator[tuple[Place, Spans, Spans]]:
    """Stretches of the main thread in which it runs no operator. With Python stacks those in the user's functions themselves:
    what these call has a name."""
    run, host, steps = facts.run, facts[HostGaps], facts[Steps]
    least = (
        limits.nameless_ns if host.stacks else limits.gap_ns
    )  # short ones are ordinary work, unless stacks tell
    stretches = _stretches(facts, host, least)
    stretches = stretches[covered(stretches, named.rest) >= least]
    working = covered(stretches, _operators(run, host.thread))
    stretches = stretches[working <= limits.operator_share * (stretches[:, 1] - stretches[:, 0])]
    stretches = stretches[steps.is_steady(stretches[:, 0])]
    groups: dict[Place, Spans] = {}
    around = zip(_places(facts, stretches), _functions(facts, host, stretches), strict=True)
    for (place, function), (start, end) in zip(around, stretches.tolist(), strict=True):
        if place and (function is not None or not host.stacks):
            groups.setdefault((place, function, True), []).append((start, end))
    for key, spans in groups.items():
        idle = intersect(named.rest, np.array(spans, dtype=np.int64))
        yield key, spans, [(int(a), int(b)) for a, b in idle]


def _stretches(facts: Facts, host: HostGaps, gap_ns: int) -> I64:
    """When the main thread ran no operator for long, whatever annotation lies around it."""
    cover = facts[HostCauses].on(host.thread)
    quiet = union(cover.pieces[np.isin(cover.cause, [CAUSE["python"], CAUSE["annotation"]])])
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
    return [sites.site(row) if own[row] else None for row in nesting.enclosing(host.thread, most).tolist()]


def _places(facts: Facts, stretches: I64) -> list[str]:
    """What the thread and that of autograd did last before each stretch, and first behind it. Empty at the start and the end
    of the capture, where the profiler is at work, and on a CPU alone where autograd goes on behind it: that runs no code of the
    user's, and the main thread waits for it."""
    run, threads = facts.run, facts[Threads]
    marks = run.is_named(is_step, is_torch_mark) & ~run.is_named(is_region)
    on = np.isin(run.thread, [threads.main, *threads.autograd])
    rows = facts[Nesting].outermost(np.flatnonzero(run.is_cat(Cat.CPU_OP) & ~marks & on))
    rows = rows[np.argsort(run.ts[rows], kind="stable")]
    before = np.searchsorted(run.ts[rows], stretches[:, 0], side="right") - 1
    behind = np.searchsorted(run.ts[rows], stretches[:, 1])
    return [
        f"after {run.text(int(rows[a]))} and before {run.text(int(rows[b]))}"
        if a >= 0 and b < len(rows) and (len(run.gpu) or not run.text(int(rows[b])).startswith(_AUTOGRAD))
        else ""
        for a, b in zip(before.tolist(), behind.tolist(), strict=True)
    ]
