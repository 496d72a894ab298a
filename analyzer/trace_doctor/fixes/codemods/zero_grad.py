"""`zero-grad`: gradients are freed right after the optimizer has used them."""

from __future__ import annotations

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.model.parameters import ZeroGrad
from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import Change, NoEdit, insert_after, remove, remove_argument, sketched
from trace_doctor.program.place import Place, already, candidate, on_line, only, refusal
from trace_doctor.program.queries.gradients import (
    backwards,
    blocks_around,
    caught,
    gradient_uses,
    led_to_beside,
    led_to_from,
    way_out,
)
from trace_doctor.program.queries.loops import backward_values, enclosing_loop, optimizer_steps, zero_grads
from trace_doctor.program.queries.training import Home, home_of
from trace_doctor.program.script import Script, argument, dotted, literal, method_name, receiver


@codemod(
    "zero-grad", ZeroGrad, adds="zero_grad set_to_none True", words=("zero_grad", ".step("), elsewhere=True
)
def zero_grad(place: Place, params: ZeroGrad) -> Change:
    """Adds, moves or cleans zero_grad() so that gradients are freed after the optimizer's step."""
    for script in place.program.scripts_with("CUDAGraph", "cuda.graph(", "make_graphed_callables"):
        raise NoEdit("display", f"{script.name} captures CUDA graphs, whose gradients stay where they are")
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
        _refuse_cleared_elsewhere(place, script, home)
        _refuse_own_optimizer(place, script, call)
        _refuse_unclear(place, script, statement, home, bool(others))
        return _add(script, statement, optimizer)
    return _move(place, script, statement, optimizer, only(clears, "clear the gradients", "")[1], home)


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


def _refuse_unclear(place: Place, script: Script, step: cst.Expr, home: Home, several: bool) -> None:
    """Clearing after a step is right only where what other steps need is not cleared with it, and nothing reads it."""
    here, program = (script, home), place.program
    after = (script.span(step)[1], script.span(home)[1])
    if (later := led_to_from(program, here, backwards(program), after)) is not None:
        raise refusal(script, step, f"{_ANOTHER} after the step", later)
    made = [call for s, call in backwards(program) if s is script and script.within(call, home)]
    if several and len(made) > 1:
        raise refusal(script, step, f"{_ANOTHER}: several optimizers step", *made)
    first = led_to_from(program, here, backwards(program), (script.span(home)[0], after[0]))
    filled = (script.span(first if first is not None else step)[0], after[0])
    if (use := led_to_beside(program, here, gradient_uses(program), filled)) is not None:
        raise refusal(*use, f"{_READ} after the step")


def _refuse_cleared_elsewhere(place: Place, script: Script, home: Home) -> None:
    """Where a loop or function only steps, what calls it, or what it calls, may clear, and when is its business."""
    others = [
        candidate(s, c)
        for s in place.program.scripts_with("zero_grad(")
        for c, _ in zero_grads(s)
        if s is not script or not s.within(c, home)
    ]
    if others and not isinstance(home, cst.Module):
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


def _move(
    place: Place, script: Script, statement: cst.Expr, optimizer: str, call: cst.Call, home: Home
) -> Change:
    old = script.statement_of(call)
    if not isinstance(old, cst.Expr):
        raise refusal(script, call, "zero_grad() is part of a larger expression")
    together = home_of(script, old) is home and not isinstance(home, cst.Module)
    arg = _keeps_zeros(call)
    if together and _frees_in_time(script, statement, old, home):
        if arg is None:
            what = "clears the gradients between the step and the next forward pass already"
            raise already(script, call, what)
        return _free(place, script, call, arg)
    owner = receiver(call)
    if owner is not None and script.code(owner) != optimizer:
        _refuse_other_steps(place, script, old, call)
    refuse_changed_gradients(place, script, statement, old, home)
    as_it_is = arg is None and argument(call, "set_to_none", 0) is not None
    text = script.code(call) if as_it_is else f"{script.code(call.func)}()"
    after = insert_after(script, _last_of_step(script, statement), text, "zero_grad:" + optimizer)
    return Change(script, (remove(script, old), after), script.line(old))


_ANOTHER = "another backward() can reach the same parameters"
_READ = "the gradients are read or changed"


def _refuse_other_steps(place: Place, script: Script, old: cst.Expr, call: cst.Call) -> None:
    """A model's zero_grad() clears what every optimizer of its parameters steps with."""
    names = {text for s in place.program.scripts_with(".step(") for _, text in optimizer_steps(s)}
    if len(names) > 1:
        raise refusal(script, old, f"{script.code(call.func)}() clears for {len(names)} optimizers that step")


