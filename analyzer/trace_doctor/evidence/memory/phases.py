"""The training steps inside a snapshot: runs of forward, backward, optimizer and zero_grad, in the order of entries."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, U8, Bool
from trace_doctor.evidence.memory.stages import MemoryStacks, Stage
from trace_doctor.evidence.memory.timeline import BEFORE, DeviceHistory
from trace_doctor.snapshot import Action, Snapshot

_STEP = "Optimizer.step#"
_ZERO = "Optimizer.zero_grad#"


class Phases(Struct, frozen=True, dict=True):
    """Consecutive runs of one stage. `first` are positions of entries, ascending; a phase ends where the next begins.

    An annotated optimizer step that neither allocates nor frees is a phase without entries.
    """

    n: int
    entry_stage: U8
    """of every entry, by its own stack, else by the annotation it lies in"""
    stage: U8
    first: I64
    after_forward: Bool
    """of every phase: a forward ran before it since the last backward or optimizer step"""
    zero_grads: int
    """how many calls of zero_grad() are known, also those that freed nothing"""

    @classmethod
    def build(cls, history: DeviceHistory, stacks: MemoryStacks) -> Phases:
        """Of the entries of one device; those whose stage neither stack nor annotation tells belong to the phase before."""
        entry_stage = stacks.stages(history.entry_stack)
        spans = _annotated(history, stacks.snapshot)
        for start, end, stage in spans:
            inside = entry_stage[start:end]
            inside[inside == Stage.UNKNOWN] = stage
        decisive = _decisive(history.action, entry_stage)
        positions = np.flatnonzero(decisive)
        stages = entry_stage[positions]
        empty = [(p, s) for p, q, s in spans if s == Stage.OPTIMIZER and not (entry_stage[p:q] == s).any()]
        if empty:
            at = np.searchsorted(positions, [p for p, _ in empty])
            positions = np.insert(positions, at, [p for p, _ in empty])
            stages = np.insert(stages, at, [s for _, s in empty])
        new = np.ones(len(stages), dtype=np.bool_)
        new[1:] = (stages[1:] != stages[:-1]) | _apart(history.action, spans, positions)[1:]
        runs = stages[new]
        zeros = max(sum(s == Stage.ZERO_GRAD for _, _, s in spans), int((runs == Stage.ZERO_GRAD).sum()))
        return cls(
            n=len(entry_stage),
            entry_stage=entry_stage,
            stage=_forward_scripts(runs, _saves(history, stacks, entry_stage, positions[new])),
            first=positions[new],
            after_forward=_after_forward(runs),
            zero_grads=zeros,
        )

    def of(self, positions: I64) -> I64:
        """Number of the phase that each position lies in; -1 before the first."""
        return np.searchsorted(self.first, positions, side="right") - 1

    def stretch_of(self, positions: I64) -> I64:
        """As `of`, but neighbouring phases of the same stage count as one: a script that calls layers and functions by
        turns runs one forward. -1 before the first."""
        changes = np.diff(self.stage, prepend=self.stage[:1]) != 0
        return np.append(np.cumsum(changes), -1)[self.of(positions)]

    def next_start(self, positions: I64) -> I64:
        """Where the following phase begins; n when there is none."""
        return np.append(self.first, self.n)[self.of(positions) + 1]

    def next_of(self, positions: I64, *stages: Stage) -> I64:
        """The first position at or after the given ones where a phase of one of these stages begins; n + 1 if none."""
        starts = self.first[np.isin(self.stage, stages)]
        return np.append(starts, self.n + 1)[np.searchsorted(starts, positions, side="left")]

    def spans(self, *stages: Stage) -> list[tuple[int, int]]:
        """[first, last) of the phases of these stages."""
        ends = np.append(self.first[1:], self.n)[: len(self.first)]
        return [
            (int(a), int(b))
            for a, b, s in zip(self.first, ends, self.stage, strict=True)
            if Stage(int(s)) in stages
        ]

    def has(self, *stages: Stage) -> bool:
        """Whether any phase is of one of these stages."""
        return bool(np.isin(self.stage, stages).any())

    @cached_property
    def step_ends(self) -> list[int]:
        """Moments right after each optimizer step, the natural boundaries of training steps."""
        return [end for _, end in self.spans(Stage.OPTIMIZER)]


def _decisive(action: U8, stage: U8) -> Bool:
    """Entries that say which phase runs. A free happens wherever the last reference dies, so it only says so where
    its own stack is the optimizer's."""
    allocates = (action == Action.ALLOC) & (stage != Stage.UNKNOWN)
    releases = (action == Action.FREE_REQUESTED) | (action == Action.FREE_COMPLETED)
    own: Bool = allocates | (releases & ((stage == Stage.OPTIMIZER) | (stage == Stage.ZERO_GRAD)))
    return own


