"""Whether a snapshot's history holds whole steps: what is left of one that was cut shows no problem that returns with each step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from typing import Self

import numpy as np

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.stages import MemoryStacks, Stage
from trace_doctor.evidence.memory.timeline import BEFORE, CAPTURE_ADVICE
from trace_doctor.snapshot import Action, Snapshot
from trace_doctor.user_frames import is_user_frame


class WholeSteps(Evidence, frozen=True):
    """For rules about what returns with each step, where they find nothing. Raises NotCaptured where the history of no device
    reaches from one moment of a step to the same one of the next."""

    count: int
    """on the device that shows most"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        count = max(map(_count, facts[MemoryBlocks].devices), default=0)
        if not count:
            raise _no_whole_step(facts[MemoryBlocks].devices)
        return cls(count)


def _no_whole_step(devices: Sequence[DeviceBlocks]) -> NotCaptured:
    """Without a backward pass a step is a forward, and gradients are not known."""
    if any(device.phases.has(Stage.BACKWARD, Stage.OPTIMIZER) for device in devices):
        return NotCaptured("no whole step in the allocation history", CAPTURE_ADVICE)
    return NotCaptured(
        "no backward pass in the allocation history, and no forward that is followed by another",
        CAPTURE_ADVICE,
    )


def must_hold_steps(whole: WholeSteps | None, least: int) -> None:
    """Raises NotCaptured where there are fewer: a rule that asks for so many repetitions could not have found them."""
    if (whole.count if whole is not None else 0) < least:
        raise NotCaptured(f"fewer than {least} whole steps in the allocation history", CAPTURE_ADVICE)


class PeakPassed(Evidence, frozen=True):
    """For rules about the peak and what fails there, where they find nothing that fails. Raises NotCaptured where the history of a device
    ends at its highest moment and not in an out-of-memory error: what came next, and whether it failed, was not recorded."""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        histories = [d.history for d in facts[MemoryBlocks].devices]
        for history in histories:
            fails = (history.action == Action.OOM).any()
            if not fails and history.live[-1] == history.live.max() > history.live[0]:
                raise NotCaptured("the allocation history ends at its peak", CAPTURE_ADVICE)
        return cls()


class PeakRecorded(Evidence, frozen=True):
    """For rules about what the peak consists of, where they find nothing. Raises NotCaptured where the history does not show how it
    came about: less than a step that does not end in an out-of-memory error, with blocks older than the record."""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        devices = facts[MemoryBlocks].devices
        steps = any(_count(d) or _repeats(d) for d in devices)
        fails = any((d.history.action == Action.OOM).any() for d in devices)
        if not (steps or fails or all((d.history.born != BEFORE).all() for d in devices)):
            raise _no_whole_step(devices)
        return cls()


class OwnFrames(Evidence, frozen=True):
    """For rules that tell a problem by the lines of the script, where they find nothing. Raises NotCaptured where no allocation has a
    frame of the user's code."""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        snapshot = facts[MemoryStacks].snapshot
        if not any(_is_own(snapshot, stack) for stack in range(len(snapshot.stacks))):
            raise NotCaptured("no frame of your own code in the allocation history", CAPTURE_ADVICE)
        return cls()


def _is_own(snapshot: Snapshot, stack: int) -> bool:
    return any(f.is_python and is_user_frame(f.filename) for f in snapshot.frames_of(stack))


def _count(device: DeviceBlocks) -> int:
    """Whole steps, by the optimizer; without one by the backward; without either by forwards. What the record begins or ends in may
    be a part of one: of the rest the beginnings or the ends are counted."""
    phases = device.phases
    for stage in (Stage.OPTIMIZER, Stage.BACKWARD):
        if spans := phases.spans(stage):
            begins = sum(start > int(phases.first[0]) for start, _ in spans)
            ends = sum(end < phases.n or stage == Stage.OPTIMIZER for _, end in spans)
            return max(begins, ends, 1) - 1
    return max(_forwards(device), 1) - 1


def _forwards(device: DeviceBlocks) -> int:
    """How often, one time after the other, all lines that call modules have begun, or ended, to do so: a script may call many layers
    in turn. Forwards with no other allocation in between are not told apart."""
    history = device.history
    allocations = np.flatnonzero(history.action == Action.ALLOC)
    inside = device.phases.entry_stage[allocations] == Stage.FORWARD
    opens = inside & ~np.concatenate([[False], inside[:-1]])
    callers = [device.stacks.module_caller(s) for s in history.entry_stack[allocations[opens]].tolist()]
    begun = callers[1:] if inside[:1].any() else callers
    ended = callers[:-1] if inside[-1:].any() else callers
    return max(_rounds(begun, set(callers)), _rounds(ended, set(callers)))


def _repeats(device: DeviceBlocks) -> int:
    """How often a forward without a backward allocates again what it has allocated: it may be layers of one forward."""
    if device.phases.has(Stage.BACKWARD, Stage.OPTIMIZER):
        return 0
    history = device.history
    forward = (history.action == Action.ALLOC) & (device.phases.entry_stage == Stage.FORWARD)
    stacks = history.entry_stack[forward]
    return max(_rounds(stacks.tolist(), set(stacks.tolist())), 1) - 1


def _rounds(places: Sequence[Hashable], all_of_them: Set[Hashable]) -> int:
    """How often, one time after the other, all of the places have occurred."""
    seen: set[Hashable] = set()
    rounds = 0
    for place in places:
        seen.add(place)
        if len(seen) == len(all_of_them):
            rounds, seen = rounds + 1, set()
    return rounds
