"""The bytes of a gzip file: streamed, up to where it is damaged, and later again from points in its middle."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from zlib_ng import zlib_ng

from trace_doctor.files import open_regular
from trace_doctor.loaders.progress import advanced

if TYPE_CHECKING:
    from zlib import _Decompress

MAGIC = b"\x1f\x8b"
_PADDING = b"\0 \t\r\n"
READ, PIECE = 1 << 17, 1 << 21
"""Bytes read at once, and the most that they become at once: 1.4 MB of a usual trace."""
BOMB, RATIO = 1 << 28, 200
"""Beyond so many decompressed bytes, no sound file holds more than this many times its compressed size (most: 10 to 40)."""
MEMBERS = 2_000
"""So many gzip members may hold less than as many bytes each."""
APART, MOST = 1 << 20, 512
"""Decompressed bytes between two points, at the least, and how many points there may be: each takes 40 kB."""


class Point(NamedTuple):
    """A place from which a file can be unpacked."""

    at: int
    """bytes unpacked before it"""
    place: int
    """bytes of the file used before it"""
    member: _Decompress | None
    """how the decompressor stood there; None at the beginning of a member"""


class Gunzip:
    """A gzip file, also of several members in a row.

    `problem` says why the bytes ended early ("" when they did not): a cut or damaged file still gives all that precedes
    the damage. `trailing`: bytes behind the last complete member that are neither padding nor another member, known once
    all pieces were read; they are not part of the data. Reading notes points on the way, so that a later reading can begin
    near what it looks for.
    """

    def __init__(self, path: Path, ratio: int | None = RATIO) -> None:
        self.problem = ""
        self.trailing = 0
        self._path = path
        self._ratio = ratio
        self._points = [Point(0, 0, None)]
        self._apart = APART

    def pieces(self) -> Iterator[bytes]:
        """Pieces of at most 2 MiB. Raises OSError when the file cannot be read."""
        return self._pieces(self._points[0])

    def around(self, offset: int) -> tuple[int, bytes]:
        """The bytes between two points that byte `offset` lies among, and where they begin. Behind the end of the data,
        its last bytes. Raises OSError when the file cannot be read."""
        number = bisect_right(self._points, offset, key=attrgetter("at"))
        point = self._points[number - 1]
        stop = self._points[number].at if number < len(self._points) else None
        start = end = point.at
        pieces: list[bytes] = []
        for piece in self._pieces(point):
            end += len(piece)
            pieces.append(piece)
            if stop is not None and end >= stop:
                pieces[-1] = piece[: len(piece) - (end - stop)]
                break
            if stop is None and end == self._points[-1].at:  # noted just now
                if end > offset:
                    break
                start, pieces = end, []
        return start, b"".join(pieces)

    def _note(self, at: int, place: int, member: _Decompress) -> None:
        if at < self._points[-1].at + self._apart:
            return
        self._points.append(Point(at, place, member.copy()))
        if len(self._points) > MOST:
            del self._points[1::2]
            self._apart *= 2

    def _pieces(self, start: Point, *, slowly: bool = False) -> Iterator[bytes]:
        """From a point on. `slowly`: byte by byte, so that all is there that precedes damage."""
        with open_regular(self._path) as file:
            file.seek(start.place)
            member = start.member.copy() if start.member else _member()
            pending, fresh, produced, members = b"", start.member is None, start.at, 0
            while True:
                at_end = False
                if not pending:
                    pending = file.read(1 if slowly else READ)
                    advanced(len(pending))
                    at_end = not pending
                    if fresh:
                        pending = pending.lstrip(_PADDING)
                        if at_end:
                            return
                        if not pending:
                            continue
                try:
                    out = member.decompress(pending, PIECE)
                except zlib_ng.error as error:  # type: ignore[misc]  # the stub types the class as an instance
                    if not slowly and (not fresh or pending.startswith(MAGIC)):
                        self.problem = f"the gzip data is damaged ({error})"
                        yield from self._before_damage(produced)
                    if not slowly:
                        self.trailing = os.fstat(file.fileno()).st_size - file.tell() + len(pending)
                    return
                if at_end and not out:
                    self.problem = "the gzip data ends early"
                    return
                pending, fresh, produced = member.unconsumed_tail, False, produced + len(out)
                if self._ratio and produced > BOMB and produced > self._ratio * file.tell():
                    self.problem = f"the gzip data unpacks to more than {self._ratio} times its size"
                    yield out
                    return
                if member.eof:
                    members += 1
                    pending = member.unused_data.lstrip(_PADDING)
                    member, fresh = _member(), True
                elif not pending and not slowly:  # a member keeps what it is still to take
                    self._note(produced, file.tell(), member)
                if out:
                    yield out
                if members > MEMBERS and produced < MEMBERS * members:
                    self.problem = "the gzip data has thousands of empty members"
                    return

    def _before_damage(self, produced: int) -> Iterator[bytes]:
        """What lies between the first `made` bytes and damage: the decompressor keeps to itself what it has made of data
        that it refuses."""
        point = self._points[bisect_right(self._points, produced, key=attrgetter("at")) - 1]
        pieces, skip = [], produced - point.at
        for piece in self._pieces(point, slowly=True):
            pieces.append(piece[skip:])
            skip = max(skip - len(piece), 0)
        if rest := b"".join(pieces):
            yield rest


def _member() -> _Decompress:
    return cast("_Decompress", zlib_ng.decompressobj(wbits=31))  # whose stub lacks `copy`
