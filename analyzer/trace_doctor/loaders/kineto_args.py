"""Decodes the `args` of chosen events again, from their byte offsets."""

from __future__ import annotations

import re
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from trace_doctor.errors import DamagedCapture
from trace_doctor.loaders import kineto_salvage
from trace_doctor.loaders.stream import ByteStream, open_regular

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

    Plain files are read at the offsets. A gzip file is unpacked once, into an unnamed temporary file; where there is
    no room for one, each call reads up to its last offset. Raises DamagedCapture when the file has gone or changed
    since it was loaded.
    """

    def __init__(self, path: Path, display: str, kept: bytes | None) -> None:
        self._path = path
        self._display = display
        self._opened: _Window | None = _Kept(kept) if kept is not None else None
        self._known: dict[int, dict[str, Any]] = {}

    def __call__(self, offsets: Iterable[int]) -> list[dict[str, Any]]:
        wanted = list(offsets)
        missing = sorted({o for o in wanted if o not in self._known})
        fresh = dict(self._read(missing)) if missing else {}
        found = [fresh[o] if o in fresh else self._known[o] for o in wanted]
        if len(self._known) + len(fresh) > _REMEMBERED:
            self._known.clear()
        if len(fresh) <= _REMEMBERED:
            self._known.update(fresh)
        return found

    def stream(self) -> ByteStream:
        """The whole file again, decompressed. Raises OSError where it is gone."""
        return ByteStream(self._path)

    def _read(self, offsets: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            window = self._window()
            for offset in offsets:
                yield offset, self._args(window, offset)
        except OSError as error:
            raise DamagedCapture(f"{self._display}: cannot be read any more ({error.strerror})") from error

    def _window(self) -> _Window:
        if self._opened is not None:
            return self._opened
        stream = ByteStream(self._path)
        try:
            self._opened = _File(_spill(stream) if stream.gzipped else open_regular(self._path))
        except OSError:
            if not stream.gzipped:
                raise
            return _Passing(ByteStream(self._path))
        return self._opened

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
        end = kineto_salvage.object_end(text, 0, len(text))
        closes = [m.start() + 1 for _, m in zip(range(4), _NEXT.finditer(text), strict=False)]
        for stop in ([end] if end is not None else []) + closes:
            try:
                value = kineto_salvage.repair(text[:stop])
            except ValueError:
                continue
            args = value.get("args") if isinstance(value, dict) else None
            return args if isinstance(args, dict) else {}
        return {}


class _Window:
    def at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; offsets never go back."""
        raise NotImplementedError


class _Kept(_Window):
    def __init__(self, text: bytes) -> None:
        self._text = text

    def at(self, offset: int, size: int) -> bytes:
        return self._text[offset : offset + size]


class _File(_Window):
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        weakref.finalize(self, file.close)

    def at(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(size)


class _Passing(_Window):
    def __init__(self, stream: ByteStream) -> None:
        self._pieces = stream.pieces()
        self._text = b""
        self._start = 0

    def at(self, offset: int, size: int) -> bytes:
        while self._start + len(self._text) < offset + size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            keep = max(min(offset - self._start, len(self._text)), 0)
            self._text, self._start = self._text[keep:] + piece, self._start + keep
        begin = offset - self._start
        return self._text[begin : begin + size]


def _spill(stream: ByteStream) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as its reader)
    try:
        for piece in stream.pieces():
            file.write(piece)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file
