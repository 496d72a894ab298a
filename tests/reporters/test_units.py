from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_doctor.digits import sizes_alike
from trace_doctor.reporters.units import (
    Scale,
    columns,
    duration,
    estimate_duration,
    estimate_share,
    estimate_size,
    share,
    size,
    visible,
)


@pytest.mark.parametrize(
    ("us", "shown"),
    [
        (0, "0 ms"),
        (0.4, "0.400 µs"),
        (5.93, "5.93 µs"),
        (177_600, "178 ms"),
        (1_211_000, "1.21 s"),
        (4.2e9, "4,200 s"),
    ],
)
def test_measured_times(us: float, shown: str) -> None:
    assert duration(us) == shown


@pytest.mark.parametrize(
    ("us", "shown"),
    [
        (59_012, "59 ms"),
        (593, "590 µs"),
        (5_930, "5.9 ms"),
        (999_600, "1.0 s"),
        (999.6, "1.0 ms"),
        (12_345_000, "12 s"),
    ],
)
def test_estimated_times_have_two_figures(us: float, shown: str) -> None:
    assert estimate_duration(us) == shown


def test_memory() -> None:
    assert size(1614 * 2**20) == "1.58 GiB"
    assert size(614 * 2**20) == "614 MiB"
    assert size(12) == "12 B"
    assert estimate_size(1614 * 2**20) == "1.6 GiB"
    assert size(8.125 * 2**20) == "8.13 MiB"  # a tie, as a browser rounds it
    assert size(9.996 * 2**30) == "10.0 GiB" and size(99.96 * 2**30) == "100 GiB"
    assert sizes_alike(900 * 2**20, 29 * 2**30) == ["0.879 GiB", "29.0 GiB"]


def test_shares_that_round_to_nothing_are_not_zero() -> None:
    assert share(0.0) == "0%"
    assert share(0.0001) == "<0.1%"
    assert share(0.566) == "56.6%"
    assert estimate_share(0.3323) == "33%"
    assert estimate_share(0.034) == "3.4%"
    assert estimate_share(0.0001) == "<0.1%"


def test_a_column_has_one_unit_and_loses_no_small_value() -> None:
    scale = Scale.of("us", [91_000.0, 44_000.5, 3.2])
    assert scale.unit == "ms"
    peak = Scale.of("bytes", [30_711.04 * 2**20, 3_830.1 * 2**20, 8.1 * 2**20, 0.1 * 2**20])
    assert [peak.cell(v * 2**20) for v in (30_711.04, 8.1, 0.1)] == ["30,711", "8", "<1"]
    assert [scale.cell(v) for v in (91_000.0, 44_000.5, 3.2, 0.0, None)] == [
        "91.0",
        "44.0",
        "<0.1",
        "0.0",
        "",
    ]


@given(st.text())
def test_visible_text_reaches_no_terminal_state(text: str) -> None:
    shown = visible(text)
    assert all(c.isprintable() or c == "\u00a0" or not c.isascii() for c in shown)
    assert not set(shown) & set("\x1b\x07\r\n\t\u202e\u2066\u200f\u2028")
    assert columns(shown) <= 2 * len(shown)


def test_what_does_not_show_is_written_out() -> None:
    """A tag can hold a sentence that only a program reads; a filler is a blank."""
    for hidden in "\xad\u034f\u115f\u180e\u200b\u202e\u2061\u3164\ufe00\uffa0\U0001d173\U000e0041\U000e0101":
        assert visible(f"a{hidden}b") == f"a{ascii(hidden)[1:-1]}b"
    assert visible("é 漢 \u26a0\ufe0f") == "é 漢 \u26a0\ufe0f"


def test_what_is_missing_is_the_difference_of_what_is_shown() -> None:
    requested, free, device = 4_202_692_608, 4_028_760_064, 41_100_000_000
    scale = Scale.of("bytes", [requested, free, requested - free, device])
    assert [scale.cell(n) for n in (requested, free, requested - free)] == ["3.91", "3.75", "0.16"]
