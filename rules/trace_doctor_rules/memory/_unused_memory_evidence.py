"""Device memory that training does not use, beside how busy the device is."""

from __future__ import annotations

from typing import Self

from msgspec import Struct

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.memory.blocks import MemoryBlocks
from trace_doctor.evidence.memory.device_memory import ADVICE, DeviceMemory
from trace_doctor.evidence.memory.ledger import MemoryLedger
from trace_doctor.evidence.names.event_names import is_backward, is_optimizer_step

PER_STEP = ("sync", "optimizer", "annotation", "python", "dispatch", "launch")
"""Idle whose causes cost as much in a step of a large batch as in one of a small batch."""
_PER_SAMPLE = ("activations", "inputs", "temporaries")


class Room(Struct, frozen=True):
    """One device. Bytes and shares of the steady window."""

    device: int
    size: int
    reserved: int
    """most that was ever reserved"""
    per_sample: int | None
    """of the bytes live at the peak those that grow with the batch; None where nothing tells what the bytes are"""
    busy: float
    waits: float
    """idle that a step costs whatever the batch"""

    def growth(self, fill: float) -> float:
        """How many times as large the batch may be, so that this part of the device is reserved. Without classes as if
        everything grew with it: what does not grow leaves more room."""
        grows = self.per_sample or self.reserved
        return 1 + (fill * self.size - self.reserved) / grows


class Headroom(Evidence, frozen=True):
    """Raises NotCaptured where reserved memory, the size of the device or its work was not recorded."""

    rooms: tuple[Room, ...]
    trains: bool
    """the steps hold a backward or an optimizer"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        ledger, run = facts[TimeLedger], facts.run
        sizes, blocks = facts[DeviceMemory].sizes, facts.get(MemoryBlocks)
        grows = {d.device: sum(d.at_peak[c] for c in _PER_SAMPLE) for d in blocks.devices} if blocks else {}
        memory = facts.get(MemoryLedger)
        reserved = (
            {r.device: r.max_reserved_bytes for r in memory.rows if r.max_reserved_bytes} if memory else {}
        )
        if not reserved:
            raise NotCaptured("reserved memory not recorded", "profile_memory=True, or a memory snapshot")
        if not sizes:
            raise NotCaptured("device size not recorded", ADVICE)
        rooms = []
        for device, most in reserved.items():
            row = ledger.row(device, "steady")
            if row is None or device not in sizes or not row.window_ns:
                continue
            waits = sum(getattr(row.idle_ns, cause) for cause in PER_STEP) / row.window_ns
            busy = 1 - row.idle_ns.total() / row.window_ns
            rooms.append(Room(device, sizes[device], most, grows.get(device), busy, waits))
        if not rooms:
            raise NotCaptured(
                "no GPU work recorded on the devices with memory data", "activities=[CPU, CUDA]"
            )
        trains = run.is_named(is_backward).any() or run.is_named(is_optimizer_step).any()
        return cls(tuple(rooms), bool(trains))
