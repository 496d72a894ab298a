"""Bytes of a capture, decompressed on the way, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread
from typing import BinaryIO

from trace_doctor.files import open_regular
from trace_doctor.loaders import unzstd
from trace_doctor.loaders.gunzip import MAGIC, RATIO, Gunzip
from trace_doctor.loaders.pftrace.reader import Pftrace, begins
from trace_doctor.loaders.progress import advanced, listening
from trace_doctor.loaders.unzstd import Unzstd

PIECE = 1 << 20
GROWS = 12
"""Traces grow about this much when they are unpacked."""
AHEAD = 2
"""Pieces that wait for whoever uses them."""


class ByteStream:
    """The decompressed bytes of a file, plain, gzip or, where it can be read here, Zstandard (also several members or frames in
    a row), one piece after another; of a Perfetto trace, whatever its name, the JSON of the same trace.

    `problem` says why the bytes ended early ("" when they did not): a cut or damaged file still gives all that
    precedes the damage, and one that unpacks to more than `ratio` times its size ends there. Raises OSError when the file
    cannot be read at all. `trailing`: how many bytes behind the compressed data are not part of it.
    """

    def __init__(self, path: Path, ratio: int | None = RATIO) -> None:
        self.path = path
        with open_regular(path) as file:
            self.unpacker = _unpacker(path, file, ratio)
            size = os.fstat(file.fileno()).st_size
        self.length = GROWS * size if self.unpacker else size
        """of the decompressed bytes, about"""

    @property
    def problem(self) -> str:
        """What is wrong with the compressed data, empty where nothing is (yet)."""
        return self.unpacker.problem if self.unpacker else ""

    @property
    def trailing(self) -> int:
        """Bytes behind the compressed data, padding aside, known once all pieces were read."""
        return self.unpacker.trailing if self.unpacker else 0

    def pieces(self) -> Iterator[bytes]:
        """Pieces of at most 2 MiB."""
        return self.unpacker.pieces() if self.unpacker else self._plain()

    def head(self, size: int) -> bytes:
        """The first `size` decompressed bytes, or fewer."""
        head = b""
        for piece in self.pieces():
            head += piece
            if len(head) >= size:
                break
        return head[:size]

    def _plain(self) -> Iterator[bytes]:
        with open_regular(self.path) as file:
            while piece := file.read(PIECE):
                advanced(len(piece))
                yield piece


def _unpacker(path: Path, file: BinaryIO, ratio: int | None) -> Gunzip | Unzstd | Pftrace | None:
    start = file.read(4)
    packed = start.startswith(MAGIC)
    if begins(file, start, packed=packed):
        return Pftrace(path, Gunzip(path) if packed else None)
    if packed:
        return Gunzip(path, ratio)
    return Unzstd(path, ratio) if start == unzstd.MAGIC and unzstd.usable() else None


def ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces, made in a thread of their own while those before are used: inflating and the decoder in C both
    let other threads run meanwhile. Where no thread can be had, one after another."""
    queue: Queue[tuple[bytes, int] | BaseException | None] = Queue(AHEAD)
    enough = Event()
    thread = Thread(target=_make, args=(pieces, queue, enough), daemon=True)
    try:
        thread.start()
    except RuntimeError:
        yield from pieces
        return
    try:
        while (item := queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            advanced(item[1])
            yield item[0]
    finally:
        enough.set()
        while thread.is_alive():
            with suppress(Empty):
                queue.get(timeout=0.01)


def _make(
    pieces: Iterator[bytes], queue: Queue[tuple[bytes, int] | BaseException | None], enough: Event
) -> None:
    """Fills the queue with pieces, each with the bytes of the file that were read for it; at the end, or with the
    error that ended it, None."""
    read: list[int] = []
    try:
        with listening(read.append):
            for piece in pieces:
                queue.put((piece, sum(read)))
                read.clear()
                if enough.is_set():
                    return
    except BaseException as error:
        queue.put(error)
    queue.put(None)
