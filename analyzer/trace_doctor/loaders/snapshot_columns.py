"""From the plain data of a snapshot pickle to columns: every known layout, torch 1.13 to 2.13."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from trace_doctor.model import TorchVersion
from trace_doctor.run import I32, I64
from trace_doctor.snapshot import NO_STACK, Action, Annotation, BlockState, Snapshot, StackFrame

_ACTIONS = {
    "alloc": Action.ALLOC,
    "free_requested": Action.FREE_REQUESTED,
    "free_completed": Action.FREE_COMPLETED,
    "free": Action.FREE_COMPLETED,
    "segment_alloc": Action.SEGMENT_ALLOC,
    "segment_free": Action.SEGMENT_FREE,
    "segment_map": Action.SEGMENT_MAP,
    "segment_unmap": Action.SEGMENT_UNMAP,
    "snapshot": Action.SNAPSHOT,
    "oom": Action.OOM,
}
_STATES = {
    "active_allocated": BlockState.ACTIVE,
    "active_pending_free": BlockState.PENDING,
    "active_awaiting_free": BlockState.PENDING,
    "inactive": BlockState.INACTIVE,
}
Record = dict[str, Any]


class _Stacks:
    """Interns stacks and frames. A pickle shares the list of a stack between all entries that have it."""

    def __init__(self) -> None:
        self.stacks: dict[tuple[int, ...], int] = {}
        self.frames: dict[StackFrame, int] = {}
        self._lists: dict[int, int] = {}
        self._dicts: dict[int, int] = {}

    def stack(self, frames: Any) -> int:
        """Index of a list of frames; NO_STACK for None. The caller keeps the list alive."""
        if frames is None:
            return NO_STACK
        known = self._lists.get(id(frames))
        if known is None:
            made = tuple([self._frame(f) for f in frames])
            known = self._lists[id(frames)] = self.stacks.setdefault(made, len(self.stacks))
        return known

    def _frame(self, frame: Record) -> int:
        known = self._dicts.get(id(frame))
        if known is None:
            made = StackFrame(
                str(frame.get("filename", "")), int(frame.get("line", 0)), str(frame.get("name", ""))
            )
            known = self._dicts[id(frame)] = self.frames.setdefault(made, len(self.frames))
        return known


class Columns:
    """Columns of one snapshot. Raises the ordinary errors of Python where the data contradicts the format."""

    def __init__(self, data: Any) -> None:
        self.data: Record = data if isinstance(data, dict) else {"segments": data}
        self.legacy_list = not isinstance(data, dict)
        self.segments: Sequence[Record] = self.data["segments"]
        self.traces: Sequence[Sequence[Record]] = self.data.get("device_traces") or ()
        self.stacks = _Stacks()
        self.warnings: list[str] = []

    def snapshot(self, display: str, rank: int, rank_how: str) -> Snapshot:
        entries = [e for trace in self.traces for e in trace]
        counts = [len(trace) for trace in self.traces]
        segments = self.segments
        blocks = [b for s in segments for b in s["blocks"]]
        actions = [_ACTIONS.get(e["action"], Action.OTHER) for e in entries]
        unknown = sorted(
            {str(e["action"]) for e, a in zip(entries, actions, strict=True) if a == Action.OTHER}
        )
        if unknown:
            self.warnings.append(f"entries of unknown kind ignored: {', '.join(unknown)}"[:200])
        stack = self.stacks.stack
        return Snapshot(
            path=display,
            action=np.array(actions, dtype=np.uint8),
            device=np.repeat(np.arange(len(counts), dtype=np.int16), counts),
            addr=_i64(e["addr"] if "addr" in e else e.get("device_free", -1) for e in entries),
            size=_sizes(entries, "size"),
            stream=_i64(e.get("stream", 0) for e in entries),
            time_us=_i64(e.get("time_us", -1) for e in entries),
            stack=_i32(stack(e.get("frames")) for e in entries),
            segment_device=np.array([s.get("device", 0) for s in segments], dtype=np.int16),
            segment_addr=_i64(s["address"] for s in segments),
            segment_size=_sizes(segments, "total_size"),
            segment_stream=_i64(s.get("stream", 0) for s in segments),
            segment_requested=_i64(s.get("requested_size", -1) for s in segments),
            segment_expandable=np.array(
                [bool(s.get("is_expandable", False)) for s in segments], dtype=np.bool_
            ),
            block_segment=_i32(i for i, s in enumerate(segments) for _ in s["blocks"]),
            block_addr=_block_addresses(segments),
            block_size=_sizes(blocks, "size"),
            block_requested=_i64(map(_requested, blocks)),
            block_state=np.array([_STATES[b["state"]] for b in blocks], dtype=np.uint8),
            block_stack=_i32(stack(_block_frames(b)) for b in blocks),
            stacks=tuple(self.stacks.stacks),
            frames=tuple(self.stacks.frames),
            annotations=self._annotations(),
            allocator_settings=dict(self.data.get("allocator_settings") or {}),
            torch_version=self._torch_version(entries, blocks),
            rank=rank,
            rank_how=rank_how,
            warnings=tuple(self.warnings),
        )

    def _annotations(self) -> tuple[Annotation, ...]:
        return tuple(
            Annotation(str(a["name"]), a["stage"] == "START", int(a.get("device", -1)), int(a["time_us"]))
            for a in self.data.get("external_annotations") or ()
        )

    def _torch_version(self, entries: Sequence[Record], blocks: Sequence[Record]) -> TorchVersion:
        """Bounds from what the file holds: each field of the format came with a version (REFERENCE, snapshot schema)."""
        low: list[tuple[tuple[int, int], str]] = [
            ((1, 13), "a list of segments" if self.legacy_list else "device_traces")
        ]
        high: list[tuple[tuple[int, int], str]] = []
        if "external_annotations" in self.data:
            low.append(((2, 6), "external_annotations"))
        if "allocator_settings" in self.data:
            low.append(((2, 1), "allocator_settings"))
        if entries and "compile_context" in entries[0]:
            low.append(((2, 4), "compile_context"))
        if any("history" in b for b in blocks):
            high.append(((2, 0), "blocks with a history"))
        if entries and not any("time_us" in e for e in entries):
            high.append(((2, 1), "entries without time_us"))
        least = max(low)
        most = min(high, default=None)
        how = f"at least {_text(least[0])}: {least[1]}" + (
            f"; at most {_text(most[0])}: {most[1]}" if most else ""
        )
        return TorchVersion(min=_text(least[0]), max=_text(most[0]) if most else None, how=how)


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _i64(values: Iterable[int]) -> I64:
    return np.array([int(v) for v in values], dtype=np.int64)


def _i32(values: Iterable[int]) -> I32:
    return np.array(list(values), dtype=np.int32)


def _sizes(records: Iterable[Record], key: str) -> I64:
    found = _i64(r[key] for r in records)
    if (found < 0).any():
        raise ValueError(f"negative {key}")
    return found


def _block_addresses(segments: Sequence[Record]) -> I64:
    """Addresses of blocks: recorded, or summed up from the segment's start (torch 2.0 and before)."""
    found: list[int] = []
    for segment in segments:
        at = int(segment["address"])
        for block in segment["blocks"]:
            at = int(block.get("address", at))
            found.append(at)
            at += int(block["size"])
    return np.array(found, dtype=np.int64)


def _requested(block: Record) -> int:
    """Requested bytes of a block; before torch 2.0 only its history knows, and before that only the rounded size."""
    if "requested_size" in block:
        return int(block["requested_size"])
    history = block.get("history")
    return int(history[0].get("real_size", block["size"])) if history else int(block["size"])


def _block_frames(block: Record) -> Any:
    if "frames" in block:
        return block["frames"] or None
    history = block.get("history")
    return (history[0].get("frames") or None) if history else None
