"""The part of a trace file that is in memory while it is read: it grows at its end and is dropped from its beginning."""

from __future__ import annotations

import re
from collections.abc import Iterator

SPACE = re.compile(rb"[\s,]*")
_BLANK = re.compile(rb"[ \t\r\n]*")
LONGEST = 1 << 24
"""The window's limit: no single event or metadata field is that long."""
_OVERLAP = 64
"""No marker text is longer: one that two pieces share is seen, too."""
THOROUGH, SAMPLE = 1 << 23, 1 << 14
"""Marker texts are sought in all of the first 8 MiB, then in the first 16 KiB of each piece."""


class Window:
    """A window over the pieces of a file. `features` are the watched texts seen so far."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.features: set[bytes] = set()
        self._pieces = pieces
        self._text = b""
        self._at = 0
        self._more = True
        self._watched: list[bytes] = []

    def watch(self, markers: list[bytes]) -> None:
        """Texts whose presence anywhere in the events is noted in `features`."""
        self._watched = list(markers)

    def _grow(self, least: int = 1) -> bool:
        """Reads at least so many bytes more, as far as there are any."""
        pieces, more = [self._text], 0
        while more < least and self._more:
            piece = next(self._pieces, None)
            if piece is None:
                self._more = False
                break
            self._note_features(pieces[-1][-_OVERLAP:], piece, self._at + len(self._text) + more)
            pieces.append(piece)
            more += len(piece)
        self._text = b"".join(pieces)
        return more > 0

    def _double(self, least: int = 0) -> bool:
        """Reads on until the window is twice as long (at least `least`), so that what is searched again stays in
        proportion. False when nothing came or the window is at its limit."""
        size = len(self._text)
        return size < LONGEST and self._grow(max(size, least - size))

    def _drop(self, count: int) -> None:
        self._text = self._text[count:]
        self._at += count

    def _skip(self) -> None:
        """Past white space and commas, reading on as needed; what is passed is dropped at once."""
        while True:
            found = SPACE.match(self._text)
            self._drop(found.end() if found else 0)
            if self._text or not self._grow():
                return

    def _skip_space(self, pos: int) -> int | None:
        """The first character at or behind `pos` that is no white space; None where the file or the window ends before."""
        while True:
            found = _BLANK.match(self._text, pos)
            pos = found.end() if found else pos
            if pos < len(self._text):
                return pos
            if not self._double():
                return None

    def _note_features(self, before: bytes, piece: bytes, at: int) -> None:
        """Arguments that many events have show in a part of each piece; a whole search would cost a fifth of the load."""
        if not self._watched:
            return
        sample = before + piece if at < THOROUGH else piece[:SAMPLE]
        seen = [marker for marker in self._watched if marker in sample]
        if seen:
            self.features.update(seen)
            self._watched = [marker for marker in self._watched if marker not in seen]
