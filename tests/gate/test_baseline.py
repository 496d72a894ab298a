"""A baseline is input like any other: one that no run can have made is refused in one line, and never lets anything pass."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trace_doctor.errors import UsageError
from trace_doctor.gate.baseline import MAX_BYTES, Baseline, read_baseline
from trace_doctor.gate.runs import mad
from trace_doctor.model import Input, Result

SOUND: dict[str, Any] = json.loads(Baseline.of(Result(inputs=[Input(path="a", kind="trace")])).to_json())
SOUND |= {"devices": []}
FIGURE = {"unit": "us", "values": [1e5], "spread": 10.0}
KNOWN = {"fingerprint": "f", "code": "TD101", "name": "x", "count": 1, "cost": 0.1}


def put(folder: Path, **changes: Any) -> Path:
    path = folder / "baseline.json"
    path.write_text(json.dumps({**SOUND, **changes}))
    return path


def test_a_sound_one_is_read(tmp_path: Path) -> None:
    made = read_baseline(
        put(tmp_path, figures={"step_time": FIGURE}, findings=[KNOWN], ranks=8, later="field")
    )
    assert (made.figures["step_time"].values, made.findings[0].cost, made.ranks) == ([1e5], 0.1, 8)


def test_a_finding_without_a_cost_is_sound(tmp_path: Path) -> None:
    made = read_baseline(put(tmp_path, findings=[KNOWN | {"cost": None}]))
    assert (made.findings[0].cost, made.words()) == (None, "1 finding, 0 figures")
    assert read_baseline(put(tmp_path)).words() == "0 findings, 0 figures"


@pytest.mark.parametrize(
    "changes",
    [
        {"baseline_version": 2},
        {"baseline_version": "1"},
        {"baseline_version": True},
        {"baseline_version": None},
        {"figures": {"step_time": FIGURE | {"values": []}}},
        {"figures": {"step_time": FIGURE | {"values": [1e300]}}},
        {"figures": {"step_time": FIGURE | {"values": [-1.0]}}},
        {"figures": {"step_time": FIGURE | {"spread": 1e300}}},
        {"figures": {"step_time": FIGURE | {"spread": -1.0}}},
        {"figures": {"step_time": FIGURE | {"spread": 1.1e5}}},
        {"figures": {"step_time": {"unit": "us", "values": [1e5]}}},
        {"figures": {"step_time": FIGURE | {"unit": "bytes"}}},
        {"figures": {"step_time": FIGURE | {"unit": "days"}}},
        {"figures": {"step_tme": FIGURE}},
        {"figures": {"step_time": FIGURE | {"values": "100"}}},
        {"figures": {"gpu_idle_share": {"unit": "share", "values": [15.0]}}},
        {"figures": []},
        {"findings": [KNOWN | {"count": 0}]},
        {"findings": [KNOWN | {"cost": 9.0}]},
        {"findings": [KNOWN | {"cost": -1.0}]},
        {"findings": [KNOWN | {"severity": "none"}]},
        {"findings": [{"code": "TD101"}]},
        {"findings": [{k: v for k, v in KNOWN.items() if k != "cost"}]},
        {"findings": [{k: v for k, v in KNOWN.items() if k != "count"}]},
        {"devices": ["NVIDIA H100"], "figures": {}},
        {"ranks": -1},
        {"ranks": 0},
        {"ranks": "all"},
        {"devices": [1]},
    ],
    ids=str,
)
def test_what_no_run_can_have_made_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as refused:
        read_baseline(put(tmp_path, **changes))
    assert len(str(refused.value).splitlines()) == 1
    assert "baseline.json" in str(refused.value)


@pytest.mark.parametrize("lacks", ["ranks", "figures", "findings", "decided", "devices"])
def test_one_that_lacks_what_each_has_is_refused(tmp_path: Path, lacks: str) -> None:
    path = put(tmp_path)
    path.write_text(json.dumps({k: v for k, v in SOUND.items() if k != lacks}))
    with pytest.raises(UsageError, match=lacks):
        read_baseline(path)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=9))
def test_no_measure_deviates_by_more_than_its_value(values: list[float]) -> None:
    assert mad(values) <= 1.001 * max(values)


@pytest.mark.parametrize("content", [b"", b"\0" * 99, b"[]", b"{", b'{"a":' * 99_999, b"\xff\xfe", b"null", b'{"baseline_version": 1, "figures": {"step_time": {"unit": "us", "values": [1e999]}}}',
                                     b'{"baseline_version": 1, "figures": {"step_time": {"unit": "us", "values": [NaN]}}}'])  # fmt: skip
def test_what_is_no_baseline(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"^--baseline .*baseline\.json") as refused:
        read_baseline(path)
    assert len(str(refused.value).splitlines()) == 1


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(UsageError, match="larger than"):
        read_baseline(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5) | st.sampled_from(["step_time", "unit", "values"]), v, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(sorted(SOUND)), VALUES, max_size=4))
def test_any_content_is_read_or_refused_in_one_line(tmp_path: Path, changes: dict[str, Any]) -> None:
    try:
        made = read_baseline(put(tmp_path, **changes))
    except UsageError as refused:
        assert len(str(refused).splitlines()) == 1
        return
    assert all(f.spread < 1e18 and all(0 <= v < 1e18 for v in f.values) for f in made.figures.values())


def test_check_ends_with_2(logs: Path, run: Callable[..., Any]) -> None:
    put(logs.parent, figures={"step_time": FIGURE | {"spread": 1e300}})
    os.mkdir(logs.parent / "folder")
    (logs.parent / "link").symlink_to("nowhere")
    for name in ("baseline.json", "folder", "link", "logs/rank0.pt.trace.json"):
        done = run("check", "logs", "--baseline", name)
        assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1), name


def test_a_figure_that_was_zero_is_guarded_as_well(logs: Path, run: Callable[..., Any]) -> None:
    on_main = ("check", "logs", "--baseline", "b.json")
    assert run(*on_main, "--update-baseline").code == 0
    saved = logs.parent / "b.json"
    said = json.loads(saved.read_text())
    said["figures"]["gpu_idle_share"]["values"] = [0.0]
    saved.write_text(json.dumps(said))
    done = run(*on_main, "-o", "json")
    assert [b.baseline for b in done.result.gate.budgets if b.name == "gpu_idle_share"] == [0.0]


def test_a_figure_that_the_baseline_lacks_is_said(logs: Path, run: Callable[..., Any]) -> None:
    """Nobody may take for compared what was not."""
    on_main = ("check", "logs", "--baseline", "b.json")
    assert run(*on_main, "--update-baseline").code == 0
    assert "no such figure" not in run(*on_main).out
    saved = logs.parent / "b.json"
    said = json.loads(saved.read_text())
    del said["figures"]["step_time"]
    saved.write_text(json.dumps(said))
    done = run(*on_main)
    assert done.code == 0
    assert "step_time not compared with the baseline: the baseline has no such figure" in " ".join(
        done.out.split()
    )
