"""The memory ledger: what the live bytes at the peak are, per device. The parts sum to the peak exactly."""

from __future__ import annotations

from typing import Self

import msgspec
import numpy as np

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks, category_name
from trace_doctor.evidence.memory.series import series_of, series_of_trace
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model import CategoryBytes, MemoryLedgerRow, MemorySeries
from trace_doctor.run import Run

MAX_FRAMES = 20


class MemoryLedger(Evidence, frozen=True):
    """From the snapshot of a rank; from the `[memory]` totals of its trace where there is none (everything is then of
    category `unknown`). Raises NotCaptured where memory was not recorded."""

    rows: tuple[MemoryLedgerRow, ...]
    series: tuple[MemorySeries, ...]

    @classmethod
    def build(cls, facts: Facts) -> Self:
        rank = facts.capture.rank
        try:
            devices = facts[MemoryBlocks].devices
        except NotCaptured as reason:
            if facts.capture.run is None:
                raise
            from_trace = _from_trace(facts.capture.run, rank, facts.get(Steps))
            if not from_trace:
                raise NotCaptured(reason.reason, reason.capture) from None
            return cls(tuple(row for row, _ in from_trace), tuple(series for _, series in from_trace))
        return cls(
            tuple(_row(blocks, rank) for blocks in devices),
            tuple(series_of(blocks, rank) for blocks in devices),
        )


def _row(blocks: DeviceBlocks, rank: int) -> MemoryLedgerRow:
    history = blocks.history
    frames: dict[str, int] = {}
    for category, place, holder, _ in blocks.holders(history.alive(history.peak)):
        label = category_name(category) if place == "no frames recorded" else place
        frames[label] = frames.get(label, 0) + holder
    return MemoryLedgerRow(
        rank=rank,
        device=history.device,
        private_bytes=blocks.stacks.snapshot.private_bytes(history.device),
        peak_bytes=history.peak_bytes,
        by_category=msgspec.convert(blocks.at_peak, CategoryBytes),
        max_reserved_bytes=None if history.reserved is None else int(history.reserved.max()),
        max_live_bytes=history.peak_bytes,
        how=f"snapshot of {history.n} entries, requested sizes; {blocks.how}".rstrip("; "),
        by_frame=sorted(frames.items(), key=lambda f: (-f[1], f[0]))[:MAX_FRAMES],
    )


def _from_trace(run: Run, rank: int, steps: Steps | None) -> list[tuple[MemoryLedgerRow, MemorySeries]]:
    events = run.memory
    known = (events.device >= 0) & (events.total_allocated >= 0)
    start = steps.window[0] if steps is not None else int(events.ts[0]) if len(events) else 0
    rows_with_series: list[tuple[MemoryLedgerRow, MemorySeries]] = []
    for device in np.unique(events.device[known]).tolist():
        rows = known & (events.device == device)
        peak = int(events.total_allocated[rows].max())
        reserved = int(events.total_reserved[rows].max())
        row = MemoryLedgerRow(
            rank=rank,
            device=device,
            peak_bytes=peak,
            by_category=CategoryBytes(unknown=peak),
            max_reserved_bytes=reserved if reserved > 0 else None,
            max_live_bytes=peak,
            how="totals of the trace's [memory] events, sizes rounded up to 512 bytes; a snapshot would tell what they are",
        )
        rows_with_series.append((row, series_of_trace(events, device, rank, start)))
    return rows_with_series
