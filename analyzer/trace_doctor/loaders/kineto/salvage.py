"""Repair of event texts that are not JSON, and the string-aware search for an object's end.

What real profilers wrote: NaN and bare words, unescaped backslashes and quotes, raw control bytes, invalid UTF-8.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from trace_doctor.sound_json import loads, sound

# A string, or all that follows a quote without a partner. Possessive: no input makes these search the same text twice.
STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+'
_TOKEN = re.compile(STRING.encode() + rb'(?:"|\\?\Z)|[{}\[\]]', re.S)
_STRING_OR_WORD = re.compile(
    STRING + r'(?:"|\\?\Z)|(?<![\w.+-])[-+]?[A-Za-z][\w./-]*(?:\(\w*\))?|:\s*(?=[,}])', re.S
)
_CONTROL = {code: f"\\u{code:04x}" for code in range(0x20)}
_BAD_ESCAPE = re.compile(r'\\(?:[^"\\/bfnrtu]|u(?![0-9a-fA-F]{4}))', re.S)
_BACKSLASH = re.compile(r'\\[\\"]|\\')
_INNER_QUOTE = re.compile(r'(?<!\\)"')
_KEY = r'"[\w .()/-]{1,60}"\s*:'
_VALUE_START = re.compile(rf'{_KEY}\s*"')
_VALUE_END = re.compile(rf'"(?=\s*(?:,\s*{_KEY}|\}}))')
LONGEST = 1 << 20
"""No longer text is repaired: no event is that long, and a repair takes a hundred times as long as decoding."""


def strict(text: bytes) -> Any:
    """Raises ValueError for anything that is not JSON, the words NaN and Infinity included."""
    try:
        return sound(_STRICT.decode(text.decode("utf-8", "surrogatepass")))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_refuse)


def object_end(text: bytes, start: int, stop: int) -> int | None:
    """The position after the JSON value (object or list) that begins at `start`. None when it does not end before `stop`."""
    depth = 0
    for token in _TOKEN.finditer(text, start, stop):
        kind = token[0][0]
        if kind in b"{[":
            depth += 1
        elif kind in b"}]":
            depth -= 1
            if depth == 0:
                return token.end()
    return None


def repairs(text: bytes) -> Iterator[bytes]:
    """Texts that may be what the writer of a damaged JSON text meant, the mildest repair first: null for NaN and bare
    words, literal backslashes, escaped control bytes, U+FFFD for undecodable bytes; then also quotes inside values."""
    if len(text) > LONGEST:
        return
    readable = text.decode("utf-8", "replace")
    yield _mend(readable).encode()
    if (escaped := _with_escaped_quotes(readable)) != readable:
        yield _mend(escaped).encode()


def _with_escaped_quotes(text: str) -> str:
    """Quotes inside values made literal: a value begins behind its key and goes on to the first quote that another
    key or the end of the object follows."""
    ends = [end.start() for end in _VALUE_END.finditer(text)]
    parts, at = [], 0
    while start := _VALUE_START.search(text, at):
        following = bisect_left(ends, start.end())
        if following == len(ends):
            break
        parts += [text[at : start.end()], _INNER_QUOTE.sub(r"\"", text[start.end() : ends[following]])]
        at = ends[following] + 1
        parts.append('"')
    return "".join([*parts, text[at:]])


def repair(text: bytes) -> Any:
    """The value of a damaged JSON text. Raises ValueError when no repair helps."""
    for mended in repairs(text):
        try:
            return loads(mended)
        except (ValueError, RecursionError):
            continue
    raise ValueError("not repairable")


def _mend(text: str) -> str:
    return _STRING_OR_WORD.sub(lambda m: _mend_token(m[0]), text)


def _mend_token(token: str) -> str:
    if token[0] == ":":
        return ": null"  # a value that was never written
    if token[0] != '"':
        return token if token in ("true", "false", "null") else "null"
    if token.isprintable() and "\\" not in token:  # nearly all: a damaged file may hold a million such events
        return token
    if _BAD_ESCAPE.search(token):
        # That shows a writer that does not escape: then every backslash of this string is meant literally.
        token = _BACKSLASH.sub(lambda m: m[0] if len(m[0]) == 2 else r"\\", token)
    return token.translate(_CONTROL)
