"""Texts to begin fuzzing with: `python seeds.py FOLDER`. Windows of events as profilers lay them out, and of each kind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

X = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::mm",
    "pid": 7,
    "tid": 7,
    "ts": 4415855139456.328,
    "dur": 10.519,
}
EVENTS = [
    X | {"args": {"External id": 1, "Record function id": 0, "Input Dims": [[64, 1], [], []], "Ev Idx": 2}},
    X | {"cat": "kernel", "args": {"device": 0, "stream": 7, "correlation": 18446744073709551615, "grid": [1, 2, 3]}},
    X | {"pid": "Spans", "tid": "PyTorch Profiler", "name": "sträng \\ \"q\" \t", "ts": 1722000000000000, "dur": 0},
    {"ph": "X", "name": "bare"},
    {"name": "late", "ts": 9007199254740993, "ph": "X", "dur": -3, "args": {}, "pid": -1, "tid": "7"},
    {"ph": "i", "s": "t", "name": "[memory]", "pid": 7, "tid": 7, "ts": 5.0,
     "args": {"Addr": 140346, "Bytes": -512, "Total Allocated": 4, "Total Reserved": 8, "Device Type": 1, "Device Id": 0}},
    {"ph": "i", "name": "[OutOfMemory]", "ts": 1e-05},
    {"ph": "M", "name": "thread_name", "ts": 0, "pid": 7, "tid": 7, "args": {"name": "thread 7 (python)"}},
    {"ph": "M", "name": "process_labels", "pid": 7, "tid": 0, "args": {"labels": "GPU 0"}},
    {"ph": "f", "bp": "e", "id": 3, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 4},
    {"id": 4, "ph": "s", "odd": [True, False, None, {"deep": [[], {}]}, -1.5e3], "ts": 1e22},
]  # fmt: skip


def texts() -> list[bytes]:
    """The same events in the layouts of several writers, and each event among two usual ones."""
    compact = ",".join(json.dumps(e, separators=(",", ":"), ensure_ascii=False) for e in EVENTS)
    kineto = ",\n  ".join(json.dumps(e, indent=4) for e in EVENTS)
    spaced = ", ".join(json.dumps(e) for e in EVENTS)
    among = [f"{json.dumps(X)},{json.dumps(e)},{json.dumps(X)}" for e in EVENTS]
    return [text.encode() + b"\n]}" for text in (compact, kineto, spaced)] + [
        (t + "," + t).encode() for t in among
    ]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts()):
        (folder / f"seed_{number:02d}.json").write_bytes(text)
