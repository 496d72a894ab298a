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
_NUMBERS = ("int", "float", "len", "min", "max", "numpy.sqrt")
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


MINUS_INFINITY, _LOW = float("-inf"), -1e4
_LOWEST = {"min": -3e38, "max": 3e38}
"""of torch.finfo, of types with the range of float32"""


def fill_of(script: Script, node: cst.BaseExpression) -> float | None:
    """The number that masked scores are set to, followed to where it was assigned: minus infinity, or one so low that
    softmax gives zero beside any other score; else None."""
    origins = dataflow_of(script).of(node)
    value = _number(script, origins[0]) if len(origins) == 1 else None
    return value if value is not None and value <= _LOW else None


def _number(script: Script, node: cst.BaseExpression) -> float | None:
    """The value of `-1e9`, `float("-inf")`, `-torch.inf`, `torch.finfo(x.dtype).min`."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        value = _number(script, node.expression)
        return None if value is None else -value
    if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Call):
        return _LOWEST.get(node.attr.value) if script.callee(node.value) == "torch.finfo" else None
    if script.qualified(node) in ("torch.inf", "math.inf", "numpy.inf"):
        return -MINUS_INFINITY
    call = isinstance(node, cst.Call) and script.callee(node) == "float" and len(node.args) == 1
    number = literal(node.args[0].value if call and isinstance(node, cst.Call) else node)
    try:
        return float(number) if isinstance(number, str | int | float) else None
    except ValueError:
        return None


def boolean_mask(script: Script, mask: cst.BaseExpression, *, keeps: bool) -> tuple[str, str, bool]:
    """(attn_mask, rows without a key, whether it is causal) for scores that are low where `mask` is true, or with `keeps`
    where it is false: attn_mask is true where kept."""
    holds, inverse = flat(script, mask), _inverse(mask)
    is_zero = False
    if isinstance(mask, cst.Comparison) and len(mask.comparisons) == 1:
        test = mask.comparisons[0]
        is_zero = isinstance(test.operator, cst.Equal) and literal(test.comparator) in (0, False)
        inverse = mask.left if is_zero else inverse
    simple = isinstance(mask, cst.Name | cst.Attribute | cst.Call | cst.Subscript)
    if inverse is None:
        other = f"~{holds}" if simple else f"~({holds})"
    else:
        other = flat(script, inverse) + " != 0" * is_zero
    hides = other if keeps else holds
    no_key = f"{hides if simple and not keeps else f'({hides})'}.all(-1, keepdim=True)"
    causal = is_triangle(script, inverse or mask, lower=keeps != (inverse is not None))
    return (holds if keeps else other), no_key, causal


def _inverse(node: cst.BaseExpression) -> cst.BaseExpression | None:
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.BitInvert):
        return node.expression
    return receiver(node) if method_name(node) == "logical_not" else None


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
    if additive and (len(arguments) < 2 or fill_of(script, arguments[1]) is None):
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
    if (root := _root(script, node, inverse=inverse)) is not None:
        return root
    origins = dataflow_of(script).of(node)
    return _root(script, origins[0], inverse=inverse) if len(origins) == 1 else None


def _root(script: Script, node: cst.BaseExpression, *, inverse: bool) -> cst.BaseExpression | None:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Power):
        return node.left if literal(node.right) == (-0.5 if inverse else 0.5) else None
    if inverse:
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide):
            return _root(script, node.right, inverse=False) if literal(node.left) == 1 else None
        return None
    if isinstance(node, cst.Call) and script.callee(node) in _SQRT and len(node.args) == 1:
        inner = node.args[0].value
        if (
            isinstance(inner, cst.Call)
            and script.callee(inner) in ("torch.tensor", "torch.FloatTensor")
            and inner.args
        ):
            inner = inner.args[0].value
            if isinstance(inner, cst.List) and len(inner.elements) == 1:
                inner = inner.elements[0].value
        return inner
    return None


def is_number(script: Script, node: cst.BaseExpression, *, computed: bool = False, depth: int = 0) -> bool:
    """Whether a value is provably a Python number, not a tensor. What `__init__` gets is one where it is `computed` with."""
    if depth > 8 or isinstance(literal(node), int | float):
        return depth <= 8

    def again(inner: cst.BaseExpression, computed: bool = computed) -> bool:
        return is_number(script, inner, computed=computed, depth=depth + 1)

    if isinstance(node, cst.BinaryOperation):
        return again(node.left, True) and again(node.right, True)
    if isinstance(node, cst.BooleanOperation):
        return (literal(node.left) is None or again(node.left, True)) and again(node.right)
    if isinstance(node, cst.Subscript):
        return flat(script, node.value).endswith((".shape", ".size()"))
    if isinstance(node, cst.Call):
        callee = script.callee(node)
        return (
            callee.startswith("math.")
            or callee in _NUMBERS
            or (method_name(node) == "size" and bool(node.args))
        )
    root = node
    while isinstance(root, cst.Attribute):
        root = root.value
    function = dataflow_of(script).parameter_of(root)
    if computed and function is not None and function.name.value == "__init__":
        return True
    origins = [o for o in dataflow_of(script).of(node) if o is not node]
    if origins:
        values = [o for o in origins if literal(o) is not None]
        sizes = (".shape", ".size()")
        return bool(values) and all(flat(script, o).endswith(sizes) or again(o) for o in values)
    if function is None:
        return False
    own = next((p for p in function.params.params if p.name.value == dotted(node)), None)
    annotation = own.annotation.annotation if own is not None and own.annotation is not None else None
    return annotation is not None and script.code(annotation) in ("int", "float")


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
    """By what was assigned to it last; several variables at once are parts along the first dimension, or of unbind()."""
    before = [
        b for b in dataflow_of(script).bindings_of(node) if script.span(b.value)[1] <= script.span(node)[0]
    ]
    if not before or before[-1].loop:
        return None
    value = before[-1].value
    inner = _shape(script, value, depth + 1)
    if inner is None or before[-1].item is None or method_name(value) == "unbind":
        return inner
    return (inner[0], inner[1] - 1) if inner[1] > 3 else None


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
