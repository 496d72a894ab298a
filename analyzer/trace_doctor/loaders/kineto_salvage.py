"""Repair of event texts that are not JSON, and the string-aware search for an object's end.

What real profilers wrote: NaN and bare words, unescaped backslashes and quotes, raw control bytes, invalid UTF-8.
"""

from __future__ import annotations

import json
import re
from typing import Any

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.S)
_STRING_OR_WORD = re.compile(
    r'"(?:[^"\\]|\\.)*"|(?<![\w.+-])[-+]?[A-Za-z][\w./-]*(?:\(\w*\))?|:\s*(?=[,}])', re.S
)
_BAD_ESCAPE = re.compile(r'\\(?:[^"\\/bfnrtu]|u(?![0-9a-fA-F]{4}))', re.S)
_KEY = r'"[\w .()/-]{1,60}"\s*:'
_VALUE = re.compile(rf'({_KEY}\s*)"(.*?)"(?=\s*(?:,\s*{_KEY}|\}}))', re.S)


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


def repair(text: bytes) -> Any:
    """The value of a damaged JSON text: null for NaN and bare words, literal backslashes and inner quotes kept,
    undecodable bytes as U+FFFD. Raises ValueError when that does not help."""
    readable = text.decode("utf-8", "replace")
    for mend in (_keep, _words_and_escapes, _quotes):
        try:
            return json.loads(mend(readable), strict=False, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            continue
    raise ValueError("not repairable")


def _keep(text: str) -> str:
    return text


def _words_and_escapes(text: str) -> str:
    return _STRING_OR_WORD.sub(lambda m: _mend_token(m[0]), text)


def _quotes(text: str) -> str:
    """Escapes quotes inside values: a value ends only where the next key or the object's end follows."""
    return _words_and_escapes(_VALUE.sub(lambda m: f'{m[1]}"{_escape_quotes(m[2])}"', text))


def _escape_quotes(text: str) -> str:
    return re.sub(r'(?<!\\)"', r"\"", text)


def _mend_token(token: str) -> str:
    if token[0] == ":":
        return ": null"  # a value that was never written
    if token[0] != '"':
        return token if token in ("true", "false", "null") else "null"
    if not _BAD_ESCAPE.search(token):
        return token
    # One bad escape shows that the writer does not escape: then every backslash of this string is meant literally.
    return re.sub(r'\\[\\"]|\\', lambda m: m[0] if len(m[0]) == 2 else r"\\", token)
