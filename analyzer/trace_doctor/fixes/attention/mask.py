"""What masks and scales of written-out attention mean, as far as the script proves it."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.script import Script, argument, dotted, literal, method_name, positional, receiver

_SAME_VALUES = (
    "view",
    "reshape",
    "unsqueeze",
    "to",
    "bool",
    "cuda",
    "expand",
    "type_as",
    "float",
    "contiguous",
)
_SQRT = ("math.sqrt", "numpy.sqrt", "torch.sqrt")


def flat(script: Script, node: cst.BaseExpression) -> str:
    """An expression's text on one line, in parentheses only where it has none that matter."""
    return " ".join(script.code(node).split())


def callee_of(script: Script, call: cst.Call) -> tuple[str, str, cst.BaseExpression | None]:
    """(qualified name, "", None) of a function of a module, ("", name, receiver) of a method of a value."""
    value = receiver(call)
    if value is None:
        return script.callee(call), "", None
    name = script.callee(call) if dotted(call.func) is not None else ""
    return (name, "", None) if name else ("", method_name(call) or "", value)


def is_minus_infinity(script: Script, node: cst.BaseExpression) -> bool:
    """`float("-inf")`, `-float("inf")`, `-torch.inf`; False for a large negative number, which is not the same."""
    sign, number = "-", node  # what the text of float() begins with, and what it is called for
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        sign, number = "", node.expression
    if isinstance(number, cst.Call):
        text = literal(number.args[0].value) if len(number.args) == 1 else ...
        infinite = isinstance(text, str) and text.lower() in (f"{sign}inf", f"{sign}infinity")
        return infinite and script.callee(number) == "float"
    return not sign and script.qualified(number) in ("torch.inf", "math.inf", "numpy.inf")


def boolean_mask(script: Script, holds: cst.BaseExpression) -> tuple[str | None, bool]:
    """(attn_mask, causal) for scores that are minus infinity where `holds` is true: attn_mask is True where kept."""
    inner, text = _inverse(holds), "{}"
    if isinstance(holds, cst.Comparison) and len(holds.comparisons) == 1:
        test = holds.comparisons[0]
        if isinstance(test.operator, cst.Equal) and literal(test.comparator) in (0, False):
            inner, text = holds.left, "{} != 0"
    if inner is None:
        simple = isinstance(holds, cst.Name | cst.Attribute | cst.Call | cst.Subscript)
        text = "~{}" if simple else "~({})"
    if is_triangle(script, inner or holds, lower=inner is not None):
        return None, True
    return text.format(flat(script, inner or holds)), False


def _inverse(node: cst.BaseExpression) -> cst.BaseExpression | None:
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.BitInvert):
        return node.expression
    return receiver(node) if method_name(node) == "logical_not" else None


def additive_mask(script: Script, mask: cst.BaseExpression) -> tuple[str | None, bool]:
    """(attn_mask, causal) for a mask that is added to the scores."""
    return (
        (None, True) if is_triangle(script, mask, lower=False, additive=True) else (flat(script, mask), False)
    )


# ---------------------------------------------------------------------- causal masks


def is_triangle(
    script: Script, node: cst.BaseExpression, *, lower: bool, additive: bool = False, depth: int = 0
) -> bool:
    """Whether a mask is a square triangle: ones on and below the diagonal (`lower`), or ones (`additive`: minus infinity)
    above it. As attention masks must fit the scores, a square one proves as many queries as keys."""
    if depth > 6:
        return False

    def again(inner: cst.BaseExpression) -> bool:
        return is_triangle(script, inner, lower=lower, additive=additive, depth=depth + 1)

    if isinstance(node, cst.Subscript):
        return _keeps_corner(script, node) and again(node.value)
    if isinstance(node, cst.Call):
        name, method, value = callee_of(script, node)
        if additive and name.endswith("Transformer.generate_square_subsequent_mask"):
            return True
        if value is not None and method in _SAME_VALUES:
            return again(value)
        side = "tril" if lower else "triu"
        if name == f"torch.{side}" and node.args:
            return _is_cut(script, node, node.args[0].value, 1, side, additive=additive)
        return (
            value is not None and method == side and _is_cut(script, node, value, 0, side, additive=additive)
        )
    values = _values(script, node)
    return len(values) == 1 and values[0] is not node and again(values[0])


