"""Bytes of a capture, decompressed on the way, in bounded memory."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread
from typing import BinaryIO

from isal.igzip_lib import DECOMP_GZIP, IgzipDecompressor, IsalError

from trace_doctor.loaders.progress import advanced, listening

GZIP_MAGIC = b"\x1f\x8b"
GROWS = 12
"""Traces grow about this much when they are unpacked."""
READ = 1 << 16
PIECE = 1 << 20
BOMB, RATIO = 1 << 28, 200
"""Beyond so many decompressed bytes, no sound file holds more than this many times its compressed size (most: 10 to 40)."""
MEMBERS = 2_000
"""So many gzip members may hold less than as many bytes each."""
AHEAD = 8
"""Pieces that wait for whoever uses them."""


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

    def head(self, size: int) -> bytes:
        """The first `size` decompressed bytes, or fewer."""
        found = b""
        for piece in self.pieces():
            found += piece
            if len(found) >= size:
                break
        return found[:size]

    def _plain(self) -> Iterator[bytes]:
        with open_regular(self.path) as file:
            while piece := file.read(PIECE):
                advanced(len(piece))
                yield piece

    def _gunzip(self) -> Iterator[bytes]:
        with open_regular(self.path) as file:
            member, pending, fresh = IgzipDecompressor(flag=DECOMP_GZIP), b"", True
            made = members = begun = given = 0
            while True:
                if not pending and member.needs_input:
                    pending = file.read(READ)
                    advanced(len(pending))
                    if not pending:
                        if not fresh:
                            self.problem = "the gzip data ends early"
                        return
                try:
                    out = member.decompress(pending, PIECE)
                except (IsalError, ValueError) as error:  # type: ignore[misc]  # isal's stub types the class as an instance
                    if not fresh or pending.startswith(GZIP_MAGIC):
                        self.problem = f"the gzip data is damaged ({error})"
                        yield from _before_damage(file, begun, given)
                    return  # other bytes behind the last complete member are padding, as gzip itself treats them
                pending, fresh = b"", False
                if out:
                    yield out
                made, given = made + len(out), given + len(out)
                if made > BOMB and made > RATIO * file.tell():
                    self.problem = f"the gzip data unpacks to more than {RATIO} times its size"
                    return
                if member.eof:
                    members += 1
                    if members > MEMBERS and made < MEMBERS * members:
                        self.problem = "the gzip data has thousands of empty members"
                        return
                    pending = member.unused_data.lstrip(b"\0")
                    member, fresh = IgzipDecompressor(flag=DECOMP_GZIP), True
                    begun, given = file.tell() - len(pending), 0


def _before_damage(file: BinaryIO, begin: int, given: int) -> Iterator[bytes]:
    """What the gzip member at byte `begin` holds up to its damage, without the `given` bytes that are known. isal keeps to
    itself what it has unpacked in the call that meets the damage, up to a piece; zlib tells byte by byte."""
    file.seek(begin)
    member, data = zlib.decompressobj(wbits=31), b""
    while data := data or file.read(READ):
        before = member.copy()
        try:
            out, damaged = member.decompress(data, PIECE), False
        except zlib.error:
            out, damaged = b"".join(_bytewise(before, data)), True
        if len(out) > given:
            yield out[given:]
        given = max(given - len(out), 0)
        if damaged or member.eof:
            return
        data = member.unconsumed_tail


def _bytewise(member: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        try:
            yield member.decompress(data[at : at + 1])
        except zlib.error:
            return


def ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces, made in a thread of their own while those before are used: inflating and the decoder in C both
    let other threads run meanwhile. Where no thread can be had, one after another."""
    made: Queue[tuple[bytes, int] | BaseException | None] = Queue(AHEAD)
    enough = Event()
    thread = Thread(target=_make, args=(pieces, made, enough), daemon=True)
    try:
        thread.start()
    except RuntimeError:
        yield from pieces
        return
    try:
        while (item := made.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            advanced(item[1])
            yield item[0]
    finally:
        enough.set()
        while thread.is_alive():
            with suppress(Empty):
                made.get(timeout=0.01)


def _make(
    pieces: Iterator[bytes], made: Queue[tuple[bytes, int] | BaseException | None], enough: Event
) -> None:
    """Fills the queue with pieces, each with the bytes of the file that were read for it; at the end, or with the
    error that ended it, None."""
    read: list[int] = []
    try:
        with listening(read.append):
            for piece in pieces:
                made.put((piece, sum(read)))
                read.clear()
                if enough.is_set():
                    return
    except BaseException as error:
        made.put(error)
    made.put(None)
