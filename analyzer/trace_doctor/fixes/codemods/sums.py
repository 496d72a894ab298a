"""`sum-on-device`: a running sum of losses that is read from the device once at the end instead of in every step."""

from __future__ import annotations

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.codemods.tensors import read_beside
from trace_doctor.model.parameters import Parameters
from trace_doctor.program.edits import Change, Edit
from trace_doctor.program.place import Place, in_function, on_line, only, refusal
from trace_doctor.program.queries.loops import conditional, enclosing_loop, method_calls, of_steps
from trace_doctor.program.script import Script, dotted, literal


@codemod("sum-on-device", Parameters, adds="detach float", words=(".item()",))
def sum_on_device(place: Place, params: Parameters) -> Change:
    """Adds up losses as tensors (detach() instead of item()), and reads the sum where it is used."""
    sums = [(s, a) for s in place.scripts for a in s.all(cst.AugAssign) if _adds_item(s, a)]
    sums = of_steps(in_function(place, sums), place.function) if place.line is None else on_line(place, sums)
    script, addition = only(sums, "add up a value that is read", "no running sum of .item() was found there")
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
    method = _items(script, addition)[0].func
    assert isinstance(method, cst.Attribute)
    reads = [n for n in uses if not _is_bound(script, n)]
    loop = enclosing_loop(script, addition)
    for name in reads:
        if enclosing_loop(script, name) is loop and not conditional(script, name):
            raise refusal(script, name, f"{total} is read in every step, which waits as well")
    edits = [Edit(*script.span(n), f"float({total})") for n in reads]
    change = (Edit(*script.span(method.attr), "detach"), *edits)
    return Change(script, change, script.line(addition), notes=read_beside(script, addition))


def _items(script: Script, addition: cst.AugAssign) -> list[cst.Call]:
    return [c for c, _ in method_calls(script, "item", addition.value) if not c.args]


def _adds_item(script: Script, addition: cst.AugAssign) -> bool:
    """`total += loss.item()`, `total += loss.item() * n` in a loop."""
    plain = isinstance(addition.operator, cst.AddAssign) and isinstance(addition.target, cst.Name)
    return plain and enclosing_loop(script, addition) is not None and len(_items(script, addition)) == 1


def _is_bound(script: Script, node: cst.Name) -> bool:
    up = script.parent(node)
    return isinstance(up, cst.AssignTarget) or (isinstance(up, cst.AugAssign) and up.target is node)
