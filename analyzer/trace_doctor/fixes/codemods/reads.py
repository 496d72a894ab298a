"""`every-n-guard`, `save-every-n` and `sum-on-device`: values that are read from the device, or saved, in each step of a loop."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.codemods.batches import numbered
from trace_doctor.fixes.literals import source_text
from trace_doctor.model.parameters import EveryN, Parameters
from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import Change, Edit, NoEdit, shares_line, sketched, wrap
from trace_doctor.program.place import Place, in_function, on_line, only, refusal
from trace_doctor.program.queries.loops import binds, enclosing_loop, method_calls, of_steps, only_sometimes
from trace_doctor.program.queries.reached import reached
from trace_doctor.program.script import (
    Script,
    argument,
    assigned_names,
    dotted,
    literal,
    method_name,
    receiver,
)

_LOG_CALLS = re.compile(
    r"print|(.*\.)?(log|logger|logging|wandb|writer|tb|pbar|bar|tqdm|progress\w*|run|mlflow)\."
    r"(log|info|debug|warning|add_scalar|add_scalars|set_postfix|set_postfix_str|set_description|write|log_metric|log_metrics)",
    re.IGNORECASE,
)


def _with_others(place: Place, script: Script, statement: cst.CSTNode, every: int) -> Change:
    """The edit of a statement that reads a value, and of those that read the same value in each iteration, or add up another: alone
    the wait would only go there. Raises NoEdit where one of them has no edit."""
    edits, notes = _edits(place, script, statement, every), []
    for other in _reading_as_well(script, statement):
        try:
            edits += _edits(place, script, other, every)
        except NoEdit:
            with sketched(Change(script, tuple(edits), script.line(statement))):
                raise refusal(
                    script, other, "this reads in each iteration as well: the wait would go there"
                ) from None
        notes.append(
            f"{script.name}:{script.line(other)} reads in each iteration as well, and changes with it"
        )
    change = Change(script, tuple(edits), script.line(statement), notes=tuple(notes))
    if (copy := _copied_as_well(script, statement)) is not None:
        with sketched(change):
            raise refusal(script, copy, "this copies to the host in each iteration: the wait would go there")
    return change


def _edits(place: Place, script: Script, statement: cst.CSTNode, every: int) -> list[Edit]:
    if isinstance(statement, cst.AugAssign) and _adds_item(script, statement):
        return _sum(script, statement)
    if isinstance(statement, cst.Expr) and (item := _appended(script, statement)) is not None:
        return _list(script, statement, item)
    if isinstance(statement, cst.Expr) and _logs_a_value(script, statement):
        return _guard(place, script, statement, source_text(every))
    raise refusal(script, statement, "no edit of this read is known")


def _reading_as_well(script: Script, statement: cst.CSTNode) -> list[cst.CSTNode]:
    """The other statements of a loop that read, in each iteration, a value which a statement reads, or add up or log another."""
    loop = enclosing_loop(script, statement)
    read = {name for call in script.all(cst.Call, within=statement) if (name := _read_value(script, call))}
    others = [
        script.statement_of(call)
        for call in script.all(cst.Call, within=loop)
        if (_read_value(script, call) in read or _changes_too(script, call))
        and not script.within(call, statement)
        and enclosing_loop(script, call) is loop
        and not only_sometimes(script, call)
    ]
    return list({id(o): o for o in others if o is not None}.values())


def _copied_as_well(script: Script, statement: cst.CSTNode) -> cst.CSTNode | None:
    """A copy to the host of another value, in each iteration of a statement's loop."""
    loop = enclosing_loop(script, statement)
    edited = [statement, *_reading_as_well(script, statement)]
    for call, _ in method_calls(script, "cpu", loop):
        stays = not any(script.within(call, other) for other in edited)
        if stays and enclosing_loop(script, call) is loop and not only_sometimes(script, call):
            return call
    return None


# ---------------------------------------------------------------------- every-n-guard


@codemod(
    "every-n-guard",
    EveryN,
    adds="detach clone float int value item enumerate step batch_index micro_step",
    words=(".item(", "float(", ".cpu("),
)
def every_n_guard(place: Place, params: EveryN) -> Change:
    """Runs a log line that reads a value from the device only every N iterations."""
    logs = [(s, e) for s in place.scripts for e in s.all(cst.Expr) if _logs_a_value(s, e)]
    logs = in_function(place, logs)
    logs = of_steps(logs, place.function) if place.line is None else on_line(place, logs)
    if len({enclosing_loop(s, e) for s, e in logs}) == 1:
        logs = logs[:1]  # the others of its loop change with it
    script, statement = only(logs, "log a value in a loop", "no log line with .item() was found there")
    return _with_others(place, script, statement, params.every)


@codemod("save-every-n", EveryN, adds="enumerate step batch_index micro_step", words=("torch.save(",))
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
    edits: list[Edit] = []
    if counter is None and isinstance(loop, cst.For):
        counter, edits = numbered(script, loop)
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
    return [*edits, *wrap(script, statement, statement, f"if {counter} % {every} == 0:")]


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
    return any(map(_LOG_CALLS.fullmatch, names)) and reads and not only_sometimes(script, statement)


