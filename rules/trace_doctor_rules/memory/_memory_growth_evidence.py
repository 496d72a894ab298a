"""Memory that rises from step to step: what is still there at the end that each step has added."""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.memory.blocks import DeviceBlocks
from trace_doctor.evidence.memory.classes import WORKSPACES
from trace_doctor.evidence.memory.stages import Stage
from trace_doctor.evidence.trace.call_sites import Site
from trace_doctor.snapshot import StackFrame
from trace_doctor.user_frames import is_user_frame


class Growth(Struct, frozen=True):
    """Live bytes at the boundaries of steps, and the blocks that make them rise."""

    boundaries: tuple[int, ...]
    """moments: after each optimizer step, else after each backward"""
    of: str
    """"optimizer.step()" or "backward" """
    live: I64
    """at each boundary, library workspaces excluded"""
    added: Bool
    """blocks born between two boundaries and alive at the last one"""
    interval: I64
    """of every block: the number of the boundary before its birth, -1 before the first"""

    @property
    def rises(self) -> I64:
        """Bytes more from one step to the next."""
        return np.diff(self.live)


def growth(device: DeviceBlocks) -> Growth | None:
    """None without any boundary."""
    phases, history = device.phases, device.history
    ends, of = phases.step_ends, "optimizer.step()"
    if not ends:
        ends, of = [end for _, end in phases.spans(Stage.BACKWARD)], "backward"
    if not ends:
        return None
    live = history.live - history.bytes_over_time(device.classes.where(WORKSPACES))
    interval = np.searchsorted(np.array(ends), history.born, side="right") - 1
    added = (history.born >= ends[0]) & history.alive(ends[-1]) & ~device.classes.where(WORKSPACES)
    return Growth(tuple(ends), of, live[np.array(ends)], added, interval)


def explaining_frame(device: DeviceBlocks, g: Growth, share: float) -> tuple[Site, Bool] | None:
    """The innermost user frame whose allocations explain at least `share` of every rise, and their blocks.

    A frame that is in every stack of the record explains nothing.
    """
    stacks, history = device.stacks, device.history
    blocks = np.flatnonzero(g.added)
    rises = g.rises
    by_frame: dict[StackFrame, Counter[int]] = {}
    depth: dict[StackFrame, int] = {}
    frames_of = {int(s): _user_frames(device, int(s)) for s in np.unique(history.stack[blocks])}
    for block in blocks:
        for frame, level in frames_of[int(history.stack[block])].items():
            by_frame.setdefault(frame, Counter())[int(g.interval[block])] += int(history.size[block])
            depth[frame] = max(depth.get(frame, 0), level)
    everywhere = _in_every_stack(device)
    fitting = [
        frame
        for frame, by_interval in by_frame.items()
        if frame not in everywhere
        and all(by_interval[i] >= share * rise for i, rise in enumerate(rises.tolist()))
    ]
    if not fitting:
        return None
    best = min(fitting, key=lambda f: (-depth[f], -sum(by_frame[f].values()), f))
    own_blocks = np.zeros(len(history.size), dtype=np.bool_)
    own_blocks[[b for b in blocks if best in frames_of[int(history.stack[b])]]] = True
    return stacks.site_of(best), own_blocks


def own_frames(device: DeviceBlocks, g: Growth) -> bool:
    """Whether any of the blocks that are added has a frame of the user's code: without one no line can explain them."""
    return any(_user_frames(device, int(s)) for s in np.unique(device.history.stack[g.added]))


def _user_frames(device: DeviceBlocks, stack: int) -> dict[StackFrame, int]:
    """Each frame of the user's code once, and how deep its innermost call is: of a function that calls itself the block is
    allocated once."""
    distinct = dict.fromkeys(device.stacks.snapshot.frames_of(stack))  # innermost first
    frames = [f for f in distinct if f.is_python and is_user_frame(f.filename)]
    return {frame: len(frames) - n for n, frame in enumerate(frames)}


def _in_every_stack(device: DeviceBlocks) -> frozenset[StackFrame]:
    common: frozenset[StackFrame] | None = None
    for stack in np.unique(device.history.entry_stack).tolist():
        frames = frozenset(_user_frames(device, stack))
        if frames:
            common = frames if common is None else common & frames
    return common or frozenset()
