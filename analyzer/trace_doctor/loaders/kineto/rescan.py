"""Reads the text of a trace once more, for what no column holds and few files have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np

from trace_doctor.arrays import I64, Bool

_OVERLAP = 128
"""No text that is looked for is longer."""


def occurrences(pattern: re.Pattern[bytes], pieces: Iterable[bytes]) -> Iterator[tuple[int, re.Match[bytes]]]:
    """(place in the text, match) of all matches, none longer than 128 bytes, in order."""
    text, begin, read_to = b"", 0, 0
    for piece in _with_end(pieces):
        last = piece == b""
        text += piece
        for match in pattern.finditer(text):
            if not last and match.end() > len(text) - _OVERLAP:
                break
            if begin + match.start() >= read_to:
                yield begin + match.start(), match
                read_to = begin + match.end()
        overlap = min(len(text), 2 * _OVERLAP)
        begin += len(text) - overlap
        text = text[len(text) - overlap :]


def owners(places: I64, offsets: I64) -> tuple[I64, Bool]:
    """For each event, of which `offsets` are the places in the text, ascending: the first of the places behind its begin, and
    whether it lies before the next event."""
    at = np.minimum(np.searchsorted(places, offsets), len(places) - 1)
    behind = np.append(offsets[1:], np.iinfo(np.int64).max)
    return at, np.asarray((places[at] > offsets) & (places[at] < behind))


def _with_end(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces that hold something, and an empty one behind the last."""
    yield from (piece for piece in pieces if piece)
    yield b""
