"""Reads the list of events of a trace, in chunks of about 1 MB.

A wrong border between chunks (inside an argument, inside a name) cannot decode, so it cannot give wrong data: such a
chunk is halved until the text at fault stands alone, and that is repaired or counted as lost (`recovery`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from operator import sub

import numpy as np

from trace_doctor.loaders.kineto.borders import starts_of
from trace_doctor.loaders.kineto.decode import Columns, decode
from trace_doctor.loaders.kineto.recovery import Tally, recover
from trace_doctor.loaders.kineto.window import Window
from trace_doctor.run import Damage

NARROW = 1 << 15
"""So much at least goes to the decoder in Python where the one in C finds something unusual; twice as much each time
that C does not get on behind it."""


class EventList(Window):
    """A window whose events go to `columns`; what is unreadable is counted in `damage`."""

    MOST_UNREAD = 4_000_000
    """so many more places than events may be unreadable, each tried for some 30 µs: then the file is given up"""

    def __init__(self, pieces: Iterator[bytes], columns: Columns, damage: Damage) -> None:
        super().__init__(pieces)
        self.columns = columns
        self.damage = damage
        self.tally = Tally(damage, self.MOST_UNREAD, self._store)
        self._scanner = columns.scanner()
        self._done = 0
        self._narrowed = 0

    def _read_events(self) -> None:
        """Reads a list of events; the window begins behind its `[`, or at one of its events."""
        most = self.LONGEST + self.LOOK_AHEAD
        while True:
            self._skip()
            self._hold(self.LOOK_AHEAD)
            if self._scan():
                continue
            starts = starts_of(self._text)
            whole = self._narrow(starts, self._whole(starts))
            if whole == 0 and self._more and len(self._text) <= most:
                self._hold(min(2 * len(self._text), most))
                continue
            self._done = 0
            over = self._decode(starts, 0, whole) if whole else self._recover(0, self.LONGEST, bordered=False)
            self._store()
            if whole == len(starts) and not over:
                self.damage.truncated = True
                self.damage.lost += max(self.tally.unfinished - 1, 0)  # one of them was cut, not damaged
                self.tally.unfinished = 0
                self._drop(len(self._text))
                return
            self._drop(self._done if over or not whole else max(self._done, starts[whole]))
            if over:
                return

    def _whole(self, starts: list[int]) -> int:
        """How many pieces are here to their ends, with what is looked at behind them: up to the first that is longer than
        any event."""
        size = len(self._text)
        whole = bisect_left(starts, size - self.LOOK_AHEAD)
        ends = starts[1:whole] if self._more else [*starts[1:], size]
        lengths = map(sub, ends, starts)
        return next((i for i, length in enumerate(lengths) if length > self.LONGEST), len(ends))

    def _scan(self) -> bool:
        """Reads the window with the decoder in C, up to the last border before anything unusual. False where there is no
        such decoder, or where the window begins with what is unusual, and nothing was read."""
        if self._scanner is None or self.tally.unfinished:
            return False
        window = self._scanner.scan(self._text[: self.LONGEST], self._at)
        if window is None:
            return False
        self.columns.add_window(window, self._text)
        self.tally.losing = False
        if window.end > NARROW:
            self._narrowed = 0
        self._drop(window.end)
        return True

    def _narrow(self, starts: list[int], whole: int) -> int:
        """So many of the pieces that the decoder in Python is to read: where there is one in C, what is unusual may be one
        event, and then it goes back to C."""
        if self._scanner is None or self.tally.unfinished or not whole:
            return whole
        narrow, self._narrowed = NARROW << self._narrowed, self._narrowed + 1
        return min(whole, max(bisect_left(starts, narrow) - 1, 1))

    def _decode(self, starts: list[int], low: int, high: int) -> bool:
        """Decodes the pieces low..high, `_done` up to their end, or behind the list's `]`: then True."""
        while low < high and starts[low] < self._done:  # an event that went on behind its border
            if self._recover(self._done, self._end(starts, low + 1)):
                return True
            low += 1
        if low >= high:
            return False
        end = self._end(starts, high)
        try:
            events = decode(b"".join((b"[", self._text[starts[low] : end], b"]")))
        except ValueError:
            events = []
        if len(events) == high - low:
            self.tally.add(events, starts[low:high], self._text)
            self._done = end
            return False
        if high - low == 1:
            return self._recover(starts[low], end)
        middle = (low + high) // 2
        return self._decode(starts, low, middle) or self._decode(starts, middle, high)

    def _recover(self, pos: int, end: int, *, bordered: bool = True) -> bool:
        """A slice that did not decode: several objects, the list's end, a wrong border, or damage."""
        self._done, over = recover(
            self._text, pos, end, self.tally, look_ahead=self.LOOK_AHEAD, bordered=bordered
        )
        return over

    def _end(self, starts: list[int], following: int) -> int:
        """Where the piece before `following` ends: a border begins with the `}` of the piece before it."""
        return (
            self._text.rindex(b"}", 0, starts[following]) + 1 if following < len(starts) else len(self._text)
        )

    def _store(self) -> int:
        """Hands over the window's events together: columns are made for many at once. Gives how many there were so far."""
        tally = self.tally
        self.columns.add(tally.events, np.array(tally.positions, dtype=np.int64) + self._at)
        tally.events, tally.positions = [], []
        return self.columns.count
