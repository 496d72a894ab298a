"""The points and the axis of a memory curve."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trace_doctor.evidence.memory.series import axis, reduced


@pytest.mark.parametrize("most", [8, 20, 63])
def test_a_reduced_curve_keeps_its_ends_its_peak_and_the_lows_and_highs_of_each_stretch(most: int) -> None:
    values = np.random.default_rng(1).integers(0, 1000, 500)
    kept = reduced(values, most)
    assert len(kept) <= most + 1
    assert {0, 499, int(values.argmax())} <= set(kept.tolist())
    assert values.min() in values[kept]
    assert (np.diff(kept) > 0).all()


def test_what_changes_beside_it_after_a_burst_keeps_its_place() -> None:
    """1,000 allocations in a millisecond; a second later the allocator gives half back, and nothing that lives changes."""
    live = np.arange(1010) * 10
    reserved = np.concatenate([np.full(1000, 20_000), np.linspace(19_000, 10_000, 10).astype(np.int64)])
    at = np.concatenate([np.arange(1000), 1_000_000 + np.arange(10)])
    kept = reduced(live, 40, reserved, at=at)
    assert len(kept) <= 41
    assert 1000 in kept or 999 in kept
    shown = np.searchsorted(kept, 1000, side="right") - 1
    assert at[kept[shown]] >= 1_000_000 or reserved[kept[shown]] == 20_000
    assert (reserved[kept][at[kept] < 1_000_000] == 20_000).all()


@pytest.mark.parametrize("count", [0, 1, 8])
def test_a_short_curve_stays_as_it_is(count: int) -> None:
    assert reduced(np.zeros(count, dtype=np.int64), 8).tolist() == list(range(count))


@pytest.mark.parametrize(
    ("clock", "at", "unit"),
    [
        ([5, 7, 6, 9], [0, 0, 2, 2, 4], "us"),
        ([0, 0], [0, 0, 0], "us"),
        ([5, -1, 6], [0, 1, 2, 3], "entry"),
        ([], [0], "entry"),
    ],
)
def test_the_axis_is_time_where_every_entry_has_one(clock: list[int], at: list[int], unit: str) -> None:
    history: Any = SimpleNamespace(time_us=np.array(clock, dtype=np.int64), n=len(clock))
    places, said = axis(history)
    assert (places.tolist(), said) == (at, unit)
