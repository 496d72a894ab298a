"""JSON that an HTML page can hold as it is."""

from __future__ import annotations

import re

_COMMAND = re.compile(rb"##(?=\w*\[)")
_UNSEEN = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""characters that a terminal obeys, or that turn text round or hide in it"""


def html_safe(data: bytes) -> bytes:
    """The JSON with every `<` as an escape, so that a page sees neither the end of an element nor the begin of another in
    it, and with escapes in what a CI server would take for a command in its log (`##vso[`) and for what nobody would see:
    the same JSON still."""
    plain = _COMMAND.sub(rb"\\u0023#", data.replace(b"<", b"\\u003c"))
    if plain.isascii():
        return plain
    text = plain.decode("utf-8", "surrogateescape")
    return _UNSEEN.sub(lambda c: f"\\u{ord(c[0]):04x}", text).encode("utf-8", "surrogateescape")
