"""Bytes that can only be made from the beginning on, and are asked for in pieces in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

STRETCH = 4 << 20
"""Bytes that are given at once"""


class Forward:
    """What `Gunzip.around` gives, without points in the middle to begin at: what is read again should be in order."""

    def __init__(self) -> None:
        self._at, self._rest = 0, b""
        self._pieces: Iterator[bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A process that goes on reads from the beginning."""
        return {**vars(self), "_at": 0, "_rest": b"", "_pieces": None}

    def pieces(self) -> Iterator[bytes]:
        """All bytes, from the first on."""
        raise NotImplementedError

    def around(self, offset: int) -> tuple[int, bytes]:
        """The bytes that byte `offset` lies among, and where they begin; none behind the end of the data. Raises OSError when
        the file cannot be read."""
        start = offset // STRETCH * STRETCH
        if self._pieces is None or start < self._at:
            self._at, self._rest, self._pieces = 0, b"", self.pieces()
        while self._at + len(self._rest) < start + STRETCH and (piece := next(self._pieces, b"")):
            self._rest += piece
            gone = min(max(start - self._at, 0), len(self._rest))
            self._at, self._rest = self._at + gone, self._rest[gone:]
        gone = min(start - self._at, len(self._rest))
        self._at, self._rest = self._at + gone, self._rest[gone:]
        return start, self._rest[:STRETCH] if self._at == start else b""
