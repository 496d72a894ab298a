"""The optional decoder in C: same columns, a fifth of the time. Built at install where there is a compiler (`build.py`).

`Scanner` reads a window of text as far as all in it is plainly what profilers write, and leaves the rest untouched, so
that damage and oddities have one implementation, the one in Python. `TRACE_DOCTOR_DECODER=python` switches all of it
off; `=c` makes its absence an error.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from trace_doctor.arrays import I32, I64, Bool
from trace_doctor.errors import UsageError
from trace_doctor.loaders._accelerator.build import LIBRARY, is_whole, source_hash

FOLDER = Path(__file__).parent
VARIABLE = "TRACE_DOCTOR_DECODER"
_ROOM = 1 << 12

COLUMNS = ("ts", "dur", "correlation", "external", "offset", "stream", "name", "cat", "track", "device")
_NAMES, _CATS, _TRACKS, _IDS = range(4)
_FULL = -2
_MEMORY = np.dtype(
    [
        ("ts", "f8"),
        *((key, "i8") for key in ("addr", "bytes", "allocated", "reserved", "device_type", "device_id")),
    ]
)
_SPAN = np.dtype([("start", "i8"), ("end", "i8")])


class _Output(ctypes.Structure):
    """`Found` in scan.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in COLUMNS),
        *((name, ctypes.c_void_p) for name in ("memory", "labels")),
        *((f"{name}_room", ctypes.c_int64) for name in ("row", "memory", "label")),
        *((f"{name}_count", ctypes.c_int64) for name in ("row", "memory", "label")),
        ("out_of_memory", ctypes.c_int64),
        ("whole_ts", ctypes.c_int64),
        ("texts", ctypes.c_int64 * 3),
    ]


@cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or why there is none."""
    path = FOLDER / LIBRARY
    if not path.exists():
        return None, "not built at install; `python -m trace_doctor.loaders._accelerator` tells why"
    try:
        if not is_whole(FOLDER):
            return None, "cannot be loaded: it is not the file that was built; install again"
        library = ctypes.CDLL(str(path))
        library.trace_doctor_built_from.restype = ctypes.c_char_p
        if library.trace_doctor_built_from() != source_hash(FOLDER).encode():
            return None, "built from another version of its source; install again"
    except (OSError, AttributeError) as error:
        return None, f"cannot be loaded: {error}"
    library.trace_doctor_open.argtypes = [ctypes.c_uint64]
    library.trace_doctor_open.restype = ctypes.c_void_p
    library.trace_doctor_close.argtypes = [ctypes.c_void_p]
    library.trace_doctor_close.restype = None
    library.trace_doctor_scan.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.POINTER(_Output),
    ]
    library.trace_doctor_scan.restype = ctypes.c_int64
    library.trace_doctor_token.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int32,
        ctypes.POINTER(ctypes.c_int64),
    ]
    library.trace_doctor_token.restype = ctypes.c_void_p
    library.trace_doctor_nest.argtypes = [*(3 * [ctypes.c_void_p]), ctypes.c_int64, *(2 * [ctypes.c_void_p])]
    library.trace_doctor_nest.restype = ctypes.c_int
    library.trace_doctor_inside.argtypes = [*(3 * [ctypes.c_void_p]), ctypes.c_int64, ctypes.c_void_p]
    library.trace_doctor_inside.restype = None
    return library, ""


def _library_and_reason() -> tuple[ctypes.CDLL | None, str]:
    """The library, where it is there and wanted; else None and why. Raises UsageError where it is demanded in vain."""
    choice = os.environ.get(VARIABLE) or "auto"
    if choice not in ("auto", "c", "python"):
        raise UsageError(f"{VARIABLE}={choice}: not a decoder; there are python, c and auto")
    if choice == "python":
        return None, f"{VARIABLE}=python"
    library, problem = _load()
    if library is None and choice == "c":
        raise UsageError(f"{VARIABLE}=c: there is no decoder in C: {problem}")
    return library, problem


def description() -> str:
    """Which decoder is in use, and why not the one in C."""
    library, problem = _library_and_reason()
    return "C" if library is not None else f"Python (the one in C: {problem})"


class _Texts:
    """The texts that a scanner has numbered; it lives as long as they do."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.handle = library.trace_doctor_open(secrets.randbits(64))
        if not self.handle:
            raise MemoryError
        weakref.finalize(self, library.trace_doctor_close, self.handle)
        self._library = library

    def value(self, table: int, number: int) -> Hashable:
        length = ctypes.c_int64()
        start = self._library.trace_doctor_token(self.handle, table, number, ctypes.byref(length))
        token = ctypes.string_at(start, length.value)
        if table == _TRACKS:
            pid, tid = np.frombuffer(token, dtype=np.int32).tolist()
            return self.value(_IDS, pid), self.value(_IDS, tid)
        value: Hashable = msgspec.json.decode(token)
        return value


