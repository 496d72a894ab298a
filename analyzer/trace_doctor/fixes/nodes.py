"""Values as they stand in a script: made as syntax nodes, so that a value is never more than a value."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import libcst as cst

Value = bool | int | float | str | None | Mapping[str, "Value"]


def node(value: Value) -> cst.BaseExpression:
    """The expression whose value this is. Raises ValueError for a number that has no literal."""
    if value is None or isinstance(value, bool):
        return cst.Name(str(value))
    if isinstance(value, str):
        return cst.SimpleString(json.dumps(value, ensure_ascii=False))  # its escapes are Python's as well
    if isinstance(value, Mapping):
        return cst.Dict([cst.DictElement(node(str(k)), node(v)) for k, v in value.items()])
    digits = repr(value)
    if digits.startswith("-"):
        return cst.UnaryOperation(cst.Minus(), node(-value))
    if isinstance(value, int):
        return cst.Integer(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} has no literal")
    return cst.Float(digits)


def written(value: Value) -> str:
    """The source text of a value."""
    return cst.Module([]).code_for_node(node(value))
