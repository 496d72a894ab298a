"""Gradients that outlive the optimizer's step into the next forward, and what the peak would be without that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64
from trace_doctor.evidence.memory.blocks import DeviceBlocks
from trace_doctor.evidence.memory.classes import GRADIENTS, OPTIMIZER_STATE
from trace_doctor.evidence.memory.stages import Stage
from trace_doctor.evidence.memory.timeline import BEFORE
from trace_doctor.snapshot import Action

Cleared = Literal["after_forward", "never"]
Proof = Literal["step", "likely", "none"]


class Retention(Struct, frozen=True):
    """Gradients that an earlier backward made and that are alive at the last allocation of a forward."""

    step_end: int
    """position where the optimizer's step (without one: the backward) ended; BEFORE where it is older than the record"""
    backward: int
    """position where the next backward begins; n where the record ends before"""
    blocks: I64
    bytes: int
    cleared: Cleared
    """freed between that forward and its backward, or not at all"""
    proof: Proof
    """whether a step has consumed them: one of the record, before this forward (or zero_grad() was called and left them);
    likely, for there is optimizer state or a step behind; or nothing tells, and they may be accumulated on purpose"""


def retentions(device: DeviceBlocks) -> list[Retention]:
    """One per optimizer step that another forward follows. Gradients that a later backward adds to before
    the next step (accumulation) are none: only those that a step has consumed count. Where the record holds no step, one
    per backward: then nothing tells."""
    phases, history = device.phases, device.history
    backwards = phases.spans(Stage.BACKWARD)
    ends = [BEFORE, *(phases.step_ends or [end for _, end in backwards])]
    by_optimizer_step: list[Retention] = []
    for end in ends:
        backward = next((b for b, _ in backwards if b >= max(end, 0)), history.n)
        last = _last_forward_allocation(device, max(end, 0), backward)
        if last is None:
            continue
        alive = device.classes.where(GRADIENTS) & history.alive(last + 1)
        alive &= history.born < end if end != BEFORE else history.born == BEFORE
        freed_by = np.append(phases.entry_stage, np.uint8(Stage.UNKNOWN))[history.freed]
        cleared = alive & (history.freed < backward) & (freed_by == Stage.ZERO_GRAD)
        proof: Proof = "step" if phases.step_ends else "none"
        if end == BEFORE and not cleared.any():
            # Nothing but what follows tells whether a step came before this forward, or another backward will.
            alive &= history.freed == history.n
            state = backward == history.n and device.classes.where(OPTIMIZER_STATE).any()
            if not phases.zero_grads:
                proof = "likely" if phases.step_ends or state else "none"
        elif end == BEFORE:
            alive, proof = cleared, "step"
        if alive.any():
            blocks = np.flatnonzero(alive)
            how: Cleared = "after_forward" if cleared[blocks].any() else "never"
            size = int(history.size[blocks].sum())
            by_optimizer_step.append(Retention(end, backward, blocks, size, how, proof))
    return by_optimizer_step


def peak_when_freed(device: DeviceBlocks, retained: Sequence[Retention]) -> int:
    """The highest live bytes if each of these gradients were freed at the end of its step.

    A gradient that is never freed comes back in the next backward: where that backward frees the temporary of the
    same size that it added to it, else at once.
    """
    history = device.history
    less = np.zeros(history.n + 2, dtype=np.int64)
    for r in retained:
        back = _comes_back(device, r)
        for block in r.blocks:
            size, start = int(history.size[block]), r.step_end
            end = min(int(history.freed[block]), back.get(int(block), r.backward))
            less[start + 1] += size
            less[max(end, start) + 1] -= size
    return int((history.live - np.cumsum(less)[: history.n + 1]).max())


def _comes_back(device: DeviceBlocks, r: Retention) -> dict[int, int]:
    """block -> position at which the next backward has put its gradient there again."""
    history, phases = device.history, device.phases
    if r.backward == history.n:
        return {}
    phase = int(phases.of(np.array([r.backward]))[0])
    inside = (phases.of(history.born) == phase) & (history.born != BEFORE)
    temporaries: dict[int, list[int]] = defaultdict(list)
    for block in np.flatnonzero(inside & (phases.of(history.freed) == phase)):
        temporaries[int(history.size[block])].append(int(history.freed[block]))
    for positions in temporaries.values():
        positions.sort()
    back: dict[int, int] = {}
    for block in r.blocks:
        if candidates := temporaries.get(int(history.size[block])):
            back[int(block)] = candidates.pop(0)
    return back


def _last_forward_allocation(device: DeviceBlocks, start: int, end: int) -> int | None:
    phases, history = device.phases, device.history
    positions = np.arange(start, end)
    allocations = positions[history.action[start:end] == Action.ALLOC]
    forward = allocations[phases.stage[phases.of(allocations)] == Stage.FORWARD]
    return int(forward[-1]) if len(forward) else None
