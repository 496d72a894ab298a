"""From the plain data of a snapshot pickle to columns: every known layout, torch 1.13 to 2.15."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from trace_doctor.arrays import I16, I32, I64, U8, Bool
from trace_doctor.model import TorchVersion
from trace_doctor.snapshot import NO_NOTE, NO_STACK, Action, Annotation, BlockState, Snapshot, StackFrame
from trace_doctor.user_frames import plain_path

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
    "annotate": Action.ANNOTATE,
}
_STATES = {
    "active_allocated": BlockState.ACTIVE,
    "active_pending_free": BlockState.PENDING,
    "active_awaiting_free": BlockState.PENDING,
    "inactive": BlockState.INACTIVE,
}
_SYNTHETIC = "mallocWithAddress"
"""`internal_metadata` of an allocation and its free that the allocator notes and no program asked for (torch 2.15)"""
_LONGEST_NOTE = 200
Record = dict[str, Any]


class _Stacks:
    """Interns stacks and frames. A pickle shares the list of a stack between all entries that have it."""

    def __init__(self) -> None:
        self.stacks: dict[tuple[int, ...], int] = {}
        self.frames: dict[StackFrame, int] = {}
        self._dicts: dict[int, int] = {}

    def indices(self, lists: Sequence[Any]) -> I32:
        """Index of each list of frames; NO_STACK for None. The caller keeps the dicts of the frames alive."""
        distinct = {id(frames): self._stack(frames) for frames in {id(f): f for f in lists}.values()}
        return np.fromiter(map(distinct.__getitem__, map(id, lists)), np.int32, len(lists))

    def _stack(self, frames: Any) -> int:
        if frames is None:
            return NO_STACK
        return self.stacks.setdefault(tuple([self._frame(f) for f in frames]), len(self.stacks))

    def _frame(self, frame: Record) -> int:
        number = self._dicts.get(id(frame))
        if number is None:
            stack_frame = StackFrame(
                plain_path(_name(frame.get("filename", ""))),
                int(frame.get("line", 0)),
                _name(frame.get("name", "")),
            )
            number = self._dicts[id(frame)] = self.frames.setdefault(stack_frame, len(self.frames))
        return number


class Columns:
    """Columns of one snapshot. Raises the ordinary errors of Python where the data contradicts the format.

    A pickle can name one list a million times. Whatever is walked here is therefore walked once per list that stands
    in the file, and the work stays in proportion to the file.
    """

    def __init__(self, data: Any) -> None:
        self.data: Record = data if isinstance(data, dict) else {"segments": data}
        self.legacy_list = not isinstance(data, dict)
        self.segments: Sequence[Record] = self.data["segments"]
        self.traces: Sequence[Sequence[Record]] = self.data.get("device_traces") or ()
        _each_its_own(self.traces)
        _each_its_own([s["blocks"] for s in self.segments])
        self.stacks = _Stacks()
        self.warnings: list[str] = []

    def snapshot(self, display: str, rank: int, rank_how: str) -> Snapshot:
        """The columns as a Snapshot: sizes in bytes, times in us. `rank_how`: how the rank is known."""
        entries = [e for trace in self.traces for e in trace]
        counts = [len(trace) for trace in self.traces]
        segments = self.segments
        note, notes = _notes(entries)
        blocks = [b for s in segments for b in s["blocks"]]
        devices, addresses, sizes = (
            _devices(segments),
            _field(segments, "address"),
            _sizes(segments, "total_size"),
        )
        _check_places(devices, addresses, sizes)
        return Snapshot(
            path=display,
            action=self._actions(entries),
            device=np.repeat(np.arange(len(counts), dtype=np.int16), counts),
            addr=_addresses(entries),
            size=_sizes(entries, "size"),
            stream=_field(entries, "stream", 0),
            time_us=_field(entries, "time_us", -1),
            stack=self.stacks.indices([e.get("frames") for e in entries]),
            segment_device=devices,
            segment_addr=addresses,
            segment_size=sizes,
            segment_requested=_field(segments, "requested_size", -1),
            block_segment=np.repeat(
                np.arange(len(segments), dtype=np.int32), [len(s["blocks"]) for s in segments]
            ),
            block_addr=_block_addresses(segments),
            block_size=_sizes(blocks, "size"),
            block_requested=_column(map(_requested, blocks), len(blocks)),
            block_state=np.array([_STATES[b["state"]] for b in blocks], dtype=np.uint8),
            block_stack=self.stacks.indices([_block_frames(b) for b in blocks]),
            stacks=tuple(self.stacks.stacks),
            frames=tuple(self.stacks.frames),
            segment_private=_private(segments),
            note=note,
            notes=notes,
            annotations=self._annotations(),
            allocator_settings=_settings(self.data.get("allocator_settings") or {}),
            torch_version=self._torch_version(entries, blocks),
            rank=rank,
            rank_how=rank_how,
            pinned=self._pinned(display, rank, rank_how),
            warnings=tuple(self.warnings),
        )

    def _pinned(self, display: str, rank: int, rank_how: str) -> Snapshot | None:
        """The host's allocator, which has no devices: its history is one list. A part that cannot be read costs nothing else."""
        segments, history = (self.data.get(key) or [] for key in ("host_segments", "host_traces"))
        if not segments and not history:
            return None
        try:
            of_host = {"segments": segments, "device_traces": [_flat(history)]}
            return Columns(of_host).snapshot(display, rank, rank_how)
        except MemoryError:
            raise
        except Exception:  # anything can stand there
            self.warnings.append("the record of pinned host memory is damaged and was not read")
            return None

    def _actions(self, entries: Sequence[Record]) -> U8:
        texts = list(map(itemgetter("action"), entries))
        unknown = sorted(set(map(_name, set(texts) - _ACTIONS.keys())))
        if unknown:
            self.warnings.append(f"entries of unknown kind ignored: {', '.join(unknown)}"[:200])
        known = dict.fromkeys(texts, Action.OTHER) | _ACTIONS
        actions = np.fromiter(map(known.__getitem__, texts), np.uint8, len(texts))
        actions[[e.get("internal_metadata") == _SYNTHETIC for e in entries]] = Action.OTHER
        return actions

    def _annotations(self) -> tuple[Annotation, ...]:
        """Each once: entries that are the same in all fields are one that was written twice."""
        each = (
            Annotation(_name(a["name"]), a["stage"] == "START", int(a.get("device", -1)), int(a["time_us"]))
            for a in self.data.get("external_annotations") or ()
        )
        return tuple(dict.fromkeys(each))

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


