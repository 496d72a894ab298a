"""Where one event ends and the next begins.

A regular expression finds every place where two objects of a JSON list can meet. Some may lie inside an event; where a text
is JSON and holds as many events as such places tell, none does.
"""

from __future__ import annotations

import re

from trace_doctor.loaders.kineto import salvage

_FIRST_KEYS = rb"(?:ph|name|cat|args|ts|pid|tid|dur|id|s|bp|sf|tts)"
_BORDER = re.compile(rb'\}\s*,\s*(?=\{\s*(?:"' + _FIRST_KEYS + rb'"|["}]))')
_STRING = salvage.STRING.encode()
_BEGIN = rb'\{\s*"(?:name"\s*:\s*' + _STRING + rb'"\s*,\s*")?(?:ph|cat)"\s*:'
EVENT = re.compile(_BEGIN, re.S)
AHEAD = re.compile(rb'"traceEvents"\s*:\s*(?=\[)|' + _BEGIN, re.S)
LIKE_EVENT = re.compile(rb'\{\s*"' + _FIRST_KEYS + rb'"\s*:')
_FIELD = rb'\s*+"(?!' + _FIRST_KEYS + rb'")[^"\\]{0,99}"\s*+:'
_FINAL = (  # of the list: the end of the text, another field, the end of the document, or another document
    rb"\](?:\s*+(?:," + _FIELD + rb"|(?:,\s*+)?\}\s*+(?:$|[{[\0]))|[\s\0]*+(?:$|\[|\{" + _FIELD + rb"))"
)
LIST_END = re.compile(_FINAL, re.S)
LAST = re.compile(rb"\}(?=[\s,]*+" + _FINAL + rb")", re.S)


def starts_of(text: bytes) -> list[int]:
    """Where events of a list may begin in its text, from 0 on."""
    return [0, *(border.end() for border in _BORDER.finditer(text))]
