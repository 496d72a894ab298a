"""Where a configured value is really set: the constant, the argparse default or the dataclass field behind an expression."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from trace_doctor.fixes.edits import Edit
from trace_doctor.loaders.project import Project
from trace_doctor.loaders.script import Script, argument, dotted, literal


@dataclass(frozen=True)
class WhereSet:
    """The expression to edit: a literal bound once, the `default=` of an option, or that of a dataclass field."""

    value: cst.BaseExpression
    how: str
    """constant | default"""
    script: Script
    flag: str = ""
    """what a user types on the command line to set it; empty where there is no such option"""


def where_set(script: Script, node: cst.BaseExpression, project: Project | None = None) -> WhereSet | None:
    """The one place that sets the value of an expression, or None when there is none or more than one."""
    project = project or Project([script])
    if isinstance(node, cst.Call) and script.callee(node) == "int" and len(node.args) == 1:
        node = node.args[0].value
    found = project.of(script, node)
    if len(found) != 1:
        return None
    home, origin = found[0]
    if origin is not node and literal(origin) is not ...:
        return WhereSet(origin, "constant", home)
    name = dotted(origin)
    if name is None or "." not in name:
        return None
    assert isinstance(origin, cst.Attribute)
    return _field_default(project, home, origin) or _option_default(project, name.split(".")[-1])


def set_origin(origin: WhereSet, text: str, name: str) -> list[Edit]:
    """Edits that set a value where it is set, and what the help of its option says is the default. `name`: what it is."""
    script = origin.script
    start, end = script.outer_span(origin.value)
    edits = [Edit(start, end, text, f"{name}:{start}", text)]
    option = script.nearest(origin.value, cst.Call) if origin.how == "default" else None
    now = re.escape(script.code(origin.value))
    for said in script.all(cst.SimpleString, within=option) if option is not None else ():
        first, last = script.span(said)
        for found in re.finditer(
            rf"(?i)\bdefault(?:s to| is|:|=|)\s*(?P<now>{now})(?![\w.])", script.text[first:last]
        ):
            at = first + found.start("now")
            edits.append(Edit(at, first + found.end("now"), text, f"help:{at}", text))
    return edits


def divided(origin: WhereSet, project: Project | None = None) -> tuple[Script, cst.BaseExpression] | None:
    """A division with the value in it: accumulation steps or a learning rate computed from a batch size. An option or a
    field is looked for in the whole program, a constant in the script that sets it."""
    home = origin.script
    name = _bound_name(origin)
    others = project.mentioning(name) if project is not None and name and origin.how == "default" else ()
    for script in (home, *(s for s in others if s is not home)) if name else ():
        for operation in script.all(cst.BinaryOperation):
            if isinstance(operation.operator, cst.Divide | cst.FloorDivide | cst.Modulo):
                read = [dotted(n) or "" for n in _operands(operation)]
                if any(n.split(".")[-1] == name and ("." in n or script is home) for n in read):
                    return script, operation
    return None


def _bound_name(origin: WhereSet) -> str | None:
    """What the program calls the value."""
    if origin.flag:
        return origin.flag.lstrip("-").replace("-", "_")
    script = origin.script
    statement = script.statement_of(origin.value)
    target = script.parent(origin.value)
    if isinstance(target, cst.Param):
        return target.name.value
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        return dotted(statement.targets[0].target)
    return dotted(statement.target) if isinstance(statement, cst.AnnAssign) else None


def _operands(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The factors of an arithmetic expression."""
    if isinstance(node, cst.BinaryOperation):
        yield from _operands(node.left)
        yield from _operands(node.right)
    else:
        yield node


def _field_default(project: Project, script: Script, node: cst.Attribute) -> WhereSet | None:
    """The field of a dataclass of this program, or what its one construction passes for it."""
    made = project.of(script, node.value)
    owner = project.class_of(script, node.value)
    if len(made) != 1 or owner is None:
        return None
    home, call = made[0]
    if isinstance(call, cst.Call):
        passed = argument(call, node.attr.value)
        if passed is not None:
            return WhereSet(passed.value, "constant", home) if literal(passed.value) is not ... else None
        if any(a.star or a.keyword is None for a in call.args):
            return None
    where, definition = owner
    body = definition.body.body if isinstance(definition.body, cst.IndentedBlock) else []
    for line in body:
        statement = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
        if (
            isinstance(statement, cst.AnnAssign)
            and dotted(statement.target) == node.attr.value
            and statement.value
        ):
            default = statement.value
            if isinstance(default, cst.Call) and where.callee(default) == "dataclasses.field":
                given = argument(default, "default")
                default = given.value if given is not None else default
            return WhereSet(default, "default", where) if literal(default) is not ... else None
    return None


def _option_default(project: Project, name: str) -> WhereSet | None:
    """`default=` of the one `add_argument` whose destination has this name."""
    options = [
        (s, c)
        for s in project.mentioning("add_argument")
        for c in s.all(cst.Call)
        if _method(c) == "add_argument" and _destination(c) == name
    ]
    if len(options) != 1:
        return None
    script, call = options[0]
    default, action = argument(call, "default"), argument(call, "action")
    if action is not None and literal(action.value) in ("store_true", "store_false"):
        return None  # another default would leave nothing that switches it back
    if default is None or literal(default.value) is ...:
        return None
    return WhereSet(default.value, "default", script, _flag(call))


def _method(call: cst.Call) -> str | None:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else None


def _names(call: cst.Call) -> list[str]:
    found = [literal(a.value) for a in call.args if a.keyword is None]
    return [f for f in found if isinstance(f, str)]


def _flag(call: cst.Call) -> str:
    names = [n for n in _names(call) if n.startswith("-")]
    return next((n for n in names if n.startswith("--")), names[0] if names else "")


def _destination(call: cst.Call) -> str | None:
    """The attribute that argparse stores an option under."""
    explicit = argument(call, "dest")
    if explicit is not None:
        found = literal(explicit.value)
        return found if isinstance(found, str) else None
    names = _names(call)
    long = next((n for n in names if n.startswith("--")), names[0] if names else None)
    return long.lstrip("-").replace("-", "_") if long else None
