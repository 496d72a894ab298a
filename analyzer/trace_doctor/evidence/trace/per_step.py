"""How long something took in each steady step: what a mean and its deviation are made from."""

from __future__ import annotations

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.intervals import overlaps
from trace_doctor.evidence.trace.steps import Steps


def device_steps(facts: Facts) -> I64:
    """The steady steps as a device sees them, (n, 2) ns, in time order; neighbours touch and stay apart. None without a
    source."""
    steps = facts[Steps]
    return np.array([(s.begun, s.done) for s in steps.steady], dtype=np.int64).reshape(-1, 2)


def in_steps(raw: I64, spans: I64) -> I64:
    """Summed length of raw intervals within each of the spans, ns: time in which two of them ran counts twice."""
    pieces, _, step = overlaps(raw, spans)
    sums = np.zeros(len(spans), dtype=np.int64)
    np.add.at(sums, step, pieces[:, 1] - pieces[:, 0])
    return sums


def mean_us(sums: I64) -> float | None:
    """Mean over the steps, us; None without any."""
    return float(sums.mean()) / 1e3 if len(sums) else None


def deviation_us(sums: I64) -> float | None:
    """Standard deviation over the steps, us; None where fewer than two steps show none."""
    return float(sums.std(ddof=1)) / 1e3 if len(sums) > 1 else None
