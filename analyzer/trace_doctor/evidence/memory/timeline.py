"""The allocator's history replayed: which blocks lived when, and how much was live and reserved at every moment.

A history of n entries has n+1 moments: moment m is after the first m entries. A block is alive at moment m when it
was born by an earlier entry and freed by a later one. All sizes are requested bytes. Blocks alive before the record
are the final active blocks that it did not allocate plus those it frees without having allocated them. The replay is
exact or refused: at the end it must give the final blocks, one by one.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from msgspec import Struct, field

from trace_doctor.arrays import I32, I64, U8, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.snapshot import NO_STACK, Action, BlockState, Snapshot

CAPTURE_ADVICE = (
    'torch.cuda.memory._record_memory_history(stacks="all", max_entries=100000), at least five steps, '
    'then torch.cuda.memory._dump_snapshot("snapshot.pickle")'
)
BEFORE = -1
"""`born` of a block that is older than the record."""


class DeviceHistory(Struct, frozen=True):
    """One device. Columns of blocks are aligned with each other; positions count this device's entries."""

    device: int
    action: U8
    entry_stack: I32
    entry_size: I64
    entry_addr: I64
    time_us: I64

    addr: I64
    size: I64
    born: I64
    """position of the allocation, BEFORE where it is older than the record"""
    freed: I64
    """position of the `free_completed`; n where the block is alive at the end"""
    stack: I32
    """where it was allocated; NO_STACK where nothing says"""

    live: I64
    """requested bytes at every moment (n+1)"""
    reserved: I64 | None
    """bytes of all segments at every moment; None where the segment events contradict the segments"""
    settings: dict[str, object] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """How many entries the history has."""
        return len(self.action)

    @property
    def peak(self) -> int:
        """The first moment of most live bytes that an allocation of the record reaches; without one the first of all."""
        reached = np.flatnonzero(self.live[1:] == self.live.max()) + 1
        reached = reached[self.action[reached - 1] == Action.ALLOC]
        return int(reached[0] if len(reached) else self.live.argmax())

    @property
    def peak_bytes(self) -> int:
        """The highest live bytes."""
        return int(self.live.max())

    def alive(self, moment: int) -> Bool:
        """Mask of the blocks alive at a moment."""
        return (self.born < moment) & (self.freed >= moment)

    def bytes_over_time(self, blocks: Bool | I64) -> I64:
        """What these blocks (mask or positions) hold at every moment."""
        return _sum_over_time(self.n, self.born[blocks] + 1, self.freed[blocks] + 1, self.size[blocks])

    def live_without(self, blocks: Bool | I64, freed: I64 | None = None) -> I64:
        """Live bytes at every moment if these blocks had never been there, or been gone by entry `freed` (one position a
        block, earlier than the real one)."""
        removed_at = self.born[blocks] if freed is None else np.maximum(freed, self.born[blocks])
        return self.live - _sum_over_time(self.n, removed_at + 1, self.freed[blocks] + 1, self.size[blocks])

    def peak_without(self, blocks: Bool | I64, freed: I64 | None = None) -> int:
        """The highest of these. The saving of any fix is `peak_bytes` less this, never a sum of sizes."""
        return int(self.live_without(blocks, freed).max())


