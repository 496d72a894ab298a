"""Where the host keeps waiting for the device: blocking calls gathered by the operators and the user's line around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.host.device_copies import lost_copies
from trace_doctor.evidence.idle.gaps import IdleCauses, IdleLedger
from trace_doctor.evidence.idle.syncs import Syncs
from trace_doctor.evidence.idle.time_ledger import exposed
from trace_doctor.evidence.intervals import NOTHING, covered, holds, intersect, intervals, pairs, total, union
from trace_doctor.evidence.names.event_names import (
    is_compile,
    is_device_synchronize,
    is_loader,
    is_module,
    is_optimizer,
    is_step,
    is_torch_mark,
)
from trace_doctor.evidence.trace.call_sites import CallSites, Site
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.graph_captures import GraphCaptures
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat
from trace_doctor.user_frames import Frame, is_user_frame, python_frame

SyncKind = Literal["item", "shape", "to_host", "to_device", "synchronize"]
"""a scalar read · an operator whose output size depends on data · a tensor copied to the host, to the device · an explicit wait"""

_SHAPED = [
    "nonzero",
    "masked_select",
    "unique",
    "_unique2",
    "where",
    "index",
    "repeat_interleave",
    "bincount",
]
_OPERATORS: tuple[tuple[SyncKind, frozenset[str]], ...] = (
    ("shape", frozenset(_SHAPED)),
    ("item", frozenset(["item", "_local_scalar_dense", "is_nonzero", "equal", "allclose"])),
    ("to_host", frozenset(["to", "_to_copy", "copy_", "cpu"])),
)
"""what operators of ATen wait for; of several on a path the first of these kinds counts"""
ORDER = 10
"""Long waits are compared with this one in length: those before it may be of another place."""


class SyncSite(Struct, frozen=True):
    """Blocking calls of the steady steps that stand below the same operators on the same line. Where the line is not known
    the same operators stand for several, and the few waits of another order of length are a place of their own."""

    path: tuple[str, ...]
    """operators, outer to inner; the call itself where no operator is open"""
    site: Site | None
    kind: SyncKind
    device_wide: bool
    """whether a call waits for the whole device"""
    rows: tuple[int, ...]
    times: int
    """how often the host blocked there: calls of one operator count once"""
    steps: int
    """number of steady steps in which it blocked"""
    held_ns: int
    """host time in the calls while the device was busy: the lead that was lost"""
    idle: I64
    """idle pieces charged to it, (n, 2) ns"""
    copies: I64
    """when the copies to the host that it waits for run beside nothing else: a set of intervals, ns"""
    long: bool
    """whether these are the few that are so much longer than the others below their operators"""
    library: Frame | None = None
    """of copies to the device: the library's function that asks for them, where it is not the user's"""
    in_module: bool = False
    """of copies to the device: whether a module's forward asks for them: then they are no batch of the loop's"""

    @property
    def idle_ns(self) -> int:
        """Idle time of the device that is charged to it, ns."""
        return int((self.idle[:, 1] - self.idle[:, 0]).sum())

    @property
    def name(self) -> str:
        """The operators for people: outermost and innermost."""
        text = " → ".join(self.path[:1] + self.path[1:][-1:])
        if self.kind == "to_device":
            text = f"Host-to-device {text}"
        return f"{text} (the few long waits)" if self.long else text


class SyncSites(Evidence, frozen=True):
    """Blocking calls on launching threads in steady steps. Raises NotCaptured without GPU work.

    Left out: waits inside compilation or graph capture. Waits for host-to-device copies are apart.
    """

    rows: I64
    """the calls, ascending"""
    to_device: tuple[int, ...]
    """rows of host-to-device copies and of the waits for them, ascending"""
    lost: str
    """what is missing of the copies that the host asked for: which of them it waited for is not known; empty where most are there"""
    _facts: Facts

    @classmethod
    def build(cls, facts: Facts) -> Self:
        for kind in (GpuTimeline, IdleCauses):  # what `sites` needs: refuses where it is not there
            facts[kind]
        steady = facts[Steps].spans("steady")
        rows, to_device = _chosen(facts, steady)
        lost = lost_copies(facts.run, facts[Launches], intervals(steady))
        return cls(rows, tuple(to_device.tolist()), lost, facts)

    def sites(self, long_factor: float) -> list[SyncSite]:
        """By operators and line, most idle time first. Where the line is not known, waits so many times as long as the tenth
        longest of their operators are of another place."""
        return sorted(
            self._places(self.rows, long_factor), key=lambda s: (-s.idle_ns, -s.held_ns, s.path, s.rows)
        )

    def copy_sites(self, long_factor: float) -> list[SyncSite]:
        """The same of the waits for host-to-device copies, those of each library function apart. A copy from pageable memory
        holds the host until all that its stream had to do before has ended."""
        waits = np.array(self.to_device, dtype=np.int64)
        callers = _Callers(self._facts)
        of = [callers.library(row) for row in waits.tolist()]
        sites = []
        for library in dict.fromkeys(of):
            rows = waits[[other == library for other in of]]
            sites += [
                replace(
                    site, kind="to_device", library=library, in_module=all(map(callers.in_module, site.rows))
                )
                for site in self._places(rows, long_factor)
            ]
        return sorted(sites, key=lambda s: (-s.held_ns, -s.idle_ns, s.path, s.rows))

    def _places(self, rows: I64, long_factor: float) -> list[SyncSite]:
        facts, run = self._facts, self._facts.run
        timeline, steady = facts[GpuTimeline], facts[Steps].spans("steady")
        device_wide = run.is_named(is_device_synchronize)[rows]
        busy_ns = [covered(pairs(run.ts[rows], run.end[rows]), timeline.busy(d)) for d in timeline.devices]
        charged = _Charged(facts[IdleCauses].ledger, steady)
        parents, paths = _operators(facts, rows)
        copies = _Copies(facts)
        call_sites = facts.get(CallSites)
        lost = np.max(busy_ns, axis=0)
        places: dict[tuple[tuple[str, ...], Site | None], list[int]] = {}
        for i, path in enumerate(paths):
            site = call_sites.site(int(rows[i])) if call_sites is not None else None
            places.setdefault((path, site), []).append(i)
        groups = [
            (path, site, long, some.tolist())
            for (path, site), members in places.items()
            for long, some in _apart(np.array(members), parents, lost, long_factor if site is None else None)
        ]
        return [
            SyncSite(
                path=path,
                site=site,
                kind=_kind(path),
                device_wide=bool(device_wide[members].any()),
                rows=tuple(rows[members].tolist()),
                times=len({int(parents[m]) for m in members}),
                steps=_steps_with(run.ts[rows[members]], steady),
                held_ns=max(int(on_device[members].sum()) for on_device in busy_ns),
                idle=charged.to(rows[members]),
                copies=copies.of(rows[members]),
                long=long,
            )
            for path, site, long, members in groups
        ]


class _Callers:
    """What Python asks for calls of the host, where stacks were recorded."""

    def __init__(self, facts: Facts) -> None:
        run = facts.run
        self._nesting, self._run = facts[Nesting], run
        self._python = run.is_cat(Cat.PYTHON)
        self._modules = self._python & run.is_named(is_module)

    def library(self, row: int) -> Frame | None:
        """The innermost function around a call that is not torch's own; None where that is the user's, or there is none."""
        for above in self._nesting.ancestors(row):
            frame = python_frame(self._run.text(above)) if self._python[above] else None
            if frame is not None and not frame.file.startswith("torch/"):
                return None if is_user_frame(frame.file) else frame
        return None

    def in_module(self, row: int) -> bool:
        """Whether a module is called around it."""
        return any(self._modules[above] for above in self._nesting.ancestors(row))


def _chosen(facts: Facts, steady: Iterable[tuple[int, int]]) -> tuple[I64, I64]:
    """The blocking calls that count, and host-to-device copies with the waits for them."""
    run, launches, nesting = facts.run, facts[Launches], facts[Nesting]
    rows = facts[Syncs].rows
    rows = rows[holds(intervals(steady), run.ts[rows])]
    rows = rows[np.isin(run.thread[rows], np.unique(run.thread[launches.calls]))]
    work = run.gpu[launches.launch >= 0]
    calls = launches.launch[launches.launch >= 0].astype(np.int64)
    to_device = calls[np.isin(run.name[work], run.name_ids(lambda n: "HtoD" in n or "Host -> Device" in n))]
    copying = nesting.parent[to_device]
    rows = rows[~_graph_captures(facts)[rows]]
    rows = rows[~nesting.inside(rows, run.is_named(is_compile))]
    there = np.isin(rows, to_device) | np.isin(nesting.parent[rows], copying[copying >= 0])
    return rows[~there], np.union1d(rows[there], to_device)


def _graph_captures(facts: Facts) -> Bool:
    """Host events that start while their thread captures a CUDA graph."""
    captures, nesting = facts[GraphCaptures], facts[Nesting]
    inside = np.zeros(len(facts.run), dtype=bool)
    for thread, (start, end) in zip(captures.thread.tolist(), captures.spans.tolist(), strict=True):
        inside[nesting.started(thread, start, end)] = True
    return inside


def _operators(facts: Facts, rows: I64) -> tuple[list[int], list[tuple[str, ...]]]:
    """For each call: the innermost operator around it (else the call), and the names of all, outer to inner."""
    run, nesting = facts.run, facts[Nesting]
    marks = run.is_named(is_step, is_loader, is_optimizer, is_torch_mark)
    operator = run.is_cat(Cat.CPU_OP) & ~marks
    parents, paths = [], []
    for row in rows.tolist():
        above = [a for a in nesting.ancestors(row) if operator[a]]
        parents.append(above[0] if above else row)
        paths.append(tuple(run.text(a) for a in reversed(above)) or (run.text(row),))
    return parents, paths


def _apart(members: I64, parents: list[int], lost: I64, long_factor: float | None) -> list[tuple[bool, I64]]:
    """The members of one place, or, where its line is not known, the few long waits (True) and the others."""
    _, of = np.unique([parents[m] for m in members.tolist()], return_inverse=True)
    waits = np.bincount(of, weights=lost[members])
    if long_factor is None or len(waits) <= ORDER:
        return [(False, members)]
    long = (waits > long_factor * np.sort(waits)[-ORDER])[of]
    return [(which, members[long == which]) for which in (False, True) if (long == which).any()]


def _kind(path: tuple[str, ...]) -> SyncKind:
    """What the host waits for, by the operators; an explicit wait where there is none."""
    names = {p.removeprefix("aten::") for p in path}
    names |= {name.rstrip("_") for name in names}
    explicit: SyncKind = "to_host" if path[-1].startswith("aten::") else "synchronize"
    return next((kind for kind, operators in _OPERATORS if names & operators), explicit)


def _steps_with(starts: I64, steady: Sequence[tuple[int, int]]) -> int:
    return int((np.diff(np.searchsorted(starts, np.array(steady))) > 0).sum())


class _Copies:
    """Copies to the host, by what asked for them: the call itself, or the operator around it."""

    def __init__(self, facts: Facts) -> None:
        run, launches = facts.run, facts[Launches]
        self._work = run.gpu[launches.launch >= 0]
        calls = launches.launch[launches.launch >= 0].astype(np.int64)
        here = np.isin(run.name[self._work], run.name_ids(lambda n: "DtoH" in n or "Device -> Host" in n))
        self._work, self._calls = self._work[here], calls[here]
        self._run, self._parent = run, facts[Nesting].parent
        self._alone = union(np.concatenate([copies for _, _, copies in exposed(facts).values()]))

    def of(self, rows: I64) -> I64:
        """Those that these waiting calls made, or that were asked for in an operator in which they wait."""
        around = self._parent[rows]
        parents = self._parent[self._calls]
        mine = np.isin(self._calls, rows) | ((parents >= 0) & np.isin(parents, around))
        work = self._work[mine]
        return intersect(union(pairs(self._run.ts[work], self._run.end[work])), self._alone)


class _Charged:
    """The idle pieces of the steady steps, by the blocking call that the ledger charges them to."""

    def __init__(self, ledger: IdleLedger, steady: Iterable[tuple[int, int]]) -> None:
        within = holds(intervals(steady), ledger.start)
        chosen = np.flatnonzero(ledger.of("sync") & within)
        self._chosen = chosen[np.argsort(ledger.sync_row[chosen], kind="stable")]
        self._rows = ledger.sync_row[self._chosen]
        self._ledger = ledger

    def to(self, rows: I64) -> I64:
        """What is charged to these calls (ascending), on the device that idled most for them."""
        first, behind = np.searchsorted(self._rows, rows), np.searchsorted(self._rows, rows, side="right")
        parts = [self._chosen[a:b] for a, b in zip(first.tolist(), behind.tolist(), strict=True) if b > a]
        mine = np.sort(np.concatenate([self._chosen[:0], *parts]))
        on, best = self._ledger.device[mine], NOTHING
        for device in np.unique(on).tolist():
            pieces = pairs(self._ledger.start[mine[on == device]], self._ledger.end[mine[on == device]])
            if total(pieces) > total(best):
                best = pieces
        return best
