"""How long something took in each steady step: what a mean and its deviation are made from."""

from __future__ import annotations

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.intervals import overlaps, pairs
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.steps import Steps, completions


def steady_spans(steps: Steps) -> I64:
    """The steady steps, (n, 2) ns, in time order; neighbours touch and stay apart. None without a source."""
    return np.array(steps.spans("steady") if steps.steps else [], dtype=np.int64).reshape(-1, 2)


def device_steps(facts: Facts) -> I64:
    """The steady steps as a device sees them, (n, 2) ns: from the completion of the work before each to that of its own.
    A device that lags behind the host's marks would else show work of one step in the next."""
    spans = steady_spans(facts[Steps])
    start, end = (completions(facts.run, facts[Launches], spans[:, side]) for side in (0, 1))
    return pairs(start, np.maximum(start, end))


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
