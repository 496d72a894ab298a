"""Training loops of a script: which loops call backward, and which statements of them step and clear."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

import libcst as cst

from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.script import Script, dotted, method_name, receiver

Loop = cst.For | cst.While
N = TypeVar("N", bound=cst.CSTNode)
_OPTIMIZER_NAME = re.compile(r"(?:.*[._])?(?:optimi[sz]er|optim|opt)(?:_\w+)?", re.IGNORECASE)
NOT_TRAINING = re.compile(
    r"(?:^|_)(?:val|valid|validation|test|eval|dev(?!ice)|pred|predict|infer)", re.IGNORECASE
)
"""in names of what does not train: functions, loaders"""
_WHICH_PROCESS = re.compile(
    r"(?:^|[._])(?:rank|get_rank|is_(?:local_)?(?:main|master|world)\w*|local_rank|master_process)$"
)
_SETTINGS = re.compile(
    r"(?:self\.)?(?:args|cfg|config|conf|opts?|options|hparams|flags|params)\.", re.IGNORECASE
)
_SCHEDULER = re.compile(r"lr_scheduler|LR$|[Ss]chedule[r_]")


def loops(script: Script) -> list[Loop]:
    """`for` and `while` statements, by where they begin."""
    return sorted([*script.all(cst.For), *script.all(cst.While)], key=script.span)


def method_calls(
    script: Script, method: str, within: cst.CSTNode | None = None
) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
    """Calls `receiver.method(...)` with their receivers."""
    for call in script.all(cst.Call, within):
        if method_name(call) == method and (value := receiver(call)) is not None:
            yield call, value


def changes_in_place(call: cst.Call, name: str) -> bool:
    """`x.add_(...)`: whether a call changes what a name refers to."""
    target = receiver(call)
    return target is not None and (method_name(call) or "").endswith("_") and dotted(target) == name


def binds(script: Script, line: cst.CSTNode, name: str) -> bool:
    """Whether a statement may give a name (or what it refers to) another value."""
    if any(changes_in_place(call, name) for call in script.all(cst.Call, within=line)):
        return True
    targets: list[cst.AssignTarget | cst.AugAssign | cst.For | cst.NamedExpr]
    targets = [*script.all(cst.AssignTarget, line), *script.all(cst.AugAssign, line)]
    targets += [*script.all(cst.For, line), *script.all(cst.NamedExpr, line)]
    return any(name in names_in(script, node.target) for node in targets)


def backward_values(script: Script, within: cst.CSTNode | None) -> list[cst.BaseExpression]:
    """What is differentiated: `loss` of `loss.backward()`, `scaler.scale(loss).backward()`, `accelerator.backward(loss)`."""
    values: list[cst.BaseExpression] = []
    for method in ("backward", "manual_backward"):
        for call, value in method_calls(script, method, within):
            inner = value if isinstance(value, cst.Call) else call
            values += [a.value for a in inner.args if a.keyword is None] if inner.args else [value]
            if inner is call and call.args:
                values.append(value)
    return values


def names_in(script: Script, node: cst.CSTNode) -> set[str]:
    """Dotted names that an expression reads, itself included."""
    nodes = [node, *script.all(cst.Name, within=node), *script.all(cst.Attribute, within=node)]
    return {name for name in map(dotted, nodes) if name is not None}


def trains(script: Script, loop: cst.CSTNode) -> bool:
    """Whether a loop calls `backward`, itself or in a function of this script that it calls."""
    if any(True for _ in method_calls(script, "backward", loop)):
        return True
    callees = (dataflow_of(script).definition(call.func) for call in script.all(cst.Call, within=loop))
    functions = (target for target in callees if isinstance(target, cst.FunctionDef))
    return any(True for f in functions for _ in method_calls(script, "backward", f))


def is_optimizer(script: Script, node: cst.BaseExpression) -> bool:
    """Whether an expression is an optimizer: by what it was assigned, else by its name, unless that is a scheduler's."""
    dataflow = dataflow_of(script)
    origins = dataflow.of(node)
    if any(dataflow.is_optimizer(o) for o in origins):
        return True
    constructors = {script.callee(o) or dotted(o.func) or "" for o in origins if isinstance(o, cst.Call)}
    return _OPTIMIZER_NAME.fullmatch(dotted(node) or "") is not None and not any(
        map(_SCHEDULER.search, constructors)
    )