class Scanner:
    """Reads windows of the events of one file into the columns of `rows`; `ids` number its names, its categories and
    its (pid, tid)."""

    def __init__(self, library: ctypes.CDLL, rows: Rows, ids: tuple[Ids, Ids, Ids]) -> None:
        self._library = library
        self._texts = texts = _Texts(library)
        self._rows = rows
        self._memory = np.empty(_ROOM, dtype=_MEMORY)
        self._labels = np.empty(_ROOM, dtype=_SPAN)
        self._lend()
        self._numberings = [_Numbering(partial(texts.value, table), ids[table]) for table in range(3)]

    def scan(self, text: bytes, at: int) -> Window | None:
        """Reads the whole events of a text that begins with one, at byte `at` of the file, up to the first that is
        unusual. None where that is one of the first two; no row was added then."""
        result = self._found
        if result.row_room != self._rows.room:  # Python's decoder has made room for rows of its own
            result = self._lend()
        while True:
            result.row_count = first = len(self._rows)
            end = self._library.trace_doctor_scan(
                self._texts.handle, text, len(text), at, ctypes.byref(result)
            )
            if end != _FULL:
                break
            if result.row_count == result.row_room:
                self._rows.reserve(result.row_room + 1)
            else:
                self._memory = np.empty(2 * len(self._memory), dtype=_MEMORY)
                self._labels = np.empty(2 * len(self._labels), dtype=_SPAN)
            result = self._lend()
        if end <= 0:
            return None
        for key, numbering, count in zip(
            ("name", "cat", "track"), self._numberings, result.texts, strict=True
        ):
            numbering.apply(self._rows.columns[key][first : result.row_count], count)
        self._rows.extend(result.row_count - first)
        return Window(
            end,
            self._memory[: result.memory_count],
            [(start, stop) for start, stop in self._labels[: result.label_count].tolist()],
            result.out_of_memory,
            bool(result.whole_ts),
        )

    def _lend(self) -> _Output:
        columns = self._rows.columns
        self._found = result = _Output(*(columns[key].ctypes.data for key in COLUMNS))
        result.memory, result.labels = self._memory.ctypes.data, self._labels.ctypes.data
        result.row_room = self._rows.room
        result.memory_room = result.label_room = len(self._memory)
        return result


class _Numbering:
    """From the numbers of the scanner, which also saw what was given up, to those of the file's columns."""

    def __init__(self, value: Callable[[int], Hashable], ids: Ids) -> None:
        self._value = value
        self._ids = ids
        self._known = np.zeros(0, dtype=np.int32)
        self._count = 0
        self._alike = True

    def apply(self, column: I32, count: int) -> None:
        """Renumbers a column in place; `count` is that of the texts that the scanner knows."""
        if count > len(self._known):
            more = np.full(max(count - len(self._known), len(self._known)), -1, dtype=np.int32)
            self._known = np.append(self._known, more)
        if self._alike and count == self._count:
            return
        numbers = self._known[column]
        if len(numbers) and numbers.min() < 0:
            fresh, first = np.unique(column[numbers < 0], return_index=True)
            for number in fresh[np.argsort(first)].tolist():  # in the order of first use
                self._known[number] = self._ids[self._value(number)]
            numbers = self._known[column]
        column[:] = numbers
        self._count = count
        self._alike = bool((self._known[:count] == np.arange(count)).all())


class Ids(Protocol):
    """Numbers things in the order they are first asked for."""

    def __getitem__(self, key: Any, /) -> int: ...


class Rows(Protocol):
    """Columns that grow at their ends."""

    columns: dict[str, npt.NDArray[Any]]
    room: int
    """rows that the columns can take; as long as it is the same, they are the same arrays"""

    def __len__(self) -> int: ...

    def reserve(self, least: int) -> None: ...

    def extend(self, count: int) -> None: ...


@dataclass(frozen=True)
class Window:
    """What one window holds, beside its rows."""

    end: int
    """the position behind the last event that another follows"""
    memory: npt.NDArray[Any]
    """the `[memory]` instants; until the next window is read"""
    labels: list[tuple[int, int]]
    """where the events are that name processes and threads, and samples of counters"""
    out_of_memory: int
    integer_ts: bool


def in_use() -> bool:
    """Whether events are decoded in C."""
    return _library_and_reason()[0] is not None


def scanner(rows: Rows, ids: tuple[Ids, Ids, Ids]) -> Scanner | None:
    """A scanner for one file, where the C decoder is in use."""
    library, _ = _library_and_reason()
    return Scanner(library, rows, ids) if library is not None else None


def nest(ts: I64, dur: I64, rows: I64, parent: I32, depth: I32) -> bool:
    """`evidence.nesting.nest` of these rows of a run, into its columns. False where the C decoder is not in use."""
    library, _ = _library_and_reason()
    if library is None:
        return False
    ts, dur, rows = (np.ascontiguousarray(column, np.int64) for column in (ts, dur, rows))
    arrays = (a.ctypes.data for a in (ts, dur, rows))
    return bool(library.trace_doctor_nest(*arrays, len(rows), parent.ctypes.data, depth.ctypes.data))


def inside(up: I32, marked: Bool, rows: I64) -> Bool | None:
    """`evidence.nesting.inside`. None where the C decoder is not in use."""
    library, _ = _library_and_reason()
    if library is None:
        return None
    up, marked = np.ascontiguousarray(up, np.int32), np.ascontiguousarray(marked, np.bool_)
    rows, below = np.ascontiguousarray(rows, np.int64), np.zeros(len(rows), dtype=bool)
    if len(marked) < len(up) or (len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(up)):
        raise IndexError("rows of another run")
    library.trace_doctor_inside(*(a.ctypes.data for a in (up, marked, rows)), len(rows), below.ctypes.data)
    return below
