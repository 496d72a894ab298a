"""The blocks of a snapshot for a reader who looks closer: bounded, and their sums at every point are the series'.

What lies between two points of the series is in no picture, so that most short-lived blocks need not be held. Of the rest
the largest are held one by one, the others added up by class and stack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypedDict

import numpy as np
from msgspec import Struct, field

from trace_doctor.arrays import I32, I64, U8
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.classes import UNKNOWN
from trace_doctor.evidence.memory.series import axis, points_of
from trace_doctor.evidence.memory.stages import MemoryStacks, in_torch
from trace_doctor.evidence.memory.timeline import BEFORE
from trace_doctor.model.memory_detail import (
    AddedBlocks,
    DeviceBlocksDetail,
    LiveBlocks,
    MemoryDetail,
    SegmentDetail,
    SegmentSpace,
)
from trace_doctor.snapshot import NO_STACK, Action, BlockState, Snapshot
from trace_doctor.user_frames import brief_path

MAX_FAILURES = 10
BLOCKS_PER_GROUP = 30
"""So many fewer groups than blocks: each of them changes often"""
NODES_PER_BLOCK = 2
MAX_DEPTH = 80
MAX_FRAME = 200
"""Characters"""
NO_NODE = -1


def memory_detail(facts: Facts, most: int) -> MemoryDetail | None:
    """At most `most` blocks one by one, over all devices; None for a capture without a snapshot."""
    snapshot = facts.capture.snapshot
    if snapshot is None:
        return None
    try:
        replayed = {b.device: b for b in facts[MemoryBlocks].devices}
    except NotCaptured:
        replayed = {}
    devices = [d for d in snapshot.devices if facts.options.device in (None, d)]
    if not devices:
        return None
    tree = _Tree(facts[MemoryStacks], NODES_PER_BLOCK * most)
    each = max(1, most // len(devices))
    shown = [
        _device(replayed[d], tree, each) if d in replayed else _at_the_end(snapshot, d, tree, each)
        for d in devices
    ]
    return MemoryDetail(
        frames=list(tree.frames), library=tree.library, parent=tree.parent, frame=tree.frame, devices=shown
    )


class _Tree(Struct):
    """Stacks as they are met, as paths of one tree."""

    stacks: MemoryStacks
    most: int
    """nodes"""
    parent: list[int] = field(default_factory=list)
    frame: list[int] = field(default_factory=list)
    frames: dict[str, int] = field(default_factory=dict)
    library: list[int] = field(default_factory=list)
    nodes: dict[tuple[int, int], int] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)

    def nodes_of(self, stacks: I32, notes: Iterable[str] = ()) -> list[int]:
        """`notes`: the text of each block, shown as its innermost frame; "" for none."""
        nodes = [self.node_of(s) for s in stacks.tolist()]
        for n, note in enumerate(notes):
            if note and (below := self._below(nodes[n], f'"{note}"'[:MAX_FRAME], library=False)) is not None:
                nodes[n] = below
        return nodes

    def _below(self, node: int, text: str, *, library: bool) -> int | None:
        """The node of a frame below another; None where the tree is full."""
        frame = self.frames.get(text)
        key = (node, -1 if frame is None else frame)
        if key not in self.nodes:
            if len(self.parent) >= self.most:
                return None
            if frame is None:
                frame = self.frames[text] = len(self.frames)
                self.library += [frame] if library else []
                key = (node, frame)
            self.nodes[key] = len(self.parent)
            self.parent.append(node)
            self.frame.append(key[1])
        return self.nodes[key]

    def node_of(self, stack: int) -> int:
        """The innermost node of a stack. A full tree takes no new nodes: a stack then ends further out."""
        if stack == NO_STACK:
            return NO_NODE
        if stack not in self.seen:
            node = NO_NODE
            for text, library in _path(self.stacks, stack):
                below = self._below(node, text, library=library)
                if below is None:
                    break
                node = below
            self.seen[stack] = node
        return self.seen[stack]


def _path(stacks: MemoryStacks, stack: int) -> list[tuple[str, bool]]:
    """(frame, whether PyTorch's own), outermost first: the Python frames and the operator they called; of a stack without
    Python the autograd node, or else its C++ frames."""
    frames = stacks.snapshot.frames_of(stack)
    python = [f for f in frames if f.is_python]
    path = []
    for frame in reversed(python[:MAX_DEPTH]):
        site = stacks.site_of(frame)
        path.append(
            (f"{brief_path(site.file)}:{site.line} {frame.name}"[:MAX_FRAME], in_torch(frame.filename))
        )
    operator = stacks.op(stack)
    if python:
        return [*path, (f"aten::{operator}"[:MAX_FRAME], False)] if operator else path
    if node := stacks.node(stack):
        return [("backward", False), (node[:MAX_FRAME], False)]
    return [(f.name[:MAX_FRAME], False) for f in reversed(frames[:MAX_DEPTH])]


def _device(device: DeviceBlocks, tree: _Tree, most: int) -> DeviceBlocksDetail:
    history = device.history
    failures = (
        np.flatnonzero(history.action == Action.OOM)[-MAX_FAILURES:] + 1
    )  # the entry itself changes nothing
    at, unit = axis(history)
    points = np.union1d(points_of(history, at), failures)
    first = np.searchsorted(points, history.born, side="right")  # born < point <= freed
    last = np.searchsorted(points, history.freed, side="right")
    seen = np.flatnonzero(first < last)
    seen = seen[np.lexsort((first[seen] - last[seen], -history.size[seen]))]
    whole, rest = np.sort(seen[:most]), seen[most:]
    ends = np.array(device.phases.step_ends, dtype=np.int64)
    since = at[history.born + 1].astype(np.float64)
    since[history.born == BEFORE] = -1
    step = np.searchsorted(ends, history.born, side="right")
    step[(history.born == BEFORE) | (len(ends) == 0)] = -1
    return DeviceBlocksDetail(
        device=history.device,
        unit="us" if unit == "us" else "entry",
        at=at[points].astype(np.float64).tolist(),
        peak=int(np.searchsorted(points, history.peak)),
        failures=np.searchsorted(points, failures).tolist(),
        live=history.live[points].tolist(),
        blocks=LiveBlocks(
            size=history.size[whole].tolist(),
            category=device.classes.category[whole].tolist(),
            node=tree.nodes_of(history.stack[whole], [device.notes.get(b, "") for b in whole.tolist()]),
            first=first[whole].tolist(),
            last=last[whole].tolist(),
            since=since[whole].tolist(),
            step=step[whole].tolist(),
        ),
        added=_added(
            device.classes.category[rest],
            tree.nodes_of(history.stack[rest]),
            history.size[rest],
            first[rest],
            last[rest],
            most // BLOCKS_PER_GROUP,
        ),
        recorded=len(seen),
        **_segments(tree.stacks.snapshot, history.device, tree, most, _classes_by_address(device)),
    )


def _classes_by_address(device: DeviceBlocks) -> dict[int, int]:
    alive = device.history.alive(device.history.n)
    return dict(
        zip(device.history.addr[alive].tolist(), device.classes.category[alive].tolist(), strict=True)
    )


def _added(
    category: U8, node: Sequence[int], size: I64, first: I64, last: I64, most: int
) -> list[AddedBlocks]:
    """Groups of blocks: the `most` with the largest bytes over time with their stack, the rest without."""
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    for block, key in enumerate(zip(category.tolist(), node, strict=True)):
        members[key].append(block)
    weight = size * (last - first)
    order = sorted(members, key=lambda k: -int(weight[members[k]].sum()))
    groups = {key: members[key] for key in order[:most]}
    for kind, at in order[most:]:
        groups.setdefault((kind, NO_NODE), []).extend(members[kind, at])
    return [
        AddedBlocks(category=kind, node=at, changes=_changes(size[blocks], first[blocks], last[blocks]))
        for (kind, at), blocks in groups.items()
    ]


def _changes(size: I64, first: I64, last: I64) -> list[tuple[int, int, int]]:
    changes: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for bytes_, a, b in zip(size.tolist(), first.tolist(), last.tolist(), strict=True):
        for point, sign in ((a, 1), (b, -1)):
            total, count = changes[point]
            changes[point] = total + sign * bytes_, count + sign
    return [(point, total, count) for point, (total, count) in sorted(changes.items()) if total or count]


def _at_the_end(snapshot: Snapshot, device: int, tree: _Tree, most: int) -> DeviceBlocksDetail:
    """Without a history: the blocks that were allocated when the file was written."""
    here = np.flatnonzero(
        (snapshot.segment_device[snapshot.block_segment] == device)
        & (snapshot.block_state != BlockState.INACTIVE)
    )
    here = here[np.argsort(-snapshot.block_requested[here], kind="stable")]
    whole, rest = here[:most], here[most:]
    unknown = np.full(len(rest), UNKNOWN, dtype=np.uint8)
    ones = np.ones(len(rest), dtype=np.int64)
    return DeviceBlocksDetail(
        device=device,
        unit="end",
        at=[0.0],
        peak=0,
        live=[int(snapshot.block_requested[here].sum())],
        blocks=LiveBlocks(
            size=snapshot.block_requested[whole].tolist(),
            category=[UNKNOWN] * len(whole),
            node=tree.nodes_of(snapshot.block_stack[whole]),
            first=[0] * len(whole),
            last=[1] * len(whole),
            since=[-1.0] * len(whole),
            step=[-1] * len(whole),
        ),
        added=_added(
            unknown,
            tree.nodes_of(snapshot.block_stack[rest]),
            snapshot.block_requested[rest],
            ones - 1,
            ones,
            most // BLOCKS_PER_GROUP,
        ),
        recorded=len(here),
        **_segments(snapshot, device, tree, most, {}),
    )


class _Segments(TypedDict):
    segments: list[SegmentDetail]
    space: SegmentSpace


def _segments(snapshot: Snapshot, device: int, tree: _Tree, most: int, classes: dict[int, int]) -> _Segments:
    """The segments with their blocks, the largest first, until there are `most` blocks; and what they add up to."""
    on_device = np.flatnonzero(snapshot.segment_device == device)
    order = on_device[np.lexsort((snapshot.segment_addr[on_device], -snapshot.segment_size[on_device]))]
    members: dict[int, list[int]] = defaultdict(list)
    for block in np.lexsort((snapshot.block_addr, snapshot.block_segment)).tolist():
        members[int(snapshot.block_segment[block])].append(block)
    shown: list[SegmentDetail] = []
    for segment in order.tolist():
        start, blocks = int(snapshot.segment_addr[segment]), members[segment][:most]
        most -= len(blocks)
        shown.append(
            SegmentDetail(
                address=start,
                size=int(snapshot.segment_size[segment]),
                blocks=[_placed(snapshot, b, start, tree, classes) for b in blocks],
            )
        )
        if most <= 0:
            break
    return {"segments": shown, "space": _space(snapshot, on_device)}


def _placed(
    snapshot: Snapshot, block: int, start: int, tree: _Tree, classes: dict[int, int]
) -> tuple[int, int, int, int, int, int]:
    address, state = int(snapshot.block_addr[block]), int(snapshot.block_state[block])
    used = state != BlockState.INACTIVE
    return (
        address - start,
        int(snapshot.block_size[block]),
        int(snapshot.block_requested[block]) if used else 0,
        state,
        classes.get(address, UNKNOWN) if used else UNKNOWN,
        tree.node_of(int(snapshot.block_stack[block])) if used else NO_NODE,
    )


def _space(snapshot: Snapshot, segments: I64) -> SegmentSpace:
    here = np.isin(snapshot.block_segment, segments)
    used = here & (snapshot.block_state != BlockState.INACTIVE)
    free = here & ~used
    occupied = np.isin(segments, snapshot.block_segment[used])
    sizes = snapshot.segment_size[segments]
    reserved, held = int(sizes.sum()), int(snapshot.block_size[used].sum())
    allocated = int(snapshot.block_requested[used].sum())
    return SegmentSpace(
        reserved=reserved,
        allocated=allocated,
        rounding=max(0, held - allocated),
        free_split=max(0, int(sizes[occupied].sum()) - held),
        free_segments=int(sizes[~occupied].sum()),
        largest_free=int(snapshot.block_size[free].max(initial=0)),
        segments=len(segments),
        blocks=int(used.sum()),
    )
