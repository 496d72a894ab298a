"""Recovery of a damaged slice of the list of events: its objects one by one, repaired where that helps, else counted as
lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from operator import attrgetter

from trace_doctor.loaders.kineto import salvage
from trace_doctor.loaders.kineto.borders import LAST, LIKE_EVENT, LIST_END
from trace_doctor.loaders.kineto.decode import Event, read_one
from trace_doctor.loaders.kineto.window import SPACE
from trace_doctor.run import Damage

_NOTHING = re.compile(rb"\{\s*\}")
_BRACKET = re.compile(rb"[{\]]")
_LIKELY = 8
"""places at which a broken event may end that are tried"""
_AS_LONG = 160
"""Bytes in which an event's end is sought as long as one unreadable event takes."""
PATIENCE = 40
"""How many broken events are looked at closely when their ends are not where they seem to be."""


class GivenUp(Exception):
    """Too much of the file cannot be read; what was read before counts."""


class Tally:
    """Events that were read and are not in the columns yet; what could not be read is counted in `damage`."""

    def __init__(self, damage: Damage, tolerated: int, stored: Callable[[], int]) -> None:
        """`tolerated`: how many more places than events may be unreadable; `stored` takes `events` away and tells how
        many there were so far."""
        self.events: list[Event] = []
        self.positions: list[int] = []
        self.unfinished = 0
        """unreadable events without an end, of which the last may be cut off by the end of the file"""
        self.losing = False
        """whether nothing was read since the last unreadable event"""
        self.patience = PATIENCE
        self.unreadable = 0
        self._damage, self._stored = damage, stored
        self._tolerated = self._bearable = tolerated

    def add(self, events: list[Event], positions: list[int], text: bytes) -> None:
        """Takes the events that begin at these positions of `text`."""
        phases = list(map(attrgetter("ph"), events))
        if any(phases):
            self.finish()
        if not all(phases):
            self._without_phase(phases, positions, text)
        if phases and phases[-1]:
            self.losing = False
        self.events += events
        self.positions += positions

    def _without_phase(self, phases: list[str], positions: list[int], text: bytes) -> None:
        """Objects without a phase are no events, but what damage has left of some; `{}` ends the list of some writers."""
        for phase, pos in zip(phases, positions, strict=True):
            if phase:
                self.losing = False
            elif not _NOTHING.match(text, pos):
                self._count(b'":')

    def take(self, text: bytes, pos: int, end: int, *, mend: bool = True) -> bool:
        """Adds the event of one object. False when it cannot be read, neither as it is nor, with `mend`, repaired."""
        source = text[pos:end]
        event = read_one(source)
        if event is None and mend:
            event = next(filter(None, map(read_one, salvage.repairs(source))), None)
            if event is not None:
                self._damage.repaired += 1
                self.attempt(not event.ph)
        if event is not None:
            self.add([event], [pos], text)
        return event is not None

    def lose(self, text: bytes, *, unfinished: bool = False) -> None:
        """Counts an unreadable event. Its phase tells one; of a text without it, only the first counts: others are pieces
        of the same event, behind a wrong border. One that does not end may be the file's last, cut off: that shows when
        no other follows."""
        self.attempt(1)
        self._count(text, unfinished=unfinished)

    def _count(self, text: bytes, *, unfinished: bool = False) -> None:
        if b'"ph"' not in text and (self.losing or b'":' not in text):
            return
        if unfinished:
            self.unfinished += 1
        else:
            self._damage.lost += 1
        self.losing = True

    def attempt(self, times: int) -> None:
        """So many attempts without success. What the columns hold bounds how long this may go on: their memory has a
        limit. Raises GivenUp."""
        self.unreadable += times
        if self.unreadable > self._bearable:
            most = self._tolerated + self._stored()
            if self.unreadable > most:
                raise GivenUp
            self._bearable = max(most, self.unreadable + self._tolerated // 1000)

    def finish(self) -> None:
        """Something follows the unfinished events: none of them was cut off."""
        self._damage.lost += self.unfinished
        self.unfinished = 0


def recover(
    text: bytes, pos: int, end: int, tally: Tally, *, look_ahead: int, bordered: bool = True
) -> tuple[int, bool]:
    """Reads the objects of a slice into `tally`: the position behind what is done with, and whether the list is over.

    A slice that is `bordered` seems to end where an event does: an object in it may reach up to `look_ahead` bytes beyond, and
    one that is broken ends with the slice. Any other is as long as the longest event: only its first object, if
    broken, is done with, and where it has no end, so has the list.
    """
    start = pos
    limit = min(len(text), end + look_ahead)
    while (pos := SPACE.match(text, pos).end()) < end:  # type: ignore[union-attr]  # matches nothing as well
        if text[pos : pos + 1] == b"]" and _is_end(text, pos, tally, look_ahead):
            tally.finish()
            return pos + 1, True
        if text[pos : pos + 1] != b"{":
            stop = min(pos + look_ahead, end if bordered else limit)
            bracket = _BRACKET.search(text, pos + 1, stop)
            following = bracket.start() if bracket else stop
            tally.lose(text[pos:following])
            pos = following
            continue
        reach = limit if bordered and tally.patience else end
        close = salvage.object_end(text, pos, reach)
        if close is not None and tally.take(text, pos, close, mend=close <= end):
            pos = close
        elif not bordered:
            return (pos, False) if pos > start else _lose_long(text, pos, close, end, tally)
        elif (hidden := _hidden_event(text, pos, end, look_ahead)) is not None:
            pos, over = recover(text, pos, hidden, tally, look_ahead=look_ahead)
            if over:
                return pos, True
        else:
            pos = _broken(text, pos, end, tally, endless=close is None and reach == len(text))
    return pos, False


def _is_end(text: bytes, pos: int, tally: Tally, look_ahead: int) -> bool:
    """The `]` at `pos` ends the list; in a damaged event it may be one of the event's own."""
    ahead = min(len(text), pos + look_ahead)
    if tally.unfinished and ahead == len(text) and not text[pos + 1 :].strip(b" \t\r\n,}"):
        return False  # the file was cut inside that event
    return LIST_END.match(text, pos, ahead) is not None


def _hidden_event(text: bytes, pos: int, end: int, look_ahead: int) -> int | None:
    """The start of a sound event at the end of a damaged slice: the damage took the border between the two."""
    for beginning in islice(LIKE_EVENT.finditer(text, pos + 1, end), _LIKELY):
        close = salvage.object_end(text, beginning.start(), end)
        if close is None or not (
            SPACE.fullmatch(text, close, end) or LAST.match(text, close - 1, end + look_ahead)
        ):
            continue
        event = read_one(text[beginning.start() : close])
        if event is not None and event.ph:
            return beginning.start()
    return None


def _broken(text: bytes, pos: int, end: int, tally: Tally, *, endless: bool) -> int:
    """Repairs or loses an event that does not end before the slice does: behind it. The text's last event ends where the
    end of a list follows."""
    closes = LAST.finditer(text, pos) if end == len(text) and tally.patience else ()
    tally.patience = max(tally.patience - 1, 0)
    if tally.take(text, pos, end):
        return end
    ends = [close.start() + 1 for close in islice(closes, _LIKELY)]
    for stop in ends:
        if tally.take(text, pos, stop):
            return stop
    if ends:
        end = ends[0]
        endless = not text[end:].strip(b" \t\r\n,]}")  # may as well be brackets of the event itself
    tally.lose(text[pos:end], unfinished=endless)
    return end


def _lose_long(text: bytes, pos: int, close: int | None, end: int, tally: Tally) -> tuple[int, bool]:
    """Loses an object as long as the longest event: behind it, and whether the list is lost as well."""
    over = close is None or not tally.patience
    tally.patience = max(tally.patience - 1, 0)
    tally.attempt((end - pos) // _AS_LONG if close is None else 0)
    stop = end if over or close is None else close
    tally.lose(text[pos:stop])
    return stop, over
