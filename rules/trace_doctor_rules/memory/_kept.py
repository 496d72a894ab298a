"""What is kept for a backward, and whether one comes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trace_doctor.evidence.memory_blocks import DeviceBlocks
from trace_doctor.evidence.memory_classes import ACTIVATIONS, Reason
from trace_doctor.evidence.memory_repeats import Repeats, repeats
from trace_doctor.evidence.memory_stages import Stage

SHARE = 0.50
"""Activations of the live bytes, from which most of the memory is theirs."""


def unused_graph(device: DeviceBlocks, moment: int) -> bool:
    """Whether most of the memory at this moment is a graph that no backward uses."""
    held = device.at(moment)["activations"]
    if held < SHARE * int(device.history.live[moment]):
        return False
    return let_go(device, moment) and trains(device, moment, repeats(device, moment))


def trains(device: DeviceBlocks, moment: int, found: Repeats | None) -> bool:
    """Kept for a backward: the record has one, whole layers have left their activations for it, or a compiled forward
    returned them for it."""
    if device.phases.has(Stage.BACKWARD, Stage.OPTIMIZER, Stage.ZERO_GRAD) or found is not None:
        return True
    history, stacks = device.history, device.stacks
    compiled = stacks.marked(stacks.for_backward, history.stack)
    return _most(device, moment, compiled)


def let_go(device: DeviceBlocks, moment: int) -> bool:
    """Most of them went with a graph that no backward used."""
    return _most(device, moment, device.classes.reason == Reason.LET_GO)


def _most(device: DeviceBlocks, moment: int, blocks: npt.NDArray[np.bool_]) -> bool:
    """Whether these are more than half of the activations alive at a moment."""
    history = device.history
    activations = device.classes.where(ACTIVATIONS) & history.alive(moment)
    return int(history.size[activations & blocks].sum()) * 2 > int(history.size[activations].sum())
