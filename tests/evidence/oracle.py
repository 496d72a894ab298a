"""The time ledger computed again, slowly and on its own: plain Python over the raw JSON, nothing of trace_doctor.

Per device: compute, communication beside no compute, copies beside neither, idle, and idle inside the loader, in ns,
over the analysed window (`ProfilerStep#` marks and the GPU work launched in them, else the extent of all work).
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

KERNELS = {"kernel", "Kernel", "mtia_ccp_events"}
COPIES = {"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"}
CALLS = {"cuda_runtime", "cuda_driver", "mtia_runtime", "Runtime", "hip_runtime"}
MARKS = {"user_annotation", "cpu_op", "Operator", "User annotation"}
Span = tuple[int, int]


@dataclass
class DeviceTime:
    compute: int = 0
    comm: int = 0
    copy: int = 0
    idle: int = 0
    idle_in_loader: int = 0


@dataclass
class Oracle:
    window: Span
    devices: dict[int, DeviceTime]


def read(path: Path) -> list[dict[str, Any]] | None:
    """The complete events of a file that is valid JSON, None for others."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    try:
        parsed = json.loads(data, parse_float=Decimal)
    except ValueError:
        return None
    events = parsed.get("traceEvents", []) if isinstance(parsed, dict) else parsed
    return [e for e in events if isinstance(e, dict) and e.get("ph") == "X" and "ts" in e]


def compute(events: list[dict[str, Any]]) -> Oracle | None:
    """None where the file holds no GPU work."""
    origin = min(e["ts"] for e in events)
    gpu: list[tuple[int, str, int, int, int]] = []  # device, kind, start, end, correlation
    calls: dict[int, int] = {}
    steps: list[Span] = []
    loaders: list[Span] = []
    extent: list[Span] = []
    for e in events:
        cat, name, args = e.get("cat", ""), str(e.get("name", "")), e.get("args") or {}
        if cat not in KERNELS | COPIES | CALLS | MARKS:
            continue
        start = round(Decimal(e["ts"] - origin) * 1000)
        end = start + max(round(Decimal(e.get("dur") or 0) * 1000), 0)
        if cat in KERNELS | COPIES:
            if cat == "mtia_ccp_events" and name in ("event_wait", "event_record"):
                continue
            kind = "copy" if cat in COPIES or name == "dma_request" else "compute"
            if kind == "compute" and re.search("nccl|rccl|gloo", name, re.IGNORECASE):
                kind = "comm"
            gpu.append((int(args.get("device", e.get("pid"))), kind, start, end, args.get("correlation", -1)))
            extent.append((start, end))
        elif cat in CALLS:
            calls.setdefault(args.get("correlation", -1), start)
            extent.append((start, end))
        elif cat in MARKS:
            extent.append((start, end))
            if re.fullmatch(r"ProfilerStep#\d+", name):
                steps.append((start, end))
            if name.startswith("enumerate(DataLoader)#") and name.endswith(".__next__"):
                loaders.append((start, end))
    if not gpu:
        return None
    window = (min(s for s, _ in steps or extent), max(e for _, e in steps or extent))
    if steps:
        launched = [e for _, _, _, e, c in gpu if c in calls and window[0] <= calls[c] < window[1]]
        window = (window[0], max([window[1], *launched]))
    return Oracle(window, {d: _one(d, gpu, loaders, window) for d in sorted({g[0] for g in gpu})})


def _one(
    device: int, gpu: list[tuple[int, str, int, int, int]], loaders: list[Span], window: Span
) -> DeviceTime:
    """Sweeps once over all borders, counting what is open."""
    edges: list[tuple[int, int, str]] = []
    work = [(kind, s, e) for d, kind, s, e, _ in gpu if d == device]
    for kind, start, end in [*work, *(("loader", s, e) for s, e in loaders)]:
        start, end = max(start, window[0]), min(end, window[1])
        if end > start:
            edges += [(start, 1, kind), (end, -1, kind)]
    open_now = {"compute": 0, "comm": 0, "copy": 0, "loader": 0}
    found, at = DeviceTime(), window[0]
    for moment, change, kind in sorted(edges):
        _add(found, open_now, moment - at)
        open_now[kind] += change
        at = moment
    _add(found, open_now, window[1] - at)
    return found


def _add(found: DeviceTime, open_now: dict[str, int], length: int) -> None:
    for kind in ("compute", "comm", "copy"):
        if open_now[kind]:
            setattr(found, kind, getattr(found, kind) + length)
            return
    found.idle += length
    if open_now["loader"]:
        found.idle_in_loader += length
