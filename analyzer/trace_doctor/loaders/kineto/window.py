"""The part of a trace file that is in memory while it is read: it grows at its end and is dropped from its beginning.

Where it ends is chance: the pieces that come, and how far the decoder got with the window before. What is made of a text
must not depend on that, so nothing is looked for up to the window's end, but up to `LOOK_AHEAD` or `LONGEST` bytes behind a
place of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

SPACE = re.compile(rb"[\s,]*")
_OVERLAP = 64
"""No marker text is longer: one that two pieces share is seen, too."""
THOROUGH, SAMPLE = 1 << 23, 1 << 14
"""Marker texts are sought in all of the first 8 MiB, then in the first 16 KiB of each piece."""
MOST_VAIN = 8
"""So many fields whose ends are sought up to `LONGEST` may have none."""
PUT_BACK = 1 << 20
"""Bytes of a piece that is put back."""


class Window:
    """A window over the pieces of a file. `features` are the watched texts seen so far."""

    LONGEST = 1 << 24
    """no single event or metadata field is longer"""
    LOOK_AHEAD = 1 << 18
    """how far behind a place is looked to tell what it is: the end of a broken event, the next event"""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.features: set[bytes] = set()
        self._pieces = pieces
        self._put_back: list[bytes] = []
        self._text = b""
        self._at = 0
        self._more = True
        self._vain = 0
        self._watched: list[bytes] = []
        self._noted = 0

    def watch(self, markers: list[bytes]) -> None:
        """Texts whose presence anywhere in the events is noted in `features`."""
        self._watched = list(markers)

    def _grow(self, least: int = 1) -> bool:
        """Reads at least so many bytes more, as far as there are any."""
        pieces, more = [self._text], 0
        while more < least and self._more:
            piece = self._put_back.pop() if self._put_back else next(self._pieces, None)
            if piece is None:
                self._more = False
                break
            self._note_features(pieces[-1][-_OVERLAP:], piece, self._at + len(self._text) + more)
            pieces.append(piece)
            more += len(piece)
        self._text = b"".join(pieces)
        return more > 0

    def _hold(self, count: int) -> None:
        """Reads on until the window is longer than so many bytes, or the file is over."""
        if self._more and len(self._text) <= count:
            self._grow(count + 1 - len(self._text))

    def _ends(self) -> Iterator[int]:
        """Ends for a search that begins with the window, each twice as far, so that what is searched again stays in
        proportion: up to `LONGEST`, or the end of the file; not so far where that was often in vain."""
        most = self.LONGEST if self._vain < MOST_VAIN else self.LOOK_AHEAD
        end = min(self.LOOK_AHEAD, most)
        while True:
            self._hold(end)
            yield min(end, len(self._text))
            if end >= len(self._text):
                return
            if end == most:
                self._vain += 1
                return
            end = min(2 * end, most)

    def _shorten(self) -> None:
        """Puts back what was read far ahead: whatever is dropped copies the rest."""
        far = range(self.LOOK_AHEAD, len(self._text), PUT_BACK)
        self._put_back += [self._text[at : at + PUT_BACK] for at in reversed(far)]
        self._text = self._text[: self.LOOK_AHEAD]
        self._more |= bool(far)

    def _drop(self, count: int) -> None:
        self._text = self._text[count:]
        self._at += count

    def _skip(self, what: re.Pattern[bytes] = SPACE) -> None:
        """Past white space and commas, or what else is to be passed, reading on as needed; what is passed is dropped at once."""
        while True:
            match = what.match(self._text)
            self._drop(match.end() if match else 0)
            if self._text or not self._grow():
                return

    def _note_features(self, before: bytes, piece: bytes, at: int) -> None:
        """Arguments that many events have show in a part of each piece; a whole search would cost a fifth of the load."""
        if not self._watched or at < self._noted:  # put back
            return
        self._noted = at + len(piece)
        sample = before + piece if at < THOROUGH else piece[:SAMPLE]
        markers = [marker for marker in self._watched if marker in sample]
        if markers:
            self.features.update(markers)
            self._watched = [marker for marker in self._watched if marker not in markers]
