"""Every real trace: loaded, or refused with one line; small ones compared event by event with a plain reading."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trace_doctor.errors import NotACapture
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.loaders.sniff import sniff
from trace_doctor.run import Cat

pytestmark = pytest.mark.captures

FOREIGN = {
    "ROCm_rocm-blogs": "rocprof",
    "argonne-lcf_ALCF_Hands_on_HPC_Workshop": "Horovod",
    "awslabs_sagemaker-debugger": "TensorFlow",
    "cmpark0126_ml-serving-system-building": "another program",
    "mosaicml_composer": "Composer",
}
COMPARED_BYTES = 6 << 20


def text_of(path: Path) -> bytes:
    raw = path.read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def plain_events(text: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Metadata and events with a duration, read with nothing but the standard library."""
    whole = json.loads(text, parse_float=Decimal)
    events = whole["traceEvents"] if isinstance(whole, dict) else whole
    return (whole if isinstance(whole, dict) else {}), [e for e in events if e.get("ph") == "X"]


def argument(event: dict[str, Any], *keys: str) -> int:
    given = event.get("args") or {}
    return next((int(given[k]) for k in keys if isinstance(given.get(k), int)), -1)


def test_a_trace_loads_and_anything_else_is_refused_with_one_line(trace_file: Path) -> None:
    expected = FOREIGN.get(trace_file.parent.name)
    if expected is None:
        assert sniff(trace_file, "x") == "trace"
        run = load_trace(trace_file, "x.json")
        assert len(run) > 0
        assert run.warnings == []
        assert (run.dur >= 0).all()
        key = np.stack([run.ts, -run.dur], axis=1)
        step = np.diff(key, axis=0)
        assert ((step[:, 0] > 0) | ((step[:, 0] == 0) & (step[:, 1] >= 0))).all(), "rows are ordered"
    else:
        for refuse in (sniff, load_trace):
            with pytest.raises(NotACapture) as refusal:
                refuse(trace_file, "x.json")
            line = str(refusal.value)
            assert line.startswith("x.json: ")
            assert expected in line
            assert "\n" not in line


def test_columns_equal_a_plain_reading(trace_file: Path) -> None:
    if trace_file.parent.name in FOREIGN:
        pytest.skip("no PyTorch trace")
    text = text_of(trace_file)
    if len(text) > COMPARED_BYTES:
        pytest.skip("large: only loaded, above")
    head, events = plain_events(text)
    base = head.get("baseTimeNanoseconds", 0)
    run = load_trace(trace_file, "x.json")
    order = sorted(
        range(len(events)),
        key=lambda i: (nanoseconds(events[i]["ts"]), -nanoseconds(events[i]["dur"])),
    )
    wanted = [events[i] for i in order]
    assert run.ts.tolist() == [base + nanoseconds(e["ts"]) for e in wanted]
    assert run.dur.tolist() == [nanoseconds(e["dur"]) for e in wanted]
    assert [run.names[n] for n in run.name] == [e["name"] for e in wanted]
    assert [(run.threads[t].pid, run.threads[t].tid) for t in run.thread] == [
        (str(e.get("pid", "")), str(e.get("tid", ""))) for e in wanted
    ]
    assert run.correlation.tolist() == [argument(e, "correlation") for e in wanted]
    assert run.external_id.tolist() == [argument(e, "External id", "external id") for e in wanted]
    on_gpu = [e.get("cat", "").lower().removeprefix("gpu_") in ("kernel", "memcpy", "memset") for e in wanted]
    assert (
        np.isin(run.cat, [Cat.KERNEL, Cat.MEMCPY, Cat.MEMSET]).tolist() == on_gpu or "mtia" in trace_file.name
    )
    rows = [row for row in run.gpu.tolist() if on_gpu[row]]
    assert run.stream[rows].tolist() == [argument(wanted[row], "stream") for row in rows]
    devices = {(int(run.device[row]), argument(wanted[row], "device")) for row in rows}
    # of one GPU ROCm writes the number among the CPU sockets
    assert all(a == b for a, b in devices) or ("hip_runtime_version" in head and len(devices) == 1)
    assert (
        run.device[~run.is_cat(*(Cat.KERNEL, Cat.MEMCPY, Cat.MEMSET, Cat.SYNC, Cat.GPU_ANNOTATION))] == -1
    ).all()
    assert len({int(o) for o in run.offset}) == len(run)
    assert plain(run.args(range(len(run)))) == plain([e.get("args") or {} for e in wanted])


def nanoseconds(us: int | Decimal) -> int:
    return int((Decimal(us) * 1000).to_integral_value())


def plain(args: list[dict[str, Any]]) -> list[Any]:
    return json.loads(json.dumps(args, default=float))
