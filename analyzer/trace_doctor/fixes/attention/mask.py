"""What masks and scales of written-out attention mean, as far as the script proves it."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.script import Script, argument, dotted, literal

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


def called(script: Script, call: cst.Call) -> tuple[str, str]:
    """(qualified name, "") of a function of a module, ("", name) of a method of a value."""
    if not isinstance(call.func, cst.Attribute):
        return script.callee(call) or "", ""
    name = (script.callee(call) or "") if dotted(call.func) is not None else ""
    return name, "" if name else call.func.attr.value


def is_minus_infinity(script: Script, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        return _is_infinity(script, node.expression)
    return (
        isinstance(node, cst.Call) and script.callee(node) == "float" and _text(node) in ("-inf", "-infinity")
    )


def _is_infinity(script: Script, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Call):
        return script.callee(node) == "float" and _text(node) in ("inf", "infinity")
    return script.qualified(node) in ("torch.inf", "math.inf", "numpy.inf")


def _text(call: cst.Call) -> str:
    value = literal(call.args[0].value) if len(call.args) == 1 else ...
    return value.lower() if isinstance(value, str) else ""


def kept(script: Script, masked: cst.BaseExpression) -> tuple[str | None, bool]:
    """(attn_mask, causal) for scores that are minus infinity where `masked` holds: attn_mask is True where kept."""
    if isinstance(masked, cst.Comparison) and len(masked.comparisons) == 1:
        test = masked.comparisons[0]
        if isinstance(test.operator, cst.Equal) and literal(test.comparator) in (0, False):
            if is_triangle(script, masked.left, lower=True):
                return None, True
            return f"{flat(script, masked.left)} != 0", False
    inner = _negated(masked)
    if inner is not None:
        return (None, True) if is_triangle(script, inner, lower=True) else (flat(script, inner), False)
    if is_triangle(script, masked, lower=False):
        return None, True
    text = flat(script, masked)
    return (
        f"~{text}"
        if isinstance(masked, cst.Name | cst.Attribute | cst.Call | cst.Subscript)
        else f"~({text})"
    ), False


def _negated(node: cst.BaseExpression) -> cst.BaseExpression | None:
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.BitInvert):
        return node.expression
    if (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value == "logical_not"
    ):
        return node.func.value
    return None


def added(script: Script, mask: cst.BaseExpression) -> tuple[str | None, bool]:
    """(attn_mask, causal) for a mask that is added to the scores."""
    return (None, True) if is_triangle(script, mask, lower=False, added=True) else (flat(script, mask), False)


# ---------------------------------------------------------------------- causal masks


def is_triangle(
    script: Script, node: cst.BaseExpression, *, lower: bool, added: bool = False, depth: int = 0
) -> bool:
    """Whether a mask is a square triangle: ones on and below the diagonal (`lower`), or ones (`added`: minus infinity)
    above it. As attention masks must fit the scores, a square one proves as many queries as keys."""
    if depth > 6:
        return False

    def again(inner: cst.BaseExpression) -> bool:
        return is_triangle(script, inner, lower=lower, added=added, depth=depth + 1)

    if isinstance(node, cst.Subscript):
        return _keeps_corner(script, node) and again(node.value)
    if isinstance(node, cst.Call):
        name, method = called(script, node)
        if added and name.endswith("Transformer.generate_square_subsequent_mask"):
            return True
        if name in ("torch.tril", "torch.triu") and node.args:
            return _cut(script, node, name[6:], node.args[0].value, 1, lower=lower, added=added)
        if method in ("tril", "triu") and isinstance(node.func, cst.Attribute):
            return _cut(script, node, method, node.func.value, 0, lower=lower, added=added)
        if method in _SAME_VALUES and isinstance(node.func, cst.Attribute):
            return again(node.func.value)
        return False
    values = _values(script, node)
    return len(values) == 1 and values[0] is not node and again(values[0])


def _values(script: Script, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What a name was assigned, or what a buffer of `self` was registered with."""
    bound = dataflow_of(script).bound(node)
    if bound:
        return [b.value for b in bound if b.item is None and not b.loop]
    if not isinstance(node, cst.Attribute):
        return []
    owner = script.nearest(node, cst.ClassDef)
    found = []
    for call in script.all(cst.Call, within=owner) if owner is not None else []:
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "register_buffer":
            name, value = argument(call, "name", 0), argument(call, "tensor", 1)
            if name is not None and value is not None and literal(name.value) == node.attr.value:
                found.append(value.value)
    return found


