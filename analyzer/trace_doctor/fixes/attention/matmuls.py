"""The products of attention as scripts spell them, and what statements do to names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

import libcst as cst

from trace_doctor.fixes.attention.mask import callee_of
from trace_doctor.program.script import Script, literal, method_name, positional, receiver

_EINSUM = re.compile(r"([a-zA-Z]{4}),([a-zA-Z]{4})->([a-zA-Z]{4})")


Kind = Literal["softmax", "dropout", "cast", "fill", "add", "multiply", "divide"]
OPERATORS: dict[type[cst.CSTNode], Kind] = {
    cst.Add: "add",
    cst.Multiply: "multiply",
    cst.Divide: "divide",
    cst.AddAssign: "add",
    cst.MultiplyAssign: "multiply",
    cst.DivideAssign: "divide",
}


@dataclass(frozen=True)
class Layer:
    """One operation of the chain. `operand`: the mask or the factor; `keeps`: it says where to keep, not where to fill."""

    kind: Kind
    node: cst.CSTNode
    operand: cst.BaseExpression | None = None
    keeps: bool = False
    finite: bool = False
    """what is filled in is a large negative number, not minus infinity"""
    statement: cst.BaseSmallStatement | None = None
    """the operation happens only under a condition, in this statement"""


@dataclass
class Attention:
    """What one attention computes; expressions as text."""

    matmul: cst.BaseExpression
    query: str = ""
    key: str = ""
    value: str = ""
    scale: str | None = None
    """None where it is 1 / sqrt(last size of the query), which is the default"""
    mask: str | None = None
    no_key: str | None = None
    """true for rows all of whose keys are masked by a finite number: they weigh all keys alike"""
    condition: cst.BaseSmallStatement | None = None
    """the statement that applies the mask, under a condition"""
    causal: bool = False
    dropout: str | None = None
    swapped: bool = False
    """the result is (batch, tokens, heads, size)"""
    drop: list[cst.BaseSmallStatement] = field(default_factory=list)
    """statements that only made intermediate results"""


@dataclass(frozen=True)
class Operand:
    """A factor of a product. `swapped`: tokens come before heads in it."""

    node: cst.BaseExpression
    swapped: bool = False


def product(script: Script, node: cst.CSTNode) -> tuple[cst.BaseExpression, Operand, bool] | None:
    """(left, right, whether the result is swapped) of `a @ b`, torch.matmul(a, b), a.matmul(b), einsum("bhij,bhjd->bhid", a, b)."""
    if isinstance(node, cst.BinaryOperation):
        is_product = isinstance(node.operator, cst.MatrixMultiply)
        return (node.left, Operand(node.right), False) if is_product else None
    if not isinstance(node, cst.Call) or len(positional(node)) != len(node.args):
        return None
    name, method, value = callee_of(script, node)
    match name or method, positional(node):
        case "torch.matmul", [left, right]:
            return left, Operand(right), False
        case "matmul", [right] if value is not None:
            return value, Operand(right), False
    if (einsum := _einsum(script, node)) is None:
        return None
    (left, right), (a, b, out) = einsum
    value_order, out_order = _swapped(b, a[:2] + a[3] + b[-1]), _swapped(out, a[:3] + b[-1])
    if value_order is None or out_order is None or len({*a, b[-1]}) != 5:
        return None
    return left, Operand(right, value_order), out_order


def scores(script: Script, node: cst.CSTNode) -> tuple[Operand, Operand] | None:
    """(query, key) of the product of a query with a transposed key."""
    if isinstance(node, cst.Call) and (einsum := _einsum(script, node)) is not None:
        (query, key), (a, b, out) = einsum
        orders = _swapped(a, out[:3] + a[-1]), _swapped(b, out[:2] + out[3] + a[-1])
        if None in orders or len({*out, a[-1]}) != 5:
            return None
        return Operand(query, bool(orders[0])), Operand(key, bool(orders[1]))
    pair = product(script, node)
    below = _transpose_operand(script, pair[1].node) if pair else None
    return (Operand(pair[0]), Operand(below)) if pair and below is not None else None


def _transpose_operand(script: Script, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """`k` of `k.transpose(-2, -1)`, `k.mT`, `k.permute(0, 1, 3, 2)`, torch.transpose(k, -1, -2)."""
    if isinstance(node, cst.Attribute) and node.attr.value == "mT":
        return node.value
    if not isinstance(node, cst.Call):
        return None
    arguments = [a.value for a in node.args if a.keyword is None]
    of_torch = script.callee(node) == "torch.transpose" and len(arguments) == 3
    inner, dims = (arguments[0], arguments[1:]) if of_torch else (receiver(node), arguments)
    if method_name(node) == "permute" and not of_torch:
        return inner if [literal(d) for d in dims] == [0, 1, 3, 2] else None
    is_transpose = of_torch or method_name(node) in ("transpose", "swapaxes")
    return inner if is_transpose and {literal(d) for d in dims} in ({-1, -2}, {2, 3}) else None


def _einsum(script: Script, call: cst.Call) -> tuple[list[cst.BaseExpression], list[str]] | None:
    """The operands of an einsum of two with four dimensions each, which is what fused kernels take, and its indices."""
    spec, *operands = [a.value for a in call.args] or [call]
    if len(operands) == 1 and isinstance(operands[0], cst.List | cst.Tuple):
        operands = [e.value for e in operands[0].elements]
    text = literal(spec) if script.callee(call) == "torch.einsum" else ...
    match = _EINSUM.fullmatch(text.replace(" ", "")) if isinstance(text, str) else None
    return (operands, list(match.groups())) if match is not None and len(operands) == 2 else None


def _swapped(indices: str, order: str) -> bool | None:
    """Whether the middle two of four dimensions are swapped; None where they are in another order."""
    return {order: False, order[0] + order[2] + order[1] + order[3]: True}.get(indices)


def changes(statement: cst.BaseSmallStatement) -> str | None:
    """The name that `x = ...`, `x += ...` or `x.masked_fill_(...)` changes."""
    target: cst.BaseExpression | None = None
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        target = statement.targets[0].target
    elif isinstance(statement, cst.AugAssign):
        target = statement.target
    elif isinstance(statement, cst.Expr) and method_name(statement.value) == "masked_fill_":
        target = receiver(statement.value)
    return target.value if isinstance(target, cst.Name) else None


def reads(script: Script, name: str, within: cst.CSTNode) -> list[cst.Name]:
    """Where a variable is read: anything but the target of an assignment."""
    return [n for n in script.variables(name, within) if not isinstance(script.parent(n), cst.AssignTarget)]
