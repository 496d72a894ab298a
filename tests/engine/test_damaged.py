"""What a damaged file does to the figures is said, in the result's limits and beside TD002."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trace_doctor
from trace_doctor.model import Result
from trace_doctor.testing import RunBuilder


def analyzed(tmp_path: Path, text: str) -> Result:
    path = tmp_path / "trace.json"
    path.write_text(text)
    return trace_doctor.analyze(path)


@pytest.fixture
def sound() -> str:
    made = RunBuilder()
    for _ in range(20):
        with made.step(), made.op("aten::mm"):
            made.launch(100)
    return made.json()


def off(result: Result) -> list[object]:
    """What TD002 says of the step time breakdown."""
    return [
        row[1]
        for finding in result.findings
        if finding.code == "TD002"
        for table in finding.evidence
        for row in table.rows
        if row[0] == "possible error"
    ]


def test_a_sound_file_raises_no_doubt(tmp_path: Path, sound: str) -> None:
    result = analyzed(tmp_path, sound)
    assert result.limits == []
    assert off(result) == []


def test_lost_durations_and_events_count_by_their_share(tmp_path: Path, sound: str) -> None:
    whole = analyzed(tmp_path, sound).inputs[0].events
    result = analyzed(tmp_path, sound.replace('"dur": 100.000', '"dur": -1', 5))
    assert off(result) == [5 / whole]
    assert result.limits == [
        f"trace.json: damaged; its step time breakdown may be off by about {5 / whole:.2%} of the window"
    ]
    assert result.inputs[0].warnings == ["5 events have no possible duration; it counts as 0"]


def test_a_cut_file_counts_the_launches_whose_work_is_missing(tmp_path: Path, sound: str) -> None:
    trace = json.loads(sound)
    trace["traceEvents"].sort(key=lambda e: e["cat"] == "kernel")  # as Kineto writes them: the device last
    text = json.dumps(trace)
    result = analyzed(tmp_path, text[: text.index("}}", text.index('"kernel"')) + 2])
    assert off(result) == [19 / 20]
    assert "what came behind the cut is unknown" in result.limits[0]
    assert result.inputs[0].warnings == ["the file is cut off; all complete events were read"]


def test_a_cut_that_leaves_no_launch_alone_claims_no_precision(tmp_path: Path, sound: str) -> None:
    operators = '{"traceEvents": [' + ",".join(
        json.dumps(e) for e in json.loads(sound)["traceEvents"] if e["cat"] == "cpu_op"
    )
    result = analyzed(tmp_path, operators)
    assert off(result) == []
    assert "what came behind the cut is unknown" in result.limits[0]
    assert "may be off by" not in result.limits[0]