class MemoryTimeline(Evidence, frozen=True):
    """Every device whose history could be replayed exactly. Raises NotCaptured when there is none."""

    devices: tuple[DeviceHistory, ...]
    refused: tuple[tuple[int, str], ...] = ()
    """(device, why) of histories that contradict themselves"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        snapshot = facts.snapshot
        wanted = facts.options.device
        histories: list[DeviceHistory] = []
        refused: list[tuple[int, str]] = []
        for device in snapshot.devices:
            if not snapshot.recorded(device) or (wanted is not None and device != wanted):
                continue
            history = replay(snapshot, device)
            if isinstance(history, str):
                refused.append((device, history))
            else:
                histories.append(history)
        if not histories:
            if refused:
                raise NotCaptured(f"the snapshot contradicts itself: {refused[0][1]}", CAPTURE_ADVICE)
            raise NotCaptured(
                "the snapshot holds no allocation history, only the moment it was written", CAPTURE_ADVICE
            )
        return cls(tuple(histories), tuple(refused))


class _Marked(Struct, frozen=True):
    """Entries of a record that allocate or free, by their numbers."""

    entries: I64
    """all of them, by address"""
    born: I64
    """the allocations, by address, then number"""
    freed: I64
    """the free of each, the number of entries where it has none"""
    orphans: I64
    """frees of blocks older than the record"""


def _pair_up(action: U8, addr: I64, size: I64) -> _Marked | str:
    """Each allocation with its free, or the sentence that says how they contradict each other."""
    marks = np.flatnonzero((action == Action.ALLOC) | (action == Action.FREE_COMPLETED))
    marks = marks[np.argsort(addr[marks], kind="stable")]
    is_alloc = action[marks] == Action.ALLOC
    same = np.zeros(len(marks) + 1, dtype=np.bool_)  # does mark i have the same address as mark i-1
    same[1:-1] = addr[marks][1:] == addr[marks][:-1]
    if (same[1:-1] & (is_alloc[1:] == is_alloc[:-1])).any():
        return "an address is allocated or freed twice in a row"
    allocs = np.flatnonzero(is_alloc)
    has_free = same[allocs + 1]
    frees = np.append(marks, 0)[allocs + 1]
    born = marks[allocs]
    if (size[born][has_free] != size[frees[has_free]]).any():
        return "a block is freed with another size than it was allocated with"
    return _Marked(marks, born, np.where(has_free, frees, len(action)), marks[~is_alloc & ~same[:-1]])


def replay(snapshot: Snapshot, device: int) -> DeviceHistory | str:
    """One device's history, or the sentence that says how it contradicts itself."""
    rows = snapshot.entries(device)
    action, addr, size = snapshot.action[rows], snapshot.addr[rows], snapshot.size[rows]
    stack = snapshot.stack[rows]
    n = len(rows)

    marked = _pair_up(action, addr, size)
    if isinstance(marked, str):
        return marked
    born, freed, orphans = marked.born, marked.freed, marked.orphans
    remaining = born[freed == n]

    active = np.flatnonzero(
        (snapshot.segment_device[snapshot.block_segment] == device)
        & (snapshot.block_state != BlockState.INACTIVE)
    )
    active = active[np.argsort(snapshot.block_addr[active], kind="stable")]
    older = _final_blocks(snapshot, active, addr[marked.entries], addr[remaining], size[remaining])
    if isinstance(older, str):
        return older

    def columns(recorded: I64, orphaned: I64, older: I64) -> I64:
        return np.concatenate([recorded, orphaned, older])

    count = len(orphans), len(older)
    sizes = columns(size[born], size[orphans], snapshot.block_requested[older])
    all_born = columns(born, np.full(count[0], BEFORE), np.full(count[1], BEFORE))
    all_freed = columns(freed, orphans, np.full(count[1], n))
    live = _sum_over_time(n, all_born + 1, all_freed + 1, sizes)
    final = int(snapshot.block_requested[active].sum())
    segments = snapshot.segment_requested[snapshot.segment_device == device]
    if (segments >= 0).all() and len(segments) and int(segments.sum()) != final:
        return "requested bytes of the segments and of their blocks differ"
    if int(live[-1]) != final:
        return f"the replayed allocation history ends with {int(live[-1])} allocated bytes, the segments with {final}"
    return DeviceHistory(
        device=device,
        action=action,
        entry_stack=stack,
        entry_size=size,
        entry_addr=addr,
        time_us=snapshot.time_us[rows],
        addr=columns(addr[born], addr[orphans], snapshot.block_addr[older]),
        size=sizes,
        born=all_born,
        freed=all_freed,
        stack=np.concatenate(
            [stack[born], np.full(count[0], NO_STACK, np.int32), snapshot.block_stack[older]]
        ).astype(np.int32),
        live=live,
        reserved=_reserved(snapshot, device, action, addr, size, live),
        settings=dict(snapshot.allocator_settings),
    )


def _final_blocks(snapshot: Snapshot, active: I64, touched: I64, remaining: I64, left_size: I64) -> I64 | str:
    """Of the final active blocks (by address) those older than the record, after comparing the rest with what the
    record left allocated (`remaining`); `touched` are all addresses it allocates or frees."""
    at = snapshot.block_addr[active]
    inside = np.isin(at, remaining)
    recorded = active[inside]
    if len(recorded) != len(remaining):
        return "a block that was never freed is missing at the end"
    if (snapshot.block_requested[recorded] != left_size).any():  # both are ordered by address
        return "a block has another size at the end than when it was allocated"
    if np.isin(at[~inside], touched).any():
        return "a block that was freed is active at the end"
    return active[~inside]


def _reserved(snapshot: Snapshot, device: int, action: U8, addr: I64, size: I64, live: I64) -> I64 | None:
    """Bytes of segments at each moment; None where blocks or their sizes contradict that, as where entries of segments are
    missing."""
    if _outside(snapshot, device, action, addr, size):
        return None
    sign = np.zeros(len(action), dtype=np.int64)
    sign[(action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP)] = 1
    sign[(action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)] = -1
    change = np.concatenate([[0], np.cumsum(sign * size)])
    end = int(snapshot.segment_size[snapshot.segment_device == device].sum())
    reserved: I64 = change + (end - change[-1])
    return reserved if (reserved >= live).all() else None


def _outside(snapshot: Snapshot, device: int, action: U8, addr: I64, size: I64) -> bool:
    """Whether a block lies in no segment that is there at the end, or that was in the record."""
    own = snapshot.segment_device == device
    known = np.isin(
        action, (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
    )
    start = np.concatenate([snapshot.segment_addr[own], addr[known]])
    end = start + np.concatenate([snapshot.segment_size[own], size[known]])
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    blocks = addr[(action == Action.ALLOC) | (action == Action.FREE_COMPLETED)]
    at = np.searchsorted(start, blocks, side="right") - 1
    return bool(len(blocks)) and bool(((at < 0) | (blocks >= np.append(end, 0)[at])).any())


def _sum_over_time(n: int, first: I64, last: I64, size: I64) -> I64:
    """Bytes at each of n+1 moments, of blocks alive in [first, last)."""
    change = np.zeros(n + 2, dtype=np.int64)
    np.add.at(change, first, size)
    np.subtract.at(change, last, size)
    return np.cumsum(change)[: n + 1]
