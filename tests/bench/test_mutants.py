"""A mutant in a function that exists already is run as it would be had it been imported."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = """\
def between(low, high):
    def holds(number):
        return low < number and number < high
    return holds


def plain(number):
    return number > 0 and number < 9


KEPT = between(1, 5)
"""
TESTS = """\
from code_under_test import KEPT, plain


def test_closure():
    assert KEPT(2) and not KEPT(7)


def test_plain():
    assert plain(2) and not plain(9)
"""


@pytest.mark.parametrize(
    ("test", "whole", "mutant"),
    [
        ("test_closure", "low < number and number < high", "(low < number)"),
        ("test_closure", "low < number and number < high", "(low < number or number < high)"),
        ("test_plain", "number > 0 and number < 9", "(number > 0)"),
    ],
)
def test_kills(test: str, whole: str, mutant: str, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "bench" / "mutants.py")
    assert spec is not None and spec.loader is not None
    mutants = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = mutants
    spec.loader.exec_module(mutants)
    code = tmp_path / "code_under_test.py"
    code.write_text(CODE)
    (tmp_path / "test_it.py").write_text(TESTS)
    within = mutants.Tests(tmp_path, ["test_it.py"])
    try:
        ids = [f"test_it.py::{test}"]
        assert within.outcome("code_under_test.py", ids, 60) == "passed"
        code.write_text(CODE.replace(whole, mutant))
        assert within.outcome("code_under_test.py", ids, 60) == "failed"
    finally:
        within.close()
