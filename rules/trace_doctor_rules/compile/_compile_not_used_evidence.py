"""Elementwise kernels that run one after another: what a compiler would make one kernel of."""

from __future__ import annotations

import re
from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.names.event_names import is_optimizer
from trace_doctor.evidence.replay.what_if import Removal
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.run import Run

_ELEMENTWISE = re.compile(r"elementwise_kernel|elementwise_op|pointwise", re.IGNORECASE)
_FUSED = re.compile(r"triton_\w*fused|(?:cuda|hip|cu)GraphLaunch")
_FILLS = re.compile(r"FillFunctor")


class PointwiseRuns(Evidence, frozen=True):
    """Of the steady steps, outside the optimizer. Raises NotCaptured without GPU work."""

    kernels: int
    """elementwise kernels"""
    ns: int
    """their time"""
    compute: int
    """time of all kernels, ns"""
    spare: I64
    """rows of those that a fused kernel spares: all but the longest of each run, for it must read and write too"""
    runs: int
    """with two kernels or more"""
    fused: bool
    """whether a compiler's kernels or CUDA graphs are anywhere in the capture"""
    run: Run

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, kernels = facts.run, facts[Kernels]
        rows = kernels.rows
        fusable = kernels.named(lambda n: _ELEMENTWISE.search(n) is not None and _FILLS.search(n) is None)
        launches, nesting = facts[Launches], facts[Nesting]
        call = launches.launch[np.searchsorted(run.gpu, rows)].astype(np.int64)
        known = call >= 0
        fusable[known] &= ~nesting.inside(call[known], run.is_named(is_optimizer))
        order = np.lexsort((run.ts[rows], run.stream[rows]))
        rows, fusable, stream = rows[order], fusable[order], run.stream[rows[order]]
        goes_on = fusable[1:] & fusable[:-1] & (stream[1:] == stream[:-1])
        number = np.cumsum(np.concatenate([[True], ~goes_on])) if len(rows) else np.empty(0, dtype=np.int64)
        longest_first = np.lexsort((-run.dur[rows], number))
        first = np.ones(len(rows), dtype=bool)
        first[1:] = np.diff(number[longest_first]) > 0
        spare = np.sort(rows[longest_first[~first]])
        return cls(
            kernels=int(fusable.sum()),
            ns=int(run.dur[rows[fusable]].sum()),
            compute=kernels.total,
            spare=spare,
            runs=len(np.unique(number[longest_first[~first]])),
            fused=bool(run.is_named(lambda n: _FUSED.match(n) is not None).any()),
            run=run,
        )

    @property
    def removal(self) -> Removal:
        """Without the kernels that are spared, and without launching them: their calls are part of what remains."""
        return Removal(gpu_rows=tuple(self.spare.tolist()))