def _flat(history: Sequence[Any]) -> Sequence[Record]:
    """A list of entries; or of lists of them, as those of devices are."""
    if history and all(isinstance(part, list | tuple) for part in history):
        _each_its_own(history)
        return [entry for part in history for entry in part]
    return history


def _notes(entries: Sequence[Record]) -> tuple[I32, tuple[str, ...]]:
    """The columns `note` and `notes`."""
    texts = [e.get("user_metadata") for e in entries]
    ids: dict[str, int] = {}
    note = np.fromiter(
        (ids.setdefault(_name(t)[:_LONGEST_NOTE], len(ids)) if t else NO_NOTE for t in texts),
        np.int32,
        len(texts),
    )
    return (note if ids else note[:0]), tuple(ids)


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _name(value: Any) -> str:
    """A name of the file. Anything but text is damage: it could be nested without end."""
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} where a name belongs")
    return value


def _settings(record: Record) -> dict[str, Any]:
    return {_name(k): v for k, v in record.items() if isinstance(v, str | int | float | bool)}


def _each_its_own(lists: Iterable[Any]) -> None:
    known: set[int] = set()
    for one in lists:
        if not isinstance(one, list | tuple):
            raise TypeError(f"a {type(one).__name__} where a list belongs")
        if one and id(one) in known:
            raise ValueError("one list is named twice")
        known.add(id(one))


def _column(values: Iterable[Any], count: int) -> I64:
    return np.fromiter(values, np.int64, count)


def _field(records: Sequence[Record], key: str, absent: int | None = None) -> I64:
    """One field of all records, with a value for those that lack it (None: they must not)."""
    try:
        return _column(map(itemgetter(key), records), len(records))
    except KeyError:
        if absent is None:
            raise
    return _column((r.get(key, absent) for r in records), len(records))


def _devices(segments: Sequence[Record]) -> I16:
    devices = _field(segments, "device", 0)
    if (np.abs(devices) > np.iinfo(np.int16).max).any():
        raise ValueError("no such device")
    return devices.astype(np.int16)


def _addresses(entries: Sequence[Record]) -> I64:
    """Of the block; entries of an `oom` have what was free on the device instead."""
    try:
        return _field(entries, "addr")
    except KeyError:
        return _column(
            (e["addr"] if "addr" in e else e.get("device_free", -1) for e in entries), len(entries)
        )


def _private(segments: Sequence[Record]) -> Bool:
    """Whether each segment belongs to another pool than the common one, (0, 0); empty where none says."""
    pools = [s.get("segment_pool_id") for s in segments]
    if None in pools:
        return np.zeros(0, dtype=np.bool_)
    return np.array(
        [isinstance(p, list | tuple) and any(n != 0 for n in p[:2]) for p in pools], dtype=np.bool_
    )


def _sizes(records: Sequence[Record], key: str) -> I64:
    sizes = _field(records, key)
    if (sizes < 0).any():
        raise ValueError(f"negative {key}")
    return sizes


def _check_places(devices: I16, addresses: I64, sizes: I64) -> None:
    """Raises ValueError where segments lie nowhere, or two of a device at one place: nothing holds for their sums."""
    if (addresses < 0).any():
        raise ValueError("negative address")
    order = np.lexsort((addresses, devices))
    at, end, of = addresses[order], (addresses + sizes)[order], devices[order]
    if ((of[1:] == of[:-1]) & (at[1:] < end[:-1])).any():
        raise ValueError("overlapping segments")


def _block_addresses(segments: Sequence[Record]) -> I64:
    """Addresses of blocks: recorded, or summed up from the segment's start (torch 2.0 and before)."""
    addresses: list[int] = []
    for segment in segments:
        at = int(segment["address"])
        for block in segment["blocks"]:
            at = int(block.get("address", at))
            addresses.append(at)
            at += int(block["size"])
    return np.array(addresses, dtype=np.int64)


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
