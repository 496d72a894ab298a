"""JSON of others as values whose texts can be written again: an escape may name half of a character (`\\ud800`)."""

from __future__ import annotations

import json
from typing import Any

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def loads(data: str | bytes) -> Any:
    """As `json.loads`, with U+FFFD for half characters. Raises ValueError and RecursionError as that does."""
    return sound(json.loads(data))


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
