"""`remove-call` and `set-call-args`: calls that should not be there, and arguments that should."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.codemods.compiling import OPTIONS
from trace_doctor.fixes.literals import source_text
from trace_doctor.model.parameters import PARAMETERS, CompileCall, RemoveCall
from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import (
    Change,
    Edit,
    add_arguments,
    remove,
    remove_argument,
    set_argument,
    sketched,
)
from trace_doctor.program.place import Place, already, in_function, on_line, only, refusal
from trace_doctor.program.queries.arguments import refuse_configured, refuse_explained
from trace_doctor.program.queries.loops import enclosing_loop, in_handler, method_calls, of_steps, trains
from trace_doctor.program.script import Script, argument, literal, method_name

_CLOCK = re.compile(
    r"(?:^|\.)(?:(?:time|perf_counter|monotonic|process_time|now|elapsed_time)(?:_ns)?"
    r"|(?:max_)?memory_(?:allocated|reserved|stats)|mem_get_info)$"
)
"""what measures: time, or GPU memory"""


@codemod("remove-call", RemoveCall)
def remove_call(place: Place, params: RemoveCall) -> Change:
    """Takes out a statement that calls a named function, from the loop it slows down."""
    name = params.call
    calls = [(s, c) for s in place.scripts for c in s.calls(name) if not in_handler(s, c)]
    calls = on_line(place, calls)
    if place.line is None:
        calls = of_steps([(s, c) for s, c in in_function(place, calls) if _repeats(s, c)], place.function)
        seldom = [(s, c) for s, c in calls if not _in_each_step(s, c)]
        calls = [pair for pair in calls if pair not in seldom]
        if seldom and not calls:
            raise refusal(
                *seldom[0], "it does not run in each step: once per epoch, or after a number of steps"
            )
    script, call = only(calls, f"call {name}", f"no call of {name} was found there")
    statement = script.statement_of(call)
    if not isinstance(statement, cst.Expr) or statement.value is not call:
        raise refusal(script, call, f"the value of {name}() is used")
    change = Change(script, (remove(script, statement),), script.line(call))
    if name.endswith(".synchronize") and (copy := _unawaited_copy(script, call)) is not None:
        raise refusal(script, call, "a copy to the host that does not wait is read after it", copy)
    with sketched(change):
        if name.endswith(".synchronize"):
            _refuse_wanted(script, statement)
        if name.endswith(".synchronize") and (clock := _clock_after(script, statement)) is not None:
            why = "time or memory is measured right after it, for which the program waits on purpose"
            raise refusal(script, call, why, clock)
    return change


def _refuse_wanted(script: Script, statement: cst.CSTNode) -> None:
    """Raises NoEdit for a wait that a comment explains, or that may put the work of several streams in order."""
    line = script.line(statement)
    if script.line_text(line - 1).strip().startswith("#") or "#" in script.line_text(line):
        raise refusal(script, statement, "a comment says why it waits")
    for stream in script.calls("torch.cuda.Stream", "torch.cuda.stream"):
        raise refusal(script, stream, "the wait may put the work of several streams in order")


def _unawaited_copy(script: Script, call: cst.Call) -> cst.CSTNode | None:
    """A copy with `non_blocking` of a function that may be one to the host: its data is there when the device is done."""
    for copy in script.all(cst.Call, within=script.function_of(call)):
        waits = argument(copy, "non_blocking")
        device = argument(copy, "device", 0)
        to_device = device is not None and re.search(r"cuda|device|gpu|rank", script.code(device.value))
        into = method_name(copy) == "copy_"  # into what is there already, wherever that is
        if waits is not None and literal(waits.value) is not False and (into or not to_device):
            return copy
    return None


def _clock_after(script: Script, statement: cst.CSTNode) -> cst.CSTNode | None:
    """The statement behind another one, or behind the `if` around it, where that measures."""
    block, index = script.block_of(statement)
    owner: cst.CSTNode | None = script.parent(block)
    if index + 1 < len(block.body):
        calls = script.all(cst.Call, within=(after := block.body[index + 1]))
        return after if any(_CLOCK.search(script.code(c.func)) for c in calls) else None
    if not isinstance(owner, cst.If | cst.Else):
        return None
    while isinstance(owner, cst.Else) or isinstance(script.parent(owner), cst.If):
        owner = script.parent(owner)
        assert owner is not None
    return _clock_after(script, owner)


def _repeats(script: Script, call: cst.Call) -> bool:
    """Whether a call stands in a loop, or in a function of the script that is called from one."""
    if enclosing_loop(script, call) is not None:
        return True
    function = script.function_of(call)
    return function is not None and any(
        enclosing_loop(script, caller) is not None and dataflow_of(script).definition(caller.func) is function
        for caller in script.all(cst.Call)
    )


def _in_each_step(script: Script, call: cst.Call) -> bool:
    """Whether a call runs once per training step, or the loop around it is none that is seen to train."""
    loop = enclosing_loop(script, call)
    if loop is None or not trains(script, loop):
        return True
    functions = [dataflow_of(script).definition(c.func) for c in script.all(cst.Call, within=loop)]
    homes = [(loop, loop), *((f, None) for f in functions if isinstance(f, cst.FunctionDef))]
    steps = (
        enclosing_loop(script, c) is around
        for home, around in homes
        for c, _ in method_calls(script, "backward", home)
    )
    tests = (up.test for up in script.between(call, loop) if isinstance(up, cst.If))
    counted = any(True for test in tests for _ in script.all(cst.Modulo, within=test))
    return not counted and any(steps)


@codemod(
    "set-call-args", PARAMETERS["set-call-args"], adds=f"compile {OPTIONS}", scope="call", elsewhere=True
)
def set_call_args(place: Place, params: CompileCall) -> Change:
    """Sets and removes keyword arguments of the one call of a named function."""
    callee, removals = params.callee, params.remove
    values = {name: source_text(value) for name, value in params.args.set_values().items()}
    nodes: list[tuple[Script, cst.Call | cst.Decorator]]
    nodes = [(s, c) for s in place.scripts for c in s.calls(callee)]
    bare = [(s, d) for s in place.scripts for d in s.all(cst.Decorator) if s.qualified(d.decorator) == callee]
    nodes += [(s, d) for s, d in bare if not isinstance(d.decorator, cst.Call)]
    script, node = only(on_line(place, nodes) or nodes, f"call {callee}", f"no call of {callee} was found")
    if isinstance(node, cst.Decorator):
        if not values:
            raise already(script, node, "passes no arguments")
        end = script.span(node.decorator)[1]
        text = "(" + ", ".join(f"{name}={value}" for name, value in values.items()) + ")"
        return Change(script, (Edit(end, end, text, f"decorator:{end}", text),), script.line(node))
    change = Change(script, tuple(_edits(script, node, values, removals)), script.line(node))
    with sketched(change):
        refuse_configured(script, node, *(argument(node, name) for name in (*values, *removals)))
        refuse_explained(script, node, (*values, *removals))
    return change


def _edits(script: Script, call: cst.Call, values: dict[str, str], removals: Sequence[str]) -> list[Edit]:
    if any(a.star for a in call.args):
        raise refusal(script, call, "the call takes *args or **kwargs that may hold these")
    if "mode" in values and argument(call, "options"):
        raise refusal(script, call, "mode and options exclude each other")
    edits, additions = [], {}
    for name, value in values.items():
        there = argument(call, name)
        if there is None:
            additions[name] = value
        elif script.code(there.value) != value:
            edits.append(set_argument(script, call, there, value))
    edits += [remove_argument(script, call, arg) for name in removals if (arg := argument(call, name))]
    edits += add_arguments(script, call, additions)
    if not edits:
        raise already(script, call, "has these arguments already")
    return edits
