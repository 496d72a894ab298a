"""Allocations that failed, and how memory lay at that moment: free on the device, cached, and in which gaps."""

from __future__ import annotations

from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.stages import Stage
from trace_doctor.snapshot import Action, BlockState, Snapshot

ROUND = 512
"""Blocks are multiples of this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""


class OtherDevice(Struct, frozen=True):
    """What this process held on another device. Bytes, at most over the record; of a device without a history when the
    snapshot was written. What other processes held there is in no snapshot."""

    device: int
    allocated: int
    reserved: int
    over_record: bool


class Failure(Struct, frozen=True):
    """One `oom` entry. Bytes."""

    device: DeviceBlocks
    moment: int
    """just before the entry"""
    requested: int
    device_free: int | None
    """what the driver had left; None where the file does not say"""
    reserved: int | None
    live: int
    cached: int | None
    """reserved but in no live block"""
    largest_gap: int | None
    """the largest piece of that in one stretch"""
    retried: int
    """bytes of segments given back just before, to make room"""
    stack: int
    count: int
    """failures of this device in the record; this is the last one"""
    stage: Stage = Stage.UNKNOWN
    """that it happened in; the script behind a forward (the loss) is forward"""
    rise_before: int | None = None
    """by how much live memory rose above this request in the step before, from the same allocation on; None where the record
    does not have one"""
    before_any_step: bool = False
    """the record shows no optimizer step before this, and no forward that follows a backward: none is known to have been"""
    others: tuple[OtherDevice, ...] = ()
    """devices of the same process"""

    def nearly_empty(self, share: float) -> tuple[OtherDevice, ...]:
        """Other devices of which this process used at most this share of what it could have had here. None where the file
        belongs to one rank of several: those devices are then likely other ranks'."""
        most = self.device_bytes
        if most is None or self.device.stacks.snapshot.rank_how:
            return ()
        return tuple(d for d in self.others if d.reserved <= share * most)

    @property
    def missing(self) -> int | None:
        """What has to be freed for this request; all of it where the process has reached a limit that no file tells."""
        if self.device_free is None:
            return None
        return self.requested if self.limited else self.requested - self.device_free

    @property
    def limited(self) -> bool:
        """The device had enough left for the request: the process may take no more (`set_per_process_memory_fraction`)."""
        return self.device_free is not None and self.device_free >= self.requested

    @property
    def fits_if_packed(self) -> bool | None:
        """Whether the request would have found room, had all free bytes lain in one piece."""
        if self.missing is None or self.cached is None:
            return None
        return self.missing <= self.cached

    @property
    def device_bytes(self) -> int | None:
        """What this process could have had: free on the device and reserved."""
        if self.device_free is None or self.reserved is None:
            return None
        return self.device_free + self.reserved


class OutOfMemory(Evidence, frozen=True):
    """The last failure of every device that has one. Raises NotCaptured without a history."""

    failures: tuple[Failure, ...]

    @classmethod
    def build(cls, facts: Facts) -> Self:
        snapshot = facts.snapshot
        failures: list[Failure] = []
        replayed = {d.device: d for d in facts[MemoryBlocks].devices}
        for device in replayed.values():
            at = np.flatnonzero(device.history.action == Action.OOM)
            if len(at):
                failures.append(_failure(snapshot, device, replayed, int(at[-1]), len(at)))
        return cls(tuple(failures))


def _failure(
    snapshot: Snapshot, device: DeviceBlocks, replayed: dict[int, DeviceBlocks], at: int, count: int
) -> Failure:
    history = device.history
    free = int(history.entry_addr[at])
    live = int(history.live[at])
    reserved = None if history.reserved is None else int(history.reserved[at])
    gaps = gaps_at(snapshot, device, at) if reserved is not None else None
    return Failure(
        device=device,
        moment=at,
        requested=int(history.entry_size[at]),
        device_free=free if free >= 0 else None,
        reserved=reserved,
        live=live,
        cached=None if reserved is None else reserved - live,
        largest_gap=int(gaps.max(initial=0)) if gaps is not None else None,
        retried=_given_back(device, at),
        stack=int(history.entry_stack[at]),
        count=count,
        stage=_stage(device, at),
        rise_before=_rise_before(device, at),
        before_any_step=_before_any_step(device, at),
        others=tuple(_other(snapshot, d, replayed.get(d)) for d in snapshot.devices if d != history.device),
    )


def _stage(device: DeviceBlocks, at: int) -> Stage:
    phases = device.phases
    stage = Stage(int(phases.entry_stage[at]))
    phase = int(phases.of(np.array([at]))[0])
    behind_forward = phase >= 0 and (phases.after_forward[phase] or phases.stage[phase] == Stage.FORWARD)
    return Stage.FORWARD if stage == Stage.SCRIPT and behind_forward else stage


