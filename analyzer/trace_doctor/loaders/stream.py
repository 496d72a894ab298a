"""Bytes of a capture, decompressed on the way, in bounded memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from isal import isal_zlib
from isal.igzip_lib import IsalError

from trace_doctor.loaders.progress import advanced

GZIP_MAGIC = b"\x1f\x8b"
GROWS = 12
"""Traces grow about this much when they are unpacked."""
READ = 1 << 18
PIECE = 1 << 20
BOMB, RATIO = 1 << 28, 200
"""Beyond so many decompressed bytes, no sound file holds more than this many times its compressed size (most: 10 to 40)."""
MEMBERS = 2_000
"""So many gzip members may hold less than as many bytes each."""


def open_regular(path: Path) -> BinaryIO:
    """A file for reading. Raises OSError for a FIFO or a device, whose bytes may never come or never end, even where
    one has taken the place of a file since it was looked at."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(0, "not a regular file")
    return open(number, "rb")


class ByteStream:
    """The decompressed bytes of a file, plain or gzip (also several gzip members in a row), one piece after another.

    `problem` says why the bytes ended early ("" when they did not): a cut or damaged gzip still gives all that
    precedes the damage. Raises OSError when the file cannot be read at all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        with open_regular(path) as file:
            self.gzipped = file.read(2) == GZIP_MAGIC
            size = os.fstat(file.fileno()).st_size
        self.length = GROWS * size if self.gzipped else size
        """of the decompressed bytes, about"""

    def pieces(self) -> Iterator[bytes]:
        """Pieces of at most 1 MiB."""
        return self._gunzip() if self.gzipped else self._plain()

    def _plain(self) -> Iterator[bytes]:
        with open_regular(self.path) as file:
            while piece := file.read(PIECE):
                advanced(len(piece))
                yield piece

    def _gunzip(self) -> Iterator[bytes]:
        with open_regular(self.path) as file:
            member, pending, fresh = isal_zlib.decompressobj(wbits=31), b"", True
            made = members = 0
            while True:
                if not pending:
                    pending = file.read(READ)
                    advanced(len(pending))
                if not pending:
                    if not fresh:
                        self.problem = "the gzip data ends early"
                    return
                try:
                    out = member.decompress(pending, PIECE)
                except (IsalError, ValueError) as error:  # type: ignore[misc]  # isal's stub types the class as an instance
                    if not fresh:
                        self.problem = f"the gzip data is damaged ({error})"
                    return  # bytes behind the last complete member are padding, as gzip itself treats them
                if out:
                    yield out
                made += len(out)
                if made > BOMB and made > RATIO * (file.tell() - len(member.unconsumed_tail)):
                    self.problem = f"the gzip data unpacks to more than {RATIO} times its size"
                    return
                if member.eof:
                    members += 1
                    if members > MEMBERS and made < MEMBERS * members:
                        self.problem = "the gzip data has thousands of empty members"
                        return
                    pending = member.unused_data.lstrip(b"\0")
                    member, fresh = isal_zlib.decompressobj(wbits=31), True
                else:
                    pending, fresh = member.unconsumed_tail, False


def head(path: Path, size: int) -> bytes:
    """The first `size` decompressed bytes, or fewer."""
    found = b""
    for piece in ByteStream(path).pieces():
        found += piece
        if len(found) >= size:
            break
    return found[:size]