def _values(script: Script, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What a name was assigned, or what a buffer of `self` was registered with."""
    bindings = dataflow_of(script).bindings_of(node)
    if bindings:
        return [b.value for b in bindings if b.item is None and not b.loop]
    if not isinstance(node, cst.Attribute):
        return []
    owner = script.nearest(node, cst.ClassDef)
    values = []
    for call in script.all(cst.Call, within=owner) if owner is not None else []:
        if method_name(call) == "register_buffer":
            name, value = argument(call, "name", 0), argument(call, "tensor", 1)
            if name is not None and value is not None and literal(name.value) == node.attr.value:
                values.append(value.value)
    return values


def _is_cut(
    script: Script, call: cst.Call, full: cst.BaseExpression, place: int, side: str, *, additive: bool
) -> bool:
    """Whether tril or triu is applied to a square of ones (`additive`: of minus infinity), at the triangle's own diagonal."""
    diagonal = argument(call, "diagonal", place)
    if (0 if diagonal is None else literal(diagonal.value)) != (0 if side == "tril" else 1):
        return False
    if not isinstance(full, cst.Call):
        values = _values(script, full)
        full = values[0] if len(values) == 1 else full
    return isinstance(full, cst.Call) and _is_square(script, full, additive=additive)


def _is_square(script: Script, call: cst.Call, *, additive: bool) -> bool:
    """`torch.ones(n, n)`, `torch.ones((n, n))`, `torch.full((n, n), -inf)`"""
    arguments = positional(call)
    if script.callee(call) != ("torch.full" if additive else "torch.ones") or not arguments:
        return False
    sizes = arguments[:1] if additive else arguments
    if len(sizes) == 1 and isinstance(sizes[0], cst.Tuple | cst.List):
        sizes = [e.value for e in sizes[0].elements]
    if additive and (len(arguments) < 2 or not is_minus_infinity(script, arguments[1])):
        return False
    return len(sizes) == 2 and flat(script, sizes[0]) == flat(script, sizes[1])


def _keeps_corner(script: Script, node: cst.Subscript) -> bool:
    """`[:, :, :T, :T]`, `[:T, :T]`, `[None, None]`: the upper left square, or only more dimensions of size one."""
    parts = [e.slice for e in node.slice]
    new = [isinstance(p, cst.Index) and flat(script, p.value) in ("None", "...") for p in parts]
    whole = [isinstance(p, cst.Slice) and p.upper is None and p.lower is None for p in parts]
    upper = [p.upper for p in parts[-2:] if isinstance(p, cst.Slice) and p.lower is None and p.step is None]
    sizes = [flat(script, size) for size in upper if size is not None]
    square = len(sizes) == 2 and sizes[0] == sizes[1]
    return all(new) or (square and all(n or w for n, w in zip(new[:-2], whole[:-2], strict=True)))


# ---------------------------------------------------------------------- the scale


def size_under_root(script: Script, node: cst.BaseExpression, *, inverse: bool) -> cst.BaseExpression | None:
    """`n` where an expression is sqrt(n), or with `inverse` 1 / sqrt(n); followed to where it was assigned."""
    for _ in range(4):
        root = _root(script, node, inverse=inverse)
        if root is not None:
            return root
        origins = dataflow_of(script).of(node)
        if len(origins) != 1 or origins[0] is node:
            return None
        node = origins[0]
    return None


def _root(script: Script, node: cst.BaseExpression, *, inverse: bool) -> cst.BaseExpression | None:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Power):
        return node.left if literal(node.right) == (-0.5 if inverse else 0.5) else None
    if inverse:
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide):
            return _root(script, node.right, inverse=False) if literal(node.left) == 1 else None
        return None
    if isinstance(node, cst.Call) and script.callee(node) in _SQRT and len(node.args) == 1:
        inner = node.args[0].value
        if isinstance(inner, cst.Call) and script.callee(inner) == "torch.tensor" and inner.args:
            inner = inner.args[0].value
        return inner
    return None


