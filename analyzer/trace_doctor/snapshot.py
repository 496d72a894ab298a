"""`Snapshot`: one allocator snapshot as columns. Sizes are bytes, times int64 microseconds.

Written by `torch.cuda.memory._dump_snapshot` (a dict) or `torch.cuda.memory_snapshot()` (a list of segments).
Entries are the allocator's history, device after device, in the order it was recorded; blocks and segments are the
state when the file was written. All sizes of entries and `block_requested` are what was asked for, before rounding.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from trace_doctor.arrays import I16, I32, I64, U8, Bool
from trace_doctor.model import TorchVersion

NO_STACK = -1
"""In stack columns: the entry or block holds no frames at all (an empty stack is a stack of its own)."""


NO_NOTE = -1


class Action(enum.IntEnum):
    """What the allocator did. `SEGMENT_MAP` and `SEGMENT_UNMAP` are those of expandable segments."""

    OTHER = 0
    ALLOC = 1
    FREE_REQUESTED = 2
    FREE_COMPLETED = 3
    SEGMENT_ALLOC = 4
    SEGMENT_FREE = 5
    SEGMENT_MAP = 6
    SEGMENT_UNMAP = 7
    SNAPSHOT = 8
    OOM = 9
    ANNOTATE = 10  # a text for a block that is allocated; nothing is allocated or freed


class BlockState(enum.IntEnum):
    INACTIVE = 0
    ACTIVE = 1
    PENDING = 2
    """freed by the program, still used by another stream"""


class StackFrame(NamedTuple):
    """One level of a stack. C++ frames have no useful file name; `line` is the line that was running."""

    filename: str
    line: int
    name: str

    @property
    def is_python(self) -> bool:
        """Whether it is a frame of Python, by its file."""
        return self.filename.endswith((".py", ".pyx", ".ipynb")) or self.filename.startswith(
            ("<", "/tmp/ipykernel")
        )


class Annotation(NamedTuple):
    """One end of a `record_function` that was open while history was recorded (`Optimizer.step#AdamW.step`)."""

    name: str
    start: bool
    device: int
    time_us: int


@dataclass(frozen=True)
class Snapshot:
    """One snapshot file of one rank."""

    path: str
    """as shown to people: relative to the input root"""

    action: U8
    device: I16
    addr: I64
    """of `OOM` entries: bytes that were free on the device (`device_free`); -1 where not recorded"""
    size: I64
    stream: I64
    time_us: I64
    """-1 where the file has no clock (torch 2.1 and before)"""
    stack: I32
    """index into `stacks`, or NO_STACK"""

    segment_device: I16
    segment_addr: I64
    segment_size: I64
    segment_requested: I64
    """requested bytes of the segment's active blocks; -1 where the file does not say"""

    block_segment: I32
    block_addr: I64
    block_size: I64
    block_requested: I64
    """stale for inactive blocks"""
    block_state: U8
    block_stack: I32

    stacks: tuple[tuple[int, ...], ...]
    """indices into `frames`, innermost first"""
    frames: tuple[StackFrame, ...]

    segment_private: Bool = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """segments of a private pool, such as that of a CUDA graph; empty where the file does not say"""
    note: I32 = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    """of each entry the index into `notes`, NO_NOTE where it has none; empty where no entry has one"""
    notes: tuple[str, ...] = ()
    """texts that the program gave to its memory (`user_metadata`, torch 2.14)"""
    annotations: tuple[Annotation, ...] = ()
    allocator_settings: Mapping[str, Any] = field(default_factory=dict)
    torch_version: TorchVersion = TorchVersion()
    rank: int = 0
    rank_how: str = ""
    warnings: tuple[str, ...] = ()
    pinned: Snapshot | None = None
    """pinned memory of the host, as device 0 of a snapshot of its own; None where it was not recorded"""

    def __len__(self) -> int:
        """Entries of history."""
        return len(self.action)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """Devices with history or with segments."""
        return tuple(sorted({*self.device.tolist(), *self.segment_device.tolist()}))

    @cached_property
    def has_history(self) -> bool:
        """Allocations were recorded: without, the file only shows the moment it was written."""
        return any(self.recorded(device) for device in self.devices)

    def recorded(self, device: int) -> bool:
        """This device has a history. One or two entries are what a record without history leaves behind."""
        actions = self.action[self.device == device]
        return len(actions) > 2 and bool(np.isin(actions, (Action.ALLOC, Action.FREE_COMPLETED)).any())

    @cached_property
    def has_clock(self) -> bool:
        """Whether every entry of the history has a time."""
        return bool(len(self.time_us)) and bool((self.time_us >= 0).all())

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """The first and the last moment of its history, in nanoseconds; None where it has no clock."""
        if not self.has_clock:
            return None
        return int(self.time_us.min()) * 1000, int(self.time_us.max()) * 1000

    @cached_property
    def frames_kind(self) -> Literal["all", "python", "cpp", "none"]:
        """Which frames the stacks of allocations hold: `_record_memory_history(stacks="all"|"python")`, C++ only, or none. With
        `context="state"` only blocks that are there at the end have any: those do not tell what the history is about."""
        stacks = np.unique(self.stack[self.action == Action.ALLOC]) if self.has_history else None
        used = (
            {f for s in stacks if s >= 0 for f in self.stacks[s]}
            if stacks is not None
            else range(len(self.frames))
        )
        python = any(self.frames[f].is_python for f in used)
        cpp = any(not self.frames[f].is_python for f in used)
        return "all" if python and cpp else "python" if python else "cpp" if cpp else "none"

    def entries(self, device: int) -> I64:
        """Positions of one device's history."""
        return np.flatnonzero(self.device == device)

    def private_bytes(self, device: int) -> int:
        """Bytes of a device's segments in private pools; 0 where the file does not say."""
        own = (
            self.segment_private & (self.segment_device == device) if len(self.segment_private) else slice(0)
        )
        return int(self.segment_size[own].sum())

    def frames_of(self, stack: int) -> list[StackFrame]:
        """The frames of a stack, innermost first; none for NO_STACK."""
        return [self.frames[f] for f in self.stacks[stack]] if stack >= 0 else []
