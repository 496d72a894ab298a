"""Counters that were sampled beside the work of a GPU: clocks, power, temperature, activity of SMs, memory throughput."""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.intervals import covered, pairs
from trace_doctor.run import Counters

SM_CLOCK, POWER, TEMPERATURE = "SM Clock (MHz)", "Power (W)", "Temperature (C)"
SM_ACTIVE = "SM Active (%)"
MEMORY_THROUGHPUT = ("DRAM BW (%)", "HBM BW (%)")
"""of the peak, as two generations of GPUs name it"""
RECORD = (
    'custom_profiler_config=\'{"backend": "cupti_monitor", "enable_environment_counters": true}\' in the '
    "experimental_config of torch 2.14"
)
LEAST_SAMPLES = 20
"""of which a mean is made"""
_MOSTLY = 0.8
F64 = npt.NDArray[np.float64]


class GpuCounters(Evidence, frozen=True):
    """Raises NotCaptured where no counter of a GPU was sampled."""

    samples: Counters

    @classmethod
    def build(cls, facts: Facts) -> Self:
        samples = facts.run.counters
        if not len(samples.ts):
            raise NotCaptured("GPU counters were not sampled", RECORD)
        return cls(samples)

    def of(self, device: int, *names: str) -> tuple[I64, F64]:
        """(ns, values) of the first of these counters that the device has, by time; empty where it has none."""
        sampled = (self.samples.of(device, name) for name in names)
        return next((found for found in sampled if len(found[0])), self.samples.of(device, ""))

    def at(self, device: int, moments: I64, *names: str) -> F64:
        """The value at each of these moments (ns): that of the last sample, NaN before the first."""
        ts, values = self.of(device, *names)
        place = np.searchsorted(ts, moments, side="right")
        return np.append(np.nan, values)[place]

    def mean(self, device: int, spans: I64, *names: str) -> float | None:
        """Mean of the samples that are about a set of intervals: it covers most of the time since the sample before. None
        where there are too few of them."""
        ts, values = self.of(device, *names)
        since = pairs(ts[:-1], ts[1:])
        about = covered(since, spans) >= _MOSTLY * (since[:, 1] - since[:, 0])
        return float(values[1:][about].mean()) if int(about.sum()) >= LEAST_SAMPLES else None
