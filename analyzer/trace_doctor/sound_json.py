"""JSON of others as values whose texts can be written again: an escape may name half of a character (`\\ud800`)."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def loads(data: str | bytes) -> Any:
    """As `json.loads`, with U+FFFD for half characters. Raises ValueError and RecursionError as that does."""
    return sound(json.loads(data))


def repeated_key(data: str | bytes) -> str | None:
    """A key that an object of the JSON holds twice: no program writes one, and readers differ in which of the two they take. None
    where there is none, or the text is no JSON. Raises RecursionError."""
    repeated: list[str] = []

    def member_names(pairs: list[tuple[str, Any]]) -> None:
        if len(names := {key for key, _ in pairs}) < len(pairs) and not repeated:
            repeated.append(next(key for key in names if sum(key == other for other, _ in pairs) > 1))

    with suppress(ValueError):
        json.loads(data, object_pairs_hook=member_names, parse_int=len, parse_float=len)
    return sound(repeated[0]) if repeated else None


def sound(value: Any) -> Any:
    """The value with U+FFFD for half characters, in keys as well."""
    if isinstance(value, str):
        return (
            value
            if value.isascii()
            else "".join(_REPLACEMENT if "\ud800" <= c <= "\udfff" else c for c in value)
        )
    if isinstance(value, dict):
        return {sound(key): sound(member) for key, member in value.items()}
    return [sound(member) for member in value] if isinstance(value, list) else value
