"""A time line of fewer pieces: each kind keeps its time, and no long piece is lost."""

from __future__ import annotations

import numpy as np
import pytest

from trace_doctor.arrays import U8
from trace_doctor.evidence.intervals import pairs
from trace_doctor.evidence.trace.segments import joined, reduced


def _alternating(count: int, long_at: int = -1) -> tuple[np.ndarray, U8]:
    """Pieces of 10 ns of two kinds in turn, the one at `long_at` of a third kind and 1000 ns long."""
    lengths = np.full(count, 10)
    kind = (np.arange(count) % 2).astype(np.uint8)
    if long_at >= 0:
        lengths[long_at], kind[long_at] = 1000, 2
    ends = np.cumsum(lengths)
    return pairs(ends - lengths, ends), kind


def _times(pieces: np.ndarray, kind: U8) -> dict[int, int]:
    return {int(k): int((pieces[kind == k, 1] - pieces[kind == k, 0]).sum()) for k in np.unique(kind)}


@pytest.mark.parametrize(("count", "most"), [(100, 50), (101, 3), (7, 2)])
def test_every_kind_keeps_its_time_in_no_more_pieces(count: int, most: int) -> None:
    pieces, kind = _alternating(count)
    fewer, kinds = reduced(pieces, kind, (0, count * 10), most)
    assert len(fewer) <= most
    assert _times(fewer, kinds) == _times(pieces, kind)
    assert np.array_equal(fewer[1:, 0], fewer[:-1, 1])
    assert (int(fewer[0, 0]), int(fewer[-1, 1])) == (0, count * 10)


def test_a_long_piece_stays_where_it_is() -> None:
    pieces, kind = _alternating(200, long_at=100)
    fewer, kinds = reduced(pieces, kind, (0, 2990), 20)
    assert fewer[kinds == 2].tolist() == [[1000, 2000]]


def test_pieces_move_by_less_than_a_bucket() -> None:
    """In each stretch of the time line either kind has its half, as before."""
    pieces, kind = _alternating(1000)
    fewer, _ = reduced(pieces, kind, (0, 10_000), 100)
    assert len(fewer) > 20
    assert int((fewer[:, 1] - fewer[:, 0]).max()) <= 10_000 // 10


@pytest.mark.parametrize("count", [0, 1, 5])
def test_few_pieces_stay_as_they_are(count: int) -> None:
    pieces, kind = _alternating(count)
    same, kinds = reduced(pieces, kind, (0, max(count * 10, 1)), 5)
    assert (same.tolist(), kinds.tolist()) == (pieces.tolist(), kind.tolist())


def test_neighbours_of_one_kind_are_joined() -> None:
    pieces, _ = _alternating(4)
    made, kind = joined(pieces, np.array([1, 1, 0, 1], dtype=np.uint8))
    assert (made.tolist(), kind.tolist()) == ([[0, 20], [20, 30], [30, 40]], [1, 0, 1])
