"""HTML and SVG as Python values. Text is escaped because it is a plain `str`; only `Html` passes through."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Any

from trace_doctor.reporters.units import visible


class Html(str):
    """Markup that is already safe."""

    __slots__ = ()


Child = Any
"""Html, text (escaped), a number, None (nothing), or an iterable of these."""

_COLONS = re.compile(r"^(\s*)::", re.MULTILINE)
_VOID = frozenset({"meta", "br", "hr", "col", "input", "rect", "path", "line", "circle", "use"})
_SELF_CLOSED = frozenset({"rect", "path", "line", "circle", "use"})


def text(value: object, *, block: bool = False) -> Html:
    """Foreign text: control and reordering characters written out, then escaped, also what begins a line with a command
    to a CI server (`::error::`), whose log a page may go to."""
    escaped = escape(visible(str(value), block=block), quote=True)
    return Html(_COLONS.sub(r"\1&#58;:", escaped) if block else escaped)


def el(tag: str, *children: Child, **attributes: Any) -> Html:
    """One element. `class_` and `for_` lose their underscore, other underscores become hyphens; None and False drop an
    attribute, True writes it bare."""
    start = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Html(f"<{tag}{start}{'/' if tag in _SELF_CLOSED else ''}>")
    return Html(f"<{tag}{start}>{join(children)}</{tag}>")


def join(children: Child) -> Html:
    """The children one after the other."""
    if children is None or children is False:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, str | int | float):
        return text(children)
    assert isinstance(children, Iterable)
    return Html("".join(join(child) for child in children))


def pre(value: str, **attributes: Any) -> Html:
    """Foreign text whose line breaks matter."""
    return el("pre", el("code", text(value, block=True)), tabindex=0, **attributes)


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(value)}"'
