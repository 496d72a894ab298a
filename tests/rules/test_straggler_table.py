from __future__ import annotations

from trace_doctor.testing import run_case
from trace_doctor_rules.comms.straggler import Straggler


def test_the_table_begins_with_the_ranks_that_are_late() -> None:
    two_of_eight = next(case for case in Straggler.INVALID if case.name == "two of eight")
    [claim] = run_case(Straggler, two_of_eight)
    assert [row[0] for row in claim.evidence[0].rows[:2]] == [6, 0]
