from __future__ import annotations

from pathlib import Path

import pytest

import trace_doctor
from trace_doctor.testing import RunBuilder


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
