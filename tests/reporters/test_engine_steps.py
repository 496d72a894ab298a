"""What reports show of the steps of an inference engine."""

from __future__ import annotations

import msgspec
import pytest

from trace_doctor.model import EngineRow, Result
from trace_doctor.reporters import render
from trace_doctor.reporters.diagnosis import verdict


@pytest.fixture
def served(rich_result: Result) -> Result:
    rows = [
        EngineRow(rank=0, kind="decode", count=1200, requests=32, tokens=32, median_us=9_800, share=0.61, busy_share=0.8),
        EngineRow(rank=0, kind="mixed", count=4, requests=40, tokens=8192, median_us=310_000, share=0.06),
        EngineRow(rank=0, kind="waiting", count=2, median_us=3_100_000, share=0.33),
    ]  # fmt: skip
    others = [msgspec.structs.replace(row, input=1, rank=1) for row in rows]
    return msgspec.structs.replace(rich_result, engine_steps=[*rows, *others])


def test_the_verdict_says_which_steps_take_the_window(served: Result) -> None:
    assert verdict(served)[-1] == (
        "Of the window: 1,200 decode steps (median 9.80 ms) 61%, 4 prefill with decode steps (median 310 ms) 6%, "
        "waiting for requests 33%"
    )


def test_they_are_no_verdict_by_themselves(served: Result) -> None:
    """Neither the first sentence, nor in the place of a clean bill."""
    clean = msgspec.structs.replace(served, findings=[], ownership=[], memory_ledger=[])
    assert [said.split(":")[0] for said in verdict(clean)] == [
        verdict(clean)[0].split(":")[0],
        "Of the window",
    ]
    assert verdict(clean)[0].startswith("No problems")


def test_a_line_for_each_kind_of_the_first_capture(served: Result) -> None:
    lines = render(served, "text", width=100).splitlines()
    cells = {line.split("  ")[1].strip(): line.split() for line in lines if "  " in line.strip()}
    assert cells["decode"] == ["decode", "1,200", "32", "32", "80.0%", "61.0%", "9.80", "ms"]
    assert cells["waiting for requests"][-4:] == ["2", "33.0%", "3.10", "s"]
    assert sum("waiting for requests" in line for line in lines) == 2, "the verdict, and one row"


def test_the_page_has_the_table(served: Result) -> None:
    page = render(served, "html")
    assert "Steps of the inference engine, by kind" in page
    assert "prefill with decode" in page


def test_a_saved_result_keeps_them_and_takes_no_other_kind(served: Result) -> None:
    assert Result.from_json(served.to_json()).engine_steps == served.engine_steps
    with pytest.raises(msgspec.ValidationError):
        Result.from_json(served.to_json().replace(b'"waiting"', b'"idling"'))


def test_other_programs_have_none(rich_result: Result) -> None:
    assert "Of the window" not in " ".join(verdict(rich_result))
    assert b"engine_steps" not in rich_result.to_json()