def is_last_size(script: Script, size: cst.BaseExpression, *operands: cst.BaseExpression) -> bool:
    """Whether a size is provably the last one of an operand."""
    origins = dataflow_of(script).of(size)
    text = flat(script, origins[0] if len(origins) == 1 else size)
    for operand in operands:
        name, shape = flat(script, operand), _shape(script, operand, 0)
        if text in (f"{name}.size(-1)", f"{name}.shape[-1]") or (shape and _same(script, size, shape[0])):
            return True
    return False


def _same(script: Script, a: cst.BaseExpression, b: cst.BaseExpression) -> bool:
    """Whether two expressions, or what each was assigned, read alike in one function: `self.n // self.heads` of __init__."""

    def alike(one: cst.BaseExpression, other: cst.BaseExpression) -> bool:
        return flat(script, one) == flat(script, other) and script.function_of(one) is script.function_of(
            other
        )

    ours, theirs = dataflow_of(script).of(a), dataflow_of(script).of(b)
    return alike(a, b) or (len(ours) == len(theirs) == 1 and alike(ours[0], theirs[0]))


def _shape(script: Script, node: cst.BaseExpression, depth: int) -> tuple[cst.BaseExpression, int] | None:
    """(last size, number of dimensions) by the view or reshape that gave a tensor its shape, if nothing moved the last
    dimension since."""
    if depth > 8:
        return None
    if isinstance(node, cst.Subscript):  # qkv[0] of a stacked projection
        inner = _shape(script, node.value, depth + 1)
        single = len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index)
        return (inner[0], inner[1] - 1) if inner and single and inner[1] > 2 else None
    if isinstance(node, cst.Name | cst.Attribute):
        return _shape_of_variable(script, node, depth)
    value, method = receiver(node), method_name(node) or ""
    if value is None or not isinstance(node, cst.Call) or len(args := positional(node)) != len(node.args):
        return None
    if method in ("view", "reshape") and args:
        sizes = [e.value for e in args[0].elements] if isinstance(args[0], cst.Tuple) else args
        return (sizes[-1], len(sizes)) if len(sizes) > 2 else None
    inner = _shape(script, value, depth + 1)
    return None if inner is None else _through(method, [literal(p) for p in args], *inner)


def _shape_of_variable(
    script: Script, node: cst.Name | cst.Attribute, depth: int
) -> tuple[cst.BaseExpression, int] | None:
    """By what was assigned to it last; of several variables at once, only the parts of unbind() are known."""
    before = [
        b for b in dataflow_of(script).bindings_of(node) if script.span(b.value)[1] <= script.span(node)[0]
    ]
    if not before or before[-1].loop:
        return None
    value = before[-1].value
    inner = _shape(script, value, depth + 1)
    return inner if before[-1].item is None or method_name(value) == "unbind" else None


def _through(
    method: str, numbers: Sequence[object], last: cst.BaseExpression, rank: int
) -> tuple[cst.BaseExpression, int] | None:
    """The shape of what a method gives: where it keeps the last dimension in its place."""
    if method == "unbind" and numbers in ([0], [1], [2]) and rank > 3:
        return last, rank - 1
    unmoved = (
        method in ("contiguous", "to", "float", "half", "type_as")
        or (method in ("transpose", "swapaxes") and not {-1, rank - 1} & set(numbers))
        or (method == "permute" and numbers and numbers[-1] in (-1, rank - 1))
    )
    return (last, rank) if unmoved else None
