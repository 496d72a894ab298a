"""A JSON text inside an HTML page, so that it cannot end its element and comes back byte for byte.

A short one stands there as it is; a long one is packed (gzip, base64), which the browser unpacks when it needs it.
"""

from __future__ import annotations

import base64
import gzip
import re

from isal import isal_zlib

from trace_doctor.errors import NotACapture

PLAIN = 100_000
"""Bytes that are embedded as they are"""
LARGEST = 1 << 28
"""Nothing unpacks to more: a result is a thousandth of it"""
_OUT = {"<": "\\u003c", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_IN = {escaped[1:]: char for char, escaped in _OUT.items()}
_ESCAPE = re.compile(r"\\(u003c|u2028|u2029|.)", re.DOTALL)
_ISLAND = re.compile(
    r'<script type="(application/json|application/gzip)" id="result">(.*?)</script>', re.DOTALL
)


def island(data: bytes) -> str:
    """The element that holds it. The same data gives the same text."""
    kind, text = "json", ""
    if len(data) <= PLAIN:
        text = embed(data)
    else:  # a header without a time
        kind, text = "gzip", base64.b64encode(gzip.compress(data, 9, mtime=0)).decode("ascii")
    return f'<script type="application/{kind}" id="result">{text}</script>'


def embed(data: bytes) -> str:
    """The JSON with `<` and the line separators as JSON escapes: still the same JSON.

    `data` must not hold these escapes itself, as `Result.to_json` never does.
    """
    return re.sub("[<\u2028\u2029]", lambda m: _OUT[m.group()], data.decode())


def extract(page: str) -> bytes:
    """What `island` was given. Pairs are read from the left, so that an escaped backslash before `u003c` stays one.
    Raises NotACapture when the page holds no result."""
    found = _ISLAND.search(page)
    if not found:
        raise NotACapture("the page holds no trace-doctor result")
    kind, text = found.groups()
    if kind == "application/gzip":
        return _unpacked(text)
    return _ESCAPE.sub(lambda m: _IN.get(m.group(1), m.group()), text).encode()


def _unpacked(text: str) -> bytes:
    try:
        unpacking = isal_zlib.decompressobj(wbits=31)
        data: bytes = unpacking.decompress(base64.b64decode(text, validate=True), LARGEST)
    except Exception as error:  # isal's errors have no common base that is a type
        raise NotACapture(f"the result in the page is damaged ({error})") from None
    if not unpacking.eof:
        raise NotACapture("the result in the page is damaged or larger than any result")
    return data
