"""How much of the GPU kernels fill: their blocks against its multiprocessors. Grid sizes lie in the file, not in columns:
the kernels of one typical step are decoded again, the longest first."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compute.kernels import Kernels, grid_of
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import MOST_COUNTED

MOST = 5_000
"""Kernels that are decoded; each takes some 10 us."""
COVERED = 0.98
"""Share of the step's kernel time that is looked at: what is left are thousands of the shortest."""


class KernelGrids(Evidence, frozen=True):
    """Raises NotCaptured where the file tells neither blocks per multiprocessor nor grid and number of multiprocessors."""

    places: I64
    """in `kernels.rows`, of the kernels looked at: of one typical step, by start"""
    blocks_per_sm: npt.NDArray[np.float64]
    """blocks over multiprocessors (AMD: workgroups over compute units): below 1 some have nothing to do"""
    kernels: Kernels

    @classmethod
    def build(cls, facts: Facts) -> Self:
        kernels = facts[Kernels]
        places = _longest(kernels, _typical(facts, kernels))
        args = kernels.run.args(kernels.rows[places].tolist())
        known = np.array([_blocks_per_sm(a, kernels.multiprocessors) for a in args], dtype=np.float64)
        if np.isnan(known).all():
            raise NotCaptured(
                "thread blocks per kernel not recorded",
                "torch.profiler with CUPTI (torch 1.8.1 and later) records grid and blocks per SM",
            )
        is_known = ~np.isnan(known)
        return cls(places[is_known], known[is_known], kernels)


def _typical(facts: Facts, kernels: Kernels) -> I64:
    """Places of the kernels that the steady step whose pace is the median launched; all of them without steps."""
    steady = sorted(facts[Steps].steady, key=lambda s: (s.pace, s.index))
    ts = kernels.run.ts[np.where(kernels.operator >= 0, kernels.operator, kernels.rows)]
    if not steady:
        return np.arange(len(ts))
    middle = steady[(len(steady) - 1) // 2]
    return np.flatnonzero((ts >= middle.start) & (ts < middle.end))


def _longest(kernels: Kernels, places: I64) -> I64:
    """The longest of them that make up most of their time."""
    ranked = places[np.argsort(-kernels.ns[places], kind="stable")]
    reach = np.cumsum(kernels.ns[ranked])
    enough = int(np.searchsorted(reach, COVERED * reach[-1])) + 1 if len(reach) else 0
    return np.sort(ranked[: min(enough, MOST)])


def _blocks_per_sm(args: Mapping[str, Any], multiprocessors: int | None) -> float:
    value = args.get("blocks per SM", args.get("blocks per sm"))
    if isinstance(value, int | float) and 0 < value < MOST_COUNTED:
        return float(value)
    if multiprocessors and (grid := grid_of(args)):
        return prod(grid) / multiprocessors
    return float("nan")
