"""A `.pftrace` file as the JSON text of the same trace, in bounded memory: every reader of JSON traces reads it then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from zlib_ng import zlib_ng

from trace_doctor.files import open_regular
from trace_doctor.loaders.forward import Forward
from trace_doctor.loaders.gunzip import BOMB, RATIO, Gunzip
from trace_doctor.loaders.pftrace import packets, wire
from trace_doctor.loaders.progress import advanced

_PACKET = b"\x0a"
"""Tag of a packet, which all of a trace are: also a line feed, with which a text may begin"""
_LONGEST_TAG = 11
_LONGEST = 64 << 20
"""Bytes of a packet: one holds all names of a trace"""
_READ, _PIECE = 1 << 17, 1 << 20
_HEAD = 1 << 16
_FOREIGN_AFTER = 8 << 20
"""Bytes in which torch has named what it recorded"""
_FIRST_FIELDS = frozenset(
    {2, 3, 6, 8, 9, 10, 11, 12, 13, 33, 36, 41, 42, 43, 44, 45, 50, 58, 59, 60, 79, 87, 89, 90}
)
"""of the first packet of a trace, whoever wrote it"""


class Pftrace(Forward):
    """To its users as `Gunzip` is. `inner`: what unpacks the file; None where it is not packed."""

    def __init__(self, path: Path, inner: Gunzip | None) -> None:
        super().__init__()
        self._path = path
        self._inner = inner
        self._own_problem = ""

    @property
    def problem(self) -> str:
        """Why the text ended early; "" where it did not (yet)."""
        return (self._inner.problem if self._inner else "") or self._own_problem

    @property
    def trailing(self) -> int:
        """Bytes behind the packed data that are not part of it."""
        return self._inner.trailing if self._inner else 0

    def pieces(self) -> Iterator[bytes]:
        """Pieces of about 1 MiB. Raises OSError when the file cannot be read."""
        self._own_problem = ""
        self._read = 0
        events = packets.Events()
        parts: list[bytes] = []
        size = written = 0
        started = False
        try:
            for packet in self._packets():
                events.add(packet)
                if not started and events.is_torch:
                    started = True
                    # Blanks: whoever asks what the file is reads no events, of which all begin before the first ends.
                    yield events.beginning() + b" " * _HEAD
                elif not started and self._read > _FOREIGN_AFTER:
                    break
                if started and (ready := events.take()):
                    parts.append(ready)
                    size += len(ready)
                if size >= _PIECE:
                    written += size
                    yield b"".join(parts)
                    parts, size = [], 0
                    if written > BOMB and written > RATIO * self._read:
                        raise wire.Malformed(f"it unpacks to more than {RATIO} times its size")
        except wire.Malformed as error:
            self._own_problem = f"the Perfetto trace is damaged ({error})"
        if not started:
            if not self._own_problem:
                yield packets.FOREIGN
            return
        if events.incomplete and not self._own_problem:
            self._own_problem = "the Perfetto trace ends early"
        yield b"".join(parts) + events.end()

    def _packets(self) -> Iterator[bytes]:
        """The packets, one by one. Raises Malformed where the file is cut or damaged."""
        text = b""
        for piece in self._bytes():
            text += piece
            at = 0
            while (found := _packet(text, at)) is not None:
                start, end = found
                if end > len(text):
                    break
                at = end
                yield text[start:end]
            text = text[at:]
            self._read += at
        if text:
            raise wire.Malformed("it ends within a packet")

    def _bytes(self) -> Iterator[bytes]:
        if self._inner is not None:
            yield from self._inner.pieces()
            return
        with open_regular(self._path) as file:
            while piece := file.read(_READ):
                advanced(len(piece))
                yield piece


def _packet(text: bytes, at: int) -> tuple[int, int] | None:
    """Where the packet that begins there has its message; None where more bytes are needed to say so. Raises Malformed."""
    if at >= len(text):
        return None
    if text[at : at + 1] != _PACKET:
        raise wire.Malformed("no packet where one belongs")
    try:
        length, start = wire.varint(text, at + 1)
    except wire.Malformed:
        if len(text) - at < _LONGEST_TAG:
            return None
        raise
    if length > _LONGEST:
        raise wire.Malformed(f"a packet of more than {_LONGEST >> 20} MiB")
    return start, start + length


def begins(file: BinaryIO, start: bytes, *, packed: bool) -> bool:
    """Whether a file is a Perfetto trace, packed with gzip or not; `start` is what has been read of it. Raises OSError when it
    cannot be read."""
    if not packed:
        return start.startswith(_PACKET) and is_trace(start + file.read(_HEAD))
    start += file.read(1 << 10)
    return _unpacked(start, 1) == _PACKET and is_trace(_unpacked(start + file.read(_HEAD), _HEAD))


def _unpacked(head: bytes, most: int) -> bytes:
    try:
        return zlib_ng.decompressobj(wbits=31).decompress(head, most)
    except zlib_ng.error:  # type: ignore[misc]  # the stub types the class as an instance
        return b""


def is_trace(head: bytes) -> bool:
    """Whether bytes begin as a Perfetto trace does: with a packet that holds what a first packet may hold, and another behind
    it."""
    try:
        found = _packet(head, 0)
        if found is None or found[1] > len(head):
            return False
        start, end = found
        numbers = {number for number, _ in wire.fields(head[start:end])}
    except wire.Malformed:
        return False
    return bool(numbers) and numbers <= _FIRST_FIELDS and head[end : end + 1] in (b"", _PACKET)
