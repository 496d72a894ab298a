"""The longest gaps of a lane are those of the capture, whatever the reduction for drawing does."""

from __future__ import annotations

import numpy as np

from trace_doctor.evidence.idle.overview import KINDS, longest_gaps
from trace_doctor.model import Gap


def _tiles(*parts: tuple[str, int]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum([length for _, length in parts])
    starts = np.concatenate([[0], ends[:-1]])
    return np.stack([starts, ends], axis=1) + 1_000_000, np.array(
        [KINDS.index(k) for k, _ in parts], np.uint8
    )


def test_neighbouring_causes_are_one_gap_owned_by_the_larger() -> None:
    pieces, kind = _tiles(
        ("compute", 50_000),
        ("data_loading", 30_000),
        ("launch", 10_000),
        ("copy", 1_000),
        ("sync", 5_000),
        ("comm", 1),
    )
    assert longest_gaps(pieces, kind, 1_000_000) == [
        Gap(50.0, 40.0, "data_loading", 0.75),
        Gap(91.0, 5.0, "sync", 1.0),
    ]


def test_gaps_at_the_ends_and_none_at_all() -> None:
    pieces, kind = _tiles(("python", 2_000), ("compute", 1_000), ("python", 3_000))
    assert [g.start_us for g in longest_gaps(pieces, kind, 1_000_000)] == [3.0, 0.0]
    pieces, kind = _tiles(("compute", 1_000))
    assert longest_gaps(pieces, kind, 1_000_000) == []
