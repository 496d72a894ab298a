"""The optional decoder in C: same columns, a fifth of the time. Built at install where there is a compiler (`build.py`).

`Scanner` reads a window of text when all in it is plainly what profilers write, and leaves it untouched otherwise, so
that damage and oddities have one implementation, the one in Python. `TRACE_DOCTOR_DECODER=python` switches all of it
off; `=c` makes its absence an error.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from trace_doctor.errors import UsageError
from trace_doctor.loaders._accelerator.build import LIBRARY, source_hash
from trace_doctor.run import I32, I64

FOLDER = Path(__file__).parent
VARIABLE = "TRACE_DOCTOR_DECODER"
_ROOM = 1 << 12

INTEGERS = ("correlation", "external", "external_old", "device", "stream")
MEMORY = ("addr", "bytes", "allocated", "reserved", "device_type", "device_id")
_NAMES, _CATS, _IDS, _TRACKS = range(4)
_FULL = -2
_ROW = np.dtype(
    [
        ("ts", "f8"),
        ("dur", "f8"),
        *((key, "i8") for key in INTEGERS),
        ("offset", "i8"),
        ("name", "i4"),
        ("cat", "i4"),
        ("track", "i4"),
        ("unused", "i4"),
    ]
)
_MEMORY_ROW = np.dtype([("ts", "f8"), *((key, "i8") for key in MEMORY)])
_SPAN = np.dtype([("start", "i8"), ("end", "i8")])


class _Found(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("rows", "memory", "labels")),
        *((f"{name}_room", ctypes.c_int64) for name in ("row", "memory", "label")),
        *((f"{name}_count", ctypes.c_int64) for name in ("row", "memory", "label")),
        ("out_of_memory", ctypes.c_int64),
    ]


@cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or why there is none."""
    path = FOLDER / LIBRARY
    if not path.exists():
        return None, "not built at install; `python -m trace_doctor.loaders._accelerator.build` tells why"
    try:
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
        ctypes.POINTER(_Found),
    ]
    library.trace_doctor_scan.restype = ctypes.c_int64
    library.trace_doctor_token.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int32,
        ctypes.POINTER(ctypes.c_int64),
    ]
    library.trace_doctor_token.restype = ctypes.c_void_p
    library.trace_doctor_nest.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    library.trace_doctor_nest.restype = ctypes.c_int
    return library, ""


def _chosen() -> tuple[ctypes.CDLL | None, str]:
    """The library, where it is there and wanted; else None and why. Raises UsageError where it is demanded in vain."""
    wanted = os.environ.get(VARIABLE) or "auto"
    if wanted not in ("auto", "c", "python"):
        raise UsageError(f"{VARIABLE}={wanted}: not a decoder; there are python, c and auto")
    if wanted == "python":
        return None, f"{VARIABLE}=python"
    library, problem = _load()
    if library is None and wanted == "c":
        raise UsageError(f"{VARIABLE}=c: there is no decoder in C: {problem}")
    return library, problem


def description() -> str:
    """Which decoder is in use, and why not the one in C."""
    library, problem = _chosen()
    return "C" if library is not None else f"Python (the one in C: {problem})"


