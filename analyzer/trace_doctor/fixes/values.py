"""Where a configured value is really set: the constant or the argparse default behind an expression."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from trace_doctor.fixes.codemods import origins
from trace_doctor.loaders.script import Script, argument, dotted, literal


@dataclass(frozen=True)
class WhereSet:
    """The expression to edit: a literal bound once, or the `default=` of the option."""

    value: cst.BaseExpression
    how: str
    """constant | default"""


def where_set(script: Script, node: cst.BaseExpression) -> WhereSet | None:
    """The one place that sets the value of an expression, or None when there is none or more than one."""
    if isinstance(node, cst.Call) and script.callee(node) == "int" and len(node.args) == 1:
        node = node.args[0].value
    found = origins(script).of(node)
    if len(found) == 1 and found[0] is not node and literal(found[0]) is not ...:
        return WhereSet(found[0], "constant")
    name = dotted(found[0]) if len(found) == 1 else None
    if name is None or "." not in name:
        return None
    return _option_default(script, name.split(".")[-1])


def _option_default(script: Script, name: str) -> WhereSet | None:
    """`default=` of the one `add_argument` whose destination has this name."""
    options = [c for c in script.all(cst.Call) if _method(c) == "add_argument" and _destination(c) == name]
    if len(options) != 1:
        return None
    default = argument(options[0], "default")
    if default is None or literal(default.value) is ...:
        return None
    return WhereSet(default.value, "default")


def _method(call: cst.Call) -> str | None:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else None


def _destination(call: cst.Call) -> str | None:
    """The attribute that argparse stores an option under."""
    explicit = argument(call, "dest")
    if explicit is not None:
        found = literal(explicit.value)
        return found if isinstance(found, str) else None
    flags = [literal(a.value) for a in call.args if a.keyword is None]
    names = [f for f in flags if isinstance(f, str)]
    long = next((n for n in names if n.startswith("--")), names[0] if names else None)
    return long.lstrip("-").replace("-", "_") if long else None
