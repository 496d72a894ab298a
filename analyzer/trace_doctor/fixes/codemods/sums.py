"""`sum-on-device`: a running sum of losses that is read from the device once at the end instead of in every step."""

from __future__ import annotations

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.model.parameters import Parameters
from trace_doctor.program.edits import Change, Edit
from trace_doctor.program.place import Place, in_function, only, refusal
from trace_doctor.program.queries.loops import conditional, enclosing_loop, of_steps
from trace_doctor.program.script import Script, dotted, literal


@codemod("sum-on-device", Parameters, adds="detach float", words=(".item()",))
def sum_on_device(place: Place, params: Parameters) -> Change:
    """Adds up losses as tensors (detach() instead of item()), and reads the sum where it is used."""
    found = [(s, a) for s in place.scripts for a in s.all(cst.AugAssign) if _adds_item(s, a)]
    if place.line is None:
        found = of_steps(in_function(place, found))
    if place.line is not None:
        found = [(s, a) for s, a in found if s.lines(a)[0] <= place.line <= s.lines(a)[1]]
    script, addition = only(found, "add up a value that is read", "no running sum of .item() was found there")
    total = addition.target.value
    home = script.function_of(addition) or script.module
    for binding in script.all(cst.AssignTarget, within=home):
        assign = script.parent(binding)
        if dotted(binding.target) == total and isinstance(assign, cst.Assign):
            if literal(assign.value) not in (0, 0.0):
                raise refusal(script, assign, f"{total} starts with something else than 0")
        elif any(isinstance(n, cst.Name) and n.value == total for n in script.below(binding.target)):
            raise refusal(script, binding, f"{total} is bound together with others")
    if any(n.name.value == total for g in script.all(cst.Global, within=home) for n in g.names):
        raise refusal(script, addition, f"{total} is a global name")
    if any(script.function_of(n) is not script.function_of(addition) for n in _names(script, total, home)):
        raise refusal(script, addition, f"{total} is used in an inner function")
    edits = [
        Edit(*script.span(c.func.attr), "detach")
        for c in _items(script, addition)
        if isinstance(c.func, cst.Attribute)
    ]
    reads = [n for n in _names(script, total, home) if not _is_bound(script, n)]
    in_step = [
        n
        for n in reads
        if enclosing_loop(script, n) is enclosing_loop(script, addition) and not conditional(script, n)
    ]
    if in_step:
        raise refusal(script, in_step[0], f"{total} is read in every step, which waits as well")
    edits += [Edit(*script.span(n), f"float({total})") for n in reads]
    return Change(script, tuple(edits), script.line(addition))


def _items(script: Script, addition: cst.AugAssign) -> list[cst.Call]:
    return [
        c
        for c in script.all(cst.Call, within=addition.value)
        if isinstance(c.func, cst.Attribute) and c.func.attr.value == "item" and not c.args
    ]


def _adds_item(script: Script, addition: cst.AugAssign) -> bool:
    """`total += loss.item()`, `total += loss.item() * n` in a loop."""
    plain = isinstance(addition.operator, cst.AddAssign) and isinstance(addition.target, cst.Name)
    return plain and enclosing_loop(script, addition) is not None and len(_items(script, addition)) == 1


def _names(script: Script, name: str, home: cst.CSTNode) -> list[cst.Name]:
    found = [n for n in script.all(cst.Name, within=home) if n.value == name]
    ups = [(n, script.parent(n)) for n in found]
    return [
        n
        for n, up in ups
        if not (isinstance(up, cst.Attribute) and up.attr is n)
        and not (isinstance(up, cst.Arg) and up.keyword is n)
    ]


def _is_bound(script: Script, node: cst.Name) -> bool:
    up = script.parent(node)
    return isinstance(up, cst.AssignTarget) or (isinstance(up, cst.AugAssign) and up.target is node)
