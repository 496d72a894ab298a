"""Everything rules ask about the memory of a snapshot: history, phases and classes of each device, in one place."""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import Bool
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.memory.classes import REASONS, Classes, Reason, classify
from trace_doctor.evidence.memory.notes import notes_of
from trace_doctor.evidence.memory.phases import Phases
from trace_doctor.evidence.memory.stages import MemoryStacks, Stage
from trace_doctor.evidence.memory.timeline import DeviceHistory, MemoryTimeline
from trace_doctor.evidence.trace.call_sites import Site
from trace_doctor.model import MEMORY_CATEGORIES, MEMORY_NAMES


class DeviceBlocks(Struct, frozen=True, dict=True):
    """One device's blocks with their classes."""

    history: DeviceHistory
    phases: Phases
    classes: Classes
    stacks: MemoryStacks

    @cached_property
    def notes(self) -> dict[int, str]:
        """Block -> the texts that the program gave it."""
        return notes_of(self.stacks.snapshot, self.history)

    @property
    def device(self) -> int:
        """Number of the device."""
        return self.history.device

    def at(self, moment: int) -> dict[str, int]:
        """Live bytes by category; the values sum to `history.live[moment]` exactly."""
        alive = self.history.alive(moment)
        sums = np.bincount(
            self.classes.category[alive], weights=None, minlength=len(MEMORY_CATEGORIES)
        )  # counts, to skip what is absent
        return {
            name: int(self.history.size[alive & self.classes.where(i)].sum()) if sums[i] else 0
            for i, name in enumerate(MEMORY_CATEGORIES)
        }

    @cached_property
    def at_peak(self) -> dict[str, int]:
        """Live bytes by category at the peak."""
        return self.at(self.history.peak)

    def holders(self, blocks: Bool) -> list[tuple[str, str, int, int]]:
        """(category, where it was allocated, bytes, blocks) of some blocks, largest first."""
        by_holder: dict[tuple[int, int, str], tuple[int, int]] = {}
        for block in np.flatnonzero(blocks):
            key = (
                int(self.classes.category[block]),
                int(self.history.stack[block]),
                self.notes.get(int(block), ""),
            )
            totals, count = by_holder.get(key, (0, 0))
            by_holder[key] = totals + int(self.history.size[block]), count + 1
        merged: dict[tuple[str, str], tuple[int, int]] = {}
        for (category, stack, note), (totals, count) in by_holder.items():
            name = MEMORY_CATEGORIES[category], self.place(stack) + (f' "{note}"' if note else "")
            before = merged.get(name, (0, 0))
            merged[name] = before[0] + totals, before[1] + count
        rows = [(c, place, totals, count) for (c, place), (totals, count) in merged.items()]
        return sorted(rows, key=lambda r: (-r[2], r[0], r[1]))

    def place(self, stack: int) -> str:
        """Where a block was allocated, in the user's code if possible, else the operator of the backward pass."""
        site = self.stacks.user_site(stack)
        return str(site) if site is not None else self.stacks.op_site(stack)

    def caller(self, stage: Stage) -> Site | None:
        """The line of the script from which a stage was first called: that of `optimizer.step()` for OPTIMIZER."""
        stacks = self.history.entry_stack[self.phases.entry_stage == stage]
        sites = (self.stacks.caller(stack) for stack in dict.fromkeys(stacks.tolist()))
        return next((site for site in sites if site is not None), None)

    @cached_property
    def how(self) -> str:
        """How the classes at the peak are known, in one sentence, largest part first."""
        alive = self.history.alive(self.history.peak)
        size, category, reason = self.history.size, self.classes.category, self.classes.reason
        parts: list[tuple[int, str]] = []
        for c, name in enumerate(MEMORY_CATEGORIES):
            for r, words in REASONS.items():
                byte_count = int(size[alive & (category == c) & (reason == r)].sum())
                if byte_count and r != Reason.NONE:
                    parts.append((byte_count, f"{name.replace('_', ' ')} {words}"))
        return "; ".join(words for _, words in sorted(parts, key=lambda p: (-p[0], p[1])))


class MemoryBlocks(Evidence, frozen=True):
    """Raises NotCaptured without an allocation history that can be replayed exactly."""

    devices: tuple[DeviceBlocks, ...]
    frames_kind: str

    @classmethod
    def build(cls, facts: Facts) -> Self:
        timeline, stacks = facts[MemoryTimeline], facts[MemoryStacks]
        devices: list[DeviceBlocks] = []
        for history in timeline.devices:
            phases = Phases.build(history, stacks)
            devices.append(DeviceBlocks(history, phases, classify(history, stacks, phases), stacks))
        return cls(tuple(devices), facts.snapshot.frames_kind)


def category_name(category: str) -> str:
    """One of MEMORY_CATEGORIES as people read it."""
    return MEMORY_NAMES[category]
