"""A window cut without holes into pieces of one kind each, and fewer of them for drawing."""

from __future__ import annotations

import numpy as np

from trace_doctor.arrays import I64, U8
from trace_doctor.evidence.intervals import pairs
from trace_doctor.model import IDLE_CAUSES

WORK = ("compute", "comm", "copy")
KINDS = (*WORK, *IDLE_CAUSES)
MAX_SEGMENTS = 600


def reduced(pieces: I64, kind: U8, window: tuple[int, int], most: int = MAX_SEGMENTS) -> tuple[I64, U8]:
    """The tiles of a window in at most about `most` pieces.

    Pieces longer than a bucket stay as they are, so no long gap is ever lost. The short ones are added up by kind
    within their bucket (longest kind first): every kind keeps its time to the nanosecond, moved by less than a bucket.
    """
    buckets, tiles = most, (pieces, kind)
    while len(tiles[0]) > most and buckets > 1:
        buckets = buckets * 2 // 3
        tiles = _bucketed(pieces, kind, window, buckets)
    return tiles


def joined(pieces: I64, kind: U8) -> tuple[I64, U8]:
    """Neighbours of one kind as one piece; the pieces tile their window."""
    if not len(pieces):
        return pieces, kind
    first = np.flatnonzero(np.concatenate([[True], kind[1:] != kind[:-1]]))
    last = np.append(first[1:], len(pieces)) - 1
    return pairs(pieces[first, 0], pieces[last, 1]), kind[first]


def _bucketed(pieces: I64, kind: U8, window: tuple[int, int], buckets: int) -> tuple[I64, U8]:
    width = max((window[1] - window[0]) // buckets, 1)
    length = pieces[:, 1] - pieces[:, 0]
    long = length >= width
    # A group is a long piece, or a run of short pieces that start in the same bucket.
    bucket = (pieces[:, 0] - window[0]) // width
    new = np.concatenate([[True], long[1:] | long[:-1] | (np.diff(bucket) != 0)])
    group = np.cumsum(new) - 1
    sums = np.zeros((int(group[-1]) + 1, len(KINDS)), dtype=np.int64)
    np.add.at(sums, (group, kind), length)
    order = np.argsort(-sums, axis=1, kind="stable")
    lengths = np.take_along_axis(sums, order, axis=1)
    real = lengths > 0
    ends = window[0] + np.cumsum(lengths[real])
    starts = np.concatenate([[window[0]], ends[:-1]])
    return joined(pairs(starts, ends), order[real].astype(np.uint8))
