"""Which finding owns the time that is no compute: each ns belongs to the gravest finding whose evidence covers it, or to none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.host.host_gaps import readable_name
from trace_doctor.evidence.idle.cpu_timeline import CPU
from trace_doctor.evidence.idle.gaps import IdleLedger
from trace_doctor.evidence.idle.start_up import StartUp
from trace_doctor.evidence.idle.time_ledger import exposed
from trace_doctor.evidence.intervals import intersect, intervals, overlaps, subtract, total
from trace_doctor.evidence.names.event_names import is_step
from trace_doctor.evidence.trace.gpu_timeline import COMM, COPY, GpuTimeline
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.model import IDLE_CAUSES, OwnershipRow, UnownedBlock
from trace_doctor.run import Cat, Run

MAX_BLOCKS = 3
"""of one part of the ledger"""


class Owner(Struct, frozen=True):
    """A finding and the time that it speaks of."""

    id: str
    device: int | None
    """None: of every device"""
    spans: I64
    """a set of intervals, ns of the run"""


def ownership(facts: Facts, owners: Sequence[Owner]) -> list[OwnershipRow]:
    """Of the steady steps, by device and part of the ledger; parts of no length are left out. `owners`: the gravest first.
    Empty where the capture has no time ledger."""
    if facts.get(IdleLedger) is None:
        return []
    steady, start = intervals(facts[Steps].on_device("steady")), facts.get(StartUp)
    rows = []
    for device, (_, comm, copies) in exposed(facts).items():
        own = [owner for owner in owners if owner.device in (None, device)]
        for part, pieces, events in _parts(facts, device, comm, copies):
            all_of_it = rest = intersect(pieces, steady)
            ids = []
            for owner in own:
                remaining = subtract(rest, owner.spans)
                if total(remaining) < total(rest):
                    ids.append(owner.id)
                rest = remaining
            starting = intersect(rest, start.on(device)) if start is not None else rest[:0]
            if len(all_of_it):
                rows.append(
                    OwnershipRow(
                        rank=facts.rank,
                        device=device,
                        part=part,
                        total_ns=total(all_of_it),
                        unowned_ns=total(rest),
                        start_up_ns=total(starting),
                        findings=ids,
                        blocks=_blocks(facts, device, subtract(rest, starting), pieces, events),
                    )
                )
    return rows


def _parts(facts: Facts, device: int, comm: I64, copies: I64) -> Iterator[tuple[str, I64, I64]]:
    """(part, pieces as a set of intervals, the event that each piece is named by or -1) of the ledger of a device."""
    run, timeline = facts.run, facts.get(GpuTimeline)
    for part, pieces, kind in (("exposed_comm", comm, COMM), ("exposed_copy", copies, COPY)):
        rows = timeline.rows(device, kind) if timeline is not None else np.empty(0, dtype=np.int64)
        at = np.searchsorted(run.ts[rows], pieces[:, 0], side="right") - 1
        yield part, pieces, np.where(at >= 0, np.append(rows, -1)[at], -1)
    idle = facts[IdleLedger]
    for cause in IDLE_CAUSES:
        mask = idle.of(cause, device)
        yield cause, np.stack([idle.start[mask], idle.end[mask]], axis=1), idle.row[mask]


def _blocks(facts: Facts, device: int, rest: I64, pieces: I64, events: I64) -> list[UnownedBlock]:
    """What takes most of the rest, by the name of what was open meanwhile."""
    if not len(rest):
        return []
    run, steps, moments = facts.run, facts[Steps], facts[Moments]
    order = np.argsort(pieces[:, 0], kind="stable")
    unowned, _, at = overlaps(rest, pieces[order])
    rows = events[order][at]
    names = run.name_ids_at(rows)
    length = unowned[:, 1] - unowned[:, 0]
    kinds, which = np.unique(names, return_inverse=True)
    sums = np.bincount(which, weights=length)
    around = _neighbours(facts, device)
    blocks = []
    for n in np.argsort(-sums, kind="stable")[:MAX_BLOCKS].tolist():
        of_kind = np.flatnonzero(which == n)
        longest = unowned[of_kind[length[of_kind].argmax()]]
        before, behind = _beside(run, around, longest)
        blocks.append(
            UnownedBlock(
                name=_name(run.names[kinds[n]]) if kinds[n] >= 0 else "",
                total_us=float(sums[n]) / 1e3,
                count=len(of_kind),
                steps=len(np.unique(steps.steady_at(unowned[of_kind, 0]))),
                longest_us=float(longest[1] - longest[0]) / 1e3,
                ts_us=moments.ts_us(int(longest[0])),
                before=before,
                behind=behind,
            )
        )
    return blocks


def _name(event: str) -> str:
    """A step is no name: nothing of it was recorded there."""
    return "" if is_step(event) else readable_name(event)


def _neighbours(facts: Facts, device: int) -> I64:
    """Rows of what runs on the device (on the CPU alone: operators of the main thread), by start."""
    if device != CPU:
        return facts[GpuTimeline].rows(device)
    run = facts.run
    return np.flatnonzero(run.is_cat(Cat.CPU_OP) & (run.thread == facts[Threads].main))


def _beside(run: Run, rows: I64, span: I64) -> tuple[str, str]:
    """What started last before a span, and first behind it."""
    before = int(np.searchsorted(run.ts[rows], span[0])) - 1
    behind = int(np.searchsorted(run.ts[rows], span[1]))
    return (
        run.text(int(rows[before])) if before >= 0 else "",
        run.text(int(rows[behind])) if behind < len(rows) else "",
    )
