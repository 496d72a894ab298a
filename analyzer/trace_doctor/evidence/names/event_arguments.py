"""What an event says in its `args`. Anything may stand there: what is not of the kind that profilers write counts as not
said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trace_doctor.run import is_count


def count(args: Mapping[str, Any], key: str) -> int | None:
    """A number of bytes, elements, blocks …; None where none is said."""
    said = args.get(key)
    return said if is_count(said) else None


def shapes(args: Mapping[str, Any]) -> tuple[Any, ...]:
    """Of each argument of an operator the shape, as a tuple of numbers; () where it is no tensor; of a list of tensors
    a tuple of shapes."""
    said = args.get("Input Dims", args.get("Input dims"))
    return tuple(map(_shape, said)) if isinstance(said, list) else ()


def _shape(said: Any) -> tuple[Any, ...]:
    if not isinstance(said, list):
        return ()
    if all(map(is_count, said)):
        return tuple(said)
    return tuple(map(_shape, said)) if all(isinstance(one, list) for one in said) else ()
