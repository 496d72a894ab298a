"""`zero-grad`: gradients are freed right after the optimizer has used them."""

from __future__ import annotations

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.model.parameters import ZeroGrad
from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import Change, NoEdit, insert_after, remove, remove_argument
from trace_doctor.program.place import Place, already, candidate, on_line, only, refusal
from trace_doctor.program.queries.loops import (
    backward_values,
    enclosing_loop,
    optimizer_steps,
    zero_grads,
)
from trace_doctor.program.queries.training import Home, home_of
from trace_doctor.program.script import Script, argument, literal, method_name, receiver


@codemod(
    "zero-grad", ZeroGrad, adds="zero_grad set_to_none True", words=("zero_grad", ".step("), elsewhere=True
)
def zero_grad(place: Place, params: ZeroGrad) -> Change:
    """Adds, moves or cleans zero_grad() so that gradients are freed after the optimizer's step."""
    if params.mode == "drop-set-to-none-false":
        return _drop(place)
    script, call = _step(place)
    optimizer = dict(optimizer_steps(script, call))[call]
    statement = script.statement_of(call)
    closure = any(a.keyword is None and script.code(a.value) != optimizer for a in call.args[:1])
    if not isinstance(statement, cst.Expr) or closure:
        raise refusal(script, call, "step() is called with a closure or its value is used")
    home = home_of(script, call)
    others = {other for _, other in optimizer_steps(script)} - {optimizer}
    clears = [(script, c) for c, owner in zero_grads(script, home) if owner not in others]  # or a model's
    if not clears:
        if isinstance(home, cst.FunctionDef):
            _refuse_cleared_elsewhere(place, script, home)
        _refuse_own_optimizer(place, script, call)
        return _add(script, statement, optimizer)
    return _move(script, statement, optimizer, only(clears, "clear the gradients", "")[1], home)


# ---------------------------------------------------------------------- which step


def _step(place: Place) -> tuple[Script, cst.Call]:
    """The optimizer step that the finding is about; steps outside loops count only where there is no other."""
    steps = [(s, call) for s in place.scripts for call, _ in optimizer_steps(s)]
    if place.line is not None and place.script is not None:
        same_loop = [(s, c) for s, c in steps if (o := enclosing_loop(s, c)) and s.covers(o, place.line)]
        steps = on_line(place, steps) or same_loop or steps
    steps = [(s, c) for s, c in steps if enclosing_loop(s, c) is not None] or steps
    return only(steps, "step an optimizer", "no optimizer.step() was found")


# ---------------------------------------------------------------------- the edits


def _last_of_step(script: Script, statement: cst.Expr) -> cst.BaseSmallStatement:
    """The statement to insert after: the step, or the `scaler.update()` that follows it."""
    after = _next_statement(script, statement)
    if isinstance(after, cst.Expr) and method_name(after.value) == "update":
        scaler = receiver(after.value)
        if scaler is not None and "scaler" in script.code(scaler).lower():
            return after
    return statement


def _next_statement(script: Script, statement: cst.BaseSmallStatement) -> cst.CSTNode | None:
    up = script.parent(statement)
    assert isinstance(up, cst.SimpleStatementLine | cst.SimpleStatementSuite)
    index = next(i for i, s in enumerate(up.body) if s is statement)
    if index + 1 < len(up.body):
        return up.body[index + 1]
    if isinstance(up, cst.SimpleStatementSuite):
        return None
    block, index = script.block_of(up)
    after = block.body[index + 1] if index + 1 < len(block.body) else None
    return after.body[0] if isinstance(after, cst.SimpleStatementLine) else after


def _add(script: Script, statement: cst.Expr, optimizer: str) -> Change:
    text = f"{optimizer}.zero_grad(set_to_none=True)"
    edit = insert_after(script, _last_of_step(script, statement), text, "zero_grad:" + optimizer)
    return Change(script, (edit,), script.line(statement))


def _refuse_cleared_elsewhere(place: Place, script: Script, home: cst.FunctionDef) -> None:
    """A function that only steps: its caller may clear, and when is the caller's business."""
    others = [
        candidate(s, c)
        for s in place.program.scripts_with("zero_grad(")
        for c, _ in zero_grads(s)
        if s is not script or not s.within(c, home)
    ]
    if others:
        raise NoEdit("display", "the gradients are cleared elsewhere", others)


def _refuse_own_optimizer(place: Place, script: Script, call: cst.Call) -> None:
    """An optimizer of a class that is not known to be torch's may clear in its step, or have no zero_grad()."""
    optimizer = call.args[0].value if call.args else receiver(call)
    for where, origin in place.program.of(script, optimizer) if optimizer is not None else ():
        if not isinstance(origin, cst.Call) or dataflow_of(where).is_optimizer(origin):
            continue
        owner = place.program.class_by_name(where, origin.func)
        bases = place.program.bases(*owner) if owner is not None else set()
        of_torch = any(b.startswith("torch.optim.") for b in bases)
        if not of_torch and (owner is not None or where.callee(origin)):
            why = "the optimizer is of a class of its own, which may clear the gradients in its step"
            raise refusal(where, origin, why)


