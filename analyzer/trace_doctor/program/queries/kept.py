"""Outputs of a model that a program still holds when it calls the model again: CUDA graphs write the next ones over them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from trace_doctor.program.project import Project
from trace_doctor.program.queries.loops import evaluates
from trace_doctor.program.queries.training import Model
from trace_doctor.program.script import Script, assigned_names, dotted, method_name

_VIEWS = ("detach", "squeeze", "unsqueeze", "view", "flatten", "transpose", "permute", "t")
"""methods whose result has the memory of what they are called on"""


def kept_output(program: Project, model: Model) -> tuple[Script, cst.CSTNode] | None:
    """Where a list gets an output of a model as it is, or where, without gradients, a name still stands for one behind the
    next call in its function."""
    made = {id(call) for _, call in model.constructions}
    names = {(dotted(c.func) or "").rpartition(".")[2] for c in model.calls} | {model.name.rpartition(".")[2]}
    for script in program.scripts_with(*names):
        calls = [
            call
            for call in script.all(cst.Call)
            if (dotted(call.func) or "").rpartition(".")[2] in names
            and any(id(origin) in made for _, origin in program.of(script, call.func))
        ]
        for call in calls:
            if any(_is_appended(script, value) for value in _outputs(script, call)):
                return script, call
        for first in calls:
            function = script.function_of(first)
            later = [c for c in calls if c is not first and script.function_of(c) is function]
            if evaluates(script, first) and any(_is_read_behind(script, first, c) for c in later):
                return script, first
    return None


def _outputs(script: Script, call: cst.Call) -> Iterator[cst.CSTNode]:
    """The call, and the names in its function that stand for what it returned, where nothing else is bound to them."""
    yield call
    function = script.function_of(call)
    for name in _names(script, call):
        others = (a for a in script.all(cst.Assign, function) if a.value is not call)
        if not any(name in assigned_names(a) for a in others):
            yield from script.variables(name, function)


def _names(script: Script, call: cst.Call) -> list[str]:
    statement = script.statement_of(call)
    bound = isinstance(statement, cst.Assign) and statement.value is call
    return [name for name in assigned_names(statement) if name is not None] if bound else []


def _is_appended(script: Script, value: cst.CSTNode) -> bool:
    """`outputs.append(y)`, `outputs.append(y.detach())`: what has the memory of a value goes into a list."""
    up = script.parent(value)
    while isinstance(up, cst.Attribute) and up.attr.value in _VIEWS:
        value = script.parent(up) or up
        up = script.parent(value)
    call = script.parent(up) if isinstance(up, cst.Arg) else None
    return isinstance(call, cst.Call) and method_name(call) == "append"


def _is_read_behind(script: Script, call: cst.Call, later: cst.Call) -> bool:
    statement = script.statement_of(later)
    if statement is None or script.span(later)[0] < script.span(call)[1]:
        return False
    end = script.span(statement)[1]
    uses = [u for name in _names(script, call) for u in script.variables(name, script.function_of(call))]
    return any(script.span(u)[0] > end and not isinstance(script.parent(u), cst.AssignTarget) for u in uses)
