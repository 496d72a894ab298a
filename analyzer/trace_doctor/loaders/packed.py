"""What lies in an archive, as far as the first bytes of the archive tell: the readers of the standard library want it whole (the
directory of a ZIP stands at its end), and a cut or a huge one has to be told as well. Nothing is ever unpacked to disk."""

from __future__ import annotations

import base64
import bz2
import lzma
import re
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

LOOKED_AT = 1 << 22
"""Bytes of an archive that are looked at"""
BEGINNING = 1 << 16
_MOST = 1000
"""members"""
_DEEP = 3
"""archives in one another"""
_MOST_MEMORY = 1 << 26
_ZIP, _BLOCK = b"PK\x03\x04", 512
_ZIP_MEMBER = re.compile(rb"PK\x03\x04.{4}(.{2}).{16}(.{2})(.{2})", re.S)
_STORED, _DEFLATED = 0, 8


_WITHIN, _MOST_WITHIN = 1 << 20, 1 << 24
"""Bytes of one piece within a file of another kind, and of all that are looked at"""
_PORTION = 1 << 9
_COST = 1 << 14
"""what a piece counts for at least, as far more begins like compressed data than is any"""
_STREAM = re.compile(rb"\x1f\x8b\x08|BZh[1-9]1AY&SY|\xfd7zXZ\0|\x78[\x01\x5e\x9c\xda]")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{60,}(?:(?:\\r\\n|\\n|\r?\n)[A-Za-z0-9+/]+)*")
_LEAST_BASE64 = 1000


class _Unpacks(Protocol):
    @property
    def eof(self) -> bool: ...
    def decompress(self, data: bytes | memoryview, max_length: int, /) -> bytes: ...


def is_packed(start: bytes) -> bool:
    """Whether a file that begins with these bytes (600 at least, where it has them) may be an archive that is looked into."""
    return start.startswith(_ZIP) or _decompressor(start) is not None or _is_tar(start, 0)


def beginnings(data: bytes, deep: int = _DEEP) -> Iterator[bytes]:
    """The first bytes of each file in an archive (ZIP, tar, or one file that is compressed), of which `data` are the first
    bytes; of archives in it those of theirs."""
    for start in islice(_members(data), _MOST):
        if deep and is_packed(start):
            yield from beginnings(start, deep - 1)
        else:
            yield start


def within(data: bytes) -> Iterator[bytes]:
    """The first bytes of all that is compressed or written in base64 at any place of a file, of which `data` are the first
    bytes: packages, documents and databases hold files so. Of pieces in it as well."""
    rest, left = [(data, _DEEP)], _MOST_WITHIN
    while rest:
        text, deep = rest.pop()
        for piece in _pieces(text):
            left -= max(len(piece), _COST)
            if left < 0:
                return
            if piece:
                yield piece
            if piece and deep:
                rest.append((piece, deep - 1))


def _pieces(data: bytes) -> Iterator[bytes]:
    view = memoryview(data)
    for begin in _STREAM.finditer(data):
        yield _unpacked(_decompressor(data[begin.start() : begin.end()]), view[begin.start() :], _WITHIN)
    yield from _in_zip(data)
    for run in _BASE64.finditer(data):
        if len(run[0]) >= _LEAST_BASE64:
            letters = re.sub(rb"\\[rn]|\s", b"", run[0])
            yield base64.b64decode(letters[: len(letters) // 4 * 4])[:_WITHIN]


def _members(data: bytes) -> Iterator[bytes]:
    if data.startswith(_ZIP):
        yield from _in_zip(data)
    elif _is_tar(data, 0):
        yield from _in_tar(data)
    elif (decompressor := _decompressor(data)) is not None:
        yield _unpacked(decompressor, data, LOOKED_AT)


def _decompressor(data: bytes) -> _Unpacks | None:
    if data.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(31)
    if data.startswith(b"BZh"):
        return bz2.BZ2Decompressor()
    if data.startswith(b"\xfd7zXZ"):
        return lzma.LZMADecompressor(memlimit=_MOST_MEMORY)
    return None


def _unpacked(decompressor: _Unpacks | None, data: bytes | memoryview, most: int) -> bytes:
    """The first bytes, at most this many; of damaged data what comes before the damage. In small portions, for what is behind
    them is copied with each of them."""
    decompressor = decompressor or zlib.decompressobj()
    out, at, portion = b"", 0, _PORTION
    try:
        while len(out) < most and at < len(data) and not decompressor.eof:
            out += decompressor.decompress(data[at : at + portion], most - len(out))
            at, portion = at + portion, portion * 2
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        pass
    return out


def _in_zip(data: bytes) -> Iterator[bytes]:
    for member in _ZIP_MEMBER.finditer(data):
        method, name, extra = (int.from_bytes(field, "little") for field in member.groups())
        at = member.end() + name + extra
        packed = data[at : at + BEGINNING]
        if method == _STORED:
            yield packed
        elif method == _DEFLATED:
            yield _unpacked(zlib.decompressobj(-15), packed, BEGINNING)


def _is_tar(data: bytes, at: int) -> bool:
    return data[at + 257 : at + 262] == b"ustar"


def _in_tar(data: bytes) -> Iterator[bytes]:
    at = 0
    while _is_tar(data, at):
        size = data[at + 124 : at + 136].strip(b"\0 ")
        length = int(size, 8) if re.fullmatch(rb"[0-7]+", size) else 0
        at += _BLOCK
        yield data[at : at + min(length, LOOKED_AT)]
        at += -(-length // _BLOCK) * _BLOCK
