"""Ranks of a server with uneven loads: who owns the waits."""

from __future__ import annotations

import pytest

from trace_doctor import Claim
from trace_doctor.engine.rule_runs import Verdict, one_owner
from trace_doctor_rules.comms.straggler import Straggler
from trace_doctor_rules.serving.uneven_ranks import UnevenRanks


@pytest.mark.parametrize(("explained", "left"), [(60, 0), (40, 1)], ids=["most of the wait", "little of it"])
def test_a_straggler_goes_only_where_loads_explain_half_of_the_waits(explained: int, left: int) -> None:
    waits, of_loads = (
        Claim(message=".", confidence="medium", owned_on={0: [(0, ns)]}, key="k") for ns in (100, explained)
    )
    straggler, _ = one_owner(
        [Verdict(Straggler(), "fired", (waits,)), Verdict(UnevenRanks(), "fired", (of_loads,))]
    )
    assert len(straggler.claims) == left
