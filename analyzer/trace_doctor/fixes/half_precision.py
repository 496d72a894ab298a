"""What 16-bit numbers break in the code that autocast would run, and in the code that reads what it computes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from trace_doctor.program.dataflow import dataflow_of, method_of, parameters
from trace_doctor.program.place import refusal
from trace_doctor.program.project import Project
from trace_doctor.program.queries.loops import method_calls, names_in
from trace_doctor.program.queries.reached import reached
from trace_doctor.program.script import (
    Script,
    argument,
    bound_names,
    dotted,
    literal,
    method_name,
    receiver,
)

_LARGEST_FP16 = 65504.0
_SMALLEST_FP16 = 2.0**-25
"""rounds to 0"""
_BELOW_ONE = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
"""what is closer to 1 rounds to 1"""
_SMALL = 1e-2
_PROBABILITIES = re.compile(r"(?:torch\.nn\.BCELoss|torch\.nn\.functional\.binary_cross_entropy)")
_LOSSES = re.compile(r"torch\.nn\.functional\.(?:\w*loss|cross_entropy|kl_div)|torch\.nn\.\w*Loss")
_FILLS = re.compile(r"masked_fill_?|fill_|full|full_like|where|clamp_?|clip_?|new_full|pad|constant_?")
_WIDENS = frozenset([
    "float", "double", "long", "int", "bool", "argmax", "argmin", "argsort", "item", "tolist", "type", "type_as",
])  # fmt: skip
_SWITCH_WORDS = ("dtype", "amp", "precision", "fp16", "bf16", "half")
_SWITCH = re.compile(
    r"--(?:use[-_]|enable[-_]|compute[-_])?(?:dtype|amp|(?:mixed[-_])?precision|fp16|bf16|half)"
)
"""options that choose the precision of a program"""
_OWN_TYPE = re.compile(r"[A-Z_]*DTYPE[A-Z_]*")
_AS_TOLD = ("torch.", "math.", "numpy.", "builtins.")
"""what takes 16-bit tensors, or none"""
_LOGS = ("log", "log_", "log2", "log10", "log1p", "logit")


def refuse_own_precision(program: Project) -> None:
    """Raises NoEdit where a program has a setting of its precision: an option of the command line, or a type of its own that
    it casts to."""
    for script in program.scripts_with("DTYPE", *_SWITCH_WORDS):
        for call, _ in method_calls(script, "add_argument"):
            if any(_SWITCH.fullmatch(str(literal(a.value))) for a in call.args if a.keyword is None):
                raise refusal(script, call, "the program has an option for its precision")
        for call, _ in method_calls(script, "to"):
            arg = argument(call, "dtype", 0)
            if arg is not None and isinstance(arg.value, cst.Name) and _OWN_TYPE.fullmatch(arg.value.value):
                raise refusal(script, call, f"the program chooses its precision itself, by {arg.value.value}")


def refuse_half_precision(
    program: Project,
    script: Script,
    run: Sequence[cst.CSTNode],
    home: cst.CSTNode,
    dtype: str,
    more: Iterable[tuple[Script, cst.CSTNode]],
) -> None:
    """Raises NoEdit where a stretch of a step, or `more` that it may run, would fail or lose its meaning in a 16-bit type, or
    what reads it would."""
    for where, node in (*reached(program, script, run), *more):
        for bad, why in _unfit(program, where, node, dtype):
            raise refusal(where, bad, why)
    for where, call in _foreign_kernels(program):
        raise refusal(
            where, call, f"{where.code(call.func)}() gets {dtype} tensors without custom_fwd(cast_inputs=...)"
        )
    if dtype == "bfloat16" and (reader := _numpy_reader(program, script, run, home)) is not None:
        raise refusal(*reader, "NumPy reads the result, and it has no bfloat16")


def _foreign_kernels(program: Project) -> Iterator[tuple[Script, cst.Call]]:
    """Calls of an extension in the `forward` of an autograd.Function of the program that does not have its inputs cast."""
    for script in program.scripts_with("Function"):
        for owner in script.all(cst.ClassDef):
            forward = method_of(owner, "forward")
            if forward is None or "torch.autograd.Function" not in program.bases(script, owner):
                continue
            if any("custom_fwd" in script.code(d) for d in forward.decorators):
                continue
            for call in script.all(cst.Call, within=forward):
                name = script.qualified(call.func)
                if name and not name.startswith(_AS_TOLD) and program.definition(script, call.func) is None:
                    yield script, call


def _unfit(
    program: Project, script: Script, node: cst.CSTNode, dtype: str
) -> Iterator[tuple[cst.CSTNode, str]]:
    calls = [c for c in (node, *script.all(cst.Call, within=node)) if isinstance(c, cst.Call)]
    for call in calls:
        if _PROBABILITIES.fullmatch(script.callee(call)):
            yield call, "autocast refuses binary_cross_entropy: it needs probabilities in fp32, or logits"
        name = method_name(call) or dotted(call.func) or ""
        if name.startswith("clamp") or name.startswith("clip"):
            for arg in call.args:
                value = number(program, script, arg.value)
                if value is not None and 0 < 1 - value < _BELOW_ONE[dtype] and not _widened(call):
                    yield (
                        call,
                        f"{script.code(arg.value)} rounds to 1 in {dtype}, and its logarithm to infinity or NaN",
                    )
        of_numbers = script.callee(call).startswith(("math.", "numpy."))
        if name in _LOGS and not of_numbers and (sums := _guarded(program, script, call)) is not None:
            yield sums, f"a logarithm depends on a small distance that {dtype} rounds away"
    if dtype != "float16":
        return
    for call in calls:
        if _FILLS.fullmatch(method_name(call) or dotted(call.func) or ""):
            for arg in call.args:
                value = number(program, script, arg.value)
                if value is not None and abs(value) > _LARGEST_FP16:
                    yield call, f"{script.code(arg.value)} is beyond the range of float16"
    for operation in script.all(cst.BinaryOperation, within=node):
        for side in (operation.left, operation.right):
            value = number(program, script, side)
            if not isinstance(value, float):
                continue
            if abs(value) > _LARGEST_FP16:
                yield operation, f"{script.code(side)} is beyond the range of float16"
            if isinstance(operation.operator, cst.Add) and 0 < abs(value) < _SMALLEST_FP16:
                yield operation, f"{script.code(side)} is 0 in float16"


def _guarded(program: Project, script: Script, call: cst.Call) -> cst.CSTNode | None:
    """`p + eps` or `1 - p` in `torch.log(p + eps)`, `(1 - p).log()`."""
    inside = call.args[0].value if call.args else receiver(call)
    if inside is None or _widened(inside):
        return None
    for operation in (inside, *script.all(cst.BinaryOperation, within=inside)):
        if not isinstance(operation, cst.BinaryOperation):
            continue
        left, right = (number(program, script, side) for side in (operation.left, operation.right))
        small = any(v is not None and 0 < abs(v) <= _SMALL for v in (left, right))
        if isinstance(operation.operator, cst.Add) and small:
            return operation
        if isinstance(operation.operator, cst.Subtract) and left == 1 and right is None:
            return operation
    return None


def _widened(node: cst.BaseExpression) -> bool:
    """Whether an expression is computed from `.float()`."""
    return (
        re.search(r"\.(?:float|double)\(\)|float32|float64", cst.Module([]).code_for_node(node)) is not None
    )


def number(program: Project, script: Script, node: cst.BaseExpression) -> float | int | None:
    """The value of an expression of numbers, and of names that stand for one; None for any other."""
    value = literal(node)
    if isinstance(value, int | float):
        return value
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = number(program, script, node.expression)
        return -inner if inner is not None else None
    if isinstance(node, cst.BinaryOperation):
        left, right = (number(program, script, side) for side in (node.left, node.right))
        if left is None or right is None:
            return None
        if isinstance(node.operator, cst.Add):
            return left + right
        if isinstance(node.operator, cst.Subtract):
            return left - right
        return left * right if isinstance(node.operator, cst.Multiply) else None
    if isinstance(node, cst.Name | cst.Attribute):
        origins = program.of(script, node)
        origin = origins[0][1] if len(origins) == 1 else node
        known = literal(origin) if origin is not node else None
        return known if isinstance(known, int | float) else None
    return None


# ---------------------------------------------------------------------- what reads the results


def _numpy_reader(
    program: Project, script: Script, run: Sequence[cst.CSTNode], home: cst.CSTNode
) -> tuple[Script, cst.CSTNode] | None:
    """The call that gives NumPy a value of these statements as it is."""
    assignments = [a for line in run for a in script.all(cst.Assign, within=line)]
    names = {n for a in assignments if not _in_fp32(program, script, a.value) for n in bound_names(a)}
    function = script.function_of(home) or (home if isinstance(home, cst.FunctionDef) else None)
    return _reader_in(program, script, function, names, min(script.span(line)[0] for line in run))


def _reader_in(
    program: Project, script: Script, function: cst.FunctionDef | None, names: set[str], begin: int = -1
) -> tuple[Script, cst.CSTNode] | None:
    """The call in a function, or at the level of the module, that gives NumPy one of these values, which names of it hold from
    an offset on; or that hands one to a function that does (-1: this is that function)."""
    for _ in range(3):
        for assign in script.all(cst.Assign, within=function):
            later = script.span(assign)[0] > begin and not _in_fp32(program, script, assign.value)
            if later and _reads(script, assign.value, names):
                names |= bound_names(assign)
        for call in script.all(cst.Call, within=function):
            kept = method_name(call) in ("append", "extend") and any(
                _reads(script, a.value, names) for a in call.args
            )
            if kept and (container := dotted(receiver(call) or call)) is not None:
                names.add(container)
    for call in script.all(cst.Call, within=function):
        if _to_numpy(script, call) and any(_reads(script, v, names) for v in _values(call)):
            return script, call
        where, called = (begin >= 0 and program.definition(script, call.func)) or (script, None)
        if not isinstance(called, cst.FunctionDef):
            continue
        given = _given(script, call, where, called, names)
        if given and (reader := _reader_in(program, where, called, given)) is not None:
            return reader
    return None


def _given(
    script: Script, call: cst.Call, where: Script, called: cst.FunctionDef, names: set[str]
) -> set[str]:
    """The parameters of a function that a call passes one of these values; all where that cannot be told."""
    values = [a.value for a in call.args if _reads(script, a.value, names)]
    own = parameters(called)
    if called.decorators or any(a.star for a in call.args):
        return set(own) if values else set()
    own = own[dataflow_of(where).owner(called) is not None :]
    passed = [(name, argument(call, name, position)) for position, name in enumerate(own)]
    return {name for name, arg in passed if arg is not None and arg.value in values}


def _in_fp32(program: Project, script: Script, value: cst.BaseExpression) -> bool:
    """Whether it is a loss of torch, which autocast computes in fp32."""
    if not isinstance(value, cst.Call):
        return False
    makers = [(script, value), *program.of(script, value.func)]
    return any(isinstance(c, cst.Call) and _LOSSES.fullmatch(s.callee(c)) for s, c in makers)


def _values(call: cst.Call) -> list[cst.BaseExpression]:
    own = receiver(call)
    return [
        *([own] if own is not None and method_name(call) == "numpy" else []),
        *(a.value for a in call.args),
    ]


def _to_numpy(script: Script, call: cst.Call) -> bool:
    return method_name(call) == "numpy" or script.callee(call).startswith(("numpy.", "sklearn."))


def _reads(script: Script, value: cst.BaseExpression, names: set[str]) -> bool:
    """Whether a value is one of these, with nothing on the way that gives it another type."""
    if not names_in(script, value) & names or _widened(value):
        return False
    calls = [c for c in (value, *script.all(cst.Call, within=value)) if isinstance(c, cst.Call)]
    compared = isinstance(value, cst.Comparison) or bool(script.all(cst.Comparison, within=value))
    changed = [method_name(c) or dotted(c.func) for c in calls]
    return not compared and not any(n in _WIDENS for n in changed)
