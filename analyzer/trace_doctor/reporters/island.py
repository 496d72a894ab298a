"""A JSON text inside an HTML page, so that it cannot end its element and comes back byte for byte."""

from __future__ import annotations

import re

from trace_doctor.errors import NotACapture

_OUT = {"<": "\\u003c", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_IN = {escaped[1:]: char for char, escaped in _OUT.items()}
_ESCAPE = re.compile(r"\\(u003c|u2028|u2029|.)", re.DOTALL)
_ISLAND = re.compile(r'<script type="application/json" id="result">(.*?)</script>', re.DOTALL)


def embed(data: bytes) -> str:
    """The JSON with `<` and the line separators as JSON escapes: still the same JSON.

    `data` must not hold these escapes itself, as `Result.to_json` never does.
    """
    return re.sub("[<\u2028\u2029]", lambda m: _OUT[m.group()], data.decode())


def extract(page: str) -> bytes:
    """What `embed` was given. Pairs are read from the left, so that an escaped backslash before `u003c` stays one.
    Raises NotACapture when the page holds no result."""
    found = _ISLAND.search(page)
    if not found:
        raise NotACapture("the page holds no trace-doctor result")
    return _ESCAPE.sub(lambda m: _IN.get(m.group(1), m.group()), found.group(1)).encode()
