"""Where one event ends and the next begins.

A regular expression finds every place where two objects of a JSON list can meet. Some may lie inside an event; where a text
is JSON and holds as many events as such places tell, none does. One file mostly has a single border (`},\\n  {\\n    "ph"`),
and that is found three times as fast: a guess, which the decoder confirms by the number of events.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.loaders.kineto import salvage

_FIRST_KEYS = rb"(?:ph|name|cat|args|ts|pid|tid|dur|id|s|bp|sf|tts)"
_BORDER = re.compile(rb'\}\s*,\s*(?=(\{\s*(?:"' + _FIRST_KEYS + rb'"|["}])))')
_INNER = re.compile(rb"\[\s*\{")
_STRING = salvage.STRING.encode()
_BEGIN = rb'\{\s*"(?:name"\s*:\s*' + _STRING + rb'"\s*,\s*")?(?:ph|cat)"\s*:'
EVENT = re.compile(_BEGIN, re.S)
AHEAD = re.compile(rb'"traceEvents"\s*:\s*(?=\[)|' + _BEGIN, re.S)
LIKE_EVENT = re.compile(rb'\{\s*"' + _FIRST_KEYS + rb'"\s*:')
_FIELD = rb'\s*+"(?!' + _FIRST_KEYS + rb'")[^"\\]{0,99}"\s*+:'
_FINAL = (  # of the list: the end of the text, another field, the end of the document, or another document
    rb"\](?:\s*+(?:$|," + _FIELD + rb"|(?:,\s*+)?\}\s*+(?:$|[{[\0]))|[\s\0]*+(?:\[|\{" + _FIELD + rb"))"
)
LIST_END = re.compile(_FINAL, re.S)
LAST = re.compile(rb"\}(?=[\s,]*+" + _FINAL + rb")", re.S)
_ENOUGH = 8
"""borders seen before one is taken for the usual one"""
_PATIENCE = 8
"""wrong guesses after which there are no more"""


class Borders:
    """Borders of one file, in windows of its text."""

    def __init__(self) -> None:
        self._usual = b""
        self._misses = 0

    def all(self, text: bytes) -> list[int]:
        """The start of each event, beginning with 0."""
        found = list(_BORDER.finditer(text))
        if not self._usual and len(found) >= _ENOUGH and self._misses < _PATIENCE:
            (self._usual, _), *_ = Counter(text[b.start() : b.end(1)] for b in found).most_common(1)
        return [0, *(border.end() for border in found)]

    def usual(self, text: bytes) -> tuple[I64, int] | None:
        """Starts of the events by the file's usual border, and the end of the last one that a border follows.

        None where there is no usual one, where fewer than two are in this text, where another border follows, or where
        it may as well be one between two objects of an argument.
        """
        if not self._usual:
            return None
        closing = _occurrences(text, self._usual)
        if len(closing) < 2 or _BORDER.search(text, int(closing[-1]) + 1):
            return None
        indented = b"\n" in self._usual  # by depth
        if not indented and _INNER.search(text, 0, int(closing[-1])):
            return None
        starts = closing[:-1] + self._usual.index(b"{")
        return np.concatenate([[0], starts]), int(closing[-1]) + 1

    def missed(self) -> None:
        """The decoder found other events than `usual` said."""
        self._misses += 1
        if self._misses == _PATIENCE:
            self._usual = b""


def _occurrences(text: bytes, sought: bytes) -> I64:
    codes = np.frombuffer(text, dtype=np.uint8)
    at = np.flatnonzero(codes[: max(len(codes) - len(sought) + 1, 0)] == sought[0])
    for place in range(1, len(sought)):
        at = at[codes[at + place] == sought[place]]
    return at
