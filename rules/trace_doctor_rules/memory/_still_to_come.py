"""What a step needs after an allocation that failed, and what the next step needs at the same place."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from trace_doctor.evidence.memory.blocks import DeviceBlocks
from trace_doctor.evidence.memory.classes import ACTIVATIONS, HELD, PARAMETERS
from trace_doctor.evidence.memory.out_of_memory import Failure
from trace_doctor.evidence.memory.stages import Stage
from trace_doctor.evidence.memory.stale_graphs import stale_graphs
from trace_doctor.evidence.memory.timeline import BEFORE
from trace_doctor_rules.memory._repeated_layers import Repeats, repeats, trains
from trace_doctor_rules.memory._shared import mib
from trace_doctor_rules.memory.activation_bound import ActivationBound

_CLASS = re.compile(r"Optimizer\.(?:step|zero_grad)#(\w+)\.")
_COPIES = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adagrad": 1, "Lion": 1}
"""tensors of a parameter's size that an optimizer keeps for it, of those that need no argument for it"""
_OTHER_SHARE = 0.10
"""of the bytes in older blocks: in so many, sizes whose number of blocks no parameters with their state have"""


class StillToCome(Struct, frozen=True):
    """Bytes beyond the request that failed; 0 where nothing is known to follow."""

    in_step: int
    """later in the same step"""
    as_before: bool
    """that is how far memory rose in the step before; else the gradient of the request"""
    state: int
    """of the optimizer, at most: it does not exist yet and stays from the first step() on"""
    optimizer: str
    """class of the optimizer, empty where the record does not name it"""

    @property
    def bytes(self) -> int:
        """What has to fit beside the request, so that the next step runs through as well."""
        return self.in_step + self.state

    @property
    def words(self) -> str:
        """Sentences with a blank behind each; empty where nothing is known to follow."""
        sentences = []
        if self.in_step and self.as_before:
            sentences.append(
                f"In the step before, memory rose by {mib(self.in_step)} more after this allocation. "
            )
        elif self.in_step:
            sentences.append(
                f"Backward is still to come and likely needs {mib(self.in_step)} more for its gradient. "
            )
        if self.state:
            sentences.append(f"The state of {self.optimizer}, up to {mib(self.state)}, does not exist yet. ")
        elif self.optimizer:
            sentences.append(f"The state of {self.optimizer} may still be to come; its size is not known. ")
        return "".join(sentences)


def still_to_come(f: Failure, layers: Repeats | None) -> StillToCome:
    """`layers`: `repeated_layers(f)`."""
    if f.rise_before is not None:
        return StillToCome(f.rise_before, True, 0, "")
    activations = f.device.history.alive(f.moment) & f.device.classes.where(ACTIVATIONS)
    if not trains(f.device, activations, layers):
        return StillToCome(0, False, 0, "")
    in_step = f.requested if f.stage == Stage.FORWARD else 0
    optimizer = _optimizer(f.device)
    if not f.before_any_step or f.device.at(f.moment)["optimizer_state"]:
        return StillToCome(in_step, False, 0, "")
    return StillToCome(in_step, False, _state(f, _COPIES.get(optimizer, 0)), optimizer)


def repeated_layers(f: Failure) -> Repeats | None:
    """The layers whose activations are alive when an allocation fails."""
    return repeats(
        f.device,
        f.moment,
        stale_graphs(f.device),
        min_stacks=ActivationBound.min_stacks,
        min_explained=ActivationBound.min_explained,
    )


def short_in_one_piece(f: Failure, later: StillToCome) -> int:
    """What is missing even without fragmentation, where the request alone would fit; 0 where nothing is."""
    if not f.fits_if_packed or f.missing is None or f.cached is None:
        return 0
    return max(f.missing + later.bytes - f.cached, 0)


def _optimizer(device: DeviceBlocks) -> str:
    """Where several classes are named, none is the optimizer."""
    names = {m.group(1) for note in device.stacks.snapshot.annotations if (m := _CLASS.match(note.name))}
    return names.pop() if len(names) == 1 else ""


def _state(f: Failure, copies: int) -> int:
    """So many copies of all parameters, of which some may be frozen. 0 where the state may be among the blocks that are older than
    the record: some of those were freed, as gradients of a step before are, or there are as many of each size as parameters with
    their state would be."""
    history, classes = f.device.history, f.device.classes
    older = history.born == BEFORE
    if not copies or (older & (history.freed < f.moment)).any():
        return 0
    sizes, counts = np.unique(history.size[older], return_counts=True)
    other = int((sizes * counts)[counts % (1 + copies) != 0].sum())
    if other < _OTHER_SHARE * int(history.size[older].sum()):
        return 0
    parameters = (classes.where(PARAMETERS) | classes.where(HELD)) & history.alive(f.moment)
    return copies * int(history.size[parameters].sum())