def optimizer_steps(script: Script, within: cst.CSTNode | None = None) -> list[tuple[cst.Call, str]]:
    """Calls that step an optimizer (`opt.step()`, `scaler.step(opt)`), with the optimizer's text."""
    steps = []
    for call, value in method_calls(script, "step", within):
        first = call.args[0].value if call.args and call.args[0].keyword is None else None
        if is_optimizer(script, value):
            steps.append((call, script.code(value)))
        elif first is not None and is_optimizer(script, first):
            steps.append((call, script.code(first)))
    return steps


def zero_grads(script: Script, within: cst.CSTNode | None = None) -> list[tuple[cst.Call, str]]:
    """Calls of `zero_grad`, with the receiver's text."""
    return [(call, script.code(receiver)) for call, receiver in method_calls(script, "zero_grad", within)]


def enclosing_loop(script: Script, node: cst.CSTNode) -> Loop | None:
    """The innermost loop around a node, within its function."""
    kinds = (cst.For, cst.While, cst.FunctionDef, cst.Lambda, cst.ClassDef)
    up = next((a for a in script.ancestors(node) if isinstance(a, kinds)), None)
    return up if isinstance(up, cst.For | cst.While) else None


def of_steps(nodes: Sequence[tuple[Script, N]], named: str | None = None) -> list[tuple[Script, N]]:
    """Without what stands in evaluation code, unless that is the function of this name, or in a loop that does not train,
    in a function that does: validation between the steps."""
    return [
        (script, node)
        for script, node in nodes
        if not _between_steps(script, node)
        and not (evaluates(script, node) and not _is_in(script, node, named))
    ]


def _is_in(script: Script, node: cst.CSTNode, named: str | None) -> bool:
    last = (named or "").replace("<locals>.", "").rpartition(".")[2]
    return bool(last) and script.function_name(node) == last


def evaluates(script: Script, node: cst.CSTNode) -> bool:
    """Whether code runs without gradients, or in a function whose name says that it does not train."""
    for up in script.ancestors(node):
        if isinstance(up, cst.With) and any(_without_gradients(script, i.item) for i in up.items):
            return True
        if isinstance(up, cst.FunctionDef):
            decorated = any(_without_gradients(script, d.decorator) for d in up.decorators)
            if decorated or (NOT_TRAINING.search(up.name.value) and not trains(script, up)):
                return True
    return False


def _without_gradients(script: Script, node: cst.BaseExpression) -> bool:
    name = script.qualified(node.func if isinstance(node, cst.Call) else node) or ""
    return name in ("torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad")


def in_handler(script: Script, node: cst.CSTNode) -> bool:
    """Whether code runs only after an exception."""
    return script.nearest(node, cst.ExceptHandler, cst.ExceptStarHandler) is not None


def _between_steps(script: Script, node: cst.CSTNode) -> bool:
    loop, function = enclosing_loop(script, node), script.function_of(node)
    if loop is None or trains(script, loop):
        return False
    return any(script.function_of(c) is function for c, _ in method_calls(script, "backward", function))


def conditional(script: Script, node: cst.CSTNode) -> bool:
    """Whether something happens only under a condition within its loop."""
    return any(isinstance(up, cst.If) for up in script.between(node, enclosing_loop(script, node)))


def only_sometimes(script: Script, node: cst.CSTNode) -> bool:
    """Whether something happens in some iterations of its loop only. A condition that holds in all of them or in none, as
    `local_rank == 0`, does not make it so."""
    loop = enclosing_loop(script, node)
    tests = [up.test for up in script.between(node, loop) if isinstance(up, cst.If)]
    return any(not _is_same_throughout(script, test, loop) for test in tests)


def _is_same_throughout(script: Script, test: cst.BaseExpression, loop: Loop | None) -> bool:
    """Whether a condition cannot change while a loop runs: it asks which process this is, for a setting, or for names that the
    loop does not bind."""
    calls = [c for c in (test, *script.all(cst.Call, within=test)) if isinstance(c, cst.Call)]
    if any(not _WHICH_PROCESS.search(script.code(call.func)) for call in calls):
        return False
    if any(True for kind in (cst.Modulo, cst.NamedExpr) for _ in script.all(kind, within=test)):
        return False
    names = {name for name in names_in(script, test) if not _WHICH_PROCESS.search(name)}
    if any("." in name and not _SETTINGS.match(name) for name in names):
        return False
    return loop is None or not any(binds(script, loop, name) for name in names)
