"""HTA's critical path in a result: asked for only, refused in one line, shown where it is there."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import msgspec
import pandas
import pytest

import trace_doctor
from trace_doctor.errors import UsageError
from trace_doctor.model import CriticalPath, PathPart, Result
from trace_doctor.reporters import html, text
from trace_doctor.testing import RunBuilder

OLD_PANDAS = int(pandas.__version__.split(".")[0]) < 3


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    b = RunBuilder()
    for _ in range(4):
        with b.step():
            for _ in range(5):
                with b.op("aten::mm", us=20):
                    b.launch(100)
    return b.write(tmp_path / "trace.json")


def test_without_asking_there_is_none(trace: Path) -> None:
    assert trace_doctor.analyze(trace).critical_path == []


@pytest.mark.skipif(find_spec("hta") is None or OLD_PANDAS, reason="HTA is not installed, or works")
def test_pandas_3_is_refused_in_one_line(trace: Path) -> None:
    with pytest.raises(UsageError, match=r"^HTA's critical path does not work with pandas 3.*pandas<3'$"):
        trace_doctor.analyze(trace, critical_path=True)


@pytest.mark.skipif(find_spec("hta") is not None, reason="HTA is installed")
def test_without_hta_the_extra_is_named(trace: Path) -> None:
    with pytest.raises(UsageError, match=r"trace-doctor\[hta\]"):
        trace_doctor.analyze(trace, critical_path=True)


@pytest.mark.skipif(find_spec("hta") is None or not OLD_PANDAS, reason="HTA is not installed, or fails there")
def test_the_path_of_a_typical_step_adds_up(trace: Path) -> None:
    result = trace_doctor.analyze(trace, critical_path=True)
    [path] = result.critical_path
    assert path.path_us > 0
    assert sum(path.by_kind.values()) == pytest.approx(path.path_us)
    assert result.to_json() == trace_doctor.analyze(trace, critical_path=True).to_json()


def test_reports_show_it(trace: Path) -> None:
    path = CriticalPath(
        rank=0,
        step=2,
        path_us=400.0,
        by_kind={"kernels": 300.0, "host": 100.0},
        parts=[PathPart(name="<gemm>", kind="kernels", count=3, us=300.0)],
    )
    result = msgspec.structs.replace(trace_doctor.analyze(trace), critical_path=[path])
    assert "kernels 75.0%, host 25.0%" in text.render(result, text.Options())
    page = html.render(result, html.Options())
    assert 'id="critical-path"' in page
    assert "&lt;gemm&gt;" in page
    assert Result.from_json(result.to_json()) == result
