"""Types of columns, and looking things up in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
I16 = npt.NDArray[np.int16]
U8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]


def order_of(numbers: I32, count: int) -> I64:
    """The stable order of numbers from 0 to `count`: by radix where they are few, four times as fast."""
    return np.argsort(numbers.astype(np.uint16) if count <= 1 << 16 else numbers, kind="stable")


def begins(numbers: I32, order: npt.NDArray[Any], count: int) -> I64:
    """Where each number from 0 to `count` begins in the order of them."""
    return np.searchsorted(numbers[order], np.arange(count + 1, dtype=numbers.dtype))


def at_rows(column: npt.NDArray[Any], rows: npt.NDArray[Any], none: Any) -> npt.NDArray[Any]:
    """The column's values at these rows; `none`, a value or one for each, where there is no row (-1)."""
    found = np.full(len(rows), none, dtype=column.dtype)
    there = rows >= 0
    found[there] = column[rows[there]]
    return found
