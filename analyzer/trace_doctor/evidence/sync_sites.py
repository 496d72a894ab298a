"""Where the host keeps waiting for the device: blocking calls gathered by the operators and the user's line around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np

from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.call_sites import CallSites, Site
from trace_doctor.evidence.event_names import (
    is_compile,
    is_device_synchronize,
    is_loader,
    is_optimizer,
    is_step,
    is_torch_mark,
)
from trace_doctor.evidence.gpu_timeline import GpuTimeline
from trace_doctor.evidence.idle import IdleLedger
from trace_doctor.evidence.intervals import covered, intervals, pairs
from trace_doctor.evidence.launches import Launches
from trace_doctor.evidence.nesting import Nesting
from trace_doctor.evidence.steps import Steps
from trace_doctor.evidence.syncs import Syncs
from trace_doctor.run import I64, Bool, Cat, Run

SyncKind = Literal["item", "shape", "to_host", "synchronize"]
"""a scalar read · an operator whose output size depends on data · a tensor copied to the host · an explicit wait"""

_SHAPES = (
    "nonzero",
    "masked_select",
    "unique",
    "_unique2",
    "where",
    "index",
    "repeat_interleave",
    "bincount",
)


@dataclass(frozen=True)
class SyncSite:
    """Blocking calls of the steady steps that stand below the same operators on the same line."""

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
    idle: I64 = field(repr=False, compare=False)
    """idle pieces charged to it, (n, 2) ns"""

    @property
    def idle_ns(self) -> int:
        return int((self.idle[:, 1] - self.idle[:, 0]).sum())

    @property
    def name(self) -> str:
        """The operators for people: outermost and innermost."""
        return " → ".join(self.path if len(self.path) <= 2 else (self.path[0], self.path[-1]))


@dataclass(frozen=True)
class SyncSites(Evidence):
    """Blocking calls on launching threads in steady steps, most idle time first. Raises NotCaptured without GPU work.

    Left out: waits inside compilation or graph capture, and waits for host-to-device copies (pinned memory cures those).
    """

    sites: tuple[SyncSite, ...]

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, timeline = facts.run, facts[GpuTimeline]
        steady = facts[Steps].spans("steady")
        rows = _chosen(facts, steady)
        parents, paths = _operators(facts, rows)
        sites = facts.get(CallSites)
        groups: dict[tuple[tuple[str, ...], Site | None], list[int]] = {}
        for i, path in enumerate(paths):
            groups.setdefault((path, sites.site(int(rows[i])) if sites is not None else None), []).append(i)
        found = []
        for (path, site), members in groups.items():
            mine = rows[members]
            device_wide = np.isin(run.name[mine], run.name_ids(is_device_synchronize)).any()
            found.append(
                SyncSite(
                    path=path,
                    site=site,
                    kind=_kind(path),
                    device_wide=bool(device_wide),
                    rows=tuple(mine.tolist()),
                    times=len({int(parents[m]) for m in members}),
                    steps=_steps_with(run.ts[mine], steady),
                    held_ns=max(
                        int(covered(pairs(run.ts[mine], run.end[mine]), timeline.busy(d)).sum())
                        for d in timeline.devices
                    ),
                    idle=_charged(facts[IdleLedger], mine, steady),
                )
            )
        found.sort(key=lambda s: (-s.idle_ns, -s.held_ns, s.path, s.rows))
        return cls(tuple(found))


def _chosen(facts: Facts, steady: Iterable[tuple[int, int]]) -> I64:
    """The blocking calls that count."""
    run, launches, nesting = facts.run, facts[Launches], facts[Nesting]
    rows = facts[Syncs].rows
    rows = rows[covered(pairs(run.ts[rows], run.ts[rows] + 1), intervals(steady)) > 0]
    rows = rows[np.isin(run.thread[rows], np.unique(run.thread[launches.calls]))]
    work = run.gpu[launches.launch >= 0]
    calls = launches.launch[launches.launch >= 0].astype(np.int64)
    to_device = calls[np.isin(run.name[work], run.name_ids(lambda n: "HtoD" in n or "Host -> Device" in n))]
    copying = nesting.parent[to_device]
    rows = rows[~np.isin(rows, to_device) & ~np.isin(nesting.parent[rows], copying[copying >= 0])]
    rows = rows[~_graph_captures(run)[rows]]
    kept = [r for r in rows.tolist() if not any(is_compile(run.text(a)) for a in nesting.ancestors(r))]
    return np.array(kept, dtype=np.int64)


def _graph_captures(run: Run) -> Bool:
    """Rows that start while their thread captures a CUDA graph."""
    inside = np.zeros(len(run), dtype=bool)
    begins = run.named(lambda n: n.endswith("StreamBeginCapture"), Cat.RUNTIME, Cat.DRIVER)
    ends = run.named(lambda n: n.endswith("StreamEndCapture"), Cat.RUNTIME, Cat.DRIVER)
    for begin in begins.tolist():
        behind = ends[(run.thread[ends] == run.thread[begin]) & (run.ts[ends] >= run.ts[begin])]
        if len(behind):
            inside |= (
                (run.thread == run.thread[begin]) & (run.ts >= run.ts[begin]) & (run.ts < run.end[behind[0]])
            )
    return inside


def _operators(facts: Facts, rows: I64) -> tuple[list[int], list[tuple[str, ...]]]:
    """For each call: the innermost operator around it (else the call), and the names of all, outer to inner."""
    run, nesting = facts.run, facts[Nesting]
    marks = run.name_ids(lambda n: is_step(n) or is_loader(n) or is_optimizer(n) or is_torch_mark(n))
    operator = run.is_cat(Cat.CPU_OP) & ~np.isin(run.name, marks)
    parents, paths = [], []
    for row in rows.tolist():
        above = [a for a in nesting.ancestors(row) if operator[a]]
        parents.append(above[0] if above else row)
        paths.append(tuple(run.text(a) for a in reversed(above)) or (run.text(row),))
    return parents, paths


def _kind(path: tuple[str, ...]) -> SyncKind:
    """What the host waits for, by the operators."""
    names = [p.removeprefix("aten::") for p in path]
    if any(n.rstrip("_") in _SHAPES for n in names):
        return "shape"
    if any(n in ("item", "_local_scalar_dense", "is_nonzero", "equal", "allclose") for n in names):
        return "item"
    if any(n in ("to", "_to_copy", "copy_", "cpu") for n in names):
        return "to_host"
    return "synchronize" if not path[-1].startswith("aten::") else "to_host"


def _steps_with(starts: I64, steady: Sequence[tuple[int, int]]) -> int:
    return sum(bool(((starts >= s) & (starts < e)).any()) for s, e in steady)


def _charged(ledger: IdleLedger, rows: I64, steady: Iterable[tuple[int, int]]) -> I64:
    """Idle pieces in the steady steps that the ledger charges to these calls, on the device that idled most for them."""
    mine = ledger.of("sync") & np.isin(ledger.sync_row, rows)
    within = covered(pairs(ledger.start, ledger.start + 1), intervals(steady)) > 0
    best = pairs([], [])
    for device in ledger.devices:
        chosen = mine & within & (ledger.device == device)
        pieces = pairs(ledger.start[chosen], ledger.end[chosen])
        if (pieces[:, 1] - pieces[:, 0]).sum() > (best[:, 1] - best[:, 0]).sum():
            best = pieces
    return best
