"""A capture's steps, idle time by cause, and memory as tracks, to be drawn beside its own events."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.idle.gaps import IdleLedger
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.exporters.tracks import CounterTrack, SliceKind, SliceTrack, Tracks
from trace_doctor.model import IDLE_CAUSES
from trace_doctor.reporters.labels import IDLE, device_name
from trace_doctor.run import Run


def tracks_of(facts: Facts) -> Tracks:
    """Raises NotCaptured without a trace."""
    run, steps, idle = facts.run, facts.get(Steps), facts.get(IdleLedger)
    window = steps.window if steps else (int(run.ts.min()), int(run.end.max()))
    return Tracks(
        rank=facts.rank,
        window=window,
        slices=(
            *((_steps(steps),) if steps is not None and steps.steps else ()),
            *(_idle(run, idle) if idle is not None else ()),
        ),
        counters=tuple(_memory(run)),
    )


def _steps(steps: Steps) -> SliceTrack:
    return SliceTrack(
        name="steps",
        kinds=tuple(
            SliceKind(
                f"step {s.index}{' (warm-up)' if s.warmup else ''}",
                {"completes every": f"{s.pace / 1e6:.3f} ms"},
            )
            for s in steps.steps
        ),
        kind=np.arange(len(steps.steps), dtype=np.int32),
        start=np.array([s.start for s in steps.steps], dtype=np.int64),
        end=np.array([s.end for s in steps.steps], dtype=np.int64),
    )


def _idle(run: Run, idle: IdleLedger) -> Iterator[SliceTrack]:
    """Every piece of idle time with its cause and the host event that owns it; a track for each device."""
    owners = run.name_ids_at(idle.row)
    waits = run.name_ids_at(idle.sync_row)
    for device in idle.devices:
        rows = np.flatnonzero(idle.device == device)
        kinds, kind = np.unique(
            np.column_stack([idle.cause[rows], owners[rows], waits[rows]]), axis=0, return_inverse=True
        )
        yield SliceTrack(
            name=f"{device_name(device)}: {'waiting, by cause' if device < 0 else 'idle, by cause'}",
            kinds=tuple(_idle_kind(run, *row) for row in kinds.tolist()),
            kind=kind.reshape(-1).astype(np.int32),
            start=idle.start[rows],
            end=idle.end[rows],
        )


def _idle_kind(run: Run, cause: int, owner: int, wait: int) -> SliceKind:
    owners = {"host was in": owner, "charged to": wait}
    args = {what: run.names[name] for what, name in owners.items() if name >= 0}
    return SliceKind(IDLE[IDLE_CAUSES[cause]].label, args)


def _memory(run: Run) -> Iterator[CounterTrack]:
    """The allocator's totals, a device each."""
    memory = run.memory
    for device in np.unique(memory.device).tolist():
        for what, column in (("allocated", memory.total_allocated), ("reserved", memory.total_reserved)):
            rows: I64 = np.flatnonzero((memory.device == device) & (column >= 0))
            if len(rows):
                yield CounterTrack(f"{what}, {device_name(device)}", memory.ts[rows], column[rows])
