"""The board of public scripts: its list is usable, and its edits go where they say or not at all."""

from __future__ import annotations

import ast
import importlib.util
import tomllib
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

BOARD = Path(__file__).resolve().parents[2] / "bench" / "board"
ROWS = tomllib.loads((BOARD / "scripts.toml").read_text())["script"]


@pytest.fixture(scope="module")
def run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("board_run", BOARD / "run.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_row_says_what_is_needed_to_repeat_it() -> None:
    made = {
        node.name
        for node in ast.parse((BOARD / "data.py").read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert len({row["name"] for row in ROWS}) == len(ROWS) >= 24
    assert max(Counter(row["repository"] for row in ROWS).values()) <= 3
    for row in ROWS:
        assert len(row["repository"].split("@")[1]) == 40, row["name"]
        assert {one["make"] for one in row.get("data", [])} <= made, row["name"]
        healthy = row["fault"].startswith("none")
        edited = row.get("plant", []) + row.get("expert", []) or "expert_command" in row
        assert bool(edited) != healthy, row["name"]


def test_an_edit_goes_to_its_lines_of_the_file_before_any(run: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("def f():\n    one(1)\n    two(1)\n    three()\n")
    before = {"file": "train.py", "line": 2, "before": True, "put": "a\nb"}
    found = {"file": "train.py", "line": 3, "find": "1", "put": "2"}
    whole = {"file": "train.py", "line": 4, "put": "four()"}
    run.edit(tmp_path, [before, whole, found])
    assert script.read_text() == "def f():\n    a\n    b\n    one(1)\n    two(2)\n    four()\n"
    with pytest.raises(run.Unfit, match="0 times"):
        run.edit(tmp_path, [found])


def test_the_fix_of_another_problem_is_no_answer_to_the_fault(run: ModuleType) -> None:
    time = {"ratio": 0.6}
    kept = {
        "label": "TD304-1",
        "fate": "kept",
        "effects": {"time": time},
        "predicted": {"share_of_step": 0.1, "known": "about"},
    }
    report = {
        "attempts": [kept],
        "by_hand": [{"label": "TD101-1"}],
        "together": {"time": None},
        "verdict": "",
    }
    assert run.summary({"rules": ["TD101"]}, report) == ["TD101-1", "no", "also kept: TD304-1", "–", "–"]
    assert run.summary({"rules": ["TD304"]}, report) == [
        "TD304-1",
        "yes",
        "TD304-1 kept",
        "about -10.0%",
        "-40.0%",
    ]
    assert run.summary({}, report)[:3] == ["no (TD304-1, TD101-1)", "no", "also kept: TD304-1"]
