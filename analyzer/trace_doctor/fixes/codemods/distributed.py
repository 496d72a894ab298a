"""`no-sync`: what DistributedDataParallel exchanges when gradients are accumulated."""

from __future__ import annotations

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.model.parameters import Parameters
from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import Change, NoEdit, wrap
from trace_doctor.program.place import Place, already, candidate, refusal
from trace_doctor.program.queries.gradients import way_out
from trace_doctor.program.queries.imports import bindings, name_for
from trace_doctor.program.queries.loops import binds, names_in, optimizer_steps
from trace_doctor.program.queries.training import Step, find_step, lines_from, refuse_done, whole_line
from trace_doctor.program.script import Script, argument, dotted, literal, method_name

_DDP = "torch.nn.parallel.DistributedDataParallel"
_WRAPPERS = (_DDP, "torch.nn.parallel.distributed.DistributedDataParallel")
_NO_SYNC = (*_WRAPPERS, "torch.distributed.fsdp.FullyShardedDataParallel")
_ACCUMULATE = {
    "accelerate": "Accelerator(gradient_accumulation_steps=N) and `with accelerator.accumulate(model):`",
    "lightning": "Trainer(accumulate_grad_batches=N), which does this",
    "transformers": "TrainingArguments(gradient_accumulation_steps=N), which does this",
    "deepspeed": '"gradient_accumulation_steps" in its configuration, which does this',
}


@codemod(
    "no-sync",
    Parameters,
    adds="contextlib nullcontext no_sync isinstance",
    words=("DistributedDataParallel", "FullyShardedDataParallel"),
    elsewhere=True,
)
def no_sync(place: Place, params: Parameters) -> Change:
    """Exchanges accumulated gradients only in the backward before the optimizer's step."""
    refuse_done(place.scripts, _ACCUMULATE, "no_sync", "no_sync()")
    refuse_done(place.scripts, {}, "require_backward_grad_sync")
    step = find_step(place)
    script = step.script
    for other in place.program.scripts_with("static_graph"):
        for call in other.all(cst.Call):
            static = argument(call, "static_graph")
            if (static is not None and literal(static.value) is not False) or _sets_static(call):
                raise refusal(
                    other,
                    call,
                    "DistributedDataParallel with static_graph fails where a backward is not synchronized",
                )
    calls = [c for c in script.all(cst.Call, within=step.home) if _is_wrapped(script, c.func)]
    calls = [c for c in calls if script.span(c)[0] < script.span(step.backward)[0]]
    if not calls:
        raise refusal(script, step.backward, "the step calls no DistributedDataParallel", kind="unresolved")
    condition = _step_condition(step)
    run = lines_from(script, calls[0], whole_line(script, step.backward))
    if not run:
        raise refusal(script, calls[0], "forward and backward are in different blocks")
    _refuse_decided_later(step, run[0], condition)
    test = " ".join(script.code(condition.test).split())
    null, imports = name_for(script, "contextlib.nullcontext", step.backward)
    name = script.code(calls[0].func)
    if (wrapper := _perhaps_unwrapped(script, calls[0].func)) is not None:
        test = f"({test})" if _binds_loosely(test) else test
        test = f"{test} or not isinstance({name}, {wrapper})"
    header = f"with {null}() if {test} else {name}.no_sync():"
    return Change(script, (*imports, *wrap(script, run[0], run[-1], header)), script.line(run[0]))


def _is_wrapped(script: Script, node: cst.BaseExpression) -> bool:
    """Whether a name is bound to a model in DistributedDataParallel, here or where it is passed in."""
    dataflow = dataflow_of(script)
    own = dataflow.bindings_of(node)
    if any(script.callee(b.value) in _NO_SYNC for b in own):
        return True
    function = script.function_of(node)
    if own or function is None or not isinstance(node, cst.Name):
        return False
    names = [p.name.value for p in function.params.params]
    callers = [c for c in script.all(cst.Call) if dataflow.definition(c.func) is function]
    arguments = [argument(c, node.value, names.index(node.value)) for c in callers if node.value in names]
    return bool(arguments) and all(a is not None and _is_wrapped(script, a.value) for a in arguments)


def _sets_static(call: cst.Call) -> bool:
    return method_name(call) == "_set_static_graph"


def _binds_loosely(test: str) -> bool:
    return isinstance(cst.parse_expression(test), cst.IfExp | cst.Lambda | cst.NamedExpr)


def _perhaps_unwrapped(script: Script, node: cst.BaseExpression) -> str | None:
    """What a name is wrapped in, where some way through the script leaves it unwrapped: `if distributed: model = DDP(model)`."""
    dataflow = dataflow_of(script)
    own = dataflow.bindings_of(node)
    wraps = [b.value for b in own if isinstance(b.value, cst.Call) and script.callee(b.value) in _NO_SYNC]
    for value in wraps:
        assert isinstance(value, cst.Call)
        compiles = [b.value for b in own if script.callee(b.value) == "torch.compile"]
        others = [b.value for b in own if b.value is not value and b.value not in compiles]
        after = any(script.span(o)[0] > script.span(value)[0] for o in others)
        conditional = any(
            isinstance(up, cst.If | cst.Else | cst.Try | cst.IfExp)
            for up in script.between(value, script.function_of(value))
        )
        if after or conditional:
            known = {n for n, _, _ in bindings(script)}
            if compiles or (dotted(value.func) or "").partition(".")[0] not in known:
                raise refusal(script, value, f"only some runs wrap {dotted(node)} in DistributedDataParallel")
            return script.code(value.func)
    if wraps:
        return None
    function = script.function_of(node)
    assert function is not None and isinstance(node, cst.Name)
    names = [p.name.value for p in function.params.params]
    callers = [c for c in script.all(cst.Call) if dataflow.definition(c.func) is function]
    arguments = [argument(c, node.value, names.index(node.value)) for c in callers]
    found = (_perhaps_unwrapped(script, a.value) for a in arguments if a is not None)
    return next((w for w in found if w is not None), None)


def _step_condition(step: Step) -> cst.If:
    """The `if` under which the optimizer steps, in the block of backward."""
    script = step.script
    steps = optimizer_steps(script, step.home)
    if len(steps) != 1:
        raise NoEdit(
            "ambiguous", f"{len(steps)} places step an optimizer", [candidate(script, c) for c, _ in steps]
        )
    condition = script.nearest(steps[0][0], cst.If)
    backward = whole_line(script, step.backward)
    if condition is None or script.span(condition)[0] <= script.span(step.home)[0]:
        raise already(script, steps[0][0], "steps after every backward: nothing is accumulated")
    apart = script.parent(condition) is not script.parent(backward)
    if apart or script.span(condition)[0] < script.span(backward)[0]:
        raise refusal(script, condition, "backward and step are in different blocks")
    return condition


def _refuse_decided_later(step: Step, forward: cst.CSTNode, condition: cst.If) -> None:
    """The test says before forward what it says at the step, and alone decides: ranks that differ in it would wait for ever."""
    script, end = step.script, step.script.span(condition)[0]
    if (way := way_out(script, step.home, (script.span(step.backward)[1], end))) is not None:
        raise refusal(script, way, "this, too, decides whether the optimizer steps")
    begin, names = script.span(forward)[0], names_in(script, condition.test)
    for line in script.all(cst.SimpleStatementLine, step.home):
        if begin <= script.span(line)[0] < end and any(binds(script, line, name) for name in names):
            raise refusal(
                script, line, "changes what decides whether the optimizer steps, after forward has begun"
            )
