"""A JSON text inside an HTML page, which comes back byte for byte.

It stands there as it is where the page has room for it, else packed (gzip, base64), which the browser unpacks when it
needs it.
"""

from __future__ import annotations

import base64
import gzip
import re

from zlib_ng import zlib_ng

from trace_doctor.errors import NotACapture
from trace_doctor.model.html_safe_json import html_safe

LARGEST = 1 << 28
"""No result is larger, nor a page of ours or what one unpacks to: a result is a thousandth of it"""
_BEGIN = r'<script type="application/(json|gzip)" id="result">'
_ELEMENT = re.compile(rf"{_BEGIN}(.*?)</script>", re.DOTALL)
_BEGIN_DETAIL = '<script type="application/gzip" id="detail">'
_DETAIL = re.compile(rf"{_BEGIN_DETAIL}([A-Za-z0-9+/=\s]*)</script>")


def embedded(data: bytes, room: int) -> str:
    """The element that holds it, packed where it is longer than `room` bytes. The same data gives the same text.

    Raises ValueError for data that is not safe inside HTML: `to_json` makes it so.
    """
    if html_safe(data) != data:
        raise ValueError("the JSON would end the element it stands in")
    kind, text = ("json", data) if len(data) <= room else ("gzip", packed(data))
    return f'<script type="application/{kind}" id="result">{text.decode()}</script>'


def embedded_detail(data: bytes) -> str:
    """The element that holds what the page shows closer."""
    return f"{_BEGIN_DETAIL}{packed(data).decode()}</script>"


def packed(data: bytes) -> bytes:
    """gzip in base64, with a header without a time."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0))


def extract(page: str) -> bytes:
    """What `embedded` was given. Raises NotACapture when the page holds no result, or several: one of them may stand where
    nobody sees it, as in a comment."""
    matches = _ELEMENT.findall(page)
    if not matches and re.search(_BEGIN, page):
        raise NotACapture("the page ends in the middle of its trace-doctor result")
    if len(matches) != 1:
        raise NotACapture(
            f"the page holds {len(matches) or 'no'} trace-doctor result{'s' if matches else ''}"
        )
    [(kind, text)] = matches
    return _unpacked(text) if kind == "gzip" else text.encode()


def extract_detail(page: str) -> bytes | None:
    """The JSON that the timeline of a page is drawn from; None where it has none. Raises NotACapture for one that is
    damaged."""
    matches = _DETAIL.findall(page)
    return _unpacked(matches[0]) if len(matches) == 1 else None


def _unpacked(text: str) -> bytes:
    try:
        return inflated(base64.b64decode(text, validate=True))
    except ValueError as error:
        raise NotACapture(f"the result in the page is damaged ({error})") from None


def inflated(data: bytes) -> bytes:
    """What gzip packed. Raises ValueError for what is damaged, or longer than `LARGEST`."""
    try:
        unpacking = zlib_ng.decompressobj(wbits=31)
        content: bytes = unpacking.decompress(data, LARGEST)
    except zlib_ng.error as error:  # type: ignore[misc]  # the stub types the class as an instance
        raise ValueError(str(error)) from None
    if not unpacking.eof:
        raise ValueError("it ends early, or is larger than any result")
    return content
