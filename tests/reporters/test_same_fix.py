"""Fixes as people read them: one that two findings share is said once, and what no edit makes is not offered to be selected."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_doctor import analyze
from trace_doctor.model import Result
from trace_doctor.reporters import Options, render

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.fixture(scope="module")
def result() -> Result:
    """Out of memory by activations: two findings, and checkpointing is the first fix of both."""
    return analyze(SAMPLES / "out_of_memory" / "simulated" / "fault")


def test_a_fix_of_two_findings_is_said_once(result: Result) -> None:
    text = render(result, "text", Options())
    assert "fix: Use activation checkpointing [up to 800 MiB, unsafe, needs --source]" in text
    assert "fix: Use activation checkpointing, as for TD410-1" in text
    top = render(result, "html", Options()).partition("Top fixes")[2].partition("</ol>")[0]
    assert top.count("<li") == top.count("Use activation checkpointing") == 1


def test_what_a_fix_gives_is_not_called_no_saving(result: Result) -> None:
    page = render(result, "html", Options())
    assert "of memory: Use activation checkpointing" in page and "no finding claims one" not in page


def test_what_no_edit_makes_is_not_made_by_selecting_it() -> None:
    page = render(analyze(SAMPLES / "straggler" / "cpu" / "fault"), "html", Options())
    assert "for you to do: no edit makes it" in page
    assert "made only if you name it" not in page
