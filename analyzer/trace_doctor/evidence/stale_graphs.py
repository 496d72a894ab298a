"""Blocks of a forward that are still there when the next forward of the same code has ended, and die then.

A variable that is assigned in a loop holds its old value until the new one is there: `output = model(x)` keeps the last
output, and with it the graph where no backward has freed it, through the whole next forward.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trace_doctor.evidence.memory_blocks import DeviceBlocks
from trace_doctor.evidence.memory_classes import ACTIVATIONS, TEMPORARIES
from trace_doctor.evidence.memory_stages import Stage
from trace_doctor.evidence.memory_timeline import BEFORE
from trace_doctor.run import I64
from trace_doctor.snapshot import Action


@dataclass(frozen=True)
class StaleGraphs:
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
    number = np.cumsum(opens) - 1
    first = allocations[opens]
    last = allocations[inside & ~np.append(inside[1:], False)]
    backwards = allocations[stage == Stage.BACKWARD]
    found: list[tuple[int, int, int]] = []
    forward_of = np.full(history.n, -1, dtype=np.int64)
    forward_of[allocations[inside]] = number[inside]
    category = device.classes.category
    kept = (history.born != BEFORE) & np.isin(category, (ACTIVATIONS, TEMPORARIES))
    kept &= forward_of[np.maximum(history.born, 0)] >= 0
    kept &= np.append(phases.stage, np.uint8(Stage.UNKNOWN))[phases.of(history.freed)] != Stage.BACKWARD
    candidates = np.flatnonzero(kept)
    for stack in np.unique(history.stack[candidates]).tolist():
        mine = candidates[history.stack[candidates] == stack]
        made = forward_of[history.born[mine]]
        calls = np.unique(made)
        if len(calls) < 2 or _grows(history.size[mine], made):
            continue
        at = np.searchsorted(calls, made)
        after = np.append(calls, [-1, -1])
        next_, second = after[at + 1], after[at + 2]
        ends = np.where(next_ >= 0, last[next_], history.n)
        dies = np.where(second >= 0, last[second], history.n - 1)
        stale = (next_ >= 0) & (history.freed[mine] > ends) & (history.freed[mine] <= dies)
        begins = first[np.maximum(next_, 0)]
        if len(backwards):
            passed = np.searchsorted(backwards, begins) > np.searchsorted(backwards, last[made])
            stale &= passed
        found += zip(mine[stale].tolist(), made[stale].tolist(), begins[stale].tolist(), strict=True)
    blocks, forward, until = np.array(sorted(found), dtype=np.int64).reshape(-1, 3).T
    return StaleGraphs(blocks, forward, until, not len(backwards))


def _grows(size: I64, forward: I64) -> bool:
    """Every forward allocates a little more here than the one before: keys and values of one more token."""
    sums = np.bincount(forward, weights=size)[np.unique(forward)]
    return len(sums) > 2 and bool((np.diff(sums) > 0).all())
