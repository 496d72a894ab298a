"""The table of promised and measured savings says what its data says, and what the data says holds."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SAMPLES = Path(__file__).resolve().parent.parent / "sample_traces"
DATA = sorted(p for p in (SAMPLES / "measured").glob("*.json") if p.stem != "twins")


def measure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure", SAMPLES / "measure.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows() -> list[Any]:
    found = [
        (p.stem, name, row) for p in DATA for name, row in json.loads(p.read_text())["scenarios"].items()
    ]
    return [pytest.param(row, id=f"{machine}-{name}") for machine, name, row in found]


def test_the_table_is_made_of_the_data() -> None:
    """Otherwise: python sample_traces/measure.py --table"""
    assert (SAMPLES / "MEASURED.md").read_text(encoding="utf-8") == measure().table()


@pytest.mark.parametrize("path", DATA, ids=lambda p: p.stem)
def test_only_scenarios_that_are_there_were_run(path: Path) -> None:
    """One that was not run stands in the table as not measured."""
    assert set(json.loads(path.read_text())["scenarios"]) <= set(measure().scenarios())


@pytest.mark.parametrize("row", rows())
def test_losses_are_what_the_safety_of_the_fixes_allows(row: dict[str, Any]) -> None:
    assert row["fixes"]
    assert row["losses_last"] <= measure().TOLERANCE