def _saves(script: Script, statement: cst.Expr) -> bool:
    """`torch.save(...)` in each iteration of a loop."""
    value = statement.value
    saves = isinstance(value, cst.Call) and script.callee(value) == "torch.save"
    return saves and enclosing_loop(script, statement) is not None and not only_sometimes(script, statement)


def _counter(script: Script, loop: cst.CSTNode | None) -> str | None:
    """The index of `for i, x in enumerate(...)`, `for i in range(...)`, `for i in bar` of a `tqdm(range(...))`; `i // 30` where
    that counts in thirties."""
    if not isinstance(loop, cst.For):
        return None
    values = [b.value for b in dataflow_of(script).bindings_of(loop.iter)] or [loop.iter]
    ranges = [r for value in values if (r := _range(script, value)) is not None]
    if len(ranges) == len(values):
        return _counting(loop, ranges)
    if not isinstance(loop.iter, cst.Call):
        return None
    calls = [loop.iter, *script.all(cst.Call, within=loop.iter)]
    if any(script.callee(c) == "enumerate" for c in calls[:3]) and isinstance(loop.target, cst.Tuple):
        return dotted(loop.target.elements[0].value)
    return None


def _counting(loop: cst.For, ranges: Sequence[cst.Call]) -> str | None:
    """The target of a loop over one of these ranges as a number of the iteration; None where it is not known."""
    name = dotted(loop.target)
    steps = [argument(r, "step", 2) for r in ranges]
    if not any(steps):
        return name
    width = dotted(steps[0].value) or literal(steps[0].value) if len(ranges) == 1 and steps[0] else None
    forward = isinstance(width, str) or (isinstance(width, int) and width > 0)
    return f"{name} // {width}" if name and forward and literal(ranges[0].args[0].value) == 0 else None


def _range(script: Script, value: cst.BaseExpression | None) -> cst.Call | None:
    """The call of `range(n)`, `trange(n)`, `tqdm(range(n))`; None for anything else."""
    if not isinstance(value, cst.Call) or not value.args:
        return None
    name = script.callee(value)
    if name.endswith(".tqdm"):
        return _range(script, value.args[0].value)
    return value if name == "range" or name.endswith(".trange") else None


# ---------------------------------------------------------------------- sum-on-device


@codemod(
    "sum-on-device",
    Parameters,
    adds="detach clone float int value item enumerate step batch_index micro_step",
    words=(".item()",),
)
def sum_on_device(place: Place, params: Parameters) -> Change:
    """Adds up or lists losses as tensors (detach() instead of item()), and reads them where the sum or the list is used."""
    sums: list[tuple[Script, cst.BaseSmallStatement]]
    sums = [(s, a) for s in place.scripts for a in s.all(cst.AugAssign) if _adds_item(s, a)]
    sums += [(s, e) for s in place.scripts for e in s.all(cst.Expr) if _appended(s, e) is not None]
    sums = of_steps(in_function(place, sums), place.function) if place.line is None else on_line(place, sums)
    if len({enclosing_loop(s, a) for s, a in sums}) == 1:
        sums = sums[:1]  # the others of its loop change with it
    script, addition = only(sums, "add up a value that is read", "no running sum of .item() was found there")
    return _with_others(place, script, addition, EveryN().every)


def _sum(script: Script, addition: cst.AugAssign) -> list[Edit]:
    """The edits that keep a running sum on the device."""
    total = dotted(addition.target)
    home = script.function_of(addition)
    assert total is not None
    whole = True
    for binding in script.all(cst.AssignTarget, within=home):
        assign = script.parent(binding)
        if dotted(binding.target) == total and isinstance(assign, cst.Assign):
            if (start := literal(assign.value)) not in (0, 0.0):
                raise refusal(script, assign, f"{total} starts with something else than 0")
            whole &= isinstance(start, int)
        elif any(isinstance(n, cst.Name) and n.value == total for n in script.below(binding.target)):
            raise refusal(script, binding, f"{total} is bound together with others")
    uses = _uses(script, addition, total)
    item = _items(script, addition)[0]
    counted = _counts(receiver(item))
    number = "int" if whole and counted and item is addition.value else "float"
    reads = [n for n in uses if not _is_bound(script, n)]
    loop = enclosing_loop(script, addition)
    for name in reads:
        if enclosing_loop(script, name) is loop and not only_sometimes(script, name):
            raise refusal(script, name, f"{total} is read in every step, which waits as well")
    kept = _kept(script, item, "" if counted else ".detach()")
    return [kept, *(Edit(*script.span(n), f"{number}({total})") for n in reads)]


