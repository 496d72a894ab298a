"""The two ledgers: every ns of a device, every byte of its peak."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct, field

from trace_doctor.model.quantities import Bytes, Count, Ns, Us


class IdleNs(Struct, frozen=True, kw_only=True):
    data_loading: Ns = 0
    allocator: Ns = 0
    compile: Ns = 0
    cold_start: Ns = 0
    sync: Ns = 0
    optimizer: Ns = 0
    annotation: Ns = 0
    python: Ns = 0
    dispatch: Ns = 0
    launch: Ns = 0
    profiler: Ns = 0
    unattributed: Ns = 0

    def total(self) -> int:
        """Idle time of all causes, ns."""
        return sum(msgspec.structs.astuple(self))


IDLE_CAUSES: tuple[str, ...] = IdleNs.__struct_fields__


class OnDevice(Struct, frozen=True, kw_only=True):
    """A row that belongs to a device of a capture. `input` is the position in `Result.inputs`: two files may have the same
    rank."""

    input: Count = 0
    rank: int
    device: int


class TimeLedgerRow(OnDevice, frozen=True, kw_only=True):
    """window_ns = compute_ns + exposed_comm_ns + exposed_copy_ns + sum(idle_ns), exactly.

    `input` is the position in `Result.inputs` (here and in all rows below): two files may have the same rank.
    """

    phase: Literal["steady", "warmup", "outside"]
    steps: Count
    window_ns: Ns
    compute_ns: Ns
    exposed_comm_ns: Ns
    exposed_copy_ns: Ns
    idle_ns: IdleNs
    step_us: Us
    step_sd_us: dict[str, Us] = field(default_factory=dict)
    """standard deviation of each part over the steps (compute, comm, copy, the causes), where it varies"""


class CategoryBytes(Struct, frozen=True, kw_only=True):
    parameters: Bytes = 0
    gradients: Bytes = 0
    optimizer_state: Bytes = 0
    activations: Bytes = 0
    inputs: Bytes = 0
    temporaries: Bytes = 0
    workspaces: Bytes = 0
    held_before_recording: Bytes = 0
    unknown: Bytes = 0


MEMORY_CATEGORIES: tuple[str, ...] = CategoryBytes.__struct_fields__


class MemoryLedgerRow(OnDevice, frozen=True, kw_only=True):
    """Live bytes at the peak; sum(by_category) = peak_bytes, exactly. Requested sizes."""

    peak_bytes: Bytes
    by_category: CategoryBytes
    max_reserved_bytes: Bytes | None
    max_live_bytes: Bytes
    how: str
    by_frame: list[tuple[str, Bytes]] = field(default_factory=list)


class MemoryHeldRow(OnDevice, frozen=True, kw_only=True):
    """What a device held when a snapshot without a usable history was written. Whether that was its peak is not known."""

    held_bytes: Bytes
    """requested bytes of the live blocks"""
    reserved_bytes: Bytes
    blocks: Count
    """live ones"""
    by_frame: list[tuple[str, Bytes]] = field(default_factory=list)
    """the code that allocated most, largest first"""
