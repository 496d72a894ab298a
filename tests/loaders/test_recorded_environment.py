from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

import trace_doctor
from trace_doctor.testing import RunBuilder, SnapshotBuilder


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    b = RunBuilder()
    with b.step(), b.op("aten::mm"):
        b.launch(50)
    return b.write(tmp_path / "trace.json")


def test_the_file_beside_a_trace_tells_version_and_cores(trace: Path) -> None:
    (trace.parent / "environment.json").write_text('{"torch": "2.13.0+cpu", "cpu_count": 2}')
    run = trace_doctor.load(trace)
    assert (run.torch_version.min, run.torch_version.max) == ("2.13.0", "2.13.0")
    assert run.meta["cpu_count"] == 2
    assert not trace_doctor.analyze(trace.parent).ignored


@pytest.mark.parametrize(
    "text", ["", "[1]", "{", '{"torch": 2, "cpu_count": true}', '{"torch": "latest"}', "[" * 9999]
)
def test_what_cannot_be_read_says_nothing(trace: Path, text: str) -> None:
    plain = trace_doctor.load(trace)
    (trace.parent / "environment.json").write_text(text)
    run = trace_doctor.load(trace)
    assert run.torch_version == plain.torch_version
    assert "cpu_count" not in run.meta


def test_allocator_settings_of_the_run_stand_where_the_capture_says_none(trace: Path) -> None:
    """A trace knows none, a snapshot of torch 2.1 and later has them itself."""
    said = {
        "torch": "2.9.0",
        "settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128"},
    }
    (trace.parent / "environment.json").write_text(json.dumps(said))
    known = {"expandable_segments": True, "max_split_size_mb": "128"}
    run = trace_doctor.load(trace)
    assert run.meta["allocator_settings"] == known
    b = SnapshotBuilder()
    b.alloc(1 << 20)
    without = {key: value for key, value in b.data().items() if key != "allocator_settings"}
    (trace.parent / "old.pickle").write_bytes(pickle.dumps(without, protocol=4))
    old = trace_doctor.load(trace.parent / "old.pickle")
    assert dict(old.allocator_settings) == known and old.torch_version.min == "2.9.0"
    b = SnapshotBuilder()
    b.alloc(1 << 20)
    own = trace_doctor.load(b.write(trace.parent / "own.pickle"))
    assert own.allocator_settings["expandable_segments"] is False
