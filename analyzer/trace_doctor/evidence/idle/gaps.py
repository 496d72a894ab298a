"""Why the GPU idled: every gap of a device, split by cause."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np

from trace_doctor.arrays import I16, I64, U8, Bool
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.cpu_timeline import CPU, CpuTimeline
from trace_doctor.evidence.idle.host_causes import CAUSE, PAUSE_NS, Cover, HostCauses, joined
from trace_doctor.evidence.idle.syncs import Syncs
from trace_doctor.evidence.intervals import complement, covered, intervals, pairs, union
from trace_doctor.evidence.names.event_names import is_graph_launch
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.graph_captures import GraphCaptures
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.recorded_operators import RecordedLaunches
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.warmup import first_uses
from trace_doctor.run import Cat, Run

LATENCY_NS = 100_000
"""A launch that returned this long ago has arrived (99 of 100 start within 24 µs); later starts have another reason."""
ORPHAN_NS = 10_000
"""A gap this short before work whose launch was not captured is the usual distance between kernels."""
HIDEABLE = ("dispatch", "python", "optimizer")
"""Host work that a lead over the device hides."""


class IdleLedger(Evidence, frozen=True):
    """One entry per piece of idle time in the window, by device and start; the pieces of a device tile its gaps.

    In a capture without GPU work the device is -1: all time of the main thread that is neither compute nor
    communication. Raises NotCaptured when there is neither.
    """

    device: I16
    start: I64
    end: I64
    cause: U8
    """index in `model.IDLE_CAUSES`"""
    row: I64
    """event that owns the piece, -1 where none does"""
    sync_row: I64
    """the blocking call that the piece is charged to, -1 where none is"""
    window: tuple[int, int] = (0, 0)

    @classmethod
    def build(cls, facts: Facts) -> Self:
        timeline = facts.get(GpuTimeline)
        window = facts[Steps].window
        if timeline is None:
            cpu = facts[CpuTimeline]
            idle = complement(union(np.concatenate([cpu.compute, cpu.comm])), *window)
            causes = facts[HostCauses]
            cover = causes.on(causes.main).within(idle)
            parts = [(CPU, cover, np.full(len(cover.row), -1, dtype=np.int64))]
        else:
            parts = [(device, *_device_idle(facts, timeline, device)) for device in timeline.devices]
        pieces = np.concatenate([c.pieces for _, c, _ in parts])
        return cls(
            np.concatenate([np.full(len(c.row), d, dtype=np.int16) for d, c, _ in parts]),
            pieces[:, 0],
            pieces[:, 1],
            np.concatenate([c.cause for _, c, _ in parts]),
            np.concatenate([c.row for _, c, _ in parts]),
            np.concatenate([sync for _, _, sync in parts]),
            window,
        )

    @property
    def devices(self) -> tuple[int, ...]:
        """Devices that idled at all."""
        return tuple(np.unique(self.device).tolist())

    def of(self, cause: str, device: int | None = None) -> Bool:
        """Mask of the pieces of a cause, optionally of one device."""
        mask: Bool = self.cause == CAUSE[cause]
        return mask if device is None else mask & (self.device == device)

    def pieces(self, cause: str, device: int | None = None) -> I64:
        """The intervals of a cause, (n, 2) ns."""
        mask = self.of(cause, device)
        return pairs(self.start[mask], self.end[mask])

    def owned(
        self, cause: str, spans: Iterable[tuple[int, int]] | None = None, device: int | None = None
    ) -> int:
        """Idle ns of a cause within the spans (default: the window) on a device (default: where it is most)."""
        within = intervals([self.window] if spans is None else spans)
        devices = self.devices if device is None else (device,)
        return max((int(covered(self.pieces(cause, d), within).sum()) for d in devices), default=0)


class IdleCauses(Evidence, frozen=True):
    """The idle ledger, for who lays idle time to what the host did. Raises NotCaptured where `RecordedLaunches` does."""

    ledger: IdleLedger

    @classmethod
    def build(cls, facts: Facts) -> Self:
        facts[RecordedLaunches]
        return cls(facts[IdleLedger])


def _device_idle(facts: Facts, timeline: GpuTimeline, device: int) -> tuple[Cover, I64]:
    """The idle pieces of one device, and the wait each is charged to."""
    run, causes = facts.run, facts[HostCauses]
    gaps = timeline.gaps(device, *timeline.window)
    call = _ending_calls(run, facts[Launches], timeline, device, gaps)
    tail = call == _TAIL
    known = call >= 0
    row = np.maximum(call, 0)
    begins = np.where(
        known, np.clip(run.ts[row], gaps[:, 0], gaps[:, 1]), np.where(tail, gaps[:, 1], gaps[:, 0])
    )
    returns = np.where(known, np.clip(run.end[row], begins, gaps[:, 1]), begins)

    late = pairs(gaps[:, 0], begins)
    main = -1 if causes.main is None else causes.main
    thread = np.where(known, run.thread[row], main)
    covers = []
    for t in np.unique(thread).tolist():
        own_waits = late[(thread == t) & (late[:, 1] > late[:, 0])]
        covers.append(causes.on(t if t >= 0 else None).within(own_waits))
    launching = _launching(facts, gaps, call, begins, returns)
    cover = _without_lost_replays(facts, timeline, device, gaps, joined([*covers, launching]))
    return _charge_lost_lead(facts, timeline.busy(device), cover)


_ORPHAN, _TAIL = -1, -2


def _ending_calls(run: Run, launches: Launches, timeline: GpuTimeline, device: int, gaps: I64) -> I64:
    """The call that launched the work which ends each gap; -1 work without a captured call, -2 no work follows."""
    rows = timeline.rows(device)
    rows = rows[run.dur[rows] > 0]
    call = launches.launch[np.searchsorted(run.gpu, rows)].astype(np.int64)
    # Of several that start together, one whose launch is known.
    order = np.lexsort((call < 0, run.ts[rows]))
    starts = run.ts[rows][order]
    at = np.searchsorted(starts, gaps[:, 1])
    here = (at < len(starts)) & (starts[np.minimum(at, len(starts) - 1)] == gaps[:, 1])
    return np.where(here, call[order][np.minimum(at, len(starts) - 1)], _TAIL)


def _launching(facts: Facts, gaps: I64, call: I64, begins: I64, returns: I64) -> Cover:
    """The parts of the gaps inside the launch call and after it."""
    run, launches = facts.run, facts[Launches]
    known = call >= 0
    row = np.maximum(call, 0)
    name = np.where(known, run.name[np.maximum(launches.first_work(row), 0)], -1)
    pageable = np.isin(name, run.name_ids(lambda n: "HtoD" in n and "Pinned" not in n))
    cold = known & first_uses(run, launches, facts[Nesting])[row] & ~pageable
    inside = pairs(begins, returns)
    arrived = np.where(known, np.minimum(returns + LATENCY_NS, gaps[:, 1]), gaps[:, 1])
    after = pairs(returns, arrived)
    orphan = call == _ORPHAN
    unknown = orphan & (gaps[:, 1] - gaps[:, 0] > ORPHAN_NS)
    queued = pairs(arrived, gaps[:, 1])
    parts = [
        _owned(inside, cold, "cold_start", row),
        _owned(inside, known & ~cold, "launch", row),
        _owned(after, known, "launch", row),
        _owned(queued, known, "unattributed", np.full(len(row), -1)),
        _owned(after, orphan & ~unknown, "launch", np.full(len(row), -1)),
        _owned(after, unknown, "unattributed", np.full(len(row), -1)),
    ]
    return joined(parts)


def _owned(pieces: I64, chosen: Bool, cause: str, rows: I64) -> Cover:
    """The chosen non-empty pieces for one cause, each with its row."""
    real = chosen & (pieces[:, 1] > pieces[:, 0])
    return Cover(
        pieces[real], np.full(int(real.sum()), CAUSE[cause], dtype=np.uint8), rows[real].astype(np.int64)
    )


def _without_lost_replays(facts: Facts, timeline: GpuTimeline, device: int, gaps: I64, cover: Cover) -> Cover:
    """The same, but with no cause from the launch of a graph on of which no kernel was recorded: whether the device idled until
    the next work that was recorded is not known."""
    run, launches = facts.run, facts[Launches]
    graphs = run.named(is_graph_launch, Cat.RUNTIME, Cat.DRIVER)
    graphs = graphs[launches.first_work(graphs) < 0]
    graphs = graphs[~facts[GraphCaptures].holds(graphs, run)]
    if not len(graphs):
        return cover
    rows = timeline.rows(device)
    newest = np.maximum.accumulate(launches.launched_at(rows))
    before = np.searchsorted(run.ts[rows], gaps[:, 0]) - 1
    since = np.where(before >= 0, newest[np.maximum(before, 0)], np.iinfo(np.int64).min)
    at = np.searchsorted(run.ts[graphs], since, side="right")
    first = np.append(run.ts[graphs], np.iinfo(np.int64).max)[at]
    lost = first < gaps[:, 1]
    unknown = pairs(np.maximum(first, gaps[:, 0])[lost], gaps[lost, 1])
    inside = cover.within(unknown)
    nothing = Cover(
        inside.pieces,
        np.full(len(inside.row), CAUSE["unattributed"], dtype=np.uint8),
        np.full(len(inside.row), -1),
    )
    return joined([cover.within(complement(unknown, *timeline.window)), nothing])


def _charge_lost_lead(facts: Facts, busy: I64, late: Cover) -> tuple[Cover, I64]:
    """Charges idle time to the waits that cost the host its lead; with it the wait of each piece, -1 without.

    While a blocking call held the host and the device was busy, the host could have run ahead by that much, and the
    device would not have noticed host work of the same length later on. So later dispatch, Python and optimizer
    time belongs to the newest wait whose lead is not used up. All other idle time, launches and pauses in which
    the host runs no operator included, would vanish behind a lead as well: it uses lead, but keeps its cause.
    """
    run, syncs = facts.run, facts[Syncs]
    launching = np.unique(run.thread[facts[Launches].calls])
    waits = syncs.rows[np.isin(run.thread[syncs.rows], launching)]
    busy_ns = covered(np.clip(pairs(run.ts[waits], run.end[waits]), *facts[Steps].window), busy)
    waits, busy_ns = waits[busy_ns > 0], busy_ns[busy_ns > 0]
    own = np.where(late.cause == CAUSE["sync"], late.row, -1)
    if not len(waits) or not len(late.row):
        return late, own
    order = np.argsort(run.end[waits], kind="stable")
    pending = list(
        zip(run.end[waits[order]].tolist(), waits[order].tolist(), busy_ns[order].tolist(), strict=True)
    )
    pending.reverse()
    leads: list[tuple[int, int]] = []  # (wait, lead left), newest last
    hideable = np.isin(late.cause, [CAUSE[c] for c in HIDEABLE])
    hideable &= (late.cause != CAUSE["python"]) | (late.pieces[:, 1] - late.pieces[:, 0] < PAUSE_NS)
    out: list[tuple[int, int, int, int, int]] = []
    columns = (late.pieces[:, 0], late.pieces[:, 1], late.cause, late.row, own, hideable)
    for start, end, cause, row, sync, hides in zip(*(c.tolist() for c in columns), strict=True):
        while pending and pending[-1][0] <= start:
            _, wait, lead = pending.pop()
            leads.append((wait, lead))
        at = start
        while leads and at < end:
            wait, lead = leads.pop()
            spent = min(lead, end - at)
            if spent < lead:
                leads.append((wait, lead - spent))
            if hides:
                out.append((at, at + spent, CAUSE["sync"], row, wait))
            at += spent
        begin = at if hides else start
        if begin < end:
            out.append((begin, end, cause, row, sync))
    table = np.array(out, dtype=np.int64).reshape(-1, 5)
    return Cover(table[:, :2], table[:, 2].astype(np.uint8), table[:, 3]), table[:, 4]
