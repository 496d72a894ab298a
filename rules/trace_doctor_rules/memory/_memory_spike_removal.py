"""Blocks that go together when a peak goes: one matrix in many places, and what an edit takes off as well."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trace_doctor.arrays import Bool
from trace_doctor.evidence.memory.blocks import DeviceBlocks
from trace_doctor.evidence.memory.classes import ACTIVATIONS, Reason
from trace_doctor.evidence.memory.stages import Stage
from trace_doctor_rules import techniques
from trace_doctor_rules.memory._remedies import ATTENTION, kind_of

LOSS, SDPA = techniques.chunked_loss().title, techniques.use_sdpa().title
AS_WELL = {LOSS: "with one chunk of the logits at a time", SDPA: "without any score matrix"}
"""edit -> what else it takes off the peak"""


def blocks_that_go(
    device: DeviceBlocks, short: Bool, at_peak: Bool, place: npt.NDArray[np.object_], max_presence: float
) -> Bool:
    """All short-lived blocks of the places that made those at the peak; and of those that make as large ones where the
    highest moment is then: the scores, masked, as softmax makes them and as dropout leaves them are one matrix in many
    places, some of which are always there together. Not where one of them is nearly always there: it is what flows from
    layer to layer, not a spike."""
    history = device.history
    of_peak = short & np.isin(place, sorted(set(place[at_peak])))
    large = history.size == int(history.size[at_peak].max())
    members, more = of_peak.copy(), at_peak
    while more.any():
        members |= short & np.isin(place, sorted(set(place[more])))
        highest = int(history.live_without(members).argmax())
        more = short & ~members & history.alive(highest) & large
    first = int(history.born[members & large].min())
    there = history.bytes_over_time(members & large)[first:-1] > 0
    return of_peak if there[history.action[first:] == 1].mean() > max_presence else members


def unused_graphs(device: DeviceBlocks) -> Bool:
    """What forwards save for a backward that never runs: without gradients it is not there."""
    unused: Bool = device.classes.where(ACTIVATIONS) & (device.classes.reason == Reason.LET_GO)
    return unused


def that_go_as_well(device: DeviceBlocks, at_peak: Bool, fix: str, twins: dict[int, int]) -> Bool:
    """Blocks beside the short-lived ones that a fix does away with; none where it is not known to."""
    if fix == LOSS:
        return all_logits(device, at_peak)
    return score_matrices(device, at_peak, twins) if fix == SDPA else np.zeros(len(at_peak), dtype=np.bool_)


def score_matrices(device: DeviceBlocks, at_peak: Bool, twins: dict[int, int]) -> Bool:
    """All score matrices: of the size of the largest at the peak, or (in 16 and 32 bits) of half or double of it, that a line
    of attention makes, or a backward where most forward tensors of this size are such. Also those that autograd saves, of
    every layer."""
    history = device.history
    attention = {
        s for s in np.unique(history.stack).tolist() if s >= 0 and kind_of(device.stacks, s) == ATTENTION
    }
    attention_twins = {s for s, twin in twins.items() if twin in attention}
    largest = int(
        history.size[at_peak & np.isin(history.stack, sorted(attention | attention_twins))].max(initial=0)
    )
    scores: Bool = np.zeros(len(at_peak), dtype=np.bool_)
    backward = device.stacks.stages(history.stack) == Stage.BACKWARD
    for alike in (history.size == largest, 2 * history.size == largest, history.size == 2 * largest):
        scores |= alike & np.isin(history.stack, sorted(attention))
        by_stack = np.bincount(history.stack[alike & ~backward & (history.stack >= 0)])
        if by_stack.any() and int(by_stack.argmax()) in attention:
            scores |= alike & backward
    return scores


def all_logits(device: DeviceBlocks, at_peak: Bool) -> Bool:
    """What a loss in parts never holds whole besides: blocks of forward that stand at the peak beside the largest, as large or
    (in 16 bits) half as large, tokens x vocabulary all of them; and those of the same places in other steps."""
    history = device.history
    largest = int(history.size[at_peak].max())
    alike = (history.size == largest) | (2 * history.size == largest)
    forward = device.stacks.stages(history.stack) != Stage.BACKWARD
    there: Bool = alike & forward & history.alive(history.peak) & (history.stack >= 0)
    logits: Bool = alike & forward & np.isin(history.stack, np.unique(history.stack[there]))
    return logits


def forward_twins(device: DeviceBlocks, blocks: Bool) -> dict[int, int]:
    """For stacks of backward: the forward stack that makes most blocks of the same size, whose gradient it may be."""
    history, stacks = device.history, device.stacks
    phases = device.phases
    if not len(phases.first):
        return {}
    recorded = history.born >= phases.first[0]
    forward = recorded & (phases.stage[phases.of(history.born)] == Stage.FORWARD)
    twins: dict[int, int] = {}
    backward = stacks.stages(history.stack) == Stage.BACKWARD
    for block in np.flatnonzero(blocks & backward):
        alike = history.stack[forward & ~backward & (history.size == history.size[block])]
        if len(alike):
            values, counts = np.unique(alike, return_counts=True)
            twins.setdefault(int(history.stack[block]), int(values[counts.argmax()]))
    return twins
