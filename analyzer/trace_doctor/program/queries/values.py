"""Where a configured value is really set: the constant, the argparse default or the dataclass field behind an expression."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import Edit
from trace_doctor.program.project import Project
from trace_doctor.program.script import (
    Script,
    argument,
    assigned_names,
    dotted,
    key_of,
    literal,
    method_name,
    receiver,
)


@dataclass(frozen=True)
class WhereSet:
    """The expression to edit: a literal bound once, the `default=` of an option, or that of a dataclass field."""

    value: cst.BaseExpression
    how: str
    """constant | default"""
    script: Script
    flag: str = ""
    """what a user types on the command line to set it; empty where there is no such option"""
    flags: tuple[str, ...] = ()
    """all spellings of it, of a parser whose options are seen"""
    changed: tuple[Script, cst.CSTNode] | None = None
    """where the program computes another value from it and puts that in its place, as workers per node into workers per GPU"""


def where_set(
    script: Script, node: cst.BaseExpression, project: Project, *, changed: bool = False
) -> WhereSet | None:
    """The one place that sets the value of an expression, or None when there is none or more than one. `changed`: also
    where the program puts what it computes from the value in its place."""
    origins = project.of(script, _as_number(script, node))
    if len({(home.name, dotted(value) or id(value)) for home, value in origins}) != 1:
        return None  # several calls may pass the same option
    home, value = origins[0]
    origin = _as_number(home, value)
    if origin is not value and isinstance(origin, cst.Name | cst.Attribute):  # `x = int(x)` asks for itself
        further = project.of(home, origin)
        home, origin = further[0] if len(further) == 1 else (home, value)
    before = _before_change(home, origin) if changed else None
    if before is not None:
        found = _option_default(project, before.attr.value)
        return replace(found, changed=(home, value)) if found is not None else None
    if isinstance(origin, cst.Subscript):
        return _entry(project, home, origin)
    if origin is not node and literal(origin) is not ...:
        return WhereSet(origin, "constant", home)
    if not isinstance(origin, cst.Attribute) or dotted(origin) is None:
        return None
    field = _field_default(project, home, origin) or _parsed_field(project, home, origin)
    return field or _option_default(project, origin.attr.value)


def _before_change(script: Script, value: cst.BaseExpression) -> cst.Attribute | None:
    """`args.workers` of `args.workers = int((args.workers + n - 1) / n)`."""
    names = assigned_names(script.statement_of(value))
    nodes = [node for node in script.all(cst.Attribute, within=value) if dotted(node) in names]
    return nodes[0] if len(names) == 1 and nodes and nodes[0] is not value else None


def _as_number(script: Script, node: cst.BaseExpression) -> cst.BaseExpression:
    """`x` of `int(x)`."""
    if isinstance(node, cst.Call) and script.callee(node) == "int" and len(node.args) == 1:
        return node.args[0].value
    return node


def _entry(project: Project, script: Script, node: cst.Subscript) -> WhereSet | None:
    """`config["key"]` of the one dictionary that `config` stands for, whose entry nothing changes."""
    key = key_of(node)
    origins = project.of(script, node.value) if key is not None else []
    home, mapping = origins[0] if len(origins) == 1 else (script, None)
    if not isinstance(mapping, cst.Dict):
        return None
    for other in project.scripts_with(f'"{key}"', f"'{key}'"):
        for item in other.all(cst.Subscript):
            changes = isinstance(other.parent(item), cst.AssignTarget | cst.AugAssign | cst.Del)
            if changes and key_of(item) == key:
                return None
    plain = [e for e in mapping.elements if isinstance(e, cst.DictElement)]
    values = [e.value for e in plain if literal(e.key) == key]
    if len(values) != 1 or len(plain) != len(mapping.elements):
        return None
    return _literal_at(home, values[0], "constant")


def _literal_at(script: Script, value: cst.BaseExpression, how: str, flag: str = "") -> WhereSet | None:
    return WhereSet(value, how, script, flag) if literal(value) is not ... else None


def set_origin(origin: WhereSet, text: str, name: str) -> list[Edit]:
    """Edits that set a value where it is set, and what the help of its option says is the default. `name`: what it is."""
    script = origin.script
    start, end = script.outer_span(origin.value)
    edits = [Edit(start, end, text, f"{name}:{start}", text)]
    option = script.nearest(origin.value, cst.Call) if origin.how == "default" else None
    now, new = re.escape(script.code(origin.value).strip("\"'")), text.strip("\"'")
    for help_text in script.all(cst.SimpleString, within=option) if option is not None and now else ():
        first, last = script.span(help_text)
        for match in re.finditer(
            rf"(?i)\bdefault(?:s to| is|:|=|)\s*['\"]?(?P<now>{now})(?![\w.])", script.text[first:last]
        ):
            at = first + match.start("now")
            edits.append(Edit(at, first + match.end("now"), new, f"help:{at}", new))
    return edits


def division_of(origin: WhereSet, project: Project) -> tuple[Script, cst.BaseExpression] | None:
    """A division with the value in it: accumulation steps or a learning rate computed from a batch size. An option or a
    field is looked for in the whole program, a constant in the script that sets it."""
    home = origin.script
    name = _bound_name(origin)
    others = project.scripts_with(name) if name and origin.how == "default" else ()
    for script in (home, *(s for s in others if s is not home)) if name else ():
        for operation in script.all(cst.BinaryOperation):
            if isinstance(operation.operator, cst.Divide | cst.FloorDivide | cst.Modulo):
                operands = [dotted(n) or "" for n in _operands(operation)]
                if any(n.split(".")[-1] == name and ("." in n or script is home) for n in operands):
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
    if isinstance(target, cst.DictElement):
        key = literal(target.key)
        return key if isinstance(key, str) else None
    names = [dotted(statement.target)] if isinstance(statement, cst.AnnAssign) else assigned_names(statement)
    return names[0] if len(names) == 1 else None


def _operands(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The factors of an arithmetic expression."""
    if isinstance(node, cst.BinaryOperation):
        yield from _operands(node.left)
        yield from _operands(node.right)
    else:
        yield node


