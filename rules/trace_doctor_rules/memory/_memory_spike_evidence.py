"""How long, in allocations, the blocks of one stack follow each other: a loop's pass where nothing marks its steps."""

from __future__ import annotations

import numpy as np

from trace_doctor.arrays import I32, I64


def made_again_after(stack: I32, at: I64) -> I64:
    """For each block, the most allocations between two blocks of its stack: no limit where the stack made one only."""
    order = np.lexsort((at, stack))
    again = np.flatnonzero(np.diff(stack[order]) == 0)
    longest = np.zeros(int(stack.max(initial=0)) + 1, dtype=np.int64)
    np.maximum.at(longest, stack[order][again], np.diff(at[order])[again])
    after: I64 = np.where(longest[stack] > 0, longest[stack], np.iinfo(np.int64).max)
    return after


def made_within(stack: I32, at: I64) -> I64:
    """For each block, the allocations from the first to the last block of its stack."""
    first = np.full(int(stack.max(initial=0)) + 1, np.iinfo(np.int64).max)
    last = np.zeros(len(first), dtype=np.int64)
    np.minimum.at(first, stack, at)
    np.maximum.at(last, stack, at)
    within: I64 = (last - first)[stack]
    return within
