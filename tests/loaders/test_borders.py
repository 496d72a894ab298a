"""Events are told apart by what mostly stands between them; where the writing changes, none is lost or misplaced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.run import Run

COUNT = 24_000
"""enough events for several windows"""


def event(i: int, **args: Any) -> dict[str, Any]:
    fields = {
        "ph": "X",
        "cat": "cpu_op",
        "name": f"op{i % 7}",
        "pid": 1,
        "tid": 1,
        "ts": i * 10.0,
        "dur": 5.0,
    }
    return fields | {"args": {"External id": i + 1, "Ev Idx": i, **args}}


def kineto(one: dict[str, Any]) -> str:
    return json.dumps(one, indent=2).replace("\n", "\n  ")


def indented(one: dict[str, Any]) -> str:
    return json.dumps(one, indent=4)


def minified(one: dict[str, Any]) -> str:
    return json.dumps(one, separators=(",", ":"))


def name_first(one: dict[str, Any]) -> str:
    return json.dumps(dict(sorted(one.items(), key=lambda kv: kv[0] != "name")))


def load(folder: Path, texts: Iterator[str]) -> Run:
    path = folder / "trace.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": [\n' + ",\n  ".join(texts) + "\n]}")
    return load_trace(path, "trace.json")


def assert_complete(run: Run) -> None:
    assert not run.warnings
    assert (run.external_id == range(1, COUNT + 1)).all()
    rows = [0, 1, COUNT // 2 - 1, COUNT // 2, COUNT // 2 + 1, COUNT - 2, COUNT - 1]
    assert [a["Ev Idx"] for a in run.args(rows)] == rows


@pytest.mark.parametrize("second", [indented, minified, name_first])
@pytest.mark.parametrize("first", [kineto, minified])
def test_the_writing_may_change_within_a_file(tmp_path: Path, first: Any, second: Any) -> None:
    assert_complete(load(tmp_path, ((first if i < COUNT // 2 else second)(event(i)) for i in range(COUNT))))


@pytest.mark.parametrize("every", [2, 3, 1000])
def test_the_writing_may_change_from_event_to_event(tmp_path: Path, every: int) -> None:
    assert_complete(load(tmp_path, ((minified if i % every else kineto)(event(i)) for i in range(COUNT))))


def test_arguments_may_look_like_events(tmp_path: Path) -> None:
    inner = [{"ph": "X", "name": "inner"}, {"ph": "X", "name": "inner"}]
    texts = (minified(event(i, nested=inner) if i % 50 == 0 else event(i)) for i in range(COUNT))
    path = tmp_path / "trace.json"
    path.write_text('{"schemaVersion":1,"traceEvents":[' + ",".join(texts) + "]}")
    run = load_trace(path, "trace.json")
    assert_complete(run)
    assert run.args([COUNT // 2])[0]["nested"] == inner
