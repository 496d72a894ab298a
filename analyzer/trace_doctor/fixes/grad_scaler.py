"""A GradScaler for a training step: made once where its optimizer is made, handed to the step, kept in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from trace_doctor.fixes.literals import source_text
from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import Edit, Gathered, insert_after, insert_before
from trace_doctor.program.place import refusal
from trace_doctor.program.queries.gradients import blocks_around, gradient_uses, is_use, places
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.queries.loops import method_calls, optimizer_steps
from trace_doctor.program.queries.training import Step, joined, whole_line
from trace_doctor.program.script import Script, argument, assigned_names, dotted, key_of, receiver
from trace_doctor.program.versions import TorchBounds, accepts

_NAME = "scaler"
_KEPT = "the optimizer's state is saved or loaded here, and that of the GradScaler has to go with it"


def scale_loss(step: Step, torch: TorchBounds, device: str, edits: Gathered) -> None:
    """Adds the edits for fp16: `scaler.scale(loss).backward()`, `scaler.step(optimizer)`, `scaler.update()`, `unscale_`
    before what reads gradients, and the scaler itself. Raises NoEdit where one of these has no certain place."""
    script = step.script
    steps = optimizer_steps(script, step.home)
    where = [call for call, _ in steps] or [step.backward]
    if len(steps) != 1 or where[0].args:
        why = "a GradScaler needs one optimizer.step() without a closure in the loop"
        raise refusal(script, where[0], why, *where[1:])
    call, optimizer = steps[0]
    for other in step.program.scripts_with("GradScaler"):
        raise refusal(script, call, f"{other.name} has a scaler of its own")
    _refuse_name(script, call)
    statement, loss = script.statement_of(call), receiver(step.backward)
    if not isinstance(statement, cst.Expr):
        raise refusal(script, call, "the value of step() is used")
    assert loss is not None
    scaler = _make(step, call, torch, device, edits)
    start, end = script.outer_span(loss)
    new = [
        Edit(start, end, f"{scaler}.scale({script.text[start:end]})", "scale", "loss"),
        Edit(*script.span(call), f"{scaler}.step({optimizer})", "scaler.step", optimizer),
        insert_after(script, statement, f"{scaler}.update()", "scaler.update"),
    ]
    if (first := _first_use(step, statement)) is not None:
        new.append(insert_before(script, first, f"{scaler}.unscale_({optimizer})", "unscale"))
    edits.keep(script, new)


def _refuse_name(script: Script, node: cst.CSTNode) -> None:
    if _NAME in script.text:
        raise refusal(script, node, f"{script.name} has a {_NAME} of its own")


def _first_use(step: Step, stepping: cst.Expr) -> cst.SimpleStatementLine | None:
    """The line between backward and step from which on gradients are read; those of a scaled loss have to be unscaled."""
    script, home = step.script, (step.script, step.home)
    begin, end = script.span(step.backward)[1], script.span(stepping)[0]
    uses = [*gradient_uses(step.program)]
    found = [n for use in uses for s, n in places(step.program, home, use) if s is script]
    between = sorted((n for n in found if begin <= script.span(n)[0] < end), key=script.span)
    if not between:
        return None
    first = between[0]
    if blocks_around(script, first, step.home) != blocks_around(script, stepping, step.home):
        raise refusal(
            script,
            first,
            "gradients are read under other conditions than step(), where they are still scaled",
        )
    return whole_line(script, first)


# ---------------------------------------------------------------------- where it is made


def _make(step: Step, call: cst.Call, torch: TorchBounds, device: str, edits: Gathered) -> str:
    """What the step calls the scaler, which is made where the optimizer is: in a scope that the step sees, or by the one
    caller that hands the optimizer to the step's function."""
    script, optimizer = step.script, receiver(call)
    assert optimizer is not None
    dataflow = dataflow_of(script)
    function = dataflow.parameter_of(optimizer)
    if function is None:
        _construct(step, script, optimizer, torch, device, edits)
        return _beside(script.code(optimizer))
    uses = [
        (s, n)
        for s in step.program.scripts_with(function.name.value)
        for n in s.all(cst.Name)
        if n.value == function.name.value and is_use(s, n) and not _of_others(step, s, n, function)
    ]
    calls = [(s, c) for s, n in uses for c in s.all(cst.Call) if c.func is n or _names(c.func, n)]
    definitions = [step.program.definition(s, c.func) for s, c in calls]
    if len(uses) != 1 or len(calls) != 1 or definitions[0] is None or definitions[0][1] is not function:
        why = "the optimizer is handed to this function by several calls: a GradScaler is made where one call hands it over"
        raise refusal(script, function, why)
    (caller, handing), name = calls[0], script.code(optimizer)
    param = next((p for p in function.params.params if p.name.value == name), None)
    names = [p.name.value for p in function.params.params]
    position = names.index(name) - (dataflow.owner(function) is not None) if param is not None else None
    arg = argument(handing, name, position)
    if param is None or param.default is not None or arg is None or any(a.star for a in handing.args):
        raise refusal(
            caller, handing, "the optimizer is handed over in a way that a GradScaler cannot follow"
        )
    _refuse_name(caller, handing)
    if dataflow_of(caller).parameter_of(arg.value) is not None:
        raise refusal(
            caller,
            handing,
            "the optimizer is handed on from another function: a GradScaler is made where it is",
        )
    _construct(step, caller, arg.value, torch, device, edits)
    text = _beside(caller.code(arg.value))
    at, end = script.span(param)[1], caller.span(arg)[1]
    edits.keep(script, [Edit(at, at, f", {_NAME}", "scaler parameter")])
    passed = f", {_NAME}={text}" if arg.keyword is not None else f", {text}"
    edits.keep(caller, [Edit(end, end, passed, "scaler argument")])
    return _NAME


