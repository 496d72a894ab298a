"""The labels say what they have to, and captures that are not there are left out with their names."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from trace_doctor.registry import all_rules

ROOT = Path(__file__).resolve().parents[2] / "bench" / "accuracy"
CODES = {rule.code for rule in all_rules()}


def labels(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((ROOT / name).read_text(encoding="utf-8"))["capture"]
    return found


@pytest.mark.parametrize("name", ["labels.toml", "heldout.toml"])
def test_every_label_names_rules_and_says_why(name: str) -> None:
    for label in labels(name):
        faults, either = set(label["faults"]), set(label.get("either", ()))
        assert faults | either <= CODES and not faults & either, label
        assert label["why"], label


def test_a_capture_held_out_is_named_once() -> None:
    digests = [file["sha256"] for label in labels("heldout.toml") for file in label["files"]]
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 64 for digest in digests)


def test_captures_that_are_not_there_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.delitem(sys.modules, "cases", raising=False)
    from cases import held_out  # type: ignore[import-not-found]

    found, absent = held_out([tmp_path])
    assert not found
    assert len(absent) == len(labels("heldout.toml"))
