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
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from trace_doctor.arrays import I64
from trace_doctor.loaders.kineto import rescan

COARSE_US = float(1 << 43)
"""From here on a float64 of microseconds steps by two nanoseconds and more."""
MOST_OFF_NS = 250
"""What rounding to a float64 can move a start by today: anything beyond is another number."""
_START = re.compile(rb'"ts"\s*:\s*"?([1-8]?\d{1,15})\.(\d{1,9})')
"""Up to what an int64 of nanoseconds holds."""


def is_coarse(us: npt.NDArray[np.float64]) -> bool:
    """Whether some starts have a fraction that a float64 of their size cannot hold to the nanosecond."""
    large = us[us >= COARSE_US]
    return bool(len(large) and (large != np.floor(large)).any())


def exact(ns: I64, offsets: I64, pieces: Iterable[bytes]) -> I64:
    """`ns`, rounded from floats, as the text has them. `offsets` are those of the events in the text, ascending; one
    whose text cannot be found keeps what it has."""
    starts = [
        (place, int(m[1]) * 1000 + _thousandths(m[2])) for place, m in rescan.occurrences(_START, pieces)
    ]
    if not starts:
        return ns
    places, values = (np.array(column, dtype=np.int64) for column in zip(*starts, strict=True))
    at, own = rescan.owners(places, offsets)
    own &= np.abs(values[at] - ns) <= MOST_OFF_NS
    return np.where(own, values[at], ns)


def _thousandths(digits: bytes) -> int:
    """`797`, `5`, `1239` -> 797, 500, 124; halves to the even one."""
    return round(int(digits.ljust(9, b"0")) / 1e6)
