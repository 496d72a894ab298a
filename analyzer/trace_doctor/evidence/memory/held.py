"""What a device held when a snapshot without a usable allocation history was written: sizes and the code that allocated
them, but no peak, no lifetimes, and so no classes."""

from __future__ import annotations

from collections import Counter
from typing import Self

import msgspec
import numpy as np

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.memory.stages import MemoryStacks
from trace_doctor.evidence.memory.timeline import MemoryTimeline
from trace_doctor.model import MemoryHeldRow
from trace_doctor.snapshot import BlockState

MAX_FRAMES = 20
_PINNED = "torch.cuda.memory._record_memory_history(record_pinned_host_memory=True), torch 2.14 or later"


class PinnedMemory(Evidence, frozen=True):
    """Pinned memory of the host when the snapshot was written: `device` of its row is -1. Raises NotCaptured without."""

    rows: tuple[MemoryHeldRow, ...]

    @classmethod
    def build(cls, facts: Facts) -> Self:
        pinned = facts.snapshot.pinned
        if pinned is None:
            raise NotCaptured("pinned host memory was not recorded", _PINNED)
        row = _row(MemoryStacks.of(pinned, facts.options.source), 0)
        return cls((msgspec.structs.replace(row, device=-1),))


class MemoryHeld(Evidence, frozen=True):
    """Devices of the rank's snapshot that `MemoryTimeline` knows nothing of. Raises NotCaptured where there are none."""

    rows: tuple[MemoryHeldRow, ...]

    @classmethod
    def build(cls, facts: Facts) -> Self:
        snapshot, timeline, device = facts.snapshot, facts.get(MemoryTimeline), facts.options.device
        replayed = {h.device for h in timeline.devices} if timeline is not None else set()
        devices = [d for d in snapshot.devices if d not in replayed and device in (None, d)]
        rows = tuple(row for d in devices if (row := _row(facts[MemoryStacks], d)).blocks)
        if not rows:
            raise NotCaptured("every device has a history, or holds nothing")
        return cls(rows)


def _row(stacks: MemoryStacks, device: int) -> MemoryHeldRow:
    snapshot = stacks.snapshot
    here = (snapshot.segment_device[snapshot.block_segment] == device) & (
        snapshot.block_state != BlockState.INACTIVE
    )
    sizes, owners = snapshot.block_requested[here], snapshot.block_stack[here]
    frames: Counter[str] = Counter()
    for stack in np.unique(owners).tolist():
        site = stacks.user_site(stack)
        frames[str(site) if site is not None else stacks.op_site(stack)] += int(sizes[owners == stack].sum())
    return MemoryHeldRow(
        rank=0,
        device=device,
        held_bytes=int(sizes.sum()),
        reserved_bytes=int(snapshot.segment_size[snapshot.segment_device == device].sum()),
        blocks=len(sizes),
        by_frame=sorted(frames.items(), key=lambda f: (-f[1], f[0]))[:MAX_FRAMES],
    )
