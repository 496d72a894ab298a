"""The two ledgers: every ns of a device, every byte of its peak."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct, field


class IdleNs(Struct, frozen=True, kw_only=True):
    data_loading: int = 0
    allocator: int = 0
    compile: int = 0
    cold_start: int = 0
    sync: int = 0
    optimizer: int = 0
    annotation: int = 0
    python: int = 0
    dispatch: int = 0
    launch: int = 0
    profiler: int = 0
    unattributed: int = 0

    def total(self) -> int:
        """Idle time of all causes, ns."""
        return sum(msgspec.structs.astuple(self))


IDLE_CAUSES: tuple[str, ...] = IdleNs.__struct_fields__


class OnDevice(Struct, frozen=True, kw_only=True):
    """A row that belongs to a device of a capture. `input` is the position in `Result.inputs`: two files may have the same
    rank."""

    input: int = 0
    rank: int
    device: int


class TimeLedgerRow(OnDevice, frozen=True, kw_only=True):
    """window_ns = compute_ns + exposed_comm_ns + exposed_copy_ns + sum(idle_ns), exactly.

    `input` is the position in `Result.inputs` (here and in all rows below): two files may have the same rank.
    """

    phase: Literal["steady", "warmup", "outside"]
    steps: int
    window_ns: int
    compute_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: IdleNs
    step_us: float
    step_sd_us: dict[str, float] = field(default_factory=dict)
    """standard deviation of each part over the steps (compute, comm, copy, the causes), where it varies"""


class CategoryBytes(Struct, frozen=True, kw_only=True):
    parameters: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    activations: int = 0
    inputs: int = 0
    temporaries: int = 0
    workspaces: int = 0
    held_before_recording: int = 0
    unknown: int = 0


MEMORY_CATEGORIES: tuple[str, ...] = CategoryBytes.__struct_fields__


class MemoryLedgerRow(OnDevice, frozen=True, kw_only=True):
    """Live bytes at the peak; sum(by_category) = peak_bytes, exactly. Requested sizes."""

    peak_bytes: int
    by_category: CategoryBytes
    max_reserved_bytes: int | None
    max_live_bytes: int
    how: str
    by_frame: list[tuple[str, int]] = field(default_factory=list)


class MemoryHeldRow(OnDevice, frozen=True, kw_only=True):
    """What a device held when a snapshot without a usable history was written. Whether that was its peak is not known."""

    held_bytes: int
    """requested bytes of the live blocks"""
    reserved_bytes: int
    blocks: int
    """live ones"""
    by_frame: list[tuple[str, int]] = field(default_factory=list)
    """the code that allocated most, largest first"""
