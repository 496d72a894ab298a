"""Whether a script with a fix still computes the same."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_doctor.treatment.losses import agreement

unhurried = settings(deadline=None)
CURVE = [2.3, 2.1, 2.0, 1.8, 1.7]


def run(losses: list[float]) -> dict[tuple[int, int], float]:
    return {(0, step): loss for step, loss in enumerate(losses)}


def scaled(factor: float) -> dict[tuple[int, int], float]:
    return run([x * factor for x in CURVE])


def test_losses_that_differ_are_told_from_the_same_by_their_last_bit() -> None:
    last_bit = run([*CURVE[:-1], math.nextafter(CURVE[-1], 2)])
    assert agreement([run(CURVE)] * 2, [run(CURVE)] * 2).verdict == "same"
    assert agreement([run(CURVE)] * 2, [last_bit] * 2).verdict == "close"
    refused = agreement([run(CURVE)] * 2, [last_bit] * 2, 0.0)
    assert refused.verdict == "differ" and "from step 4 on" in refused.how


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.015, "close"), (0.985, "close"), (1.03, "differ"), (0.9, "differ")]
)
def test_a_fix_may_move_them_within_the_tolerance(factor: float, verdict: str) -> None:
    assert agreement([run(CURVE)] * 2, [scaled(factor)] * 2, 0.02).verdict == verdict


def test_a_script_that_does_not_repeat_itself_is_given_what_its_own_runs_differ_by() -> None:
    own = [scaled(1.0), scaled(1.04), scaled(0.97)]
    close = agreement(own, [scaled(1.05)], 0.0)
    assert close.verdict == "close" and "among themselves" in close.how
    assert agreement(own, [scaled(1.5)], 0.0).verdict == "differ"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_longer_finite_is_never_close(bad: float) -> None:
    assert agreement([run(CURVE)], [run([*CURVE[:-1], bad])], 0.9).verdict == "differ"
    assert agreement([run([1.0, bad])], [run([1.0, bad])]).verdict == "same"


def test_only_steps_that_every_run_shows_are_compared() -> None:
    made = agreement([run(CURVE)], [run(CURVE[:3])])
    assert (made.verdict, made.steps) == ("same", 3)
    assert agreement([run(CURVE)], [run([])]).verdict == "not_seen"


@unhurried
@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=8), st.floats(0, 1))
def test_the_same_losses_agree_at_any_tolerance(losses: list[float], tolerance: float) -> None:
    assert agreement([run(losses)], [run(losses)], tolerance).verdict == "same"
