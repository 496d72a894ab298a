"""GPU work of a loss that runs operator by operator, beside a compiled model."""

from __future__ import annotations

import re
from typing import Self

import numpy as np

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compile_regions import is_region
from trace_doctor.evidence.graph_breaks import is_graph_call
from trace_doctor.evidence.kernels import Kernels
from trace_doctor.evidence.nesting import Nesting
from trace_doctor.run import I64

_FORWARD = re.compile(
    r"aten::(?:cross_entropy_loss|nll_loss\w*|log_softmax|_log_softmax|mse_loss|l1_loss|smooth_l1_loss|huber_loss|kl_div"
    r"|binary_cross_entropy\w*|soft_margin_loss|cosine_embedding_loss|ctc_loss|gaussian_nll_loss|poisson_nll_loss)"
)
_BACKWARD = re.compile(
    r"autograd::engine::evaluate_function: (?:NllLoss\w*|LogSoftmax|MseLoss|L1Loss|SmoothL1Loss|HuberLoss|KlDiv"
    r"|BinaryCrossEntropy\w*|SoftMarginLoss|CtcLoss)Backward\d*"
)


def is_loss(name: str) -> bool:
    """An operator of torch.nn.functional's losses, or the engine's call of its backward."""
    return _FORWARD.fullmatch(name) is not None or _BACKWARD.fullmatch(name) is not None


class EagerLoss(Evidence, frozen=True):
    """Raises NotCaptured where no compiled graph or no GPU work is in the steady steps."""

    ns: int
    """GPU time of loss operators outside compiled graphs in the steady steps"""
    operators: tuple[tuple[str, int, int], ...]
    """(name, number of kernels, ns) by innermost operator, the longest first"""
    rows: I64
    """the kernels"""
    steps: int

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, kernels, nesting = facts.run, facts[Kernels], facts[Nesting]
        compiled = run.is_named(lambda name: is_region(name) or is_graph_call(name))
        if not compiled.any():
            raise NotCaptured(
                "no compiled graph ran", "record a run of a model that torch.compile has compiled"
            )
        known = kernels.operator >= 0
        at = np.maximum(kernels.operator, 0).astype(np.int64)
        loss = run.is_named(is_loss)
        mine = known & (nesting.inside(at, loss) | loss[at]) & ~nesting.inside(at, compiled)
        found: dict[str, tuple[int, int]] = {}
        for row, ns in zip(at[mine].tolist(), kernels.ns[mine].tolist(), strict=True):
            count, before = found.get(run.text(row), (0, 0))
            found[run.text(row)] = (count + 1, before + ns)
        ranked = sorted(((name, n, ns) for name, (n, ns) in found.items()), key=lambda f: (-f[2], f[0]))
        return cls(int(kernels.ns[mine].sum()), tuple(ranked), kernels.rows[mine], kernels.steps)
