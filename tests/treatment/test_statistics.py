"""The test that decides what is kept: exact, one-sided, and honest with few runs."""

from __future__ import annotations

from itertools import combinations, permutations
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_doctor.treatment.statistics import ALPHA, LOOKS, chance, compare, critical

unhurried = settings(deadline=None)
times = st.floats(1.0, 1e6)
sides = st.integers(3, 5).flatmap(
    lambda n: st.tuples(st.lists(times, min_size=n, max_size=n), st.lists(times, min_size=n, max_size=n))
)


@pytest.mark.parametrize(("before", "after"), [(3, 3), (4, 4), (3, 5)])
def test_chance_counts_the_orders_that_are_as_clear(before: int, after: int) -> None:
    orders = [
        sum(a > b for b in chosen for a in set(range(before + after)) - set(chosen))
        for chosen in combinations(range(before + after), before)
    ]
    for against in range(before * after + 1):
        assert chance(against, before, after) == sum(u <= against for u in orders) / comb(
            before + after, before
        )


@pytest.mark.parametrize("repeats", [3, 4])
def test_a_fix_without_effect_is_kept_in_one_trial_of_twenty_at_most(repeats: int) -> None:
    runs = [100.0 + 10 * i for i in range(2 * repeats)]
    orders = (
        [(o[:repeats], o[repeats:]) for o in permutations(runs)]
        if repeats == 3
        else [(list(b), [r for r in runs if r not in b]) for b in combinations(runs, repeats)]
    )
    kept = sum(compare(b, a, 0.0).verdict == "less" for b, a in orders)
    assert 0 < kept / len(orders) <= ALPHA


def test_too_few_runs_show_nothing_however_clear_they_are() -> None:
    assert critical(2, 2) == -1
    assert compare([100.0, 101.0], [1.0, 1.1]).verdict == "no_difference"


@unhurried
@given(sides)
def test_the_bound_and_the_verdict_say_the_same(runs: tuple[list[float], list[float]]) -> None:
    made = compare(*runs)
    assert (made.verdict == "less") == (made.bound < 0.99) == (made.p <= ALPHA)
    assert made.ratio <= made.bound


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
@given(
    st.lists(st.floats(95.0, 105.0), min_size=4, max_size=4),
    st.lists(st.floats(95.0, 105.0), min_size=4, max_size=4),
)
def test_what_is_called_detectable_would_have_been_detected(before: list[float], after: list[float]) -> None:
    made = compare(before, after)
    needed = (1 - made.detectable) * 0.999 / made.ratio
    assert compare(before, [a * needed for a in after]).verdict == "less"


def test_one_disturbed_run_does_not_hide_a_clear_gain() -> None:
    assert compare([100, 101, 102, 400], [80, 81, 82, 79]).verdict == "less"
    assert compare([100, 101, 102, 103], [80, 81, 82, 101.5]).verdict == "no_difference"


def test_both_looks_together_spend_no_more_than_alpha() -> None:
    for repeats in (4, 5, 6):
        sides = (repeats, 2 * repeats)
        looks = [critical(n, n, alpha) for n, alpha in zip(sides, LOOKS, strict=True)]
        assert min(looks) >= 0  # each of them can show something
        assert sum(chance(c, n, n) for c, n in zip(looks, sides, strict=True)) <= ALPHA


def test_between_looks_nothing_is_called_a_gain() -> None:
    assert compare([100.0, 101, 102, 103], [1.0, 2, 3, 4], alpha=0.0).verdict == "no_difference"
