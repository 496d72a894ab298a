"""How much a step computes and on what shapes: what tells whether two captures are of the same job."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat

PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        "addmm", "baddbmm", "bmm", "conv1d", "conv2d", "conv3d", "embedding", "linear", "lstm", "mm",
        "scaled_dot_product_attention",
    )
)  # fmt: skip
"""operators whose input shapes hold the batch"""
_STEPS, _ROWS_PER_STEP, _FORMS = 8, 64, 24


class Workload(Evidence, frozen=True):
    """Raises NotCaptured where there are no steps."""

    kernels: float | None
    """GPU kernels that are launched in a steady step, median; None without any"""
    operators: float | None
    """CPU operators that start in a steady step, nested ones too, median; None without any"""
    shapes: tuple[str, ...]
    """`aten::linear [64, 784] [10, 784]`: each form once, in the order seen; empty where shapes were not recorded"""
    launches: float | None
    """share of the GPU work of the window whose launch is in the trace; None without any"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, steps = facts.run, facts[Steps]
        spans = np.array(steps.spans("steady"), dtype=np.int64).reshape(-1, 2)
        operators = run.ts[run.is_cat(Cat.CPU_OP)]
        linked, work = facts[Launches].with_launch(*steps.window)
        return cls(
            _per_step(_launched(facts), spans),
            _per_step(operators, spans),
            _shapes(facts, spans),
            linked / work if work else None,
        )


def _launched(facts: Facts) -> I64:
    """When each kernel was launched, else when it ran: a device that lags runs it in a later step of the host."""
    run = facts.run
    return facts[Launches].launched_at(run.gpu[run.cat[run.gpu] == Cat.KERNEL])


def _per_step(starts: I64, spans: I64) -> float | None:
    if not len(starts) or not len(spans):
        return None
    starts = np.sort(starts)
    counts = np.searchsorted(starts, spans[:, 1]) - np.searchsorted(starts, spans[:, 0])
    return float(np.median(counts))


def _shapes(facts: Facts, spans: I64) -> tuple[str, ...]:
    run = facts.run
    rows = run.named(PRODUCTS.__contains__, Cat.CPU_OP)
    rows = rows[np.argsort(run.ts[rows], kind="stable")]
    chosen = []
    for start, end in spans[:_STEPS]:
        first, last = np.searchsorted(run.ts[rows], [start, end])
        chosen.append(rows[first : min(last, first + _ROWS_PER_STEP)])
    looked = np.concatenate(chosen) if chosen else rows[:0]
    forms: dict[str, None] = {}
    for row, args in zip(looked.tolist(), run.args(looked), strict=True):
        dims = " ".join(_dims(args))
        if dims:
            forms.setdefault(f"{run.text(row)} {dims}"[:120])
    return tuple(forms)[:_FORMS]


def _dims(args: dict[str, Any]) -> list[str]:
    """The tensors' shapes; numbers and empty places are left out."""
    dims = args.get("Input Dims") or args.get("Input dims") or []
    return [str(d) for d in dims if isinstance(d, list) and d] if isinstance(dims, list) else []
