"""The test that decides what is kept: exact, one-sided, and honest with few runs."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_doctor.treatment.statistics import (
    ALPHA,
    LEAST_REPEATS,
    LOOKS,
    chance,
    compare,
    contradictions,
    critical,
)

unhurried = settings(deadline=None)
times = st.floats(1.0, 1e6)
sides = st.integers(5, 8).flatmap(
    lambda n: st.tuples(st.lists(times, min_size=n, max_size=n), st.lists(times, min_size=n, max_size=n))
)


@pytest.mark.parametrize("pairs", [1, 4, 6])
def test_chance_counts_the_signs_that_are_as_clear(pairs: int) -> None:
    against = [
        sum(rank for rank, sign in enumerate(signs, start=1) if sign)
        for signs in product((0, 1), repeat=pairs)
    ]
    for ranks in range(pairs * (pairs + 1) // 2 + 1):
        assert chance(ranks, pairs) == sum(a <= ranks for a in against) / 2**pairs


@pytest.mark.parametrize("alpha", [ALPHA, *LOOKS])
def test_a_fix_without_effect_is_kept_no_more_often_than_a_look_may(alpha: float) -> None:
    """Eight pairs that differ by 1 to 8%: all ways in which chance may have put the fix on one side or the other."""
    kept = 0
    for signs in product((1, -1), repeat=8):
        after = [100.0 * (1 + 0.01 * size) ** sign for size, sign in enumerate(signs, start=1)]
        kept += compare([100.0] * 8, after, 0.0, alpha).verdict == "less"
    assert 0 < kept / 2**8 <= alpha


def test_seven_of_eight_pairs_are_enough_where_the_eighth_is_hardly_slower() -> None:
    """The pairs scatter far more than the fix gains, as under other load; each half of a pair meets the same load."""
    before = [100.0, 180, 90, 240, 130, 75, 160, 110]
    faster = [b * r for b, r in zip(before, (0.5, 0.6, 0.45, 0.55, 0.5, 0.62, 0.4, 1.02), strict=True)]
    made = compare(before, faster, alpha=LOOKS[0])
    assert made.verdict == "less" and made.ratio == pytest.approx(0.53, abs=0.02)


def test_too_few_runs_show_nothing_however_clear_they_are() -> None:
    assert critical(LEAST_REPEATS - 1, max(LOOKS)) == -1
    made = compare([100.0] * 4, [1.0] * 4)
    assert (made.verdict, made.interval, made.bound) == ("no_difference", None, float("inf"))


@unhurried
@given(sides)
def test_bound_verdict_and_interval_say_the_same(runs: tuple[list[float], list[float]]) -> None:
    made = compare(*runs)
    assert (made.verdict == "less") == (made.bound < 0.99) == (made.p <= ALPHA)
    assert made.ratio <= made.bound
    if made.interval is not None:
        assert made.interval[0] <= made.ratio <= made.bound <= made.interval[1]


@unhurried
@given(sides, st.floats(1e-3, 1e3))
def test_units_do_not_matter(runs: tuple[list[float], list[float]], factor: float) -> None:
    scaled = compare([r * factor for r in runs[0]], [r * factor for r in runs[1]])
    assert scaled.ratio == pytest.approx(compare(*runs).ratio)


@unhurried
@given(sides, st.integers(0, 10))
def test_a_faster_run_never_speaks_against_the_fix(runs: tuple[list[float], list[float]], which: int) -> None:
    before, after = runs
    faster = list(after)
    faster[which % len(after)] /= 2
    assert compare(before, faster).p <= compare(before, after).p


@unhurried
@given(sides, st.floats(0.01, 100))
def test_a_further_pair_never_takes_a_contradiction_back(
    runs: tuple[list[float], list[float]], more: float
) -> None:
    """Trials are ended where they are too many for the last look."""
    before, after = runs
    assert contradictions([*before, 1.0], [*after, more]) >= contradictions(before, after)


@unhurried
@given(
    st.lists(st.floats(95.0, 105.0), min_size=6, max_size=6),
    st.lists(st.floats(95.0, 105.0), min_size=6, max_size=6),
)
def test_what_is_called_detectable_would_have_been_detected(before: list[float], after: list[float]) -> None:
    made = compare(before, after)
    needed = (1 - made.detectable) * 0.999 / made.ratio
    assert compare(before, [a * needed for a in after]).verdict == "less"


def test_one_disturbed_run_does_not_hide_a_clear_gain() -> None:
    assert compare([100, 101, 102, 400, 99, 100], [80, 81, 82, 79, 80, 78]).verdict == "less"
    slow_once = compare([100, 101, 102, 103, 99, 100], [80, 81, 82, 300, 80, 78])
    assert slow_once.verdict == "no_difference"


def test_both_looks_together_spend_no_more_than_they_say() -> None:
    for repeats in (6, 7, 8):
        sides = (repeats, 2 * repeats)
        looks = [critical(n, alpha) for n, alpha in zip(sides, LOOKS, strict=True)]
        assert min(looks) >= 0  # each of them can show something
        assert sum(chance(c, n) for c, n in zip(looks, sides, strict=True)) <= sum(LOOKS)


def test_between_looks_nothing_is_called_a_gain() -> None:
    assert (
        compare([100.0 + i for i in range(6)], [1.0 + i for i in range(6)], alpha=0.0).verdict
        == "no_difference"
    )
