"""The time ledger: where the window's time went, per device and phase, in integer ns that add up exactly."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.cpu_timeline import CPU, CpuTimeline
from trace_doctor.evidence.idle.gaps import IdleLedger
from trace_doctor.evidence.intervals import NOTHING, covered, intersect, intervals, pairs, subtract, total
from trace_doctor.evidence.trace.gpu_timeline import COMM, COMPUTE, COPY, GpuTimeline
from trace_doctor.evidence.trace.per_step import deviation_us, device_steps
from trace_doctor.evidence.trace.steps import Phase, Steps
from trace_doctor.model import IDLE_CAUSES, IdleNs, TimeLedgerRow

PHASES: tuple[Phase, ...] = ("steady", "warmup", "outside")


class TimeLedger(Evidence, frozen=True):
    """Rows by device, then steady, warmup, outside (rows of no length are left out).

    window = compute + exposed communication + exposed copies + idle, for every row. The rows of a device are the
    analyzed window. GPU work counts for the step that launched it: a step lasts from the completion of what was launched
    before it to that of its own, so a backlog of earlier steps is warm-up or outside, and a tail is its step's. Device -1 is the main thread of a capture without GPU work. Raises NotCaptured when the trace
    holds neither GPU work nor host events.
    """

    rows: tuple[TimeLedgerRow, ...]

    @classmethod
    def build(cls, facts: Facts) -> Self:
        steps = facts[Steps]
        return cls(
            tuple(
                row
                for device, parts in exposed(facts).items()
                for phase in PHASES
                if (row := _row(facts, steps, device, phase, parts)).window_ns
            )
        )

    def row(self, device: int, phase: Phase) -> TimeLedgerRow | None:
        """The row of a device and phase."""
        return next((r for r in self.rows if r.device == device and r.phase == phase), None)

    @property
    def unattributed_share(self) -> float:
        """Unattributed idle as a share of all rows' windows. Above 0.1 no time rule may be sure."""
        window = sum(r.window_ns for r in self.rows)
        return sum(r.idle_ns.unattributed for r in self.rows) / window if window else 0.0


def exposed(facts: Facts) -> dict[int, tuple[I64, I64, I64]]:
    """Per device the disjoint sets of (compute, communication beside no compute, copies beside neither)."""
    timeline = facts.get(GpuTimeline)
    if timeline is None:
        cpu = facts[CpuTimeline]
        return {CPU: (cpu.compute, cpu.comm, NOTHING)}
    by_device = {}
    for device in timeline.devices:
        compute = timeline.work(device, COMPUTE)
        comm = subtract(timeline.work(device, COMM), compute)
        copies = subtract(subtract(timeline.work(device, COPY), compute), comm)
        by_device[device] = (compute, comm, copies)
    return by_device


def _row(facts: Facts, steps: Steps, device: int, phase: Phase, parts: tuple[I64, I64, I64]) -> TimeLedgerRow:
    spans = intervals(steps.on_device(phase))
    compute, comm, copies = (total(intersect(part, spans)) for part in parts)
    window = total(spans)
    counted = 0 if not steps.steps or phase == "outside" else len(steps.spans(phase))  # one may take no time
    return TimeLedgerRow(
        rank=facts.capture.rank,
        device=device,
        phase=phase,
        steps=counted,
        window_ns=window,
        compute_ns=compute,
        exposed_comm_ns=comm,
        exposed_copy_ns=copies,
        idle_ns=_idle(facts[IdleLedger], device, spans),
        step_us=window / max(counted, 1) / 1000.0,
        step_sd_us=_deviations(facts, device, parts) if phase == "steady" else {},
    )


def _deviations(facts: Facts, device: int, parts: tuple[I64, I64, I64]) -> dict[str, float]:
    """How much each part varies from step to step."""
    spans, idle = device_steps(facts), facts[IdleLedger]
    named = dict(zip(("compute", "comm", "copy"), parts, strict=True))
    named |= {cause: idle.pieces(cause, device) for cause in IDLE_CAUSES}
    deviations = {name: deviation_us(covered(spans, some)) for name, some in named.items()}
    return {name: value for name, value in deviations.items() if value}


def _idle(ledger: IdleLedger, device: int, spans: I64) -> IdleNs:
    on_device = ledger.device == device
    length = covered(pairs(ledger.start[on_device], ledger.end[on_device]), spans)
    by_cause = np.zeros(len(IDLE_CAUSES), dtype=np.int64)
    np.add.at(by_cause, ledger.cause[on_device], length)
    return IdleNs(**dict(zip(IDLE_CAUSES, by_cause.tolist(), strict=True)))
