"""Whether events of a trace were lost one by one: the profiler numbers what it notes on the host."""

from __future__ import annotations

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.run import Cat, Run

MOST_LOST = 0.03
"""share of neighbors by number with others missing between them. What is cut off or kept elsewhere, as memory events are, leaves a few
large holes: in 71 public captures with numbers the most is 0.007, in two that were sampled 0.62."""
_LEAST = 100
"""numbers: fewer show no share"""
_SAMPLE = 4_000
"""events in the middle of the trace: their arguments are read again from the file"""


def lost_events(run: Run) -> str:
    """Which share of the events is missing, if it is one that matters; "" where the trace does not number its events."""
    rows = np.flatnonzero(run.is_cat(Cat.CPU_OP, Cat.USER_ANNOTATION, Cat.PYTHON) & run.own)
    if run.meta.get("with_stack") and not run.is_cat(Cat.PYTHON).any():
        return ""  # the frames have numbers too, and may have been left out on purpose
    first = max(len(rows) - _SAMPLE, 0) // 2
    numbers = _numbers(run, rows[first : first + _SAMPLE])
    if len(numbers) < _LEAST or (lost := float(np.mean(np.diff(numbers) > 1))) <= MOST_LOST:
        return ""
    return f"about {lost:.0%} of its operators, annotations and Python frames are missing: there are gaps in their numbers"


def _numbers(run: Run, rows: I64) -> I64:
    """`Ev Idx` of these events, each once, rising."""
    numbers = (args.get("Ev Idx") for args in run.args(rows.tolist()))
    return np.unique(np.array([n for n in numbers if type(n) is int and 0 <= n < 1 << 62], dtype=np.int64))
