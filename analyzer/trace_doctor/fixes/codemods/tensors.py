"""Edits of single expressions: detach a running sum, create a tensor where it is used."""

from __future__ import annotations

import re

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.model.parameters import Parameters
from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import Change, Edit, add_arguments
from trace_doctor.program.place import Place, on_line, only, refusal
from trace_doctor.program.queries.loops import (
    backward_values,
    enclosing_loop,
    method_calls,
    names_in,
    of_steps,
)
from trace_doctor.program.script import Script, argument, assigned_names, dotted, method_name, receiver

_RANDOM = ("rand", "randn", "randint", "randperm")
_FILLS = (*["zeros", "ones", "full", "empty", "eye", "arange", "linspace", "tensor"], *_RANDOM)


# ---------------------------------------------------------------------- detach-accumulation


@codemod("detach-accumulation", Parameters, adds="detach", words=("+=", ".append(", " + "))
def detach_accumulation(place: Place, params: Parameters) -> Change:
    """Adds detach() where a loss is kept in a running sum or list, which would keep its graph.

    The line of the place is the one that keeps it, or the one that computed it: a snapshot knows only the latter.
    """
    line_known = place.line is not None
    sums = [
        (s, v) for s in place.scripts for t, v in _sums(s) if _keeps_graph(s, t, v, line_known=line_known)
    ]
    if place.line is not None:
        sums = [(s, v) for s, v in sums if _made_or_kept_at(s, v, place.line)]
    script, value = only(sums, "keep a loss with its graph", "no running sum or list of a loss was found")
    end = script.outer_span(value)[1]
    edits = [Edit(end, end, ".detach()")]
    if isinstance(value, cst.BinaryOperation) and not value.lpar:
        start = script.outer_span(value)[0]
        edits = [Edit(start, start, "("), Edit(end, end, ").detach()")]
    return Change(script, tuple(edits), script.line(value))


def _made_or_kept_at(script: Script, value: cst.BaseExpression, line: int) -> bool:
    nodes = [value, *(b.value for b in dataflow_of(script).bindings_of(value) if b.value is not None)]
    return any(script.covers(node, line) for node in nodes)


def _sums(script: Script) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """(container, added value) of `t += v`, `t = t + v`, `t.append(v)`."""
    sums: list[tuple[cst.BaseExpression, cst.BaseExpression]] = [
        (a.target, a.value) for a in script.all(cst.AugAssign) if isinstance(a.operator, cst.AddAssign)
    ]
    for assign in script.all(cst.Assign):
        value, target = assign.value, assign.targets[0].target
        if not isinstance(value, cst.BinaryOperation) or not isinstance(value.operator, cst.Add):
            continue
        if script.code(value.left) == script.code(target):
            sums.append((target, value.right))
    appends = method_calls(script, "append")
    return sums + [(container, call.args[0].value) for call, container in appends if len(call.args) == 1]


def _keeps_graph(
    script: Script, target: cst.BaseExpression, value: cst.BaseExpression, *, line_known: bool
) -> bool:
    """Whether a loop keeps the graph of a loss for nothing: the sum is never differentiated.

    A loss is what `backward` is called on, or what has "loss" in its name, or (where the capture names the line)
    anything computed in the loop.
    """
    loop, root, text = enclosing_loop(script, value), _loss_root(value), script.code(target)
    if loop is None or root is None:
        return False
    home = script.function_of(loop)
    losses = set().union(*(names_in(script, v) for v in backward_values(script, home)))
    sums = _names_from(script, home, text)
    if sums & losses:
        return False
    bindings = dataflow_of(script).bindings_of(value)
    at = script.span(value)[0]
    before = [b for b in bindings if b.value is not None and script.span(b.value)[1] <= at]
    if before and _takes_out(script, max(before, key=lambda b: script.span(b.value)).value):
        return False
    if root in losses:
        return True
    if not losses and _is_returned(script, home, sums):
        return False  # `total += loss; return total`: the caller may differentiate it
    if any(_takes_out(script, b.value) for b in bindings):
        return False
    is_computed = any(isinstance(b.value, cst.Call) and not b.loop for b in bindings)
    return is_computed and (line_known or "loss" in root.lower())


def _loss_root(value: cst.BaseExpression) -> str | None:
    """The loss in `loss`, `loss * n`, `loss / k`; None where a call already takes it out of the graph."""
    if isinstance(value, cst.BinaryOperation):
        return _loss_root(value.left) or _loss_root(value.right)
    return dotted(value)


_OUT_OF_GRAPH = ("item", "tolist", "numpy", "detach")


def _takes_out(script: Script, value: cst.BaseExpression) -> bool:
    """`loss.detach()`, `reduce(loss).item()`, `float(loss)`: a number, or a tensor without a graph."""
    return method_name(value) in _OUT_OF_GRAPH or script.callee(value) in ("float", "int", "round")


def _names_from(script: Script, home: cst.CSTNode | None, text: str) -> set[str]:
    """The sum and the names assigned from it."""
    names = {text}
    for _ in range(4):
        for assign in script.all(cst.Assign, within=home):
            if names_in(script, assign.value) & names:
                names |= {name for name in assigned_names(assign) if name is not None}
    return names


def _is_returned(script: Script, home: cst.CSTNode | None, names: set[str]) -> bool:
    returns = script.all(cst.Return, within=home)
    return any(r.value is not None and names_in(script, r.value) & names for r in returns)


# ---------------------------------------------------------------------- tensor-device


@codemod("tensor-device", Parameters, adds="device cuda", words=("torch",))
def tensor_device(place: Place, params: Parameters) -> Change:
    """Creates a tensor on the device instead of copying it there."""
    copies = [(s, c) for s in place.scripts for c in s.all(cst.Call) if _creation(s, c) is not None]
    copies = on_line(place, copies)
    if place.line is None:
        copies = [
            (s, c) for s, c in copies if enclosing_loop(s, c) is not None or s.function_of(c) is not None
        ]
        copies = of_steps(copies, place.function)
    script, copy = only(copies, "create a tensor and then copy it", "no tensor is created and copied there")
    creation = _creation(script, copy)
    assert creation is not None
    create, device = creation
    if any(a.star for a in create.args):
        raise refusal(script, copy, "the tensor's arguments are not visible")
    random = script.callee(create).split(".")[-1] in _RANDOM
    notes = ("the random numbers of the device differ from those of the CPU",) if random else ()
    removal = Edit(script.span(create)[1], script.span(copy)[1], "")
    edits = (*add_arguments(script, create, {"device": device}), removal)
    return Change(script, edits, script.line(copy), notes=notes)


def _creation(script: Script, copy: cst.Call) -> tuple[cst.Call, str] | None:
    """(creating call, device) of `torch.zeros(...).to(device)`, `.cuda()`."""
    create, method = receiver(copy), method_name(copy)
    if not isinstance(create, cst.Call) or argument(create, "device") is not None or create.lpar:
        return None
    if script.callee(create) not in [f"torch.{fill}" for fill in _FILLS]:
        return None
    if method == "cuda" and not copy.args:
        return create, '"cuda"'
    device = argument(copy, "device", 0) if method == "to" else None
    others = [a for a in copy.args if a is not device]
    if device is None or any(a.keyword is None or a.keyword.value != "non_blocking" for a in others):
        return None
    text = script.code(device.value)
    return (create, text) if re.search(r"device|cuda|xpu|mps|rank|gpu", text, re.IGNORECASE) else None
