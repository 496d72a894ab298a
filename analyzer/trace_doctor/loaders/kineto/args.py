"""Decodes the `args` of chosen events again, from their byte offsets."""

from __future__ import annotations

import logging
import os
import re
import tempfile
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

from trace_doctor.errors import DamagedCapture
from trace_doctor.files import open_regular
from trace_doctor.loaders.gunzip import Gunzip
from trace_doctor.loaders.kineto import salvage
from trace_doctor.loaders.pftrace.reader import Pftrace
from trace_doctor.loaders.stream import ByteStream
from trace_doctor.loaders.unzstd import Unzstd

log = logging.getLogger("trace_doctor")

_NEXT = re.compile(rb'\}\s*(?:,\s*\{\s*"|\]\s*(?:,\s*"|\}|$))')
_FIRST_READ = 1 << 12
_LONGEST = 1 << 24
_REMEMBERED = 1 << 15
KEPT = 32 << 20
"""Files up to this size (decompressed) are kept in memory as text, so that they are read only once."""


class _Only(msgspec.Struct):
    args: dict[str, Any] = {}


_decoder = msgspec.json.Decoder(_Only)


class ArgsReader:
    """Callable: byte offsets -> `args` objects, in the order asked for.

    Plain files are read at the offsets; of packed files, what lies around them is unpacked again. `kept`: the whole text, of a small file; `unpacker`: what
    the file was loaded with. Raises DamagedCapture when the file has gone or changed since then.
    """

    def __init__(
        self,
        path: Path,
        display: str,
        kept: bytes | None = None,
        unpacker: Gunzip | Unzstd | Pftrace | None = None,
    ) -> None:
        self._path = path
        self._display = display
        self._kept = kept
        self._unpacker = unpacker
        self._opened: _Window | None = None
        self._known: dict[int, dict[str, Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process the file is read again."""
        return ArgsReader, (self._path, self._display)

    def __call__(self, offsets: Iterable[int]) -> list[dict[str, Any]]:
        requested = list(offsets)
        missing = sorted({o for o in requested if o not in self._known})
        fresh = dict(self._read(missing)) if missing else {}
        arguments = [fresh[o] if o in fresh else self._known[o] for o in requested]
        if len(self._known) + len(fresh) > _REMEMBERED:
            self._known.clear()
        if len(fresh) <= _REMEMBERED:
            self._known.update(fresh)
        return arguments

    def pieces(self) -> Iterator[bytes]:
        """The whole file again, decompressed. Raises OSError where it is gone."""
        return iter([self._kept]) if self._kept is not None else ByteStream(self._path).pieces()

    def _read(self, offsets: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            window = self._window()
            for offset in offsets:
                yield offset, self._args(window, offset)
        except OSError as error:
            raise DamagedCapture(f"{self._display}: cannot be read any more ({error.strerror})") from error

    def _window(self) -> _Window:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> _Window:
        if self._kept is not None:
            return _InMemory(self._kept)
        unpacker = self._unpacker or ByteStream(self._path).unpacker
        return _Unpacked(unpacker) if unpacker else _File(open_regular(self._path))

    def _args(self, window: _Window, offset: int) -> dict[str, Any]:
        size = _FIRST_READ
        while True:
            text = window.at(offset, size)
            close = _NEXT.search(text)
            while close is not None:
                try:
                    return _decoder.decode(text[: close.start() + 1]).args
                except (ValueError, RecursionError):
                    close = _NEXT.search(text, close.start() + 1)
            if len(text) < size or size >= _LONGEST:
                return self._damaged(text)
            size *= 8

    def _damaged(self, text: bytes) -> dict[str, Any]:
        if not text.startswith(b"{"):
            raise DamagedCapture(f"{self._display}: changed while it was being read")
        end = salvage.object_end(text, 0, len(text))
        closes = [m.start() + 1 for _, m in zip(range(4), _NEXT.finditer(text), strict=False)]
        for stop in ([end] if end is not None else []) + closes:
            try:
                value = salvage.repair(text[:stop])
            except ValueError:
                continue
            args = value.get("args") if isinstance(value, dict) else None
            return args if isinstance(args, dict) else {}
        return {}


class _Window(Protocol):
    def at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`."""


class _InMemory:
    def __init__(self, text: bytes) -> None:
        self._text = text

    def at(self, offset: int, size: int) -> bytes:
        """Fewer bytes past the end of the text."""
        return self._text[offset : offset + size]


class _File:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        weakref.finalize(self, file.close)

    def at(self, offset: int, size: int) -> bytes:
        """Fewer bytes past the end of the file."""
        self._file.seek(offset)
        return self._file.read(size)


class _Unpacked:
    """Stretches of a packed file: the last one in memory; those that were needed again in a temporary file, where there is
    room for one."""

    def __init__(self, unpacker: Gunzip | Unzstd | Pftrace) -> None:
        self._unpacker = unpacker
        self._last = 0, b""
        self._seen: set[int] = set()
        self._file: IO[bytes] | None = None
        self._starts: list[int] = []
        self._places: list[tuple[int, int]] = []
        """of the stretches in the file: where, and how long"""

    def at(self, offset: int, size: int) -> bytes:
        """Offsets of the unpacked text; fewer bytes where the stream ends or is damaged."""
        piece = b""
        while len(piece) < size and (part := self._part(offset + len(piece), size - len(piece))):
            piece += part
        return piece

    def _part(self, offset: int, size: int) -> bytes:
        """No more than the stretch has."""
        start, text = self._last
        if start <= offset < start + len(text):
            return text[offset - start : offset - start + size]
        number = bisect_right(self._starts, offset) - 1
        if number >= 0 and self._file is not None:
            skipped, (place, length) = offset - self._starts[number], self._places[number]
            if skipped < length:
                self._file.seek(place + skipped)
                return self._file.read(min(size, length - skipped))
        start, text = self._last = self._unpacker.around(offset)
        if start in self._seen:
            self._keep(start, text)
        self._seen.add(start)
        return text[offset - start : offset - start + size]

    def _keep(self, start: int, text: bytes) -> None:
        number = bisect_left(self._starts, start)
        if self._starts[number : number + 1] == [start]:
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (lives as long as this window)
                weakref.finalize(self, self._file.close)
            place = self._file.seek(0, os.SEEK_END)
            if self._file.write(text) < len(text):
                return
        except OSError as error:
            log.debug("no room for what was unpacked: %s", error)
            return
        self._starts.insert(number, start)
        self._places.insert(number, (place, len(text)))
