"""Work of a loss that runs operator by operator, beside a compiled model.

A loss of torch.nn.functional is known by its operators. One written by hand is what runs between the compiled forward and
the compiled backward: elementwise operators and reductions, and no product, which would be a part of the model.
"""

from __future__ import annotations

import re
from typing import Self

import numpy as np

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compile.compile_regions import is_region
from trace_doctor.evidence.compile.graph_breaks import is_graph_call
from trace_doctor.evidence.compute.work import Work
from trace_doctor.evidence.names.event_names import is_optimizer
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat

_FORWARD = re.compile(
    r"aten::(?:cross_entropy_loss|nll_loss\w*|log_softmax|_log_softmax|mse_loss|l1_loss|smooth_l1_loss|huber_loss|kl_div"
    r"|binary_cross_entropy\w*|soft_margin_loss|cosine_embedding_loss|ctc_loss|gaussian_nll_loss|poisson_nll_loss)"
)
_BACKWARD = re.compile(
    r"autograd::engine::evaluate_function: (?:NllLoss\w*|LogSoftmax|MseLoss|L1Loss|SmoothL1Loss|HuberLoss|KlDiv"
    r"|BinaryCrossEntropy\w*|SoftMarginLoss|CtcLoss)Backward\d*"
)


_COMPILED_BACKWARD = "autograd::engine::evaluate_function: CompiledFunctionBackward"


def is_loss(name: str) -> bool:
    """An operator of torch.nn.functional's losses, or the engine's call of its backward."""
    return _FORWARD.fullmatch(name) is not None or _BACKWARD.fullmatch(name) is not None


class EagerLoss(Evidence, frozen=True):
    """Raises NotCaptured where no compiled graph ran, or a GPU's work was not recorded.

    On a CPU losses of torch.nn.functional are left out: they are fused already, and slower where inductor compiles them
    (torch 2.13: cross entropy over 8,000 classes 15 ms, compiled 23)."""

    ns: int
    """time of the loss's kernels (on a CPU: operators) outside compiled graphs in the steady steps"""
    operators: tuple[tuple[str, int, int], ...]
    """(name, number of kernels, ns) by innermost operator, the longest first"""
    rows: I64
    """the kernels"""
    steps: int
    by_name: bool
    """whether most of it is in operators that are a loss by their name"""
    on_gpu: bool

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, nesting = facts.run, facts[Nesting]
        compiled = run.is_named(is_region, is_graph_call)
        if not compiled.any():
            raise NotCaptured("no compiled graph ran")
        work = facts[Work]
        known = work.operator >= 0
        at = np.maximum(work.operator, 0).astype(np.int64)
        loss = run.is_named(is_loss)
        eager = known & ~nesting.inside(at, compiled)
        named = eager & (nesting.inside(at, loss) | loss[at])
        by_hand = eager & ~named & _follows(facts, work, at, compiled)
        mine = named | by_hand if work.on_gpu else by_hand
        by_operator: dict[str, tuple[int, int]] = {}
        for row, ns in zip(at[mine].tolist(), work.ns[mine].tolist(), strict=True):
            count, before = by_operator.get(run.text(row), (0, 0))
            by_operator[run.text(row)] = (count + 1, before + ns)
        ranked = sorted(((name, n, ns) for name, (n, ns) in by_operator.items()), key=lambda f: (-f[2], f[0]))
        ns = int(work.ns[mine].sum())
        by_name = 2 * int(work.ns[mine & named].sum()) >= ns
        return cls(ns, tuple(ranked), work.rows[mine], work.steps, by_name, work.on_gpu)


def _follows(facts: Facts, work: Work, at: I64, compiled: Bool) -> Bool:
    """Which of the work was called for (by the operators `at`) between a compiled forward and the compiled backward that
    comes next; none where a product lies between."""
    run, nesting = facts.run, facts[Nesting]
    engine = run.is_named(lambda n: n.startswith("autograd::engine::"))
    forward = np.flatnonzero(compiled & (run.thread == facts[Threads].main) & ~run.is_cat(Cat.PYTHON))
    ends = np.sort(run.end[forward[~nesting.inside(forward, engine)]])
    starts = np.sort(run.ts[run.named(lambda n: n == _COMPILED_BACKWARD, Cat.CPU_OP)])
    last, first = np.unique(np.searchsorted(ends, starts, side="right") - 1, return_index=True)
    until, since = starts[first[last >= 0]], ends[last[last >= 0]]
    if not len(since):
        return np.zeros(len(at), dtype=bool)
    which = np.searchsorted(since, run.ts[at], side="right") - 1
    inside = (which >= 0) & (run.ts[at] < until[which]) & ~nesting.inside(at, run.is_named(is_optimizer))
    product = work.where(lambda c: c.kind in ("gemm", "gemv", "conv", "attention"))
    model = np.unique(which[inside & product])
    return np.asarray(inside & ~np.isin(which, model))
