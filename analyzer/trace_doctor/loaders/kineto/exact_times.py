"""Starts to the nanosecond where a float64 of microseconds does not hold them.

Most files count from a base time, so that a float is exact. Some (spring of 2024) write microseconds since 1970 with
three decimals: a float64 holds these to a quarter of a microsecond, and events change their order. Their text is read
once more.

`[memory]` instants of such files keep the quarter. To find one's text again takes its place in the file, which neither
decoder notes for instants: eight bytes more for each in every file, while what is read from them (bytes over time, the step
that an allocation falls into) is far coarser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from trace_doctor.arrays import I64

COARSE_US = float(1 << 43)
"""From here on a float64 of microseconds steps by two nanoseconds and more."""
MOST_OFF_NS = 250
"""What rounding to a float64 can move a start by today: anything beyond is another number."""
_START = re.compile(rb'"ts"\s*:\s*"?([1-8]?\d{1,15})\.(\d{1,9})')
"""Up to what an int64 of nanoseconds holds."""
_OVERLAP = 128


def is_coarse(us: npt.NDArray[np.float64]) -> bool:
    """Whether some starts have a fraction that a float64 of their size cannot hold to the nanosecond."""
    large = us[us >= COARSE_US]
    return bool(len(large) and (large != np.floor(large)).any())


def exact(ns: I64, offsets: I64, pieces: Iterable[bytes]) -> I64:
    """`ns`, rounded from floats, as the text has them. `offsets` are those of the events in the text, ascending; one
    whose text cannot be found keeps what it has."""
    starts = list(_starts(pieces))
    if not starts:
        return ns
    places, values = (np.array(column, dtype=np.int64) for column in zip(*starts, strict=True))
    at = np.minimum(np.searchsorted(places, offsets), len(places) - 1)
    behind = np.append(offsets[1:], np.iinfo(np.int64).max)
    own = (places[at] > offsets) & (places[at] < behind) & (np.abs(values[at] - ns) <= MOST_OFF_NS)
    return np.where(own, values[at], ns)


def _starts(pieces: Iterable[bytes]) -> Iterator[tuple[int, int]]:
    """(place in the text, ns) of every start with a fraction."""
    text, begin, read_to = b"", 0, 0
    for piece in _with_end(pieces):
        last = piece == b""
        text += piece
        for match in _START.finditer(text):
            if not last and match.end() > len(text) - _OVERLAP:
                break
            if begin + match.start() >= read_to:
                whole, part = match.groups()
                yield begin + match.start(), int(whole) * 1000 + _thousandths(part)
                read_to = begin + match.end()
        overlap = min(len(text), 2 * _OVERLAP)
        begin += len(text) - overlap
        text = text[len(text) - overlap :]


def _with_end(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces that hold something, and an empty one behind the last."""
    yield from (piece for piece in pieces if piece)
    yield b""


def _thousandths(digits: bytes) -> int:
    """`797`, `5`, `1239` -> 797, 500, 124; halves to the even one."""
    return round(int(digits.ljust(9, b"0")) / 1e6)