def _cut(
    script: Script,
    call: cst.Call,
    side: str,
    full: cst.BaseExpression,
    place: int,
    *,
    lower: bool,
    added: bool,
) -> bool:
    diagonal = argument(call, "diagonal", place)
    shift = 0 if diagonal is None else literal(diagonal.value)
    if (side, shift) != (("tril", 0) if lower else ("triu", 1)):
        return False
    if not isinstance(full, cst.Call):
        values = _values(script, full)
        full = values[0] if len(values) == 1 else full
    return isinstance(full, cst.Call) and _is_square(script, full, added=added)


def _is_square(script: Script, call: cst.Call, *, added: bool) -> bool:
    """`torch.ones(n, n)`, `torch.ones((n, n))`, `torch.full((n, n), -inf)`"""
    name = script.callee(call)
    positional = [a.value for a in call.args if a.keyword is None and not a.star]
    if name != ("torch.full" if added else "torch.ones") or not positional:
        return False
    sizes = positional[:1] if added else positional
    if len(sizes) == 1 and isinstance(sizes[0], cst.Tuple | cst.List):
        sizes = [e.value for e in sizes[0].elements]
    if added and (len(positional) < 2 or not is_minus_infinity(script, positional[1])):
        return False
    return len(sizes) == 2 and flat(script, sizes[0]) == flat(script, sizes[1])


def _keeps_corner(script: Script, node: cst.Subscript) -> bool:
    """`[:, :, :T, :T]`, `[:T, :T]`, `[None, None]`: the upper left square, or only more dimensions of size one."""
    parts = [e.slice for e in node.slice]
    if all(
        isinstance(p, cst.Index)
        and literal(p.value) in (None, ...)
        and flat(script, p.value) in ("None", "...")
        for p in parts
    ):
        return True
    if len(parts) < 2 or not all(
        isinstance(p, cst.Slice) and p.lower is None and p.step is None for p in parts[-2:]
    ):
        return False
    rows, columns = (p.upper for p in parts[-2:] if isinstance(p, cst.Slice))
    same = rows is not None and columns is not None and flat(script, rows) == flat(script, columns)
    leading = [
        p for p in parts[:-2] if not (isinstance(p, cst.Slice) and p.upper is None and p.lower is None)
    ]
    return same and all(
        isinstance(p, cst.Index) and flat(script, p.value) in ("None", "...") for p in leading
    )


# ---------------------------------------------------------------------- the scale


def size_under_root(script: Script, node: cst.BaseExpression, *, inverse: bool) -> cst.BaseExpression | None:
    """`n` where an expression is sqrt(n), or with `inverse` 1 / sqrt(n); followed to where it was assigned."""
    for _ in range(4):
        found = _root(script, node, inverse=inverse)
        if found is not None:
            return found
        made = dataflow_of(script).of(node)
        if len(made) != 1 or made[0] is node:
            return None
        node = made[0]
    return None


def _root(script: Script, node: cst.BaseExpression, *, inverse: bool) -> cst.BaseExpression | None:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Power):
        exponent = literal(node.right)
        return node.left if exponent == (-0.5 if inverse else 0.5) else None
    if inverse:
        one = (
            isinstance(node, cst.BinaryOperation)
            and isinstance(node.operator, cst.Divide)
            and literal(node.left) == 1
        )
        return (
            _root(script, node.right, inverse=False)
            if one and isinstance(node, cst.BinaryOperation)
            else None
        )
    if isinstance(node, cst.Call) and script.callee(node) in _SQRT and len(node.args) == 1:
        inner = node.args[0].value
        if isinstance(inner, cst.Call) and script.callee(inner) == "torch.tensor" and inner.args:
            inner = inner.args[0].value
        return inner
    return None


