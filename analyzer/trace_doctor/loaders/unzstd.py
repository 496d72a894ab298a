"""The bytes of a Zstandard file, up to where it is damaged. It needs the package zstandard, which is not installed with us."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trace_doctor.files import open_regular
from trace_doctor.loaders.forward import Forward
from trace_doctor.loaders.gunzip import BOMB, MEMBERS, PIECE
from trace_doctor.loaders.progress import advanced

try:
    import zstandard
except ImportError:
    zstandard = None  # type: ignore[assignment]

MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPED = b"\x2a\x4d\x18"
"""of a frame that is no data, behind its first byte, which is 0x50 to 0x5f"""
_PADDING = b"\0 \t\r\n"
_READ = 1 << 12
"""Bytes unpacked at once: a block of four may be 128 KiB, so that these are at most 128 MiB"""
_RATIO = 1000
"""Sound files hold at most so many times their size, once they are large"""
_WINDOW = 1 << 27


def usable() -> bool:
    """Whether Zstandard files can be read here."""
    return zstandard is not None


class Unzstd(Forward):
    """A Zstandard file, also of several frames in a row; to its users as `Gunzip` is."""

    def __init__(self, path: Path, ratio: int | None = _RATIO) -> None:
        super().__init__()
        self.problem = ""
        self.trailing = 0
        self._path = path
        self._ratio = None if ratio is None else _RATIO

    def pieces(self) -> Iterator[bytes]:
        """Pieces of at most 2 MiB. Raises OSError when the file cannot be read."""
        gathered = b""
        for out in self._unpacked():
            gathered += out
            while len(gathered) >= PIECE:
                yield gathered[:PIECE]
                gathered = gathered[PIECE:]
        if gathered:
            yield gathered

    def _unpacked(self) -> Iterator[bytes]:
        with open_regular(self._path) as file:
            size = os.fstat(file.fileno()).st_size
            frame, fresh, pending, produced, frames = _frame(), True, b"", 0, 0
            while True:
                if not pending:
                    pending = file.read(_READ)
                    advanced(len(pending))
                    if not pending:
                        self.problem = "" if fresh else "the Zstandard data ends early"
                        return
                if fresh:
                    pending = (pending.lstrip(_PADDING) if frames else pending) or file.read(_READ)
                    if not pending:
                        return
                    pending += file.read(4) if len(pending) < 4 else b""
                    if frames and not _begins_frame(pending):
                        self.trailing = size - file.tell() + len(pending)
                        return
                try:
                    out = frame.decompress(pending)
                except (zstandard.ZstdError, MemoryError) as error:
                    self.problem = f"the Zstandard data is damaged ({error})"
                    return
                pending, fresh, produced = b"", False, produced + len(out)
                if frame.eof:
                    pending, frame, fresh, frames = frame.unused_data, _frame(), True, frames + 1
                if out:
                    yield out
                if self._ratio and produced > BOMB and produced > self._ratio * file.tell():
                    self.problem = f"the Zstandard data unpacks to more than {self._ratio} times its size"
                    return
                if frames > MEMBERS and produced < MEMBERS * frames:
                    self.problem = "the Zstandard data has thousands of empty frames"
                    return


def _begins_frame(data: bytes) -> bool:
    return data.startswith(MAGIC) or (0x50 <= data[0] <= 0x5F and data[1:4] == _SKIPPED)


def _frame() -> Any:
    return zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
