"""What an event says in its `args`. Anything may stand there: what is not of the kind that profilers write counts as not
said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trace_doctor.run import is_count


def count(args: Mapping[str, Any], key: str) -> int | None:
    """A number of bytes, elements, blocks …; None where none is said."""
    value = args.get(key)
    return value if is_count(value) else None


def shapes(args: Mapping[str, Any]) -> tuple[Any, ...]:
    """Of each argument of an operator the shape, as a tuple of numbers; () where it is no tensor; of a list of tensors
    a tuple of shapes."""
    dims = args.get("Input Dims", args.get("Input dims"))
    return tuple(map(_shape, dims)) if isinstance(dims, list) else ()


def _shape(dims: Any) -> tuple[Any, ...]:
    if not isinstance(dims, list):
        return ()
    if all(map(is_count, dims)):
        return tuple(dims)
    return tuple(map(_shape, dims)) if all(isinstance(one, list) for one in dims) else ()
