"""Event texts -> numpy columns. No dict per event: typed frozen structs, one array per field and chunk.

Times stay float64 microseconds here; `Columns.table` converts them to integer nanoseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import compress
from operator import attrgetter
from sys import getsizeof
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from trace_doctor.arrays import I64
from trace_doctor.loaders import _accelerator
from trace_doctor.loaders.kineto.salvage import strict
from trace_doctor.loaders.kineto.table import Table
from trace_doctor.run import Counters, MemoryEvents

LATEST_US = 4e15
"""A start beyond this (in the year 2096) is no time; nanoseconds would overflow."""
LONGEST_US = 30 * 86_400e6
"""A duration above 30 days is an overflow (a negative difference written as unsigned)."""


class Args(msgspec.Struct, frozen=True, gc=False):
    """The arguments that become columns. -1 where absent."""

    correlation: int = -1
    stream: int = -1
    device: int = -1
    external: int = msgspec.field(default=-1, name="External id")
    external_old: int = msgspec.field(default=-1, name="external id")
    addr: int = msgspec.field(default=-1, name="Addr")
    bytes: int = msgspec.field(default=0, name="Bytes")
    allocated: int = msgspec.field(default=-1, name="Total Allocated")
    reserved: int = msgspec.field(default=-1, name="Total Reserved")
    device_type: int = msgspec.field(default=0, name="Device Type")
    device_id: int = msgspec.field(default=-1, name="Device Id")
    name: Any = None
    labels: Any = None
    value: Any = msgspec.field(default=None, name="")
    """of a counter"""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One trace event as sound files write it; `tidy` makes one of anything else."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: float = math.nan
    dur: float = -1.0
    args: Args = Args()


_events = msgspec.json.Decoder(list[Event])
_coerced = msgspec.json.Decoder(list[Event], strict=False)
_INT_ARGS = {f.encode_name: f.name for f in msgspec.structs.fields(Args) if f.type is int}
_INT64 = 1 << 63


def decode(text: bytes) -> list[Event]:
    """Events of a JSON list of event objects. Raises ValueError when the text is no such list.

    Files that write numbers as text (Ascend) are accepted too.
    """
    try:
        try:
            return _events.decode(text)
        except msgspec.ValidationError:
            return _coerced.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_one(text: bytes) -> Event | None:
    """The one event of a text. None when it is no JSON object, or more than one."""
    try:
        (event,) = decode(b"".join((b"[", text, b"]")))
        return event
    except msgspec.ValidationError:  # a field of another type
        try:
            return tidy(strict(text))
        except ValueError:
            return None
    except ValueError:
        return None


def tidy(raw: Any) -> Event | None:
    """An Event from any decoded JSON object, with unusable fields left at their defaults. None when it is no event."""
    if not isinstance(raw, dict):
        return None
    arguments = raw.get("args")
    args: dict[str, Any] = {}
    if isinstance(arguments, dict):
        args = {field: _integer(arguments[key]) for key, field in _INT_ARGS.items() if key in arguments}
        args |= {key: arguments.get(key) for key in ("name", "labels")} | {"value": arguments.get("")}
    return Event(
        ph=_text(raw.get("ph")),
        name=_text(raw.get("name")),
        cat=_text(raw.get("cat")),
        pid=_text(raw.get("pid")),
        tid=_text(raw.get("tid")),
        ts=_number(raw.get("ts"), math.nan),
        dur=_number(raw.get("dur"), -1.0),
        args=Args(**args),
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _number(value: Any, default: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if math.isfinite(number) else default


def _integer(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return -1


def _is_sample(e: Event) -> bool:
    value = e.args.value
    return type(value) in (int, float) and abs(e.ts) < LATEST_US and abs(value) < LATEST_US


class _Ids(dict[Any, int]):
    """Numbers things in the order they are first seen. `size` is about what they take, in bytes."""

    size = 0

    def __missing__(self, key: Any) -> int:
        self[key] = new = len(self)
        self.size += PER_ID + sum(map(getsizeof, key if isinstance(key, tuple) else (key,)))
        return new


def nanoseconds(us: npt.NDArray[np.float64]) -> I64:
    """Float microseconds to int64 nanoseconds by parts: one product would be off by up to 74 ns at 1.7e15. Halves go to the
    even one of what the text said: the float of `109454.6455` is a little less.

    They take the memory of `us`, a block after the other: fresh memory costs more than the arithmetic.
    """
    ns = us.view(np.int64)
    for start in range(0, len(us), _BLOCK):
        block = slice(start, start + _BLOCK)
        whole = np.floor(us[block])
        part = us[block] - whole
        part *= 1000.0
        rounded = np.rint(part)
        part -= rounded
        halves = np.flatnonzero(np.abs(part, out=part) > 0.5 - _NEARLY)
        if len(halves):
            exact = [Decimal(repr(x)) - int(x // 1) for x in us[block][halves].tolist()]
            rounded[halves] = [int((x * 1000).to_integral_value(ROUND_HALF_EVEN)) for x in exact]
        ns[block] = whole
        ns[block] *= 1000
        ns[block] += rounded.astype(np.int64)
    return ns


_NEARLY = 0.01
"""So many nanoseconds from a half, a float of microseconds may stand for it: up to a day of them."""
_ROW: dict[str, type[np.generic]] = {
    "ts": np.float64,
    "dur": np.float64,
    "correlation": np.int64,
    "external": np.int64,
    "device": np.int16,
    "stream": np.int32,
    "name": np.int32,
    "cat": np.int32,
    "track": np.int32,
    "offset": np.int64,
}
_MEMORY_ROW: dict[str, type[np.generic]] = {
    "ts": np.float64,
    "addr": np.int64,
    "bytes": np.int64,
    "allocated": np.int64,
    "reserved": np.int64,
    "device_type": np.int64,
    "device_id": np.int64,
}
_COUNTER_ROW: dict[str, type[np.generic]] = {
    "ts": np.float64,
    "value": np.float64,
    "device": np.int16,
    "name": np.int32,
}
_COUNTED = re.compile(r"GPU (\d{1,4}) Counters")
"""process of the samples of one GPU"""
DERIVED = frozenset({"Cycles (Current Kernel)"})
"""duration times the median of the clock, for each kernel"""
PER_EVENT_TEXT = 200
"""Bytes of JSON that one event takes, at the least: 250 to 500 in real files with stacks."""
_BLOCK = 1 << 14
BASE, PER_EVENT, PER_ID = 128 << 20, 160, 300
"""Bytes that an analysis takes at its peak, measured on traces of a million events: in all, and for each event and
each name or track."""
_ARGS = ("correlation", "external", "external_old", "device", "stream")
_MEMORY = ("addr", "bytes", "allocated", "reserved", "device_type", "device_id")
_args, _track = attrgetter("args"), attrgetter("pid", "tid")


def _column(structs: Sequence[Any], field: str, dtype: Any) -> npt.NDArray[Any]:
    get: Callable[[Any], Any] = attrgetter(field)
    try:
        return np.fromiter(map(get, structs), dtype, len(structs))
    except OverflowError:  # unsigned 64-bit: addresses, correlation -1 written as 2**64 - 1
        return np.fromiter(((get(s) + _INT64) % (2 * _INT64) - _INT64 for s in structs), dtype, len(structs))


class Columns:
    """Collects events chunk by chunk. Everything but events with a duration and `[memory]` instants is only counted."""

    def __init__(self, expected: int = 0) -> None:
        """`expected`: about how many rows there will be. Too few cost copies, too many cost nothing."""
        self.names = _Ids()
        self.cats = _Ids()
        self.tracks = _Ids()
        self.labels: dict[tuple[str, str], str] = {}
        self.processes: dict[str, str] = {}
        self.out_of_memory = 0
        self.timeless = 0
        self._labels_size = 0
        self._rows = Table(_ROW, expected)
        self._memory = Table(_MEMORY_ROW)
        self._counters = Table(_COUNTER_ROW)
        self._counter_names = _Ids()
        self.integer_ts = True

    @property
    def count(self) -> int:
        """Events taken so far."""
        return len(self._rows) + len(self._memory) + len(self._counters)

    @property
    def needed(self) -> int:
        """About how many bytes an analysis of the events so far takes."""
        texts = self.names.size + self.cats.size + self.tracks.size + self._labels_size
        return BASE + PER_EVENT * self.count + texts

    def add(self, events: Sequence[Event], offsets: npt.NDArray[np.int64]) -> None:
        """`offsets` are those of each event's `{` in the decompressed file."""
        timed = [e.ph == "X" and e.name != "[memory]" for e in events]
        if not all(timed):
            self._others([e for e, row in zip(events, timed, strict=True) if not row])
            events = list(compress(events, timed))
            offsets = offsets[np.array(timed)]
        if not events:
            return
        count = len(events)
        args = list(map(_args, events))
        part = {field: _column(args, field, np.int64) for field in _ARGS}
        part["ts"] = _column(events, "ts", np.float64)
        part["dur"] = _column(events, "dur", np.float64)
        for key, ids in (("name", self.names), ("cat", self.cats)):
            part[key] = np.fromiter(map(ids.__getitem__, map(attrgetter(key), events)), np.int32, count)
        part["track"] = np.fromiter(map(self.tracks.__getitem__, map(_track, events)), np.int32, count)
        part["external"] = np.maximum(part["external"], part.pop("external_old"))
        part["device"] = np.clip(part["device"], -1, np.iinfo(np.int16).max).astype(np.int16)
        part["stream"] = _narrow(part["stream"])
        part["offset"] = offsets
        self._times(part)

    def scanner(self) -> _accelerator.Scanner | None:
        """What fills these columns where the decoder in C is in use."""
        return _accelerator.scanner(self._rows, (self.names, self.cats, self.tracks))

    def add_window(self, window: _accelerator.Window, text: bytes) -> None:
        """What the scanner found in `text` beside rows."""
        if window.labels:
            labels = b",".join(text[start:end] for start, end in window.labels)
            self._others(decode(b"".join((b"[", labels, b"]"))))
        self.out_of_memory += window.out_of_memory
        self.integer_ts &= window.integer_ts
        if len(window.memory):
            self._memories({key: window.memory[key] for key in _MEMORY_ROW})

    def _times(self, part: dict[str, npt.NDArray[Any]]) -> None:
        finite = np.abs(part["ts"]) < LATEST_US  # false for NaN
        if not finite.all():
            self.timeless += int(len(finite) - finite.sum())
            part = {key: values[finite] for key, values in part.items()}
        if len(part["ts"]):
            self.integer_ts &= bool((part["ts"] == np.floor(part["ts"])).all())
            self._rows.add(part)

    def _others(self, events: list[Event]) -> None:
        memory = []
        samples = []
        for e in events:
            if e.ph == "C":
                samples.append(e)
            elif e.ph == "M":
                if e.name in ("thread_name", "process_name", "process_labels"):
                    self._label(e)
            elif e.name == "[memory]":
                memory.append(e)
            elif e.name == "[OutOfMemory]":
                self.out_of_memory += 1
        if memory:
            args = list(map(_args, memory))
            part = {field: _column(args, field, np.int64) for field in _MEMORY}
            part["ts"] = _column(memory, "ts", np.float64)
            self._memories(part)

        if samples:
            self._sampled(samples)

    def _sampled(self, events: list[Event]) -> None:
        """Counters of GPUs. Those that torch computes from others are no measurement."""
        rows = [
            (e.ts, e.args.value, int(device[1]), self._counter_names[e.name])
            for e in events
            if e.name not in DERIVED and (device := _COUNTED.fullmatch(str(e.pid))) and _is_sample(e)
        ]
        if rows:
            columns = zip(*rows, strict=True)
            part = {
                key: np.array(c, kind) for (key, kind), c in zip(_COUNTER_ROW.items(), columns, strict=True)
            }
            self._counters.add(part)

    def counters(self, base_ns: int) -> Counters:
        """The samples of counters by time."""
        part = self._counters.take()
        ts = nanoseconds(part["ts"])
        ts += base_ns
        order = np.argsort(ts, kind="stable")
        return Counters(
            ts=ts[order],
            value=part["value"][order],
            device=part["device"][order],
            name=part["name"][order],
            names=tuple(self._counter_names),
        )

    def _memories(self, part: dict[str, npt.NDArray[Any]]) -> None:
        finite = np.abs(part["ts"]) < LATEST_US  # false for NaN
        self._memory.add(part if finite.all() else {key: values[finite] for key, values in part.items()})

    def _label(self, e: Event) -> None:
        text = e.args.name if e.name != "process_labels" else e.args.labels
        if not isinstance(text, str) or not text:
            return
        self._labels_size += PER_ID + len(text) + len(str(e.pid)) + len(str(e.tid))
        if e.name == "thread_name":
            self.labels[str(e.pid), str(e.tid)] = text
        else:
            self.processes.setdefault(str(e.pid), text)

    def memory(self, base_ns: int) -> MemoryEvents:
        """The `[memory]` instants by time."""
        part = self._memory.take()
        ts = nanoseconds(part["ts"])
        ts += base_ns
        order = np.argsort(ts, kind="stable")
        device = np.where(part["device_type"] == 0, -1, np.maximum(part["device_id"], 0)).astype(np.int16)
        return MemoryEvents(
            ts=ts[order],
            addr=part["addr"][order],
            bytes=part["bytes"][order],
            total_allocated=part["allocated"][order],
            total_reserved=part["reserved"][order],
            device=device[order],
        )

    def rows(self) -> dict[str, npt.NDArray[Any]]:
        """All rows as one array per column, in file order; `ts` and `dur` in float microseconds."""
        return self._rows.take()


def _narrow(stream: I64) -> npt.NDArray[np.int32]:
    """Streams as int32: pointers that some runtimes write as a stream do not fit, and are no stream number."""
    fits = (stream >= -1) & (stream <= np.iinfo(np.int32).max)
    return np.where(fits, stream, -1).astype(np.int32)