def _before_any_step(device: DeviceBlocks, at: int) -> bool:
    """An optimizer may step without allocating: the forward of the next step then tells that it has."""
    ran = device.phases.stage[device.phases.first < at]
    backward = np.flatnonzero(ran == Stage.BACKWARD)
    again = len(backward) > 0 and bool((ran[backward[0] :] == Stage.FORWARD).any())
    return not again and Stage.OPTIMIZER not in ran


def _rise_before(device: DeviceBlocks, at: int) -> int | None:
    """The step before is told by a backward between: of its allocations of this stack and size the one of the same number."""
    history, phases = device.history, device.phases
    same = np.flatnonzero(
        (history.action[:at] == Action.ALLOC)
        & (history.entry_stack[:at] == history.entry_stack[at])
        & (history.entry_size[:at] == history.entry_size[at])
    )
    backwards = np.array([first for first, _ in phases.spans(Stage.BACKWARD)], dtype=np.int64)
    step = np.searchsorted(backwards, same)
    earlier = same[step < np.searchsorted(backwards, at)]
    if history.entry_stack[at] < 0 or not len(earlier):
        return None
    twins = same[step == np.searchsorted(backwards, earlier[-1])]
    number = len(same) - len(earlier)
    if number >= len(twins):
        return None
    twin = int(twins[number])
    back = phases.next_of(np.array([twin]), Stage.BACKWARD)
    end = min(int(phases.next_of(back, Stage.FORWARD)[0]), at)
    return int(history.live[twin + 1 : end + 1].max() - history.live[twin + 1])


def _other(snapshot: Snapshot, device: int, replayed: DeviceBlocks | None) -> OtherDevice:
    history = None if replayed is None else replayed.history
    if history is not None and history.reserved is not None:
        return OtherDevice(device, history.peak_bytes, int(history.reserved.max()), True)
    here = snapshot.segment_device == device
    used = here[snapshot.block_segment] & (snapshot.block_state != BlockState.INACTIVE)
    return OtherDevice(
        device, int(snapshot.block_requested[used].sum()), int(snapshot.segment_size[here].sum()), False
    )


def _given_back(device: DeviceBlocks, at: int) -> int:
    """Segments freed between the last successful allocation and the failure."""
    history = device.history
    allocations = np.flatnonzero(history.action[:at] == Action.ALLOC)
    since = int(allocations[-1]) if len(allocations) else 0
    window = slice(since, at)
    frees = np.isin(history.action[window], (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    return int(history.entry_size[window][frees].sum())


def gaps_at(snapshot: Snapshot, device: DeviceBlocks, moment: int) -> I64:
    """Free stretches inside the segments at a moment. What a block was not split by counts as free, so that a gap may be
    up to 1 MiB too large."""
    history = device.history
    start, end = _segments_at(snapshot, device, moment)
    alive = history.alive(moment)
    addr, size = history.addr[alive], -(-history.size[alive] // ROUND) * ROUND
    order = np.argsort(addr, kind="stable")
    addr, size = addr[order], size[order]
    edges_from = np.concatenate([start, addr + size])
    edges_to = np.sort(np.concatenate([addr, end]))
    gaps: I64 = edges_to - np.sort(edges_from)
    return gaps[gaps > 0]


def _segments_at(snapshot: Snapshot, device: DeviceBlocks, moment: int) -> tuple[I64, I64]:
    """(start, end) of the segments at a moment: those of the file with the later events undone. Pieces of an expandable
    segment that touch are one."""
    history = device.history
    on_device = snapshot.segment_device == history.device
    pieces = set(
        zip(
            snapshot.segment_addr[on_device].tolist(),
            (snapshot.segment_addr[on_device] + snapshot.segment_size[on_device]).tolist(),
            strict=True,
        )
    )
    for at in range(history.n - 1, moment - 1, -1):
        action = history.action[at]
        piece = (int(history.entry_addr[at]), int(history.entry_addr[at] + history.entry_size[at]))
        if action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            pieces.add(piece)
        elif action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            pieces = _less(pieces, piece)
    ordered = sorted(pieces)
    start = np.array([a for a, _ in ordered], dtype=np.int64)
    end = np.array([b for _, b in ordered], dtype=np.int64)
    apart = np.ones(len(start), dtype=np.bool_)
    if history.settings.get("expandable_segments"):
        apart[1:] = start[1:] != end[:-1]
    return start[apart], end[np.append(apart[1:], True)] if len(end) else end


def _less(pieces: set[tuple[int, int]], hole: tuple[int, int]) -> set[tuple[int, int]]:
    """Intervals without one that lies in them."""
    remaining: set[tuple[int, int]] = set()
    for a, b in pieces:
        if b <= hole[0] or a >= hole[1]:
            remaining.add((a, b))
            continue
        if a < hole[0]:
            remaining.add((a, hole[0]))
        if b > hole[1]:
            remaining.add((hole[1], b))
    return remaining