class Scanner:
    """Reads windows of events of one file."""

    def __init__(self, library: ctypes.CDLL) -> None:
        handle = library.trace_doctor_open(secrets.randbits(64))
        if not handle:
            raise MemoryError
        weakref.finalize(self, library.trace_doctor_close, handle)
        self._library = library
        self._handle = handle
        self._rows = np.empty(_ROOM, dtype=_ROW)
        self._memory = np.empty(_ROOM, dtype=_MEMORY_ROW)
        self._spans = np.empty(_ROOM, dtype=_SPAN)
        self._numbers = {table: np.full(0, -1, dtype=np.int32) for table in (_NAMES, _CATS, _TRACKS)}

    def scan(self, text: bytes) -> Window | None:
        """The whole events of a text that begins with one. None where anything in it is unusual."""
        while True:
            found = _Found(
                self._rows.ctypes.data,
                self._memory.ctypes.data,
                self._spans.ctypes.data,
                len(self._rows),
                len(self._memory),
                len(self._spans),
            )
            end = self._library.trace_doctor_scan(self._handle, text, len(text), ctypes.byref(found))
            if end != _FULL:
                break
            self._rows = np.empty(2 * len(self._rows), dtype=_ROW)
            self._memory = np.empty(2 * len(self._memory), dtype=_MEMORY_ROW)
            self._spans = np.empty(2 * len(self._spans), dtype=_SPAN)
        if end <= 0:
            return None
        return Window(
            self,
            end,
            self._rows[: found.row_count],
            self._memory[: found.memory_count],
            self._spans[: found.label_count],
            found.out_of_memory,
        )

    def _token(self, table: int, number: int) -> bytes:
        length = ctypes.c_int64()
        start = self._library.trace_doctor_token(self._handle, table, number, ctypes.byref(length))
        return ctypes.string_at(start, length.value)

    def _value(self, table: int, number: int) -> Hashable:
        token = self._token(table, number)
        if table == _TRACKS:
            pid, tid = np.frombuffer(token, dtype=np.int32).tolist()
            return self._value(_IDS, pid), self._value(_IDS, tid)
        value: Hashable = msgspec.json.decode(token)
        return value

    def numbered(self, table: int, own: I32, ids: Callable[[Any], int]) -> I32:
        """The numbers that `ids` gives to what the scanner calls `own`, asked for in the order of first use."""
        known = self._numbers[table]
        if len(own) and (top := int(own.max())) >= len(known):
            known = self._numbers[table] = np.append(known, np.full(max(top + 1, len(known)), -1, np.int32))
        found = known[own]
        if len(found) and found.min() < 0:
            fresh, first = np.unique(own[found < 0], return_index=True)
            for number in fresh[np.argsort(first)].tolist():
                known[number] = ids(self._value(table, number))
            found = known[own]
        return found


class Window:
    """What one window holds, until the next is scanned."""

    def __init__(
        self,
        scanner: Scanner,
        end: int,
        rows: npt.NDArray[Any],
        memory: npt.NDArray[Any],
        spans: npt.NDArray[Any],
        out_of_memory: int,
    ) -> None:
        self._scanner = scanner
        self._rows = rows
        self.end = end
        """the position behind the last event that another follows"""
        self.memory: dict[str, npt.NDArray[Any]] = {key: memory[key] for key in ("ts", *MEMORY)}
        """the `[memory]` instants"""
        self.labels: Sequence[tuple[int, int]] = [(a, b) for a, b in spans.tolist()]
        """where the names of processes and threads stand"""
        self.out_of_memory = out_of_memory

    def __len__(self) -> int:
        return len(self._rows)

    def part(
        self, names: Callable[[Any], int], cats: Callable[[Any], int], tracks: Callable[[Any], int]
    ) -> dict[str, npt.NDArray[Any]]:
        """The events with a duration, as columns; the callables number names, categories and (pid, tid)."""
        part: dict[str, npt.NDArray[Any]] = {
            key: self._rows[key] for key in ("ts", "dur", "offset", *INTEGERS)
        }
        for key, table, ids in (("name", _NAMES, names), ("cat", _CATS, cats), ("track", _TRACKS, tracks)):
            part[key] = self._scanner.numbered(table, self._rows[key], ids)
        return part


def scanner() -> Scanner | None:
    """A scanner for one file, where the C decoder is in use."""
    library, _ = _chosen()
    return Scanner(library) if library is not None else None


def nest(ts: I64, end: I64) -> tuple[I32, I32] | None:
    """`evidence.nesting.nest`, where the C decoder is in use."""
    library, _ = _chosen()
    if library is None:
        return None
    ts, end = np.ascontiguousarray(ts, np.int64), np.ascontiguousarray(end, np.int64)
    parent, depth = np.empty(len(ts), np.int32), np.empty(len(ts), np.int32)
    done = library.trace_doctor_nest(
        ts.ctypes.data, end.ctypes.data, len(ts), parent.ctypes.data, depth.ctypes.data
    )
    return (parent, depth) if done else None