def _uses(script: Script, statement: cst.CSTNode, name: str) -> list[cst.Name]:
    """Where the function of a statement uses a name. Raises NoEdit where others may use it as well."""
    home = script.function_of(statement)
    if any(n.name.value == name for g in script.all(cst.Global, within=home) for n in g.names):
        raise refusal(script, statement, f"{name} is a global name")
    uses = script.variables(name, home)
    if any(script.function_of(n) is not home for n in uses):
        raise refusal(script, statement, f"{name} is used in an inner function")
    return uses


def _kept(script: Script, item: cst.Call, text: str) -> Edit:
    """The edit that puts something else in place of `.item()`, but no second `.detach()`."""
    value = receiver(item)
    while isinstance(value, cst.Call) and method_name(value) == "cpu" and receiver(value) is not None:
        value = receiver(value)  # the copy to the host is the wait
    assert value is not None
    text = text.removeprefix(".detach()") if method_name(value) == "detach" else text
    return Edit(script.outer_span(value)[1], script.span(item)[1], text)


def _appended(script: Script, statement: cst.Expr) -> cst.Call | None:
    """`loss.item()` of `losses.append(loss.item())` in a loop."""
    call = statement.value
    if not isinstance(call, cst.Call) or method_name(call) != "append" or len(call.args) != 1:
        return None
    item = call.args[0].value
    reads = isinstance(item, cst.Call) and method_name(item) == "item" and not item.args
    plain = isinstance(receiver(call), cst.Name) and enclosing_loop(script, statement) is not None
    return item if isinstance(item, cst.Call) and reads and plain else None


def _list(script: Script, statement: cst.Expr, item: cst.Call) -> list[Edit]:
    """The edits that list values on the device, and read them where the list is used behind the loop, until its name means
    something else. A copy is kept: the value may change in place, or its memory be that of a CUDA graph."""
    assert isinstance(statement.value, cst.Call)
    name = dotted(receiver(statement.value) or statement) or ""
    uses = _uses(script, statement, name)
    starts = [
        a
        for a in script.all(cst.Assign, within=script.function_of(statement))
        if assigned_names(a) == [name] and isinstance(a.value, cst.List) and not a.value.elements
    ]
    if len(starts) != 1:
        raise refusal(script, statement, f"{name} does not start as [] in one place of this function")
    block, at = script.block_of(starts[0])
    lines = block.body[at + 1 :]
    edits, loop = [_kept(script, item, ".detach().clone()")], enclosing_loop(script, statement)
    end = next((n for n, line in enumerate(lines) if binds(script, line, name)), len(lines))
    if not any(script.within(statement, line) for line in lines):
        raise refusal(script, starts[0], f"{name} is used in another place")
    for use in uses:
        where = next((n for n, line in enumerate(lines) if script.within(use, line)), None)
        if (
            script.within(use, starts[0])
            or script.within(use, statement)
            or (where is not None and where > end)
        ):
            continue
        if where is None or (where == end and not isinstance(lines[end], cst.SimpleStatementLine)):
            raise refusal(script, use, f"{name} is used in another place")
        if _is_bound(script, use):
            continue
        if enclosing_loop(script, use) is loop and not only_sometimes(script, use):
            raise refusal(script, use, f"{name} is read in every step, which waits as well")
        one = script.parent(use)
        if isinstance(one, cst.Subscript) and not script.all(cst.Slice, within=one):
            end_of_one = script.span(one)[1]
            edits.append(Edit(end_of_one, end_of_one, ".item()"))
        else:
            edits.append(Edit(*script.span(use), f"[value.item() for value in {name}]"))
    return edits


def _items(script: Script, addition: cst.AugAssign) -> list[cst.Call]:
    return [c for c, _ in method_calls(script, "item", addition.value) if not c.args]


def _adds_item(script: Script, addition: cst.AugAssign) -> bool:
    """`total += loss.item()`, `total += loss.item() * n` in a loop."""
    plain = isinstance(addition.operator, cst.AddAssign) and isinstance(addition.target, cst.Name)
    return plain and enclosing_loop(script, addition) is not None and len(_items(script, addition)) == 1


def _changes_too(script: Script, call: cst.Call) -> bool:
    """Whether a call is the `item()` of a running sum or of a list, or stands in a log line."""
    statement = script.statement_of(call)
    if isinstance(statement, cst.Expr):
        return _appended(script, statement) is call or _logs_a_value(script, statement)
    return (
        isinstance(statement, cst.AugAssign)
        and _adds_item(script, statement)
        and call in _items(script, statement)
    )


def _counts(value: cst.BaseExpression | None) -> bool:
    """`(a == b).sum()`, `a.eq(b).sum()`: a whole number, without a gradient."""
    compared = receiver(value) if isinstance(value, cst.Call) and method_name(value) == "sum" else None
    called = method_name(compared) if isinstance(compared, cst.Call) else None
    return isinstance(compared, cst.Comparison) or called in ("eq", "ne", "lt", "le", "gt", "ge")


def _is_bound(script: Script, node: cst.Name) -> bool:
    up = script.parent(node)
    return isinstance(up, cst.AssignTarget) or (isinstance(up, cst.AugAssign) and up.target is node)
