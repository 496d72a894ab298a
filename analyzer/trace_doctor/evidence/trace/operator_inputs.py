"""Shapes and types of operators' inputs, as `record_shapes=True` keeps them. They lie in the file, not in columns: each
operator asked for is decoded again, so rules ask for those of one typical step."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, Self

from msgspec import Struct

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.names.event_arguments import shapes
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Run

RECORD_SHAPES = "profile(..., record_shapes=True)"
MOST = 20_000
"""Operators that are decoded for one question: a typical step has fewer, and each takes some 10 us."""
_BYTES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "int": 4, "bool": 1,
    "unsigned char": 1, "signed char": 1, "short int": 2, "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip


class Inputs(Struct, frozen=True):
    """`dims[i]` is the shape of the i-th argument, () where it is no tensor; lists of tensors are tuples of shapes."""

    dims: tuple[Any, ...]
    types: tuple[str, ...]

    def shape(self, i: int) -> tuple[int, ...]:
        """Of the i-th argument; () where there is none or it is no single tensor."""
        return _one(self.dims[i]) if i < len(self.dims) else ()

    def type(self, i: int) -> str:
        """Type of one argument; empty where it is not recorded."""
        return self.types[i] if i < len(self.types) else ""

    def tensors(self) -> list[tuple[tuple[int, ...], str]]:
        """(shape, type) of every tensor, those in lists too."""
        tensors = []
        for i, dims in enumerate(self.dims):
            several = [_one(d) for d in dims if isinstance(d, tuple)]
            tensors += [(d, self.type(i)) for d in (_one(dims), *several) if d]
        return tensors


def _one(dims: Any) -> tuple[int, ...]:
    """The shape of a single tensor; () for a list of them."""
    return dims if all(isinstance(n, int) for n in dims) else ()


def tensor_bytes(shape: tuple[int, ...], kind: str) -> int:
    """Bytes of a tensor; types that are not known count as 4 bytes an element (lists of tensors name none)."""
    return prod(shape) * _BYTES.get(kind, 4)


class OperatorInputs(Evidence, frozen=True):
    """Raises NotCaptured where shapes were not recorded."""

    span: tuple[int, int]
    """[start, end) ns of a typical step: the steady one whose pace is the median; the window without steps"""
    run: Run

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, steps = facts.run, facts[Steps]
        if not run.recorded.shapes:
            raise NotCaptured("shapes were not recorded", RECORD_SHAPES)
        steady = sorted(steps.steady, key=lambda s: (s.pace, s.index))
        middle = steady[(len(steady) - 1) // 2] if steady else None
        return cls((middle.start, middle.end) if middle is not None else steps.window, run)

    def typical(self, rows: I64) -> I64:
        """Those of the rows that start in the typical step, at most `MOST`."""
        ts = self.run.ts[rows]
        return rows[(ts >= self.span[0]) & (ts < self.span[1])][:MOST]

    def of(self, rows: Iterable[int]) -> list[Inputs]:
        """The inputs of each operator; empty where it has none."""
        return [_inputs(args) for args in self.run.args(rows)]


def _inputs(args: dict[str, Any]) -> Inputs:
    types = args.get("Input type")
    return Inputs(shapes(args), tuple(map(str, types)) if isinstance(types, list) else ())
