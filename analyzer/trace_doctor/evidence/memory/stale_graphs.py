"""Blocks of a forward that are still there when the next forward of the same code has ended, and die then.

A variable that is assigned in a loop holds its old value until the new one is there: `output = model(x)` keeps the last
output, and with it the graph where no backward has freed it, through the whole next forward.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from trace_doctor.arrays import I64, Bool, at_rows
from trace_doctor.evidence.memory.blocks import DeviceBlocks
from trace_doctor.evidence.memory.classes import ACTIVATIONS, GRAPH_BLOCKS, GRAPH_STACKS, TEMPORARIES, Reason
from trace_doctor.evidence.memory.stages import Stage
from trace_doctor.evidence.memory.timeline import BEFORE
from trace_doctor.snapshot import Action


class StaleGraphs(Struct, frozen=True):
    """Of one device. Aligned by block."""

    blocks: I64
    """positions of the blocks"""
    forward: I64
    """number of the forward that made each of them"""
    until: I64
    """entry at which the next forward begins: freed by then, they would be in nobody's way"""
    inference: bool
    """the record holds no backward"""

    @property
    def forwards(self) -> I64:
        """The forwards that left something behind."""
        return np.unique(self.forward)

    def most(self, device: DeviceBlocks) -> int:
        """Bytes that the worst of them left behind."""
        sizes = np.bincount(self.forward, weights=device.history.size[self.blocks])
        return int(sizes.max(initial=0))


def stale_graphs(device: DeviceBlocks) -> StaleGraphs:
    """Forwards are runs of allocations in modules, with others in between; the next forward of a block is the next one in
    which its stack allocates again. In a record with backwards one has to lie between the two, for until then the graph is
    needed, and a block that a backward frees was. A cache that grows from call to call is read by the next and left out."""
    history, phases = device.history, device.phases
    allocations = np.flatnonzero(history.action == Action.ALLOC)
    stage = phases.entry_stage[allocations]
    inside = stage == Stage.FORWARD
    opens = inside & ~np.concatenate([[False], inside[:-1]])
    first = allocations[opens]
    last = allocations[inside & ~np.append(inside[1:], False)]
    forward_of = np.full(history.n, -1, dtype=np.int64)
    forward_of[allocations[inside]] = np.cumsum(opens)[inside] - 1
    backwards = allocations[stage == Stage.BACKWARD]

    made = np.flatnonzero(history.born != BEFORE)
    made = made[forward_of[history.born[made]] >= 0]
    forward, stack = forward_of[history.born[made]], history.stack[made].astype(np.int64)
    calls, call = np.unique(stack * (len(first) + 1) + forward, return_inverse=True)
    of_stack, of_forward = calls // (len(first) + 1), calls % (len(first) + 1)
    next_ = _later(of_stack, of_forward, 1)[call]
    second = _later(of_stack, of_forward, 2)[call]

    freed, begins = history.freed[made], at_rows(first, next_, -1)
    dies = at_rows(last, second, history.n - 1)
    stale = (freed > at_rows(last, next_, history.n)) & (freed <= dies)
    stale &= np.isin(device.classes.category[made], (ACTIVATIONS, TEMPORARIES))
    freed_in = np.append(phases.stage, np.uint8(Stage.UNKNOWN))[phases.of(freed)]
    stale &= freed_in != Stage.BACKWARD
    stale &= ~_growing(of_stack, np.bincount(call, weights=history.size[made], minlength=len(calls)))[call]
    if len(backwards):
        stale &= np.searchsorted(backwards, begins) > np.searchsorted(backwards, last[forward])
    blocks, forward, begins = made[stale], forward[stale], begins[stale]
    if len(backwards):
        return StaleGraphs(blocks, forward, begins, inference=False)
    graphs, number, until = _side_by_side(device)
    more = ~np.isin(graphs, blocks)
    return StaleGraphs(
        np.concatenate([blocks, graphs[more]]),
        np.concatenate([forward, len(first) + number[more]]),
        np.concatenate([begins, until[more]]),
        inference=True,
    )


def _side_by_side(device: DeviceBlocks) -> tuple[I64, I64, I64]:
    """(blocks, number of the graph, where the next one begins) of graphs that went unused, each at once, and only when the
    next one was complete. No allocation has to lie between the forwards, and the first may be older than the record."""
    history, classes = device.history, device.classes
    graph = np.flatnonzero(
        classes.where(ACTIVATIONS) & ((classes.reason == Reason.LET_GO) | (history.freed == history.n))
    )
    allocations = np.concatenate([[0], np.cumsum(history.action == Action.ALLOC)])
    went = allocations[history.freed[graph]]
    went[history.freed[graph] == history.n] = history.n  # what stands at the end is the last one
    moments, counts = np.unique(went, return_counts=True)
    groups = [graph[went == moment] for moment in moments[counts >= GRAPH_STACKS * GRAPH_BLOCKS]]
    groups.sort(key=lambda blocks: int(np.median(history.born[blocks])))
    stale = [
        (blocks, int(history.born[after].min()))
        for blocks, after in pairwise(groups)
        if history.born[after].max() < history.freed[blocks].min() < history.n
    ]
    sizes = [len(blocks) for blocks, _ in stale]
    return (
        np.concatenate([graph[:0], *(blocks for blocks, _ in stale)]),
        np.repeat(np.arange(len(stale)), sizes),
        np.repeat(np.array([begins for _, begins in stale], dtype=np.int64), sizes),
    )


def _later(stack: I64, forward: I64, by: int) -> I64:
    """For calls ordered by stack and forward: the forward of the call so many further on, -1 where the stack has none."""
    later = np.full(len(stack), -1, dtype=np.int64)
    if len(stack) > by:
        same = stack[by:] == stack[:-by]
        later[:-by][same] = forward[by:][same]
    return later


def _growing(stack: I64, byte_counts: npt.NDArray[Any]) -> Bool:
    """Calls of stacks that allocate more in each of three or more forwards than in the one before: keys and values of one
    more token."""
    if not len(stack):
        return np.zeros(0, dtype=np.bool_)
    begins = np.flatnonzero(np.diff(stack, prepend=-2))
    rises = np.diff(byte_counts, prepend=0) > 0
    rises[begins] = True
    counts = np.diff(np.append(begins, len(stack)))
    grows: Bool = np.repeat(np.logical_and.reduceat(rises, begins) & (counts > 2), counts)
    return grows
