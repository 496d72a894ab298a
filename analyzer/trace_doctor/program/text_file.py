"""A text file of a program by its bytes: places in it, and edits that keep the rest.

An edit is a range of characters and its new text, so everything outside the range stays as it was byte by byte: encoding,
byte order mark, line ends, the missing newline at the end.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import tokenize
from bisect import bisect_right
from collections import Counter
from functools import cached_property
from pathlib import Path

from trace_doctor.errors import UnreadableScript

_NOT_OF_FILES = frozenset(["idna", "punycode", "undefined"])
"""encodings of Python that are for names of hosts, or for nothing; the first two take time by the square of the length"""
_NEWLINE = re.compile(r"\r\n?|\n")


class TextFile:
    """A text file by its bytes: places in it, and edits that keep the rest. Lines are 1-based, columns and offsets
    count characters of `text`.

    Raises UnreadableScript when the bytes do not decode, or the text would not give the same bytes again.
    """

    def __init__(self, data: bytes, name: str, path: Path | None = None) -> None:
        self.data = data
        self.name = name
        """as shown to people: relative to the source folder, with forward slashes"""
        self.path = path
        self.text, self.encoding, self.bom = _decode(data, name)
        try:
            again = self.encode(self.text)
        except ValueError:
            again = None
        if (
            again != data
        ):  # some encodings have several spellings of a character: lines that no edit is about would change
            why = f"decoded as {self.encoding} and encoded again, its bytes are others; it is left alone"
            raise UnreadableScript(f"{name}: {why}")

    def rewritten(self, data: bytes) -> None:
        """Raises UnreadableScript when these bytes would not be a file of this kind any more."""
        text = TextFile(data, self.name).text
        if self.name.endswith(".json"):
            try:
                json.loads(text)
            except ValueError as error:
                raise UnreadableScript(f"{self.name}: {error}") from None

    def encode(self, text: str) -> bytes:
        """The bytes of `text` in this file's encoding, with its byte order mark."""
        return (codecs.BOM_UTF8 if self.bom else b"") + text.encode(self.encoding)

    @cached_property
    def newline(self) -> str:
        """The line end that most lines have."""
        ends = Counter(_NEWLINE.findall(self.text))
        return ends.most_common(1)[0][0] if ends else "\n"

    @cached_property
    def line_starts(self) -> list[int]:
        """Offset of each line's first character."""
        return [0, *(m.end() for m in _NEWLINE.finditer(self.text))]

    def line_of(self, offset: int) -> int:
        """The line (from 1) that holds the character at an offset."""
        return bisect_right(self.line_starts, offset)

    def line_text(self, line: int) -> str:
        """Text of a line without its line end; empty past the end."""
        if not 1 <= line <= len(self.line_starts):
            return ""
        end = self.line_starts[line] if line < len(self.line_starts) else len(self.text)
        return self.text[self.line_starts[line - 1] : end].rstrip("\r\n")

    def enclosing_function(self, line: int) -> str | None:
        """Only scripts have functions."""
        return None


def _decode(data: bytes, name: str) -> tuple[str, str, bool]:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        bom = encoding == "utf-8-sig"
        encoding = "utf-8" if bom else encoding
        if codecs.lookup(encoding).name in _NOT_OF_FILES:
            raise LookupError(encoding)
        text = data[len(codecs.BOM_UTF8) if bom else 0 :].decode(encoding)
    except (SyntaxError, ValueError, LookupError):  # codecs raise any UnicodeError, which is a ValueError
        raise UnreadableScript(f"{name}: its bytes do not decode as it declares; it is left alone") from None
    if "\0" in text:
        raise UnreadableScript(f"{name}: holds NUL bytes, so it is no Python source; it is left alone")
    return text, encoding, bom
