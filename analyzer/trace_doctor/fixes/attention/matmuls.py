"""The products of attention as scripts spell them, and what statements do to names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

import libcst as cst

from trace_doctor.fixes.attention.mask import callee_of
from trace_doctor.program.queries.loops import changes_in_place, names_in
from trace_doctor.program.script import Script, literal, method_name, positional, receiver

_EINSUM = re.compile(r"(\w+),(\w+)->(\w+)")


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
    unless_none: str | None = None
    """the operation happens only where this name is not None"""


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
    causal: bool = False
    dropout: str | None = None
    drop: list[cst.BaseSmallStatement | cst.If] = field(default_factory=list)
    """statements that only made intermediate results"""


def product(script: Script, node: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """(left, right) of `a @ b`, torch.matmul(a, b), torch.bmm(a, b), a.matmul(b), einsum("bij,bjd->bid", a, b)."""
    if isinstance(node, cst.BinaryOperation):
        return (node.left, node.right) if isinstance(node.operator, cst.MatrixMultiply) else None
    if not isinstance(node, cst.Call) or len(positional(node)) != len(node.args):
        return None
    name, method, value = callee_of(script, node)
    match name or method, positional(node):
        case "torch.matmul" | "torch.bmm", [left, right]:
            return left, right
        case "torch.einsum", [spec, left, right]:
            return (left, right) if _einsum(spec, transposed=False) else None
        case "matmul" | "bmm", [right] if value is not None:
            return value, right
    return None


def scores(script: Script, node: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """(query, key) of the product of a query with a transposed key."""
    if isinstance(node, cst.Call) and script.callee(node) == "torch.einsum" and len(node.args) == 3:
        spec, query, key = (a.value for a in node.args)
        return (query, key) if _einsum(spec, transposed=True) else None
    pair = product(script, node)
    below = _transpose_operand(script, pair[1]) if pair else None
    return (pair[0], below) if pair and below is not None else None


def _transpose_operand(script: Script, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """`k` of `k.transpose(-2, -1)`, `k.mT`, `k.swapaxes(-1, -2)`, torch.transpose(k, -1, -2)."""
    if isinstance(node, cst.Attribute) and node.attr.value == "mT":
        return node.value
    if not isinstance(node, cst.Call):
        return None
    arguments = [a.value for a in node.args if a.keyword is None]
    of_torch = script.callee(node) == "torch.transpose" and len(arguments) == 3
    inner, dims = (arguments[0], arguments[1:]) if of_torch else (receiver(node), arguments)
    is_transpose = of_torch or method_name(node) in ("transpose", "swapaxes")
    return inner if is_transpose and {literal(d) for d in dims} in ({-1, -2}, {2, 3}) else None


def _einsum(spec: cst.BaseExpression, *, transposed: bool) -> bool:
    """Whether an einsum is the product of matrices: `bhij,bhjd->bhid`, transposed `bhid,bhjd->bhij`."""
    text = literal(spec)
    match = _EINSUM.fullmatch(text.replace(" ", "")) if isinstance(text, str) else None
    if match is None or min(map(len, match.groups())) < 3:
        return False
    a, b, out = match.groups()
    batch, row, inner = a[:-2], a[-2], a[-1]
    column = b[-2] if transposed else b[-1]
    distinct = len({*batch, row, inner, column}) == len(a) + 1
    second = f"{batch}{column}{inner}" if transposed else f"{batch}{inner}{column}"
    return distinct and b == second and out == f"{batch}{row}{column}"


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


def binds(script: Script, line: cst.CSTNode, name: str) -> bool:
    """Whether a statement may give a name (or what it refers to) another value."""
    if any(changes_in_place(call, name) for call in script.all(cst.Call, within=line)):
        return True
    targets: list[cst.AssignTarget | cst.AugAssign | cst.For | cst.NamedExpr]
    targets = [*script.all(cst.AssignTarget, line), *script.all(cst.AugAssign, line)]
    targets += [*script.all(cst.For, line), *script.all(cst.NamedExpr, line)]
    return any(name in names_in(script, node.target) for node in targets)
