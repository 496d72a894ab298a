"""What lies in an archive, as far as the first bytes of the archive tell: the readers of the standard library want it whole (the
directory of a ZIP stands at its end), and a cut or a huge one has to be told as well. Nothing is ever unpacked to disk."""

from __future__ import annotations

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


class _Unpacks(Protocol):
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


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


def _unpacked(decompressor: _Unpacks, data: bytes, most: int) -> bytes:
    try:
        return decompressor.decompress(data, most)
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        return b""


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
