"""Trace files written event by event, for tests of reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.run import Run

HEAD = '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": ['


def event(name: str, ts: float, dur: Any = 5, **fields: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 1,
        "tid": 2,
        "ts": ts,
        "dur": dur,
        "args": {},
    } | fields


def sound(count: int, start: int = 0) -> list[str]:
    return [json.dumps(event(f"op{i}", 10 * i)) for i in range(start, start + count)]


def load(tmp_path: Path, content: str | bytes, name: str = "trace.json") -> Run:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return load_trace(path, name)


def trace(*events: str, tail: str = "]}") -> str:
    return HEAD + ",\n".join(events) + tail


def names(run: Run) -> list[str]:
    return [run.text(i) for i in range(len(run))]
