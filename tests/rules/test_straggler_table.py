from __future__ import annotations

from pathlib import Path

import pytest

import trace_doctor
from trace_doctor.reporters import render
from trace_doctor.reporters.diagnosis import headline
from trace_doctor.testing import run_case
from trace_doctor_rules.comms._straggler_cases import at_clocks, late_in
from trace_doctor_rules.comms.straggler import Straggler


def test_the_table_begins_with_the_ranks_that_are_late() -> None:
    two_of_eight = next(case for case in Straggler.INVALID if case.name == "two of eight")
    [claim] = run_case(Straggler, two_of_eight)
    assert [row[0] for row in claim.evidence[0].rows[:2]] == [6, 0]


@pytest.mark.parametrize(("late", "named"), [(1, "rank 0"), (2, "ranks 0 and 1"), (4, "ranks 0-3")])
def test_the_headline_names_all_that_are_late(late: int, named: str, tmp_path: Path) -> None:
    for r, b in enumerate(late_in(*[(400.0,)] * late)):
        b.write(tmp_path / f"rank{r}.json")
    result = trace_doctor.analyze(tmp_path, select=["TD602"])
    assert headline(result) == f"Straggler delays all ranks: up to 25% of step time ({named})"
    assert named in render(result, "html")


def test_what_a_straggler_does_while_the_others_wait_has_one_owner(tmp_path: Path) -> None:
    for r, b in enumerate(late_in((400.0,))):
        b.write(tmp_path / f"rank{r}.json")
    result = trace_doctor.analyze(tmp_path, select=["TD602"])
    [pause] = [row for row in result.ownership if row.rank == 0 and row.part == "annotation"]
    assert pause.total_ns == pytest.approx(8 * 400_000, rel=0.02)
    assert pause.unowned_ns < 0.02 * pause.total_ns


def test_a_clock_that_falls_on_the_late_rank_alone_is_one_finding(tmp_path: Path) -> None:
    """TD310 of that rank speaks of the same time: the others wait for kernels that its lower clock makes longer."""
    for r, b in enumerate(at_clocks(1980, 1410, 1980, 1980, fell=True)):
        b.write(tmp_path / f"rank{r}.json")
    result = trace_doctor.analyze(tmp_path, select=["TD310", "TD602"])
    [found] = result.findings
    assert found.code == "TD602" and "Excess time: throttling (SM clock 1," in found.message
    assert [o.refers_to for o in result.outcomes if o.code == "TD310"] == [["TD602-1"]]
    alone = trace_doctor.analyze(tmp_path / "rank1.json", select=["TD310", "TD602"])
    assert [f.code for f in alone.findings] == ["TD310"]
