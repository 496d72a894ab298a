"""The test that decides what is kept: exact, one-sided, and honest with few runs."""

from __future__ import annotations

from itertools import combinations, permutations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_doctor.treatment.statistics import ALPHA, chance, compare, critical, hopeless

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


@given(sides)
def test_the_bound_and_the_verdict_say_the_same(runs: tuple[list[float], list[float]]) -> None:
    made = compare(*runs)
    assert (made.verdict == "less") == (made.bound < 0.99) == (made.p <= ALPHA)
    assert made.ratio <= made.bound


@given(sides, st.floats(1e-3, 1e3))
def test_units_do_not_matter(runs: tuple[list[float], list[float]], factor: float) -> None:
    scaled = compare([r * factor for r in runs[0]], [r * factor for r in runs[1]])
    assert scaled.ratio == pytest.approx(compare(*runs).ratio)


@given(sides, st.integers(0, 10))
def test_a_faster_run_never_speaks_against_the_fix(runs: tuple[list[float], list[float]], which: int) -> None:
    before, after = runs
    faster = list(after)
    faster[which % len(after)] /= 2
    assert compare(before, faster).p <= compare(before, after).p


@given(sides, st.integers(1, 3))
def test_hopeless_means_that_the_best_of_ends_would_not_do(
    runs: tuple[list[float], list[float]], so_far: int
) -> None:
    before, after = runs
    n = len(before)
    if hopeless(before[:so_far], after[:so_far], n):
        best = after[:so_far] + [min(before) / 1000] * (n - so_far)
        worst = before[:so_far] + [max(after) * 1000] * (n - so_far)
        assert compare(worst, best).verdict != "less"


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
