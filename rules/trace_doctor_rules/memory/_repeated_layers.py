"""Activations of a model's repeated blocks, what would be live if backward computed them again, and how to have it do so.

The layers of a model run the same code, so that each of their allocations has the same stack in every layer: a stack
with 24 blocks of memory alive is one of 24 layers. No name of a module is needed for that.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from trace_doctor import Fix
from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.memory.blocks import DeviceBlocks
from trace_doctor.evidence.memory.classes import ACTIVATIONS, INPUTS, TEMPORARIES
from trace_doctor.evidence.memory.stages import Stage
from trace_doctor.evidence.memory.stale_graphs import StaleGraphs
from trace_doctor.evidence.memory.timeline import BEFORE, DeviceHistory
from trace_doctor_rules import techniques

_CHECKPOINT = re.compile(r"(?:^|[\\/])torch[\\/]utils[\\/]checkpoint\.py$")


class Repeats(Struct, frozen=True):
    """The layers whose activations a forward leaves behind."""

    count: int
    """how many layers"""
    stacks: I64
    """those that every layer has, the one that holds most first"""
    per_layer: I64
    """blocks that one layer makes at each of them"""
    bytes: int
    """what all layers hold together at the end of their forward"""


def repeats(
    device: DeviceBlocks, moment: int, stale: StaleGraphs, *, min_stacks: int, min_explained: float
) -> Repeats | None:
    """The layers whose activations are alive at a moment, or were when its forward ended, those of the forward before left
    out; None where nothing repeats, or in fewer stacks than `min_stacks`."""
    history = device.history
    recorded = _recorded(device)
    left = stale.blocks[recorded[stale.blocks]]
    live = history.bytes_over_time(recorded)
    live -= history.live - history.live_without(left, stale.until[recorded[stale.blocks]])
    full = int(live[: moment + 1].argmax())
    activations = recorded & history.alive(full)
    activations[stale.blocks[stale.until < full]] = False
    alive = np.flatnonzero(activations)
    stacks, which, counts = np.unique(history.stack[alive], return_inverse=True, return_counts=True)
    bytes_by_stack = np.bincount(which, weights=history.size[alive], minlength=len(stacks)).astype(np.int64)
    count = _layers(counts, bytes_by_stack, min_explained)
    if count is None:
        return None
    order = np.argsort(-bytes_by_stack, kind="stable")
    order = order[_fits(counts[order], count)]
    if len(order) < min_stacks:
        return None
    return Repeats(
        count, stacks[order].astype(np.int64), counts[order] // count, int(bytes_by_stack[order].sum())
    )


def live_when_recomputed(device: DeviceBlocks, repeats: Repeats, stale: StaleGraphs) -> I64:
    """Live bytes at every moment if every layer kept the last block it makes, from which the next one starts,
    and nothing else from its own end until backward comes to it. What is stale is gone before the next forward. Where every other
    layer is checkpointed already, what that keeps stays."""
    history = device.history
    again = repeats.stacks
    if not checkpointed(device, int(again[0])):
        again = again[[not checkpointed(device, s) for s in again.tolist()]]
    blocks = np.flatnonzero(_recorded(device) & np.isin(history.stack, again))
    blocks = blocks[np.lexsort((history.born[blocks], history.stack[blocks]))]
    stacks, begins, counts = np.unique(history.stack[blocks], return_index=True, return_counts=True)
    nth = np.arange(len(blocks)) - np.repeat(begins, counts)
    each = repeats.per_layer[np.argsort(repeats.stacks)][np.searchsorted(np.sort(repeats.stacks), stacks)]
    number = nth // np.repeat(each, counts)
    order = np.lexsort((history.born[blocks], number))
    block, first = blocks[order], np.flatnonzero(np.diff(number[order], prepend=-1))
    last = np.append(first[1:], len(block)) - 1
    dies = history.freed.copy()
    dies[stale.blocks] = stale.until + 1  # gone with the others, and no layer of it is ever there again
    freed = np.where(dies[block] < history.n, dies[block], history.n + 1)
    freed_at = history.born[block[last]] + 1
    back = np.maximum(np.minimum.reduceat(freed, first), freed_at)
    size = np.add.reduceat(history.size[block], first) - history.size[block[last]]
    less = np.zeros(history.n + 2, dtype=np.int64)
    np.add.at(less, freed_at, size)
    np.subtract.at(less, back, size)
    live = history.live_without(stale.blocks, stale.until)
    remaining: I64 = live - np.cumsum(less)[: history.n + 1]
    return remaining


def trains(device: DeviceBlocks, activations: Bool, layers: Repeats | None) -> bool:
    """Kept for a backward: the record has one, whole layers have left their activations for it, or a compiled forward
    returned them for it."""
    if device.phases.has(Stage.BACKWARD, Stage.OPTIMIZER, Stage.ZERO_GRAD) or layers is not None:
        return True
    stacks = device.stacks
    return most_of(device, activations, stacks.marked(stacks.for_backward, device.history.stack))


def most_of(device: DeviceBlocks, activations: Bool, blocks: Bool) -> bool:
    """Whether these are more than half of what is kept."""
    size = device.history.size
    return int(size[activations & blocks].sum()) * 2 > int(size[activations].sum())


def once_read(history: DeviceHistory, mask: Bool) -> tuple[I64, I64]:
    """Blocks of a mask by their birth, and the entry by which each could go in a forward without gradients: when the next one is
    there. One older than the record would not have been made."""
    blocks = np.flatnonzero(mask)
    blocks = blocks[np.argsort(history.born[blocks], kind="stable")]
    following = np.minimum(np.append(history.born[blocks[1:]], history.n) + 1, history.freed[blocks])
    return blocks, np.where(history.born[blocks] == BEFORE, BEFORE, following)


def with_the_batch(device: DeviceBlocks) -> Bool:
    """Blocks of the classes that grow with the batch."""
    mask: Bool = np.isin(device.classes.category, (ACTIVATIONS, INPUTS, TEMPORARIES))
    return mask


def checkpointing(device: DeviceBlocks, layers: Repeats | None, verify: str) -> list[Fix]:
    """The fix; of a model that has some layers checkpointed already, the others'."""
    if not any(_CHECKPOINT.search(f.filename) for f in device.stacks.snapshot.frames):
        return [techniques.checkpoint_blocks(verify)]
    return [] if layers is None else [techniques.checkpoint_other_layers(verify)]


def checkpointed(device: DeviceBlocks, stack: int) -> bool:
    """Whether checkpointing is around what allocates there."""
    return any(_CHECKPOINT.search(f.filename) for f in device.stacks.snapshot.frames_of(stack))


def _recorded(device: DeviceBlocks) -> Bool:
    """Activations that the record saw being made, by a stack that is known."""
    history = device.history
    mask: Bool = device.classes.where(ACTIVATIONS) & (history.born != BEFORE) & (history.stack >= 0)
    return mask


def _layers(counts: I64, held: I64, min_explained: float) -> int | None:
    """The largest number of layers that explains this part of the bytes that the best number does: stacks with as many
    blocks, or twice as many, or ..."""
    numbers = np.unique(counts[counts > 1])
    if not len(numbers):
        return None
    explained = np.array([int(held[_fits(counts, n)].sum()) for n in numbers], dtype=np.int64)
    return int(numbers[explained >= min_explained * explained.max()].max())


def _fits(counts: I64, layers: int) -> Bool:
    """Each layer makes as many blocks there; where memory ran out in the middle of one more, that has made some."""
    each = counts // layers
    fits: Bool = (each > 0) & (counts - each * layers <= each)
    return fits