def _move(script: Script, statement: cst.Expr, optimizer: str, call: cst.Call, home: Home) -> Change:
    old = script.statement_of(call)
    if not isinstance(old, cst.Expr):
        raise refusal(script, call, "zero_grad() is part of a larger expression")
    together = home_of(script, old) is home and not isinstance(home, cst.Module)
    arg = _keeps_zeros(call)
    if together and _frees_in_time(script, statement, old, home):
        if arg is None:
            what = "clears the gradients between the step and the next forward pass already"
            raise already(script, call, what)
        return Change(script, (remove_argument(script, call, arg),), script.line(call))
    _refuse_changed_meaning(script, statement, old, home)
    as_it_is = arg is None and argument(call, "set_to_none", 0) is not None
    text = script.code(call) if as_it_is else f"{script.code(call.func)}()"
    after = insert_after(script, _last_of_step(script, statement), text, "zero_grad:" + optimizer)
    return Change(script, (remove(script, old), after), script.line(old))


def _refuse_changed_meaning(script: Script, step: cst.Expr, old: cst.Expr, home: Home) -> None:
    """Moving is right only when both run equally often and nothing reads a gradient between."""
    if isinstance(home, cst.Module) or home_of(script, old) is not home:
        raise refusal(script, old, "zero_grad() and step() are not in the same loop", step)
    if _conditions(script, old, home) != _conditions(script, step, home):
        raise refusal(script, old, "zero_grad() and step() run under different conditions", step)
    if any(a.attr.value == "grad" for a in script.all(cst.Attribute, within=home)):
        raise refusal(script, old, "the loop reads .grad, which would be gone after the move", step)


def _conditions(script: Script, node: cst.CSTNode, home: Home) -> list[str]:
    """Tests and other blocks between a statement and its loop or function. A `with` changes nothing about how often it runs."""
    conditions = []
    inner: cst.CSTNode = node
    for up in script.between(node, home):
        if isinstance(up, cst.If):
            conditions.append(script.code(up.test) if up.body is inner else f"not {script.code(up.test)}")
        elif isinstance(up, cst.Try | cst.TryStar | cst.ExceptHandler | cst.Finally | cst.Else | cst.Match):
            conditions.append(type(up).__name__)
        inner = up
    return conditions


def _frees_in_time(script: Script, step: cst.Expr, old: cst.Expr, home: Home) -> bool:
    """Whether the gradients of a step are gone before the next forward pass: no forward between the two, around the
    loop's end where the clearing comes first."""
    begin, end = script.span(home)
    step_at, clear_at = script.span(step)[1], script.span(old)[0]
    if clear_at > step_at:
        as_often = _conditions(script, old, home) == _conditions(script, step, home)
        return as_often and not _forwards(script, home, step_at, clear_at)
    return not _forwards(script, home, begin, clear_at) and not _forwards(script, home, step_at, end)


def _forwards(script: Script, home: Home, begin: int, end: int) -> bool:
    """Whether a stretch of a loop or function calls a model, or computes what backward is called on."""
    losses = {script.code(value) for value in backward_values(script, home)}
    dataflow = dataflow_of(script)
    for call in script.all(cst.Call, within=home):
        if not begin <= script.span(call)[0] < end:
            continue
        if dataflow.all_are(call.func, dataflow.is_model):
            return True
        statement = script.statement_of(call)
        targets = statement.targets if isinstance(statement, cst.Assign) else ()
        if any(script.code(t.target) in losses for t in targets):
            return True
    return False


def _drop(place: Place) -> Change:
    """`zero_grad(set_to_none=False)` writes zeros and keeps the memory; the default frees it (torch 2.0 and later)."""
    calls = [(s, c) for s in place.scripts for c, _ in zero_grads(s)]
    on_that_line = on_line(place, calls) if place.line is not None else []
    writes = [(s, c) for s, c in on_that_line or calls if _keeps_zeros(c) is not None]
    if on_that_line and not writes:
        raise NoEdit("already", f"{on_that_line[0][0].name}:{place.line} frees the gradients already")
    script, call = only(writes, "pass set_to_none=False", "no zero_grad(set_to_none=False) was found")
    arg = _keeps_zeros(call)
    assert arg is not None
    return Change(script, (remove_argument(script, call, arg),), script.line(call))


def _keeps_zeros(call: cst.Call) -> cst.Arg | None:
    arg = argument(call, "set_to_none", 0)
    return arg if arg is not None and literal(arg.value) is False else None