def _of_others(step: Step, script: Script, name: cst.Name, function: cst.FunctionDef) -> bool:
    """Whether `train` of `model.train` is a method, where the function is none and the module that has it is not meant."""
    attribute = script.parent(name)
    if not isinstance(attribute, cst.Attribute) or attribute.attr is not name:
        return False
    match = step.program.definition(script, attribute)
    here = dataflow_of(step.script).owner(function) is None
    return here and (match is None or match[1] is not function)


def _names(func: cst.BaseExpression, name: cst.Name) -> bool:
    return isinstance(func, cst.Attribute) and func.attr is name


def _beside(optimizer: str) -> str:
    """`self.scaler` for `self.optimizer`."""
    return f"{optimizer.rpartition('.')[0]}.{_NAME}".lstrip(".")


def _construct(
    step: Step,
    script: Script,
    optimizer: cst.BaseExpression,
    torch: TorchBounds,
    device: str,
    edits: Gathered,
) -> None:
    """`scaler = torch.amp.GradScaler("cuda")` below the statement that makes the optimizer, and its state in checkpoints."""
    name = dotted(optimizer)
    bindings = dataflow_of(script).bindings_of(optimizer)
    statements = [script.statement_of(b.value) for b in bindings]
    if not statements or any(name not in assigned_names(s) for s in statements):
        raise refusal(
            script, optimizer, "where the optimizer is made, and a GradScaler with it, was not found"
        )
    last = joined(script, [s for s in statements if s is not None])
    if last is None:
        raise refusal(script, optimizer, "the optimizer is made in several places")
    root, imports = name_for(script, "torch", optimizer)
    text = (
        f"{root}.amp.GradScaler({source_text(device)})"
        if accepts(torch, "torch.amp.GradScaler")
        else f"{root}.cuda.amp.GradScaler()"
    )
    scaler = _beside(name or "")
    if step.script is script and script.within(last, step.home):
        raise refusal(script, last, "the optimizer is made in every step")
    edits.keep(script, [*imports, insert_after(script, last, f"{scaler} = {text}", "scaler")])
    for other in step.program.scripts_with("state_dict("):
        for edit in _in_checkpoints(other, script, optimizer, scaler):
            edits.keep(script, [edit])


def _in_checkpoints(
    script: Script, made_in: Script, optimizer: cst.BaseExpression, scaler: str
) -> Iterator[Edit]:
    """Where the optimizer's state is saved and loaded, the scaler's is as well. Raises NoEdit where it cannot be."""
    name, scope = dotted(optimizer) or "", dataflow_of(made_in).bindings_of(optimizer)
    for call, owner in method_calls(script, "state_dict"):
        if not _is_optimizer(script, owner, name):
            continue
        entry = script.parent(call)
        mapping = script.parent(entry) if isinstance(entry, cst.DictElement) else None
        same = script is made_in and dataflow_of(script).bindings_of(owner) == scope
        if not same or not isinstance(entry, cst.DictElement) or not isinstance(mapping, cst.Dict):
            raise refusal(script, call, _KEPT)
        key = entry.key
        quote = key.quote if isinstance(key, cst.SimpleString) else '"'
        end = script.span(entry.value)[1]
        own_line = not script.line_text(script.line(entry))[: _column(script, entry)].strip()
        gap = "\n" + script.line_text(script.line(entry))[: _column(script, entry)] if own_line else " "
        yield Edit(end, end, f",{gap}{quote}{_NAME}{quote}: {scaler}.state_dict()", f"scaler state:{end}")
    for call, owner in method_calls(script, "load_state_dict"):
        if not _is_optimizer(script, owner, name):
            continue
        statement, value = script.statement_of(call), call.args[0].value if call.args else None
        same = script is made_in and dataflow_of(script).bindings_of(owner) == scope
        if (
            not same
            or not isinstance(value, cst.Subscript)
            or key_of(value) is None
            or not isinstance(statement, cst.Expr)
        ):
            raise refusal(script, call, _KEPT)
        text, unit = script.code(value.value), script.module.default_indent
        line, indent = whole_line(script, call), script.indent(statement)
        load = f'if "{_NAME}" in {text}:\n{indent}{unit}{scaler}.load_state_dict({text}["{_NAME}"])'
        yield insert_after(script, line.body[-1], load, "scaler load")


def _column(script: Script, node: cst.CSTNode) -> int:
    return script.span(node)[0] - script.line_starts[script.line(node) - 1]


def _is_optimizer(script: Script, owner: cst.BaseExpression, name: str) -> bool:
    """Whether a value has the optimizer's name, or may be the optimizer under another."""
    last = (dotted(owner) or "").rpartition(".")[2]
    return last == name.rpartition(".")[2] or dataflow_of(script).all_are(
        owner, dataflow_of(script).is_optimizer
    )
