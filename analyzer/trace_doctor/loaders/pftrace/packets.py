"""Packets of a Perfetto trace as the events of a Chrome trace, one by one.

Device work is one packet each (`GpuRenderStageEvent`). What ran on the host is one packet where it begins and another where
it ends (`TrackEvent`); torch writes all begins of a kind, then all ends in the same order, so that on one track the first
that began is the first that ends. Names are numbers that an earlier packet explains. Numbers of fields:
`protos/perfetto/trace/` of perfetto; what torch writes: `torch/csrc/profiler/cuspy/cuspy_pftrace.cpp`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import msgspec

from trace_doctor.loaders.pftrace import arguments, wire
from trace_doctor.loaders.pftrace.names import Names
from trace_doctor.loaders.pftrace.wire import Value, fields, signed, text, unsigned

FOREIGN = b'{"perfettoTrace": 1}'
"""in place of a trace of another program"""
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS = 8, 10, 11, 12, 13
_COMPRESSED, _COUNTER, _DEVICE_WORK, _TRACK = 50, 52, 53, 60
_CLEARED = 1
_BEGIN, _END = 1, 2
_SUBMITTED = 3000
_MOST_OPEN = 512 << 20
_PER_OPEN = 200
"""bytes that an event takes between its begin and its end, beside its own"""
_MOST_VAIN = 4_000_000
"""so many more packets than events may tell nothing: then the file is made to hold us up"""
_LATEST_NS = 4 * 10**18
_CATEGORY = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Annotation": "gpu_user_annotation",
    "EventRecord": "graph_event_node",
    "HostNode": "graph_host_node",
}
_PLACES = {"device id": "device", "context id": "context", "stream id": "stream"}
_NUMBERS = frozenset(
    {"correlation", "priority", "queued", "channel", "channel_type", "graph id", "graph node id", "bytes", "value", "memory kind",
     "In msg nelems", "Out msg nelems", "Group size", "Seq", *_PLACES}
)  # fmt: skip
"""of device work, whose arguments are all texts"""
_ABOUT_PROCESS = frozenset({"process_id", "process_name"})
_ARCH = "arch"


class Events:
    """Takes packets; gives what they say as text. Raises Malformed for what is no packet of a trace."""

    def __init__(self) -> None:
        self._names: defaultdict[int, Names] = defaultdict(Names)
        self._tracks: dict[int, tuple[int, str, str]] = {}
        """thread -> (process' track, pid, tid) as text; a process has no tid"""
        self._processes: dict[int, str] = {}
        self._open: defaultdict[int, deque[tuple[int, int, bytes]]] = defaultdict(deque)
        self._open_bytes = 0
        self._base: int | None = None
        self._ready: list[bytes] = []
        self._first = True
        self._vain = 0
        self._archs: dict[int, str] = {}
        self._last_work = self._last_launched = 0
        """numbers of device work, which count up: what came, and what launches say that they submitted"""

    @property
    def is_torch(self) -> bool:
        """Whether the names so far are those of torch."""
        return any(names.is_torch for names in self._names.values())

    @property
    def incomplete(self) -> bool:
        """Whether events have not ended, or device work that was launched has not come."""
        return self._open_bytes > 0 or self._last_launched > self._last_work

    def beginning(self) -> bytes:
        """The text in front of the events."""
        base = self._base or 0
        return b'{"schemaVersion":1,"baseTimeNanoseconds":%d,"perfettoTrace":1,"traceEvents":[' % base

    def take(self) -> bytes:
        """The events since the last time."""
        if not self._ready:
            return b""
        ready = (b"" if self._first else b",\n") + b",\n".join(self._ready)
        self._first, self._ready = False, []
        return ready

    def end(self) -> bytes:
        """The text behind the events, the last of them included."""
        devices = [{"id": n, **_capability(arch)} for n, arch in sorted(self._archs.items())]
        return self.take() + b'],"deviceProperties":' + msgspec.json.encode(devices) + b"}"

    def add(self, packet: bytes) -> None:
        """Takes one packet."""
        before = len(self._ready)
        ts = sequence = flags = 0
        parts: list[tuple[int, bytes]] = []
        for number, value in fields(packet):
            if number == _TIMESTAMP:
                ts = unsigned(value)
            elif number == _SEQUENCE:
                sequence = unsigned(value)
            elif number == _FLAGS:
                flags = unsigned(value)
            elif number == _COMPRESSED:
                raise wire.Malformed("it holds compressed packets, which are not read")
            elif number in _PARTS:
                parts.append((number, wire.message(value)))
        if ts and self._base is None:
            self._base = ts if ts < _LATEST_NS else 0
        if flags & _CLEARED:
            self._names.pop(sequence, None)
        for number, part in parts:
            _PARTS[number](self, ts, sequence, part)
        self._vain += 1 if len(self._ready) == before else -1
        if self._vain > _MOST_VAIN + self._open_bytes // _PER_OPEN:
            raise wire.Malformed(f"more than {_MOST_VAIN:,} packets tell nothing")

    # -- names and tracks --------------------------------------------------------------------------------------

    def _intern(self, _ts: int, sequence: int, part: bytes) -> None:
        self._names[sequence].add(part)
        if sum(names.size for names in self._names.values()) > Names.MOST:
            raise wire.Malformed(f"its names take more than {Names.MOST >> 20} MiB")

    def _track(self, _ts: int, _sequence: int, part: bytes) -> None:
        uuid = parent = 0
        process, thread = b"", b""
        for number, value in fields(part):
            if number == 1:
                uuid = unsigned(value)
            elif number == 5:
                parent = unsigned(value)
            elif number == 3:
                process = wire.message(value)
            elif number == 4:
                thread = wire.message(value)
        if len(self._tracks) + len(self._processes) > Names.MOST // _PER_OPEN:
            raise wire.Malformed("more tracks than any trace has")
        if process:
            known = dict(fields(process))
            name = text(known.get(6, b""))
            self._processes[uuid] = name
            self._label("process_name", str(signed(known.get(1, 0))), "", name)
        elif thread:
            known = dict(fields(thread))
            pid, tid = (str(signed(known.get(key, 0))) for key in (1, 2))
            self._tracks[uuid] = parent, pid, tid
            self._label("thread_name", pid, tid, text(known.get(5, b"")))

    def _label(self, what: str, pid: str, tid: str, name: str) -> None:
        self._ready.append(
            _text({"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}})
        )

    # -- the host ----------------------------------------------------------------------------------------------

    def _track_event(self, ts: int, sequence: int, part: bytes) -> None:
        known = dict(fields(part))  # of what is there several times the last; those are read where it ends
        kind, uuid = unsigned(known.get(9, 0)), unsigned(known.get(11, 0))
        if kind == _BEGIN:
            self._open[uuid].append((ts, sequence, part))
            self._open_bytes += len(part) + _PER_OPEN
            if self._open_bytes > _MOST_OPEN:
                raise wire.Malformed("more events begin and do not end than any trace has")
        elif kind == _END and self._open[uuid]:
            began, of_names, begun = self._open[uuid].popleft()
            self._open_bytes -= len(begun) + _PER_OPEN
            self._slice(began, ts, self._names[of_names], uuid, begun)

    def _slice(self, began: int, ended: int, names: Names, uuid: int, part: bytes) -> None:
        name = category = ""
        args: dict[str, Any] = {}
        for number, value in fields(part):
            if number == 10:
                name = names.of("names", value)
            elif number == 23:
                name = text(value)
            elif number == 3:
                category = names.of("categories", value)
            elif number == 22:
                category = text(value)
            elif number == _SUBMITTED:
                submitted = (unsigned(v) for n, v in fields(wire.message(value)) if n == 1)
                self._last_launched = max(self._last_launched, *submitted, 0)
            elif number == 4:
                key, said = names.argument(wire.message(value), arguments.annotation)
                args[key] = said
        parent, pid, tid = self._tracks.get(uuid, (0, "", str(uuid)))
        if not category:
            is_wait = "cuda_sync_kind" in args
            category = (
                "cuda_sync" if is_wait else "overhead" if self._processes.get(parent) == "Overhead" else ""
            )
        self._event(category, name, pid, tid, began, ended - began, args)

    # -- the device --------------------------------------------------------------------------------------------

    def _device_work(self, ts: int, sequence: int, part: bytes) -> None:
        names = self._names[sequence]
        duration = gpu = 0
        stage = name = ""
        args: dict[str, Any] = {}
        for number, value in fields(part):
            if number == 1:
                self._last_work = max(self._last_work, unsigned(value))
            elif number == 2:
                duration = unsigned(value)
            elif number == 11:
                gpu = signed(value)
            elif number == 14:
                stage = names.of("specifications", value)
            elif number == 20 or (number == 19 and not name):
                name = names.of("names" if number == 20 else "kernels", value)
            elif number == 6:
                key, said = names.argument(wire.message(value), _extra)
                args[key] = said
            elif number == 21:
                arguments.launch(wire.message(value), args)
        if stage == "HostNode" and "host fn" in args:
            name = f"HostNode: {args['host fn']}"
        for key in _ABOUT_PROCESS:
            args.pop(key, None)
        arch = args.pop(_ARCH, "")
        if arch and len(self._archs) < 1000:
            self._archs.setdefault(gpu, arch)
        category = _CATEGORY.get(stage, "")
        self._event(
            category,
            name or stage,
            str(gpu),
            str(args.get("stream", "")),
            ts,
            duration,
            {"device": gpu, **args},
        )

    def _counter(self, ts: int, sequence: int, part: bytes) -> None:
        known: list[tuple[int, Value]] = list(fields(part))
        described = self._names[sequence].counters(next((v for n, v in known if n == 4), 0))
        if described is None:
            return
        gpu, names = described
        for number, value in known:
            if number != 2:
                continue
            sample = dict(fields(wire.message(value)))
            name = names.get(unsigned(sample.get(1, 0)))
            said = wire.real(sample[3]) if 3 in sample else signed(sample.get(2, 0))
            if name is not None:
                event = {
                    "ph": "C",
                    "name": name,
                    "pid": f"GPU {gpu} Counters",
                    "ts": self._us(ts),
                    "args": {"": said},
                }
                self._ready.append(_text(event))

    def _event(
        self, cat: str, name: str, pid: str, tid: str, start: int, dur: int, args: dict[str, Any]
    ) -> None:
        self._ready.append(
            _text(
                {
                    "ph": "X",
                    "cat": cat,
                    "name": name,
                    "pid": pid,
                    "tid": tid,
                    "ts": self._us(start),
                    "dur": dur / 1000,
                    "args": args,
                }
            )
        )

    def _us(self, ts: int) -> float:
        return (ts - (self._base or 0)) / 1000


_PARTS = {
    _TRACK_EVENT: Events._track_event,
    _INTERNED: Events._intern,
    _COUNTER: Events._counter,
    _DEVICE_WORK: Events._device_work,
    _TRACK: Events._track,
}
_text = msgspec.json.Encoder().encode


def _extra(data: bytes, _names: Names) -> tuple[str, Any]:
    """An argument of device work."""
    known = dict(fields(data))
    key, value = text(known.get(1, b"")), text(known.get(2, b""))
    is_number = key in _NUMBERS and value.removeprefix("-").isdecimal() and len(value) < 20
    return _PLACES.get(key, key), int(value) if is_number else value


def _capability(arch: str) -> dict[str, int]:
    """`sm_90` -> 9.0; nothing for any other text."""
    digits = arch.removeprefix("sm_")
    if not digits.isdecimal() or not 2 <= len(digits) <= 3 or not arch.startswith("sm_"):
        return {}
    return {"computeMajor": int(digits[:-1]), "computeMinor": int(digits[-1])}
