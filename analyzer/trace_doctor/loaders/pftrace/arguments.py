"""Arguments of events: `DebugAnnotation` of what ran on the host, the launch of a kernel on the device."""

from __future__ import annotations

import math
from typing import Any

from trace_doctor.loaders.pftrace import wire
from trace_doctor.loaders.pftrace.names import Names
from trace_doctor.loaders.pftrace.wire import fields, real, signed, text, unsigned

_DEEPEST = 20


def annotation(data: bytes, names: Names, depth: int = 0) -> tuple[str, Any]:
    """(name, value) of an argument. One without a value is an empty list: so torch writes the shape of what is no tensor.
    Raises Malformed."""
    if depth > _DEEPEST:
        raise wire.Malformed("arguments nested too deeply")
    name = ""
    value: Any = []
    for number, said in fields(data):
        if number == 1:
            name = names.of("arguments", said)
        elif number == 10:
            name = text(said)
        elif number == 2:
            value = bool(said)
        elif number in (3, 7):
            value = unsigned(said)
        elif number == 4:
            value = signed(said)
        elif number == 5:
            value = of_float if math.isfinite(of_float := real(said)) else None
        elif number in (6, 9):
            value = text(said)
        elif number == 17:
            value = names.of("strings", said)
        elif number == 11:
            value = value if isinstance(value, dict) else {}
            key, inner = annotation(wire.message(said), names, depth + 1)
            value[key] = inner
        elif number == 12:
            value = value if isinstance(value, list) else []
            value.append(annotation(wire.message(said), names, depth + 1)[1])
    return name, value


def launch(data: bytes, args: dict[str, Any]) -> None:
    """Grid and block of a kernel, as JSON traces have them. Raises Malformed."""
    for number, value in fields(data):
        key = {1: "grid", 2: "block"}.get(number)
        if key is not None:
            sizes = dict(fields(wire.message(value)))
            args[key] = [unsigned(sizes.get(n, 0)) for n in (1, 2, 3)]