def is_last_size(script: Script, size: cst.BaseExpression, *operands: cst.BaseExpression) -> bool:
    """Whether a size is provably the last one of an operand."""
    made = dataflow_of(script).of(size)
    text = flat(script, made[0] if len(made) == 1 else size)
    for operand in operands:
        name = flat(script, operand)
        if text in (f"{name}.size(-1)", f"{name}.shape[-1]"):
            return True
        last = _last_size(script, operand)
        if last is not None and _same(script, size, last):
            return True
    return False


def _same(script: Script, a: cst.BaseExpression, b: cst.BaseExpression) -> bool:
    if flat(script, a) == flat(script, b) and script.function_of(a) is script.function_of(b):
        return True
    left, right = dataflow_of(script).of(a), dataflow_of(script).of(b)
    if len(left) != 1 or len(right) != 1:
        return False
    if left[0] is right[0]:
        return True
    # `self.n // self.heads` here and there: attributes that __init__ sets once
    return flat(script, left[0]) == flat(script, right[0]) and script.function_of(
        left[0]
    ) is script.function_of(right[0])


def _last_size(script: Script, node: cst.BaseExpression, depth: int = 0) -> cst.BaseExpression | None:
    """The last argument of the view or reshape that gave a tensor its shape, if nothing moved that dimension since."""
    found = _shape(script, node, depth)
    return found[0] if found else None


def _shape(script: Script, node: cst.BaseExpression, depth: int) -> tuple[cst.BaseExpression, int] | None:
    """(last size, number of dimensions)"""
    if depth > 8:
        return None
    if isinstance(node, cst.Subscript):  # qkv[0] of a stacked projection
        inner = _shape(script, node.value, depth + 1)
        single = len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index)
        return (inner[0], inner[1] - 1) if inner and single and inner[1] > 2 else None
    if isinstance(node, cst.Name | cst.Attribute):
        return _shape_of_variable(script, node, depth)
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    method = node.func.attr.value
    positional = [a.value for a in node.args if a.keyword is None and not a.star]
    if len(positional) != len(node.args):
        return None
    if method in ("view", "reshape") and positional:
        given = positional[0]
        sizes = [e.value for e in given.elements] if isinstance(given, cst.Tuple) else positional
        return (sizes[-1], len(sizes)) if len(sizes) > 2 else None
    inner = _shape(script, node.func.value, depth + 1)
    return None if inner is None else _through(method, [literal(p) for p in positional], *inner)


def _shape_of_variable(
    script: Script, node: cst.Name | cst.Attribute, depth: int
) -> tuple[cst.BaseExpression, int] | None:
    """By what was assigned to it last; of several variables at once, only the parts of unbind() are known."""
    before = [b for b in dataflow_of(script).bound(node) if script.span(b.value)[1] <= script.span(node)[0]]
    if not before or before[-1].loop:
        return None
    value = before[-1].value
    inner = _shape(script, value, depth + 1)
    if before[-1].item is None or (isinstance(value, cst.Call) and _method(value) == "unbind"):
        return inner
    return None


def _through(
    method: str, numbers: Sequence[object], last: cst.BaseExpression, rank: int
) -> tuple[cst.BaseExpression, int] | None:
    """The shape of what a method gives: where it keeps the last dimension in its place."""
    if method == "unbind" and numbers in ([0], [1], [2]) and rank > 3:
        return last, rank - 1
    kept = (
        method in ("contiguous", "to", "float", "half", "type_as")
        or (method in ("transpose", "swapaxes") and not {-1, rank - 1} & set(numbers))
        or (method == "permute" and numbers and numbers[-1] in (-1, rank - 1))
    )
    return (last, rank) if kept else None


def _method(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
