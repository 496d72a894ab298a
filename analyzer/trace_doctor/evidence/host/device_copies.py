"""Copies from the host to the device in the steady steps: from which memory, by which operator, and what was made for it."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.host.host_bound import with_stacks
from trace_doctor.evidence.host.transfers import MOST_ARGS, Copies, copying, waits
from trace_doctor.evidence.idle.gaps import IdleLedger
from trace_doctor.evidence.idle.time_ledger import exposed
from trace_doctor.evidence.intervals import covered, holds, intersect, intervals, pairs, union
from trace_doctor.evidence.names.event_arguments import count
from trace_doctor.evidence.names.event_names import has_no_kind, is_copy_call
from trace_doctor.evidence.replay.what_if import Removal
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model.captures import LEAST_LAUNCHES
from trace_doctor.run import Cat, Run

_LINK_GBS = {9: 50.0, 8: 25.0}
"""PCIe 5 and 4 with 16 lanes, by compute capability; older ones have PCIe 3"""
_OLDEST_GBS = 12.5
_FILL_GBS = 1000.0
"""No host fills memory at that rate, all its cores together: what took less did not make what is copied"""
_SHORTEST_NS = 1000
"""of a fill: old profilers write whole microseconds"""


class DeviceCopies(Copies, frozen=True, kw_only=True):
    """Copies that hold the host, by start: from memory that is not pinned, or from pinned memory with a wait behind it.

    Raises NotCaptured without GPU work, where the vendor's profiler does not say what memory is pinned, and where no copy to the
    device is there and the GPU's side of most calls that copy is missing.
    """

    exposed: I64
    """ns of the copy beside which the device did nothing else"""
    faster: I64
    """ns that it would take less from pinned memory, at the speed of the link"""
    pinned: Bool
    """whether it comes from pinned memory: then only the wait can go"""
    size: I64
    """bytes of the longest copies, 0 of the others and where the file does not say"""
    link_gbs: float
    """GB/s of copies from pinned memory: the fastest seen, else what the device's generation of PCIe gives"""
    link_assumed: bool
    """whether no copy shows the speed of the link"""
    stacks: bool
    """whether recording them slowed the host"""
    ledger: IdleLedger
    unsized: int
    """of the longest copies, how many have no size in the file: how fast they could be is not known"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, launches, nesting = facts.run, facts[Launches], facts[Nesting]
        steady, launching = (
            intervals(s) for s in (facts[Steps].on_device("steady"), facts[Steps].spans("steady"))
        )
        copies = run.named(lambda n: "HtoD" in n, Cat.MEMCPY)
        copies = copies[holds(steady, run.ts[copies])]
        pageable = np.isin(run.name[copies], run.name_ids(lambda n: "Pageable" in n))
        pinned = np.isin(run.name[copies], run.name_ids(lambda n: "Pinned" in n))
        if len(copies) and not pageable.any() and not pinned.any():
            raise NotCaptured(
                "this profiler does not say whether copies come from pinned memory",
                "nothing to record: ROCm names them `Host -> Device`",
            )
        kinds_lost = run.named(has_no_kind, Cat.MEMCPY)
        if not len(copies) and holds(steady, run.ts[kinds_lost]).any():
            raise NotCaptured(
                "the kinds of copies are not recorded",
                "a Chrome trace (.json.gz): a .pftrace file has no kinds of copies",
            )
        if not len(copies) and (lost := lost_copies(run, launches, launching)):
            raise NotCaptured(lost, "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]")
        alone = {device: intersect(parts[2], steady) for device, parts in exposed(facts).items()}
        measured = _link_gbs(run, launches, copies[pinned])
        link = measured or _generation_gbs(run)
        rows = copies[pageable | pinned]
        call = np.array([launches.launch_of(r) for r in rows.tolist()], dtype=np.int64)
        is_held = np.array([len(waits(run, nesting, c)) > 1 for c in call.tolist()], dtype=bool)
        is_held |= pageable[pageable | pinned]
        rows, call = rows[is_held], call[is_held]
        bare = np.zeros(len(rows), dtype=np.int64)
        for device, some in alone.items():
            on_device = run.device[rows] == device
            bare[on_device] = covered(pairs(run.ts[rows], run.end[rows])[on_device], some)
        op, maker, waiting = copying(run, nesting, call, launches.calls)
        size, unsized = _sizes(run, rows)
        filling_ns = np.maximum(run.dur[maker], _SHORTEST_NS)
        return cls(
            row=rows,
            call=call,
            op=op,
            maker=np.where(size <= _FILL_GBS * filling_ns, maker, -1),
            exposed=bare,
            faster=_faster(run, rows, size, link),
            waits=waiting,
            pinned=np.isin(run.name[rows], run.name_ids(lambda n: "Pinned" in n)),
            size=size,
            link_gbs=link,
            link_assumed=not measured,
            stacks=with_stacks(run),
            ledger=facts[IdleLedger],
            unsized=unsized,
            run=run,
        )

    def removal(self, which: Bool) -> Removal:
        """These copies from pinned memory: calls return at once, and the link is the limit."""
        calls = sorted({wait for i in np.flatnonzero(which) for wait in self.waits[i]})
        spans = [(int(self.run.thread[c]), int(self.run.ts[c]), int(self.run.end[c])) for c in calls]
        faster = zip(self.row[which].tolist(), self.faster[which].tolist(), strict=True)
        return Removal(host_spans=tuple(spans), make_async=tuple(calls), gpu_shorter=tuple(sorted(faster)))

    def alone(self, which: Bool) -> I64:
        """When these copies ran, and when the device waited for the calls that made them: a set of intervals."""
        called = self.ledger.of("launch") & np.isin(self.ledger.row, self.call[which])
        waited = pairs(self.ledger.start[called], self.ledger.end[called])
        return union(
            np.concatenate([pairs(self.run.ts[self.row[which]], self.run.end[self.row[which]]), waited])
        )


def lost_copies(run: Run, launches: Launches, steady: I64) -> str:
    """What is missing of the copies that the host asked for in the steady steps; empty where most of them are there."""
    calls = run.named(is_copy_call, Cat.RUNTIME, Cat.DRIVER)
    calls = calls[holds(steady, run.ts[calls])]
    unseen = int((launches.first_work(calls) < 0).sum())
    if unseen <= (1 - LEAST_LAUNCHES) * len(calls):
        return ""
    return f"what {unseen:,} of {len(calls):,} calls that copy did on the GPU is not in the trace"


def _bytes(run: Run, rows: I64) -> I64:
    """Sizes as the profiler gives them, 0 where it does not."""
    arguments = run.args(rows.tolist())
    return np.array([count(args, "bytes") or 0 for args in arguments], dtype=np.int64)


def _link_gbs(run: Run, launches: Launches, pinned: I64) -> float:
    """From the longest; 0 where none shows it. One whose own asynchronous call lasted until its end was staged by the host,
    whatever its name says: it shows nothing of the link."""
    longest = pinned[np.argsort(-run.dur[pinned], kind="stable")][:20]
    call = np.array([launches.launch_of(r) for r in longest.tolist()], dtype=np.int64)
    returned = (call < 0) | (run.end[call] < run.end[longest]) | ~run.is_named(lambda n: "Async" in n)[call]
    longest = longest[returned]
    speed = _bytes(run, longest) / np.maximum(run.dur[longest], 1)
    best = float(speed.max(initial=0.0))
    return best if best > 1 else 0.0


def _generation_gbs(run: Run) -> float:
    newest = max((p.get("computeMajor", 0) for p in run.device_properties), default=0)
    return _LINK_GBS.get(min(newest, 9), _OLDEST_GBS)


def _sizes(run: Run, rows: I64) -> tuple[I64, int]:
    """Bytes of the longest of these copies, 0 of the others, and where the profiler does not say; how often it does not."""
    size = np.zeros(len(rows), dtype=np.int64)
    longest = np.argsort(-run.dur[rows], kind="stable")[:MOST_ARGS]
    size[longest] = _bytes(run, rows[longest])
    return size, int((size[longest] == 0).sum())


def _faster(run: Run, rows: I64, size: I64, link_gbs: float) -> I64:
    least = np.where(size > 0, (size / link_gbs).astype(np.int64), run.dur[rows])
    return np.asarray(np.maximum(run.dur[rows] - least, 0))
