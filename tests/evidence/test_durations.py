from __future__ import annotations

import pytest

from trace_doctor.evidence.durations import milliseconds, three_figures, two_figures


@pytest.mark.parametrize(
    ("us", "compared", "estimated", "measured"),
    [
        (0, "0 ms", "0 µs", "0 µs"),
        (7.26, "0.00726 ms", "7.3 µs", "7.26 µs"),
        (244, "0.244 ms", "240 µs", "244 µs"),
        (9_960, "9.96 ms", "10 ms", "9.96 ms"),
        (59_300, "59.3 ms", "59 ms", "59.3 ms"),
        (100_000, "100 ms", "100 ms", "100 ms"),
        (999_600, "1,000 ms", "1,000 ms", "1 s"),
        (1_211_000, "1,211 ms", "1.2 s", "1.21 s"),
        (4_567_000_000, "4,567,000 ms", "4,570 s", "4,567 s"),
    ],
)
def test_times_in_sentences(us: float, compared: str, estimated: str, measured: str) -> None:
    assert (milliseconds(us), two_figures(us), three_figures(us)) == (compared, estimated, measured)
