"""The last line of an output: by its digest of all above, a file that we wrote is told from one that was changed."""

from __future__ import annotations

import hashlib
import re

_SEALS = {
    "text": "({})\n",
    "markdown": "<!-- {} -->\n",
    "agent": "<!-- {} -->\n",
    "junit": "<!-- {} -->\n",
    "html": "<!-- {} -->\n",
}
"""last line of a file"""
_JSON_SEALS = {"json": ',\n  "digest": "%s"\n}\n', "sarif": ',\n  "properties": {"digest": "%s"}\n}\n'}
"""end of a JSON object: JSON has no comments"""
_SEALED = re.compile(rb"\n(?:<!-- |\()trace-doctor wrote all above: ([0-9a-f]{16})(?: -->|\))\n\Z")
_JSON_SEALED = re.compile(rb',\n  (?:"properties": \{)?"digest": "([0-9a-f]{16})"(?:\n|\}\n)\}\n\Z')


SEAL_BYTES = 100
"""at the end of a file in which its seal stands"""


def sealed(fmt: str, rendering: str | bytes) -> bytes:
    """A rendering as a file, with an end by which it is told from one that holds more, or less."""
    data = rendering.encode("utf-8", "surrogateescape") if isinstance(rendering, str) else rendering
    if fmt in _JSON_SEALS:
        data = data.rstrip().removesuffix(b"}").rstrip()
        return data + (_JSON_SEALS[fmt] % _digest(data)).encode()
    if fmt not in _SEALS:
        return data
    data += b"" if data.endswith(b"\n") else b"\n"
    return data + _SEALS[fmt].format(f"trace-doctor wrote all above: {_digest(data)}").encode()


def seal_holds(data: bytes) -> bool | None:
    """Whether all above the last line is as it was written; None where there is no such line."""
    if seal := _JSON_SEALED.search(data):
        return seal[1].decode() == _digest(data[: seal.start()])
    if seal := _SEALED.search(data):
        return seal[1].decode() == _digest(data[: seal.start() + 1])
    return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
