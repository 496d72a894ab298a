"""Reads the list of events of a trace, in chunks of about 1 MB.

A wrong border between chunks (inside an argument, inside a name) cannot decode, so it cannot give wrong data: such a
chunk is halved until the text at fault stands alone, and that is repaired or counted as lost.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter, sub

import numpy as np

from trace_doctor.loaders.kineto import salvage
from trace_doctor.loaders.kineto.borders import LAST, LIKE_EVENT, LIST_END, starts_of
from trace_doctor.loaders.kineto.decode import Columns, Event, decode, read_one
from trace_doctor.loaders.kineto.window import SPACE, Window
from trace_doctor.run import Damage

_NOTHING = re.compile(rb"\{\s*\}")
_BRACKET = re.compile(rb"[{\]]")
_LIKELY = 8
"""places at which a broken event may end that are tried"""
_AS_LONG = 160
"""Bytes in which an event's end is sought as long as one unreadable event takes."""
NARROW = 1 << 15
"""So much at least goes to the decoder in Python where the one in C finds something unusual; twice as much each time
that C does not get on behind it."""
PATIENCE = 40
"""How many broken events are looked at closely when their ends are not where they seem to be."""


class GivenUp(Exception):
    """Too much of the file cannot be read; what was read before counts."""


class EventList(Window):
    """A window whose events go to `columns`; what is unreadable is counted in `damage`."""

    MOST_UNREAD = 4_000_000
    """so many more places than events may be unreadable, each tried for some 30 µs: then the file is given up"""

    def __init__(self, pieces: Iterator[bytes], columns: Columns, damage: Damage) -> None:
        super().__init__(pieces)
        self.columns = columns
        self.damage = damage
        self._scanner = columns.scanner()
        self._done = 0
        self._unfinished = 0
        self._losing = False
        self._patience = PATIENCE
        self._unreadable, self._bearable = 0, self.MOST_UNREAD
        self._batch: list[Event] = []
        self._positions: list[int] = []
        self._narrowed = 0

    def _read_events(self) -> None:
        """Reads a list of events; the window begins behind its `[`, or at one of its events."""
        while True:
            self._skip()
            self._hold(self.LOOK_AHEAD)
            if self._scan():
                continue
            starts = starts_of(self._text)
            whole = self._narrow(starts, self._whole(starts))
            if whole == 0:
                at, most = self._at, self.LONGEST + self.LOOK_AHEAD
                whole_view = not self._more or len(self._text) > most
                if not self._singly(whole_view):
                    return
                if self._at == at:
                    self._hold(min(2 * len(self._text), most))
                continue
            self._done = 0
            stop = self._decode(starts, 0, whole)
            self._flush()
            if stop is not None:
                self._drop(stop)
                return
            if whole == len(starts):
                self.damage.truncated = True
                self.damage.lost += max(self._unfinished - 1, 0)  # one of them was cut, not damaged
                self._unfinished = 0
                self._drop(len(self._text))
                return
            self._drop(max(self._done, starts[whole]))

    def _whole(self, starts: list[int]) -> int:
        """How many pieces are here to their ends, with what is looked at behind them: up to the first that is longer than
        any event."""
        size = len(self._text)
        seen = bisect_left(starts, size - self.LOOK_AHEAD)
        ends = starts[1:seen] if self._more else [*starts[1:], size]
        lengths = map(sub, ends, starts)
        return next((i for i, length in enumerate(lengths) if length > self.LONGEST), len(ends))

    def _singly(self, whole_view: bool) -> bool:
        """Reads events one by one where no border shows. False where the list ends, or is lost: one that does not end as
        far as an event may reach, with a `whole_view` that far."""
        text, pos, over = self._text, 0, False
        stop = min(len(text) if whole_view else len(text) - self.LOOK_AHEAD, self.LONGEST)
        while (pos := self._behind_space(pos)) < stop:
            if text[pos : pos + 1] == b"]" and self._is_end(pos):
                self._finish()
                pos, over = pos + 1, True
                break
            if text[pos : pos + 1] != b"{":
                pos = self._garbage(pos, len(text))
                continue
            close = salvage.object_end(text, pos, stop)
            if close is not None and self._take(text[pos:close], pos, mend=True):
                pos = close
            elif pos or not whole_view:  # looked at once more, with all that follows
                break
            else:
                over = close is None or not self._patience
                self._patience = max(self._patience - 1, 0)
                pos = stop if close is None or over else close
                self._tried(pos // _AS_LONG if close is None else 0)
                self._unread(text[:pos], unfinished=False)
                if over:
                    break
        self._flush()
        self._drop(pos)
        return not over

    def _scan(self) -> bool:
        """Reads the window with the decoder in C, up to the last border before anything unusual. False where there is no
        such decoder, or where the window begins with what is unusual, and nothing was read."""
        if self._scanner is None or self._unfinished:
            return False
        window = self._scanner.scan(self._text[: self.LONGEST], self._at)
        if window is None:
            return False
        self.columns.add_window(window, self._text)
        self._losing = False
        if window.end > NARROW:
            self._narrowed = 0
        self._drop(window.end)
        return True

    def _narrow(self, starts: list[int], whole: int) -> int:
        """So many of the pieces that the decoder in Python is to read: where there is one in C, what is unusual may be one
        event, and then it goes back to C."""
        if self._scanner is None or self._unfinished or not whole:
            return whole
        narrow, self._narrowed = NARROW << self._narrowed, self._narrowed + 1
        return min(whole, max(bisect_left(starts, narrow) - 1, 1))

    def _decode(self, starts: list[int], low: int, high: int) -> int | None:
        """Decodes the pieces low..high. Gives the position behind the list's `]` when that was among them."""
        while low < high and starts[low] < self._done:  # an event that went on behind its border
            stop = self._single(self._done, self._end(starts, low + 1))
            if stop is not None:
                return stop
            low += 1
        if low >= high:
            return None
        end = self._end(starts, high)
        try:
            events = decode(b"".join((b"[", self._text[starts[low] : end], b"]")))
        except ValueError:
            events = []
        if len(events) == high - low:
            self._add(events, starts[low:high])
            self._done = end
            return None
        if high - low == 1:
            return self._single(starts[low], end)
        middle = (low + high) // 2
        stop = self._decode(starts, low, middle)
        return stop if stop is not None else self._decode(starts, middle, high)

    def _end(self, starts: list[int], following: int) -> int:
        """Where the piece before `following` ends: a border begins with the `}` of the piece before it."""
        return (
            self._text.rindex(b"}", 0, starts[following]) + 1 if following < len(starts) else len(self._text)
        )

    def _single(self, pos: int, end: int) -> int | None:
        """One piece that did not decode alone: several objects, the list's end, a wrong border, or damage."""
        text = self._text
        ahead = min(len(text), end + self.LOOK_AHEAD)
        while pos < end:
            pos = self._behind_space(pos)
            if pos >= end:
                break
            if text[pos : pos + 1] == b"]" and self._is_end(pos):
                self._done = pos + 1
                self._finish()
                return pos + 1
            if text[pos : pos + 1] != b"{":
                pos = self._garbage(pos, end)
                continue
            reach = ahead if self._patience else end
            close = salvage.object_end(text, pos, reach)
            if close is not None and self._take(text[pos:close], pos, mend=close <= end):
                pos = close
                continue
            if (hidden := self._hidden(pos, end)) is not None:
                stop = self._single(pos, hidden)
                if stop is not None:
                    return stop
                pos = hidden
                continue
            patient, self._patience = self._patience > 0, max(self._patience - 1, 0)
            if self._take(text[pos:end], pos, mend=True):
                pos = end
            elif end == len(text) and patient and (last := self._last_event(pos)) is not None:
                pos = last
            else:
                self._unread(text[pos:end], unfinished=close is None and reach == len(text))
                pos = end
        self._done = max(self._done, pos)
        return None

    def _behind_space(self, pos: int) -> int:
        found = SPACE.match(self._text, pos)
        return found.end() if found else pos

    def _is_end(self, pos: int) -> bool:
        """The `]` at `pos` ends the list; in a damaged event it may be one of the event's own."""
        ahead = min(len(self._text), pos + self.LOOK_AHEAD)
        last = ahead == len(self._text) and not self._text[pos + 1 :].strip(b" \t\r\n,}")
        if last and self._unfinished:
            return False  # the file was cut inside that event
        return LIST_END.match(self._text, pos, ahead) is not None

    def _last_event(self, pos: int) -> int | None:
        """The end of a damaged event that the end of the list follows. None when there is no such place."""
        ends = [close.start() + 1 for close in islice(LAST.finditer(self._text, pos), _LIKELY)]
        for end in ends:
            if self._take(self._text[pos:end], pos, mend=True):
                return end
        if not ends:
            return None
        bare = not self._text[ends[0] :].strip(b" \t\r\n,]}")  # may as well be brackets of the event itself
        self._unread(self._text[pos : ends[0]], unfinished=bare)
        return ends[0]

    def _hidden(self, pos: int, end: int) -> int | None:
        """The start of a sound event at the end of a damaged piece: the damage took the border between the two."""
        for found in islice(LIKE_EVENT.finditer(self._text, pos + 1, end), _LIKELY):
            close = salvage.object_end(self._text, found.start(), end)
            if close is None or not (
                SPACE.fullmatch(self._text, close, end)
                or LAST.match(self._text, close - 1, end + self.LOOK_AHEAD)
            ):
                continue
            event = read_one(self._text[found.start() : close])
            if event is not None and event.ph:
                return found.start()
        return None

    def _garbage(self, pos: int, end: int) -> int:
        """Behind what is no event: to the next bracket that may begin one or end the list."""
        end = min(end, pos + self.LOOK_AHEAD)
        found = _BRACKET.search(self._text, pos + 1, end)
        following = found.start() if found else end
        self._unread(self._text[pos:following], unfinished=False)
        return following

    def _unread(self, text: bytes, *, unfinished: bool) -> None:
        """Counts an unreadable event. Its phase tells one; of a text without it, only the first counts: others are pieces
        of the same event, behind a wrong border. One that does not end may be the file's last, cut off: that shows when
        no other follows."""
        self._tried(1)
        self._count(text, unfinished=unfinished)

    def _tried(self, times: int) -> None:
        """Something without success. What the columns hold bounds how long this may go on: their memory has a limit."""
        self._unreadable += times
        if self._unreadable > self._bearable:
            self._flush()
            most = self.MOST_UNREAD + self.columns.count
            if self._unreadable > most:
                raise GivenUp
            self._bearable = max(most, self._unreadable + self.MOST_UNREAD // 1000)

    def _count(self, text: bytes, *, unfinished: bool = False) -> None:
        if b'"ph"' not in text and (self._losing or b'":' not in text):
            return
        if unfinished:
            self._unfinished += 1
        else:
            self.damage.lost += 1
        self._losing = True

    def _add(self, events: list[Event], positions: list[int]) -> None:
        phases = list(map(attrgetter("ph"), events))
        if any(phases):
            self._finish()
        if not all(phases):
            self._without_phase(phases, positions)
        if phases and phases[-1]:
            self._losing = False
        self._batch += events
        self._positions += positions

    def _without_phase(self, phases: list[str], positions: list[int]) -> None:
        """Objects without a phase are no events, but what damage has left of some; `{}` ends the list of some writers."""
        for phase, pos in zip(phases, positions, strict=True):
            if phase:
                self._losing = False
            elif not _NOTHING.match(self._text, pos):
                self._count(b'":')

    def _flush(self) -> None:
        """Hands over the window's events together: columns are made for many at once."""
        self.columns.add(self._batch, np.array(self._positions, dtype=np.int64) + self._at)
        self._batch, self._positions = [], []

    def _finish(self) -> None:
        self.damage.lost += self._unfinished
        self._unfinished = 0

    def _take(self, text: bytes, pos: int, *, mend: bool) -> bool:
        """Adds one object's event. False when it cannot be read."""
        event = read_one(text)
        if event is None and mend:
            event = next(filter(None, map(read_one, salvage.repairs(text))), None)
            if event is not None:
                self.damage.repaired += 1
                self._tried(not event.ph)
        if event is None:
            return False
        self._add([event], [pos])
        return True
