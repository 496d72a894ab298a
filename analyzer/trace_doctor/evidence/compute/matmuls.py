"""The matrix products of a typical step, with their sizes and the time of each: on the GPU, else of the operator."""

from __future__ import annotations

from typing import Self

from msgspec import Struct

from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compute.work import Work
from trace_doctor.evidence.names.event_names import is_backward
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.operator_inputs import OperatorInputs

_FIRST = {"aten::mm": 0, "aten::addmm": 1, "aten::_addmm_activation": 1}
"""Place of the left factor among the arguments: `addmm` has what is added before it."""
_HALF = ("c10::Half", "c10::BFloat16")


class Product(Struct, frozen=True):
    """(rows x inner) times (inner x columns). In a forward the right factor is mostly a weight."""

    operator: int
    """row of the run"""
    name: str
    rows: int
    inner: int
    columns: int
    half: bool
    """whether both factors are fp16 or bf16"""
    backward: bool
    ns: int
    thread: int

    @property
    def flop(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.rows * self.inner * self.columns


class Products(Evidence, frozen=True):
    """`aten::mm` and `aten::addmm` (with an activation, too); batched products are no part of it. Raises NotCaptured where `Work` does, and without shapes."""

    all: tuple[Product, ...]
    """by start"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        kernels, inputs, nesting = facts[Work], facts[OperatorInputs], facts[Nesting]
        run = kernels.run
        operators, ns = kernels.by_operator(kernels.launched_by(_FIRST.__contains__))
        spent = dict(zip(operators.tolist(), ns.tolist(), strict=True))
        rows = inputs.typical(operators)
        backward = nesting.inside(
            rows, run.is_named(lambda n: is_backward(n) or n.startswith("CompiledFunctionBackward"))
        )
        products = []
        for row, operands, back in zip(
            rows.tolist(), inputs.of(rows.tolist()), backward.tolist(), strict=True
        ):
            name = run.text(row)
            first = _FIRST[name]
            left_shape, right = operands.shape(first), operands.shape(first + 1)
            if len(left_shape) == 2 and len(right) == 2 and left_shape[1] == right[0]:
                half = operands.type(first) in _HALF and operands.type(first + 1) in _HALF
                thread = int(run.thread[row])
                products.append(Product(row, name, *left_shape, right[1], half, back, spent[row], thread))
        return cls(tuple(products))
