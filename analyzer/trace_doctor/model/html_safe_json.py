"""JSON that an HTML page can hold as it is."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_COMMAND = re.compile(rb"##(?=\w*\[)")


def inert(data: bytes) -> bytes:
    """The JSON with every `<` as an escape, so that a page sees neither the end of an element nor the begin of another in
    it, and with an escape in what a CI server would take for a command in its log (`##vso[`): the same JSON still."""
    return _COMMAND.sub(rb"\\u0023#", data.replace(b"<", b"\\u003c"))


def written(result: Any) -> bytes:
    """A result as UTF-8 JSON with sorted keys, two-space indent and a final newline. Same input, same bytes."""
    return inert(msgspec.json.format(msgspec.json.encode(result, order="sorted"), indent=2)) + b"\n"
