"""How unfused attention is called: written out, by SDPA with its math backend, or by a module."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compute.attention import AttentionChains
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.operator_inputs import Inputs, OperatorInputs

SDPA = "aten::scaled_dot_product_attention"
MATH = "aten::_scaled_dot_product_attention_math"
"""what SDPA calls where no fused kernel takes its inputs"""
_MODULE = "aten::_native_multi_head_attention"
_LARGEST_HEAD = 256
"""numbers of one head that the fused kernels of a GPU take"""
_MATMUL = "aten::matmul"
"""around a product of four dimensions, which it computes as three"""
_FEW = 64
"""Chains that are looked at: all layers of a model ask in the same way."""


class AttentionForm(Evidence, frozen=True):
    """Of the chains of a forward. Where none lies in an operator (a capture of the GPU alone), it counts as written out."""

    fell_back: bool
    """most are scaled_dot_product_attention with its math backend"""
    refused: tuple[str, ...]
    """what of its types and shapes keeps fused kernels away, as clauses; empty where nothing does"""
    has_heads: bool
    """False where all products that were recorded with shapes are of (batch, tokens, size), which no kernel fuses"""
    in_module: bool
    """nn.MultiheadAttention computes it, in its fast path that returns the weights as well"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        chains, nesting = facts[AttentionChains], facts[Nesting]
        operators = chains.kernels.operator[chains.softmax]
        first = operators[operators >= 0][:1]
        forward = np.unique(operators[~chains.backward & (operators >= 0)])
        inside = nesting.inside(forward, nesting.run.is_named(MATH.__eq__))
        fell_back = bool(inside.sum() * 2 > len(forward))
        return cls(
            fell_back=fell_back,
            refused=_refused(facts, _calls(nesting, forward[inside])) if fell_back else (),
            has_heads=_has_heads(facts, nesting, chains),
            in_module=bool(nesting.inside(first, nesting.run.is_named(_MODULE.__eq__)).any()),
        )


def _has_heads(facts: Facts, nesting: Nesting, chains: AttentionChains) -> bool:
    inputs = facts.get(OperatorInputs)
    if inputs is None:
        return True
    products = chains.kernels.operator[chains.products]
    operators = inputs.typical(np.unique(products[products >= 0]))[:_FEW]
    above = {row for inner in operators.tolist() for row in nesting.ancestors(inner)}
    calls = inputs.of(sorted(row for row in above if nesting.run.text(row) == _MATMUL))
    return not calls or any(len(operands.shape(0)) != 3 for operands in calls)


def _calls(nesting: Nesting, operators: I64) -> list[int]:
    """The calls of scaled_dot_product_attention around the first of these operators, by start."""
    above = {row for inner in operators.tolist()[:_FEW] for row in nesting.ancestors(inner)}
    return sorted(row for row in above if nesting.run.text(row) == SDPA)


def _refused(facts: Facts, calls: list[int]) -> tuple[str, ...]:
    inputs = facts.get(OperatorInputs)
    if inputs is None:
        return ()
    on_gpu = facts[AttentionChains].kernels.on_gpu
    return tuple(sorted({_reason(operands, on_gpu=on_gpu) for operands in inputs.of(calls)} - {""}))


def _reason(inputs: Inputs, *, on_gpu: bool) -> str:
    """The CPU's kernel takes doubles, large heads and masks."""
    kind, query = inputs.type(0), inputs.shape(0)
    if on_gpu and kind in ("double", "c10::complex<float>"):
        return f"no fused kernel takes {kind}"
    if on_gpu and query and query[-1] > _LARGEST_HEAD:
        return f"head size {query[-1]} exceeds {_LARGEST_HEAD}"
    if len(query) not in (0, 4):
        return f"fused kernels take no {len(query)}-D inputs"
    return "the flash backend takes no mask" if on_gpu and inputs.shape(3) else ""
