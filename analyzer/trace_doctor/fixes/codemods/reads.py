"""`every-n-guard`, `save-every-n` and `sum-on-device`: values that are read from the device, or saved, in each step of a loop."""

from __future__ import annotations

import re

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.literals import source_text
from trace_doctor.model.parameters import EveryN, Parameters
from trace_doctor.program.edits import Change, Edit, NoEdit, shares_line, sketched, wrap
from trace_doctor.program.place import Place, in_function, on_line, only, refusal
from trace_doctor.program.queries.loops import conditional, enclosing_loop, method_calls, of_steps
from trace_doctor.program.queries.reached import reached
from trace_doctor.program.script import Script, argument, dotted, literal, method_name, receiver

_LOG_CALLS = re.compile(
    r"print|(.*\.)?(log|logger|logging|wandb|writer|tb|pbar|bar|tqdm|progress\w*|run|mlflow)\."
    r"(log|info|debug|warning|add_scalar|add_scalars|set_postfix|set_postfix_str|set_description|write|log_metric|log_metrics)",
    re.IGNORECASE,
)


def _with_others(place: Place, script: Script, statement: cst.CSTNode, every: int) -> Change:
    """The edit of a statement that reads a value, and of those that read the same value in each iteration as well: alone the
    wait would only go there. Raises NoEdit where one of them has no edit."""
    edits, notes = _edits(place, script, statement, every), []
    for other in _reading_as_well(script, statement):
        try:
            edits += _edits(place, script, other, every)
        except NoEdit:
            with sketched(Change(script, tuple(edits), script.line(statement))):
                raise refusal(
                    script, other, "this reads the same value in each iteration: the wait would go there"
                ) from None
        notes.append(
            f"{script.name}:{script.line(other)} reads the same value in each iteration and changes as well"
        )
    return Change(script, tuple(edits), script.line(statement), notes=tuple(notes))


def _edits(place: Place, script: Script, statement: cst.CSTNode, every: int) -> list[Edit]:
    if isinstance(statement, cst.AugAssign) and _adds_item(script, statement):
        return _sum(script, statement)
    if isinstance(statement, cst.Expr) and _logs_a_value(script, statement):
        return _guard(place, script, statement, source_text(every))
    raise refusal(script, statement, "no edit of this read is known")


def _reading_as_well(script: Script, statement: cst.CSTNode) -> list[cst.CSTNode]:
    """The other statements of a loop that read, in each iteration, a value which a statement reads."""
    loop = enclosing_loop(script, statement)
    read = {name for call in script.all(cst.Call, within=statement) if (name := _read_value(script, call))}
    others = [
        script.statement_of(call)
        for call in script.all(cst.Call, within=loop)
        if _read_value(script, call) in read
        and not script.within(call, statement)
        and enclosing_loop(script, call) is loop
        and not conditional(script, call)
    ]
    return list({id(o): o for o in others if o is not None}.values())


# ---------------------------------------------------------------------- every-n-guard


@codemod("every-n-guard", EveryN, adds="detach float", words=(".item(", "float(", ".cpu("))
def every_n_guard(place: Place, params: EveryN) -> Change:
    """Runs a log line that reads a value from the device only every N iterations."""
    logs = [(s, e) for s in place.scripts for e in s.all(cst.Expr) if _logs_a_value(s, e)]
    logs = in_function(place, logs)
    logs = of_steps(logs, place.function) if place.line is None else on_line(place, logs)
    script, statement = only(logs, "log a value in a loop", "no log line with .item() was found there")
    return _with_others(place, script, statement, params.every)


@codemod("save-every-n", EveryN, words=("torch.save(",))
def save_every_n(place: Place, params: EveryN) -> Change:
    """Runs a line that saves a checkpoint in each iteration of a loop only every N iterations."""
    saves = [(s, e) for s in place.scripts for e in s.all(cst.Expr) if _saves(s, e)]
    script, statement = only(
        on_line(place, saves), "save in a loop", "no torch.save() in each iteration was found there"
    )
    return Change(
        script, tuple(_guard(place, script, statement, source_text(params.every))), script.line(statement)
    )


def _guard(place: Place, script: Script, statement: cst.Expr, every: str) -> list[Edit]:
    """The edits that run a line every so many iterations."""
    loop = enclosing_loop(script, statement)
    counter = _counter(script, loop)
    if counter is None:
        raise refusal(script, statement, "the loop has no counter to guard the line with")
    if shares_line(script, statement):
        raise refusal(script, statement, "other statements share the line")
    if (effect := _effect(place, script, statement)) is not None:
        does = (
            "line does more than save"
            if _saves(script, statement)
            else "log line does more than read a value"
        )
        raise refusal(script, effect, f"the {does}, which every iteration needs")
    return wrap(script, statement, statement, f"if {counter} % {every} == 0:")


def _read_value(script: Script, call: cst.Call) -> str | None:
    """`loss` of `loss.item()`, `loss.detach().cpu()`, `float(loss)`, `writer.add_scalar("loss", loss)`."""
    value = receiver(call) if method_name(call) in ("item", "cpu", "tolist") else None
    if script.callee(call) == "float" and len(call.args) == 1:
        value = call.args[0].value
    if method_name(call) == "add_scalar" and len(call.args) > 1:
        value = call.args[1].value
    while isinstance(value, cst.Call) and method_name(value) in ("detach", "mean", "sum"):
        value = receiver(value)
    return dotted(value) if value is not None else None


_EFFECTS = frozenset([
    "next", "update", "step", "append", "extend", "pop", "add", "backward", "zero_grad", "train", "eval", "reset",
])  # fmt: skip