def _field_default(project: Project, script: Script, node: cst.Attribute) -> WhereSet | None:
    """The field of a dataclass of this program, or what its one construction passes for it."""
    origins = project.of(script, node.value)
    owner = project.class_of(script, node.value)
    if len(origins) != 1 or owner is None:
        return None
    home, call = origins[0]
    if isinstance(call, cst.Call):
        arg = argument(call, node.attr.value)
        if arg is not None:
            return _literal_at(home, arg.value, "constant")
        if any(a.star or a.keyword is None for a in call.args):
            return None
    return _default_in(*owner, node.attr.value)


_PARSE = ("parse_args_into_dataclasses", "parse_args_and_config", "parse", "parse_args")


def _parsed_field(project: Project, script: Script, node: cst.Attribute) -> WhereSet | None:
    """The field of a dataclass of this program that a parser for dataclasses fills: HfArgumentParser, TrlParser."""
    origins = project.of(script, node.value)
    bindings = dataflow_of(script).bindings_of(node.value)
    item = bindings[0].item if len(bindings) == 1 else None
    home, origin = origins[0] if len(origins) == 1 else (script, None)
    if isinstance(origin, cst.Subscript) and isinstance(origin.slice[0].slice, cst.Index):
        index = literal(origin.slice[0].slice.value)
        origin, item = origin.value, index if isinstance(index, int) else None
    parser_node = receiver(origin) if method_name(origin) in _PARSE else None
    parsers = project.of(home, parser_node) if parser_node is not None else []
    where, parser = parsers[0] if len(parsers) == 1 else (home, None)
    if not isinstance(parser, cst.Call):
        return None
    classes = argument(parser, "dataclass_types", 0)
    if not where.callee(parser).endswith((".HfArgumentParser", ".TrlParser")) or classes is None:
        return None
    value = classes.value
    several = [e.value for e in value.elements] if isinstance(value, cst.Tuple | cst.List) else [value]
    item = 0 if len(several) == 1 else item
    if item is None or item >= len(several):
        return None
    owner = project.class_by_name(where, several[item])
    return _default_in(*owner, node.attr.value, f"--{node.attr.value}") if owner is not None else None


def _default_in(where: Script, owner: cst.ClassDef, name: str, flag: str = "") -> WhereSet | None:
    """The default of a dataclass's field."""
    body = owner.body.body if isinstance(owner.body, cst.IndentedBlock) else []
    for line in body:
        statement = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
        if isinstance(statement, cst.AnnAssign) and dotted(statement.target) == name and statement.value:
            default = statement.value
            if isinstance(default, cst.Call) and where.callee(default) == "dataclasses.field":
                arg = argument(default, "default")
                default = arg.value if arg is not None else default
            return _literal_at(where, default, "default", flag)
    return None


def _option_default(project: Project, name: str) -> WhereSet | None:
    """`default=` of the one `add_argument` whose destination has this name."""
    options = [
        (s, c)
        for s in project.scripts_with("add_argument")
        for c in s.all(cst.Call)
        if method_name(c) == "add_argument" and _destination(c) == name
    ]
    if len(options) != 1:
        return None
    script, call = options[0]
    default, action = argument(call, "default"), argument(call, "action")
    if action is not None and literal(action.value) in ("store_true", "store_false"):
        return None  # another default would leave nothing that switches it back
    flags = tuple(name for name in _names(call) if name.startswith("-"))
    flag = _flag(call) if flags else ""
    place = _literal_at(script, default.value, "default", flag) if default is not None else None
    return replace(place, flags=flags) if place is not None else None


def _names(call: cst.Call) -> list[str]:
    values = [literal(a.value) for a in call.args if a.keyword is None]
    return [name for name in values if isinstance(name, str)]


def _flag(call: cst.Call) -> str:
    """The long name of an option, else its first; empty where it has none."""
    names = _names(call)
    return next((n for n in names if n.startswith("--")), names[0] if names else "")


def _destination(call: cst.Call) -> object:
    """The attribute that argparse stores an option under."""
    explicit = argument(call, "dest")
    return _flag(call).lstrip("-").replace("-", "_") if explicit is None else literal(explicit.value)
