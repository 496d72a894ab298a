"""The blocks of memory of one capture, moment by moment, and how they lie in their segments."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from trace_doctor.model.quantities import Bytes, Count


class LiveBlocks(Struct, frozen=True, kw_only=True):
    """Blocks one by one, as columns. Block i is allocated at the points first[i] <= p < last[i]."""

    size: list[Bytes] = field(default_factory=list)
    """requested bytes"""
    category: list[Count] = field(default_factory=list)
    """index in MEMORY_CATEGORIES"""
    node: list[int] = field(default_factory=list)
    """where it was allocated: a node of the stacks; -1 without frames"""
    first: list[Count] = field(default_factory=list)
    last: list[Count] = field(default_factory=list)
    since: list[float] = field(default_factory=list)
    """when it was allocated, in the unit of the points; -1 before the record"""
    step: list[int] = field(default_factory=list)
    """the training step it was allocated in; -1 where not known"""


class AddedBlocks(Struct, frozen=True, kw_only=True):
    """Blocks of one class and stack added up: at each point of `changes` (point, bytes, blocks) so much comes or goes."""

    category: Count
    node: int
    changes: list[tuple[Count, int, int]]


class SegmentDetail(Struct, frozen=True, kw_only=True):
    """One segment when the snapshot was written."""

    address: Count
    size: Bytes
    blocks: list[tuple[Count, Bytes, Bytes, Count, Count, int]]
    """(offset, size, requested bytes, state, class, node) by offset; state 0 is free, 1 active, 2 freed but still
    awaited by another stream"""


class SegmentSpace(Struct, frozen=True, kw_only=True):
    """The reserved bytes of a device when the snapshot was written: allocated + rounding + both free ones, exactly."""

    reserved: Bytes
    allocated: Bytes
    """requested bytes"""
    rounding: Bytes
    """what the blocks are larger than requested"""
    free_split: Bytes
    """free, in segments that hold blocks"""
    free_segments: Bytes
    """in segments that are entirely free"""
    largest_free: Bytes
    """the largest free block"""
    segments: Count
    blocks: Count
    """allocated ones"""


class DeviceBlocksDetail(Struct, frozen=True, kw_only=True):
    """One device. A device without a history has one point: when the snapshot was written."""

    device: int
    unit: Literal["us", "entry", "end"]
    at: list[float]
    """the points: the moments of the memory series before it is thinned, and the failed allocations"""
    peak: Count
    """point of the highest allocated bytes"""
    failures: list[Count] = field(default_factory=list)
    """points of failed allocations"""
    live: list[Bytes]
    """allocated bytes at every point: those of `blocks` and of `added` together"""
    blocks: LiveBlocks
    added: list[AddedBlocks] = field(default_factory=list)
    recorded: Count
    """blocks that are allocated at any point; `blocks` has the largest of them"""
    segments: list[SegmentDetail] = field(default_factory=list)
    """the largest ones"""
    space: SegmentSpace


class MemoryDetail(Struct, frozen=True, kw_only=True):
    """Stacks are paths in one tree, outermost frame first; node n is frame `frame[n]` called from node `parent[n]`."""

    frames: list[str]
    """`file:line function`; foreign text"""
    library: list[Count]
    """which of them are PyTorch's own"""
    parent: list[int]
    frame: list[Count]
    devices: list[DeviceBlocksDetail]