def _effect(place: Place, script: Script, statement: cst.Expr) -> cst.CSTNode | None:
    """What changes something inside a line: `next(it)`, `meter.update(...)`, a binding, or a function that does."""
    for where, node in reached(place.program, script, [statement]):
        calls = [c for c in where.all(cst.Call, within=node) if c is not statement.value]
        for call in calls:
            if (method_name(call) or dotted(call.func)) in _EFFECTS:
                return call if where is script else statement
        binds = [
            *where.all(cst.NamedExpr, node),
            *where.all(cst.AugAssign, node),
            *where.all(cst.Global, node),
        ]
        binds += [
            a
            for a in where.all(cst.Assign, node)
            if any(isinstance(t.target, cst.Attribute) for t in a.targets)
        ]
        if binds:
            return binds[0] if where is script else statement
    return None


def _logs_a_value(script: Script, statement: cst.Expr) -> bool:
    if not isinstance(statement.value, cst.Call) or enclosing_loop(script, statement) is None:
        return False
    names = (script.callee(statement.value), dotted(statement.value.func) or "")
    reads = any(method_name(c) in ("item", "cpu", "tolist") for c in script.all(cst.Call, within=statement))
    return any(map(_LOG_CALLS.fullmatch, names)) and reads and not conditional(script, statement)


def _saves(script: Script, statement: cst.Expr) -> bool:
    """`torch.save(...)` in each iteration of a loop."""
    value = statement.value
    saves = isinstance(value, cst.Call) and script.callee(value) == "torch.save"
    return saves and enclosing_loop(script, statement) is not None and not conditional(script, statement)


def _counter(script: Script, loop: cst.CSTNode | None) -> str | None:
    """The index of `for i, x in enumerate(...)` or `for i in range(...)`; `i // 30` where that counts in thirties."""
    if not isinstance(loop, cst.For) or not isinstance(loop.iter, cst.Call):
        return None
    calls = [loop.iter, *script.all(cst.Call, within=loop.iter)]
    if any(script.callee(c) == "enumerate" for c in calls[:3]) and isinstance(loop.target, cst.Tuple):
        return dotted(loop.target.elements[0].value)
    if script.callee(loop.iter) not in ("range", "tqdm.trange"):
        return None
    name, step = dotted(loop.target), argument(loop.iter, "step", 2)
    if name is None or step is None:
        return name
    width = dotted(step.value) or literal(step.value)
    forward = isinstance(width, str) or (isinstance(width, int) and width > 0)
    counts = forward and literal(loop.iter.args[0].value) == 0
    return f"{name} // {width}" if counts else None


# ---------------------------------------------------------------------- sum-on-device


@codemod("sum-on-device", Parameters, adds="detach float", words=(".item()",))
def sum_on_device(place: Place, params: Parameters) -> Change:
    """Adds up losses as tensors (detach() instead of item()), and reads the sum where it is used."""
    sums = [(s, a) for s in place.scripts for a in s.all(cst.AugAssign) if _adds_item(s, a)]
    sums = of_steps(in_function(place, sums), place.function) if place.line is None else on_line(place, sums)
    script, addition = only(sums, "add up a value that is read", "no running sum of .item() was found there")
    return _with_others(place, script, addition, EveryN().every)


def _sum(script: Script, addition: cst.AugAssign) -> list[Edit]:
    """The edits that keep a running sum on the device."""
    total = dotted(addition.target)
    home = script.function_of(addition)
    assert total is not None
    for binding in script.all(cst.AssignTarget, within=home):
        assign = script.parent(binding)
        if dotted(binding.target) == total and isinstance(assign, cst.Assign):
            if literal(assign.value) not in (0, 0.0):
                raise refusal(script, assign, f"{total} starts with something else than 0")
        elif any(isinstance(n, cst.Name) and n.value == total for n in script.below(binding.target)):
            raise refusal(script, binding, f"{total} is bound together with others")
    if any(n.name.value == total for g in script.all(cst.Global, within=home) for n in g.names):
        raise refusal(script, addition, f"{total} is a global name")
    uses = script.variables(total, home)
    if any(script.function_of(n) is not home for n in uses):
        raise refusal(script, addition, f"{total} is used in an inner function")
    item = _items(script, addition)[0]
    method = item.func
    assert isinstance(method, cst.Attribute)
    detached = method_name(method.value) == "detach"
    start, end = script.span(method.attr)
    kept = (
        Edit(script.outer_span(method.value)[1], script.span(item)[1], "")
        if detached
        else Edit(start, end, "detach")
    )
    reads = [n for n in uses if not _is_bound(script, n)]
    loop = enclosing_loop(script, addition)
    for name in reads:
        if enclosing_loop(script, name) is loop and not conditional(script, name):
            raise refusal(script, name, f"{total} is read in every step, which waits as well")
    return [kept, *(Edit(*script.span(n), f"float({total})") for n in reads)]


def _items(script: Script, addition: cst.AugAssign) -> list[cst.Call]:
    return [c for c, _ in method_calls(script, "item", addition.value) if not c.args]


def _adds_item(script: Script, addition: cst.AugAssign) -> bool:
    """`total += loss.item()`, `total += loss.item() * n` in a loop."""
    plain = isinstance(addition.operator, cst.AddAssign) and isinstance(addition.target, cst.Name)
    return plain and enclosing_loop(script, addition) is not None and len(_items(script, addition)) == 1


def _is_bound(script: Script, node: cst.Name) -> bool:
    up = script.parent(node)
    return isinstance(up, cst.AssignTarget) or (isinstance(up, cst.AugAssign) and up.target is node)
