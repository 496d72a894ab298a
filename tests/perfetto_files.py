"""Perfetto traces for tests, synthetic: written from the fields that torch documents (`cuspy_pftrace.cpp`), in its order of packets.

An encoder of its own, that shares nothing with the reader.
"""

from __future__ import annotations

import gzip
import json
import struct
from typing import Any

STAGES = ("Kernel", "Memcpy", "Memset", "Annotation", "EventRecord", "HostNode")
CATEGORIES = (
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "gpu_user_annotation",
    "graph_event_node",
    "graph_host_node",
)
_EXTRA = {"device": "device id", "context": "context id", "stream": "stream id"}
_LOST = ("grid", "block", "copy kind", "src kind", "dst kind", "External id")


def varint(number: int) -> bytes:
    number %= 1 << 64
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, value: int | float | str | bytes) -> bytes:
    if isinstance(value, bool | int):
        return varint(number << 3) + varint(int(value))
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def packet(*parts: bytes) -> bytes:
    return field(1, b"".join(parts))


def annotation(name: str, value: Any) -> bytes:
    return (field(10, name) if name else b"") + _value(value)


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return field(2, value)
    if isinstance(value, int):
        return field(4, value)
    if isinstance(value, float):
        return field(5, value)
    if isinstance(value, list):
        return b"".join(field(12, _value(v)) for v in value)
    if isinstance(value, dict):
        return b"".join(field(11, annotation(k, v)) for k, v in value.items())
    return field(6, "null" if value is None else value)


def perfetto(trace: dict[str, Any], *, level: int | None = 1, arch: str = "sm_90") -> bytes:
    """The events of a Chrome trace that cuspy could have written, as `.pftrace`; `level` None: not compressed."""
    base = trace["baseTimeNanoseconds"]
    timed = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    host = [e for e in timed if e["cat"] not in CATEGORIES]
    work = [e for e in timed if e["cat"] in CATEGORIES]
    counters = [e for e in trace["traceEvents"] if e["ph"] == "C"]
    names = {name: n for n, name in enumerate(dict.fromkeys(e["name"] for e in timed), 1)}
    cats = {cat: n for n, cat in enumerate(dict.fromkeys(e["cat"] for e in host), 1)}
    uuids: dict[Any, int] = {}
    out = [packet(field(8, base), field(10, 1), field(6, field(1, field(1, 6) + field(2, base))))]
    for e in host:
        for key in (e["pid"], (e["pid"], e["tid"])):
            if key in uuids:
                continue
            uuids[key] = uuid = len(uuids) + 1
            if isinstance(key, tuple):
                about = field(5, uuids[e["pid"]]) + field(
                    4, field(1, e["pid"]) + field(2, e["tid"]) + field(5, "t")
                )
            else:
                about = field(3, field(1, e["pid"]) + field(6, "python"))
            out.append(packet(field(60, field(1, uuid) + about)))
    specs = {e["name"]: n for n, e in enumerate(counters)}
    interned = [
        field(47, field(1, gpu + 1) + field(3, gpu) + field(2, _specs(specs))) for gpu in _gpus(counters)
    ]
    interned += [field(2, field(1, n) + field(2, name)) for name, n in names.items()]
    interned += [field(1, field(1, n) + field(2, cat)) for cat, n in cats.items()]
    interned += [field(24, field(1, n) + field(2, stage)) for n, stage in enumerate(STAGES, 1)]
    interned += [field(1000, field(1, n) + field(3, name)) for name, n in names.items()]
    out.append(packet(field(10, 1), field(13, 1), field(12, b"".join(interned))))
    numbers = {e["args"].get("correlation", 0): n for n, e in enumerate(work, 1)}
    ns = lambda us: base + round(us * 1000)  # noqa: E731
    for e in host:
        said = b"".join(field(4, annotation(k, v)) for k, v in e["args"].items())
        cat = b"" if e["cat"] in ("cuda_sync", "overhead") else field(3, cats[e["cat"]])
        if "Launch" in e["name"] and (number := numbers.get(e["args"]["correlation"])):
            said += field(3000, field(1, number))
        event = field(9, 1) + field(11, uuids[e["pid"], e["tid"]]) + field(10, names[e["name"]]) + cat + said
        out.append(packet(field(8, ns(e["ts"])), field(10, 1), field(13, 2), field(11, event)))
    for e in host:
        end = field(9, 2) + field(11, uuids[e["pid"], e["tid"]])
        out.append(packet(field(8, ns(e["ts"] + e["dur"])), field(10, 1), field(11, end)))
    out += [
        packet(field(8, ns(e["ts"])), field(10, 1), field(13, 2), field(53, _work(e, n, names, arch)))
        for n, e in enumerate(work, 1)
    ]
    for e in counters:
        sample = field(1, specs[e["name"]]) + field(3, float(e["args"][""]))
        gpu = int(e["pid"].split()[1])
        out.append(
            packet(
                field(8, ns(e["ts"])),
                field(10, 1),
                field(13, 2),
                field(52, field(4, gpu + 1) + field(2, sample)),
            )
        )
    data = b"".join(out)
    return data if level is None else gzip.compress(data, level)


def _gpus(counters: list[dict[str, Any]]) -> list[int]:
    return sorted({int(e["pid"].split()[1]) for e in counters})


def _specs(specs: dict[str, int]) -> bytes:
    return b"".join(field(1, field(1, n) + field(2, name)) for name, n in specs.items())


def _work(e: dict[str, Any], number: int, names: dict[str, int], arch: str) -> bytes:
    args = e["args"]
    stage = CATEGORIES.index(e["cat"]) + 1
    event = field(1, number) + field(2, round(e["dur"] * 1000)) + field(11, args["device"])
    event += field(13, 100 + args["stream"]) + field(14, stage) + field(5, 1)
    if e["cat"] in ("kernel", "gpu_user_annotation"):
        event += field(20, names[e["name"]])
    if "grid" in args:
        event += field(19, names[e["name"]])
        dims = (b"".join(field(n, v) for n, v in enumerate(args[key], 1)) for key in ("grid", "block"))
        event += field(21, b"".join(field(n, d) for n, d in enumerate(dims, 1)))
    extra = {_EXTRA.get(k, k): v for k, v in args.items() if k not in _LOST}
    extra |= {"arch": arch, "process_id": "1", "process_name": "python"}
    for key, value in extra.items():
        said = value if isinstance(value, str) else json.dumps(value)
        event += field(6, field(1, key) + field(2, said))
    return event


def as_cuspy(trace: dict[str, Any]) -> dict[str, Any]:
    """A trace of `RunBuilder` as cuspy writes it: copies named `Memcpy` with their kinds in the arguments, nothing that only
    Kineto knows."""
    trace = json.loads(json.dumps(trace)) | {"baseTimeNanoseconds": 1_700_000_000_000_000_000}
    for e in trace["traceEvents"]:
        if e.get("cat") not in CATEGORIES:
            continue
        e["args"] = {
            k: v
            for k, v in e["args"].items()
            if k in ("device", "context", "stream", "correlation", "grid", "block", "bytes")
        }
        if e["cat"] == "gpu_memcpy":
            direction, _, memory = e["name"].removeprefix("Memcpy ").partition(" (")
            source, _, target = memory.rstrip(")").lower().partition(" -> ")
            e["name"] = "Memcpy"
            e["args"] |= {"copy kind": direction, "src kind": source, "dst kind": target}
    return trace
