"""What computes in the steady steps: kernels, or, in a capture of the CPU alone, operators."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.idle.cpu_timeline import CPU, Processor
from trace_doctor.evidence.intervals import covered, intervals, pairs
from trace_doctor.evidence.names.event_names import (
    is_collective,
    is_compile,
    is_loader,
    is_optimizer,
    is_step,
    is_torch_mark,
    is_view,
)
from trace_doctor.evidence.names.kernel_names import KernelClass, Kind
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat, Run

_NO_WORK = re.compile(
    r"(?:aten::)?(?:reshape|detach_?|flatten|resolve_conj|resolve_neg|empty\w*|new_empty|resize_|result_type|item|_local_scalar_dense|lift_fresh|contiguous|to|_to_copy"
    r"|matmul|linear|einsum|conv[123]d|softmax|log_softmax|dropout|layer_norm|cross_entropy_loss|scaled_dot_product_attention)"
    r"|autograd::engine::.*|torch::autograd::.*|\w+Backward\d*"
)
"""Beside views: operators that take memory or only call others, and what autograd wraps around them."""
_KINDS: dict[Kind, re.Pattern[str]] = {
    "gemm": re.compile(r"aten::(?:mm|addmm|bmm|baddbmm_?|addbmm|mv|addmv|dot|_addmm_activation)"),
    "conv": re.compile(r"aten::\w*conv\w*"),
    "attention": re.compile(r"aten::_scaled_dot_product_(?!attention_math)\w+"),
}


class Work(Kernels, frozen=True):
    """As `Kernels`; without a GPU `rows` and `operator` are both the operators that compute, of the main and the autograd
    threads, and `device` is -1.

    Raises NotCaptured where a GPU is there whose work was not recorded, or nothing computes in the steady steps.
    """

    lane: I64
    """what the work follows each other on: the stream, on a CPU the thread"""

    @property
    def on_gpu(self) -> bool:
        """Whether the work is kernels, and not operators of a CPU."""
        return self.device != CPU

    @classmethod
    def build(cls, facts: Facts) -> Self:
        if facts[Processor].gpu:
            kernels = facts[Kernels]
            fields = {name: getattr(kernels, name) for name in Kernels.__struct_fields__}
            return cls(**fields, lane=kernels.run.stream[kernels.rows].astype(np.int64))
        run, nesting, steps = facts.run, facts[Nesting], facts[Steps]
        rows = _computing(run, nesting, facts[Threads])
        ns = covered(pairs(run.ts[rows], run.end[rows]), intervals(steps.spans("steady")))
        rows, ns = rows[ns > 0], ns[ns > 0]
        if not len(rows):
            raise NotCaptured("no operators in the steady steps", "activities=[ProfilerActivity.CPU]")
        return cls(CPU, rows, ns, rows, steps.count, run, nesting, run.thread[rows].astype(np.int64))

    @cached_property
    def classes(self) -> list[KernelClass]:
        """By id of the name: of operators no more than what they multiply."""
        if self.on_gpu:
            return super().classes
        classes = [KernelClass("other")] * len(self.run.names)
        for name in np.unique(self.run.name[self.rows]).tolist():
            text = self.run.names[name]
            kind = next((kind for kind, names in _KINDS.items() if names.fullmatch(text)), None)
            classes[name] = KernelClass(kind or "other")
        return classes


def _is_no_work(name: str) -> bool:
    return _NO_WORK.fullmatch(name) is not None


def _computing(run: Run, nesting: Nesting, threads: Threads) -> I64:
    """The operators that spend at least half of their time themselves, and not in others."""
    marks = run.is_named(
        _is_no_work, is_view, is_step, is_loader, is_optimizer, is_torch_mark, is_compile, is_collective
    )
    rows = np.flatnonzero(run.is_cat(Cat.CPU_OP) & ~marks)
    rows = rows[np.isin(run.thread[rows], [threads.main, *threads.autograd])]
    is_chosen = np.zeros(len(run), dtype=bool)
    is_chosen[rows] = True
    above = nesting.around(nesting.parent[rows], is_chosen)
    inner = above >= 0
    inner_ns = np.bincount(
        np.searchsorted(rows, above[inner]), weights=run.dur[rows[inner]], minlength=len(rows)
    )
    return nesting.outermost(rows[2 * inner_ns <= run.dur[rows]])
