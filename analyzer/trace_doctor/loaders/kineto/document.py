"""Walks a trace file: the fields around `traceEvents` one by one, and between them the lists of events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trace_doctor.loaders.kineto import meta, salvage
from trace_doctor.loaders.kineto.borders import AHEAD, EVENT
from trace_doctor.loaders.kineto.decode import Columns
from trace_doctor.loaders.kineto.events import EventList
from trace_doctor.loaders.kineto.recovery import GivenUp
from trace_doctor.run import Damage

_STRING = salvage.STRING.encode()
_KEY = re.compile(rb"(" + _STRING + rb')"\s*+:\s*+(?=\S)', re.S)
_SCALAR = re.compile(_STRING + rb'"(?=\s*[,}])|[^",{}\[\]]++(?=[,}])', re.S)
_BEGIN = re.compile(rb"^[^\S\n]*+(?=\{\s*" + _STRING + rb'"\s*:|\[\s*\{)', re.S | re.M)
"""A line that begins as a trace does"""
_FIELD = re.compile(rb'"\s*:')
"""In front of such a line: it is the begin of the file that is damaged, and nothing that was printed before it"""
_PADDING = re.compile(rb"[\s\0,\]}]*")
"""What may stand behind the end of a document and hides nothing: brackets are left over where damage took their partners."""
_MARKS = (b'"traceEvents"', b'"ph"', b'"cat"')  # a plain search for them is fifty times as fast
MOST_FIELDS, LARGEST_FIELD = 2000, 1 << 22
"""Top-level fields, and bytes of one: what is beyond is no description of a capture."""


class Document(EventList):
    """One pass over the bytes of a trace. `read` fills `meta` and hands the events to `columns`."""

    def __init__(self, pieces: Iterator[bytes], columns: Columns, damage: Damage) -> None:
        super().__init__(pieces, columns, damage)
        self.meta: dict[str, Any] = {}
        self.keys: list[str] = []
        self.arrays = 0
        """how many event lists there were"""
        self.legacy_list = False
        self._turns = 0

    def read(self) -> None:
        """Reads to the end, or up to where the file is given up."""
        try:
            self._walk()
        except GivenUp:
            self._store()
            self.tally.finish()
            self.damage.truncated, self.damage.given_up = True, self.tally.unreadable

    def _walk(self) -> None:
        """Also through what does not begin like JSON: its first bytes may be damaged."""
        self._hold(3)
        if self._text.startswith(b"\xef\xbb\xbf"):
            self._drop(3)
        self._skip()
        self._hold(self.LOOK_AHEAD)
        begin = _BEGIN.search(self._text, 0, self.LOOK_AHEAD)
        if begin and not _FIELD.search(self._text, 0, begin.start()):
            self.damage.leading = begin.end()
            self._drop(begin.end())
        if self._text.startswith(b"["):
            self.legacy_list = True
            self._drop(1)
            self._list()
        else:
            self.damage.lost += not self._text.startswith(b"{")
            self._drop(self._first_word())
            self._fields()
        while self._turns < MOST_FIELDS and self._another():
            self._fields()
        if self._turns >= MOST_FIELDS:
            self.damage.truncated = True
            self.damage.notes.append(f"the file has more than {MOST_FIELDS:,} fields alongside its events")

    def _another(self) -> bool:
        """Behind the end, moves to another list: of another document, or of this one where a stray bracket in a damaged event
        looked like its end. What begins like no document, or holds no list, is counted. False when there is no list."""
        self._skip(_PADDING)
        begin, document = self._at, self._text[:1] in (b"{", b"[")
        found = self._seek()
        passed = self._at - begin if found else self._at + len(self._text) - begin
        if not (found and document):
            self.damage.trailing += passed
        return found

    def _first_word(self) -> int:
        """Where the first field is, or an event of a list whose bracket is lost."""
        quote = self._text.find(b'"', 0, self.LOOK_AHEAD)
        bracket = self._text.rfind(b"{", 0, max(quote, 0))
        is_event = bracket >= 0 and EVENT.match(self._text, bracket, self.LOOK_AHEAD)
        return bracket if is_event else max(quote, 0)

    def _fields(self) -> None:
        while self._turns < MOST_FIELDS:
            self._turns += 1
            self._skip()
            if self._text[:1] == b"}":
                self._drop(1)
                return
            self._hold(self.LOOK_AHEAD)
            if EVENT.match(self._text, 0, self.LOOK_AHEAD):
                self._read_events()
                self._skip()
                if not self._text:  # a bare list behind a document
                    return
                continue
            key = self._key()
            if key is None:
                if not self._resync():
                    return
                continue
            name = key[1][1:].decode("utf-8", "replace")
            self.keys.append(name)
            if name == "traceEvents" and self._text[key.end() : key.end() + 1] == b"[":
                self._drop(key.end() + 1)
                self._list()
            elif not self._field(name, key.end()):
                return

    def _key(self) -> re.Match[bytes] | None:
        """The key that the window begins with, to its value."""
        if self._text[:1] != b'"':
            return None
        return next(filter(None, (_KEY.match(self._text, 0, end) for end in self._ends())), None)

    def _field(self, name: str, start: int) -> bool:
        """One field that is not the events. False at the end of the file."""
        end = next(filter(None, (self._value_end(start, stop) for stop in self._ends())), None)
        if end is None:
            return self._resync()
        text = self._text[start:end]
        try:
            value = salvage.strict(text) if len(text) < LARGEST_FIELD else None
        except ValueError:
            value = None
        if value is None and text != b"null":
            if AHEAD.search(text):  # a missing bracket: the field seems to reach into the events
                return self._resync()
            try:
                value = salvage.repair(text)
                self.damage.repaired += 1
            except ValueError:
                self.damage.lost += 1
        self._drop(end)
        present = self.meta.get(name)
        if isinstance(present, dict) and isinstance(value, dict):
            present.update(value)
        elif name in meta.KEPT_OBJECTS or not isinstance(value, dict | list):
            self.meta[name] = value
        return True

    def _value_end(self, start: int, stop: int) -> int | None:
        if self._text[start : start + 1] in (b"{", b"["):
            return salvage.object_end(self._text, start, stop)
        match = _SCALAR.match(self._text, start, stop)
        return match.end() if match else None

    def _resync(self) -> bool:
        """Behind an unreadable field: on to the events. False at the end of the file."""
        has_text = bool(self._text)
        self._shorten()
        if self._seek():
            self.damage.lost += has_text
            return True
        self.damage.truncated = True
        return False

    def _seek(self) -> bool:
        """Moves to the next list of events or the next event. False when there is none."""
        while True:
            match = any(key in self._text for key in _MARKS) and AHEAD.search(self._text)
            if match:
                near = match.end() - match.start() <= self.LOOK_AHEAD
                self._drop(match.start() if near else match.start() + 1)
                if near:
                    return True
                continue
            self._drop(max(len(self._text) - self.LOOK_AHEAD, 0))
            if not self._grow():
                return False

    def _list(self) -> None:
        self.arrays += 1
        self._read_events()
