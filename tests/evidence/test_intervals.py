from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_doctor.evidence import intervals as iv

raw = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12).map(
    lambda pairs: np.array([(a, a + d) for a, d in pairs], dtype=np.int64).reshape(-1, 2)
)


def moments(some: np.ndarray) -> set[int]:
    return {t for a, b in some.tolist() for t in range(a, b)}


def is_set(some: np.ndarray) -> bool:
    flat = some.ravel()
    return bool((np.diff(flat) > 0).all())


@settings(deadline=None)
@given(raw)
def test_union_covers_the_same_moments_once(a: np.ndarray) -> None:
    made = iv.union(a)
    assert is_set(made)
    assert moments(made) == moments(a)
    assert iv.total(made) == len(moments(a))


@settings(deadline=None)
@given(raw, raw)
def test_set_operations_agree_with_sets_of_moments(a: np.ndarray, b: np.ndarray) -> None:
    x, y = iv.union(a), iv.union(b)
    assert moments(iv.intersect(x, y)) == moments(a) & moments(b)
    assert moments(iv.subtract(x, y)) == moments(a) - moments(b)
    assert moments(iv.complement(x, 5, 40)) == set(range(5, 40)) - moments(a)
    assert moments(iv.clip(x, 5, 40)) == moments(a) & set(range(5, 40))
    for made in (iv.intersect(x, y), iv.subtract(x, y), iv.complement(x, 5, 40), iv.clip(x, 5, 40)):
        assert is_set(iv.union(made))
        assert iv.total(made) == len(moments(made))


@settings(deadline=None)
@given(raw, raw)
def test_covered_measures_each_interval_on_its_own(a: np.ndarray, b: np.ndarray) -> None:
    some = iv.union(b)
    assert iv.covered(a, some).tolist() == [len(set(range(s, e)) & moments(b)) for s, e in a.tolist()]


@settings(deadline=None)
@given(raw, raw)
def test_overlaps_name_both_sides(a: np.ndarray, b: np.ndarray) -> None:
    some = iv.union(b)
    pieces, of_a, of_b = iv.overlaps(a, some)
    for (start, end), i, j in zip(pieces.tolist(), of_a.tolist(), of_b.tolist(), strict=True):
        assert a[i, 0] <= start < end <= a[i, 1]
        assert some[j, 0] <= start < end <= some[j, 1]
    assert moments(pieces) == moments(a) & moments(b)


@settings(deadline=None)
@given(raw, st.lists(st.integers(-3, 80), max_size=12))
def test_a_set_holds_the_moments_that_it_covers(a: np.ndarray, asked: list[int]) -> None:
    held = iv.holds(iv.union(a), np.array(asked, dtype=np.int64))
    assert held.tolist() == [t in moments(a) for t in asked]