def refuse_changed_gradients(
    place: Place, script: Script, step: cst.BaseSmallStatement, old: cst.BaseSmallStatement, home: Home
) -> None:
    """Moving is right only when both run equally often, on every path, and nothing in between adds to a gradient or reads it.

    Where clearing comes first, what lies between the step and the next clearing is everything but the stretch from the
    clearing to the step: the rest of the loop, other functions, what is before and after the loop.
    """
    if isinstance(home, cst.Module) or home_of(script, old) is not home:
        raise refusal(script, old, "zero_grad() and step() are not in the same loop", step)
    if blocks_around(script, old, home) != blocks_around(script, step, home):
        raise refusal(script, old, "zero_grad() and step() run under different conditions", step)
    here, program = (script, home), place.program
    (first, _), (_, last) = sorted((script.span(old), script.span(step)))
    if (leaves := way_out(script, home, (first, last))) is not None:
        raise refusal(script, leaves, "an iteration can end between zero_grad() and step()", old, step)
    if (guard := caught(script, old)) is not None:
        raise refusal(
            script, guard, "after an exception between zero_grad() and step() the loop goes on", step
        )
    if script.span(old) > script.span(step):
        among = led_to_from(program, here, backwards(program), (first, last))
        reads = led_to_from(program, here, gradient_uses(program), (script.span(step)[1], last))
        beside = (script, among) if among is not None else None
        use = (script, reads) if reads is not None else None
    else:
        beside = led_to_beside(program, here, backwards(program), (first, last))
        use = led_to_beside(program, here, gradient_uses(program), (first, last))
    if beside is not None:
        raise refusal(*beside, f"{_ANOTHER} between step() and zero_grad()")
    if use is not None:
        raise refusal(*use, f"{_READ} between step() and zero_grad(), after the move they would be gone")
    steps = [c for c, _ in optimizer_steps(script, home)]
    own = next(c for c in steps if script.statement_of(c) is step)
    shared = [c for c in steps if c is not own and not _disjoint(script, c, own)]
    if shared:
        raise refusal(script, shared[0], "another optimizer steps, which may hold the same parameters", step)


def _disjoint(script: Script, one: cst.Call, other: cst.Call) -> bool:
    """Whether two steps are known to update different parameters: each optimizer is made of the parameters of one name."""
    a, b = _parameters_of(script, one), _parameters_of(script, other)
    return (
        a is not None
        and b is not None
        and not f"{a}.".startswith(f"{b}.")
        and not f"{b}.".startswith(f"{a}.")
    )


def _parameters_of(script: Script, step: cst.Call) -> str | None:
    """`net.encoder` where an optimizer is made of `net.encoder.parameters()` alone."""
    optimizer = step.args[0].value if step.args else receiver(step)
    origins = dataflow_of(script).of(optimizer) if optimizer is not None else []
    made = origins[0] if len(origins) == 1 else None
    first = made.args[0].value if isinstance(made, cst.Call) and made.args else None
    models = dataflow_of(script).of(first) if first is not None else []
    model = receiver(models[0]) if len(models) == 1 and method_name(models[0]) == "parameters" else None
    return dotted(model) if model is not None else None


def _refuse_missed_zeros(place: Place, script: Script, call: cst.Call) -> None:
    """Zeros that are read before backward() fills them are no longer there."""
    program, home = place.program, home_of(script, call)
    steps = [script.span(c)[1] for c, _ in optimizer_steps(script, home)]
    makes = [script.span(c)[0] for s, c in backwards(program) if s is script and script.within(c, home)]
    filled = (min(makes, default=0), max(steps, default=0))
    if (use := led_to_beside(program, (script, home), gradient_uses(program), filled)) is not None:
        raise refusal(*use, f"{_READ} where they would be None instead of zeros")


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
    return _free(place, script, call, arg)


def _free(place: Place, script: Script, call: cst.Call, arg: cst.Arg) -> Change:
    change = Change(script, (remove_argument(script, call, arg),), script.line(call))
    with sketched(change):
        _refuse_missed_zeros(place, script, call)
    return change


def _keeps_zeros(call: cst.Call) -> cst.Arg | None:
    arg = argument(call, "set_to_none", 0)
    return arg if arg is not None and literal(arg.value) is False else None
