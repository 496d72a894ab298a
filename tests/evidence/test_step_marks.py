"""Steps of a trace in which only optimizers mark them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import RunBuilder


@pytest.mark.parametrize(
    ("turns", "ends"),
    [
        ("DGDGDGDGD", [1, 3, 5, 7]),
        ("DDDGDDDG", [3, 7]),
        ("AAAAAA", [0, 1, 2, 3, 4, 5]),
        ("DGDGGDDG", [*range(8)]),
        ("DGD", [0, 1, 2]),
    ],
)
def test_optimizers_of_one_class_step_in_turns(turns: str, ends: list[int]) -> None:
    """They are told apart by how many operators they run: one parameter less. What does not repeat exactly is one optimizer."""
    b = RunBuilder(gpu=None)
    ended = []
    for who in turns:
        with b.op("aten::mm", us=50):
            pass
        with b.optimizer_step("Adam"):
            for _ in range(3 + "ADG".index(who)):
                with b.op("aten::add_", us=1):
                    pass
        ended.append(b.now)
    steps = Facts(Capture(0, run=b.run()))[Steps]
    assert steps.source == "optimizer"
    assert [s.dur for s in steps.steps] == [
        round((ended[last] - ended[before]) * 1e3) for before, last in pairwise(ends)
    ]