def _apart(action: U8, spans: list[tuple[int, int, Stage]], positions: I64) -> Bool:
    """Positions where an annotated step begins that allocations of unknown stage separate from the one before."""
    steps = [(p, q) for p, q, s in spans if s == Stage.OPTIMIZER]
    starts = [p for (_, q), (p, _) in pairwise(steps) if (action[q:p] == Action.ALLOC).any()]
    begins_step: Bool = np.isin(positions, starts)
    return begins_step


def _saves(history: DeviceHistory, stacks: MemoryStacks, entry_stage: U8, first: I64) -> Bool:
    """Phases that compute what a backward frees: autograd saved it. A batch is copied or generated, not computed."""
    saved = np.flatnonzero((history.born != BEFORE) & (history.freed < history.n))
    saved = saved[entry_stage[history.freed[saved]] == Stage.BACKWARD]
    made = history.stack[saved]
    batch = stacks.marked(stacks.transfer, made) | stacks.marked(stacks.generated, made)
    phase = np.searchsorted(first, history.born[saved[~batch]], side="right") - 1
    saves = np.zeros(len(first), dtype=np.bool_)
    saves[phase[phase >= 0]] = True
    return saves


def _forward_scripts(stage: U8, saves: Bool) -> U8:
    """Python outside modules is forward where it follows modules (the loss), runs right before backward, or makes what
    that saves."""
    stages = stage.copy()
    for i in np.flatnonzero(stage == Stage.SCRIPT):
        after_forward = i > 0 and stages[i - 1] == Stage.FORWARD
        before_backward = i + 1 < len(stage) and stage[i + 1] == Stage.BACKWARD
        if after_forward or before_backward or saves[i]:
            stages[i] = Stage.FORWARD
    return stages


def _after_forward(stage: U8) -> Bool:
    follows = np.zeros(
        len(stage) + 1, dtype=np.bool_
    )  # one more, so that -1 (before the first phase) is False
    forward = False
    for i, s in enumerate(stage.tolist()):
        forward = (forward or s == Stage.FORWARD) and s in (Stage.FORWARD, Stage.SCRIPT)
        follows[i] = forward
    return follows


def _annotated(history: DeviceHistory, snapshot: Snapshot) -> list[tuple[int, int, Stage]]:
    """[first, last) positions of annotated optimizer steps and zero_grads; empty without a clock. Those that end before the
    history begins are left out: annotations are kept in a buffer of their own, which reaches further back."""
    if not len(history.time_us) or (history.time_us < 0).any():
        return []
    clock = np.maximum.accumulate(history.time_us)
    open_at: dict[str, int] = {}
    stretches: list[tuple[int, int, Stage]] = []
    for note in snapshot.annotations:
        if note.device not in (-1, history.device) or not note.name.startswith((_STEP, _ZERO)):
            continue
        if note.time_us < clock[0] and not note.start:
            open_at.pop(note.name, None)
        elif note.start:
            open_at[note.name] = int(np.searchsorted(clock, note.time_us, side="left"))
        elif note.name in open_at:
            stage = Stage.OPTIMIZER if note.name.startswith(_STEP) else Stage.ZERO_GRAD
            stretches.append(
                (open_at.pop(note.name), int(np.searchsorted(clock, note.time_us, side="right")), stage)
            )
    return sorted(stretches)
