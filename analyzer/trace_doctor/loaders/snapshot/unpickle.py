"""Allocator snapshots: pickles of plain data, read without ever executing anything of them.

The unpickler refuses every global, so that a file can only build dicts, lists, tuples, strings and numbers, in any
protocol from 0 to 5. A pickle that asks for more is no snapshot, whatever its name. Even plain data can be made to
exhaust the machine or to crash Python (hashing a deeply nested tuple does), so a child process does the reading.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, BytesIO, RawIOBase
from pathlib import Path
from typing import IO, Any

from trace_doctor.errors import DamagedCapture, NotACapture, TooLarge
from trace_doctor.isolation import Crashed, OutOfMemory, OutOfTime, isolated
from trace_doctor.loaders.snapshot.columns import Columns
from trace_doctor.loaders.stream import ByteStream
from trace_doctor.memory_limit import memory_limit, text
from trace_doctor.snapshot import Snapshot

HEAD = 1 << 16
_KEYS = (b"device_traces", b"segments", b"segment_type", b"total_size")
_LEAST_GROWTH = 2
"""A pickle takes at least so many times its own bytes once it is read; sound snapshots take six to seven."""
_OF_ANOTHER = 256 << 20
"""Bytes of memory for what only has to be told from a snapshot."""
_LEAST_SECONDS, _BYTES_PER_SECOND = 20, 1 << 18
"""Processor time for any file, and what more of it (compressed) buys: a hundred times what a sound one takes."""


class _Refused(Exception):
    pass


class _CountingReader(RawIOBase):
    """The bytes of a stream as a file, up to a number of them."""

    def __init__(self, stream: ByteStream, most: int | None) -> None:
        self._stream = stream
        self._pieces = stream.pieces()
        self._piece = memoryview(b"")
        self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._piece:
            self._piece = memoryview(next(self._pieces, b""))
            if self._stream.problem and not self._piece:
                raise EOFError(self._stream.problem)
            if self._left is not None:
                self._left -= len(self._piece)
                if self._left < 0:
                    raise OutOfMemory
        count = min(len(buffer), len(self._piece))
        buffer[:count], self._piece = self._piece[:count], self._piece[count:]
        return count


class PlainUnpickler(pickle.Unpickler):
    """The C unpickler without any means to reach code."""

    def find_class(self, module: str, name: str) -> Any:
        raise _Refused(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("a persistent object")


def load_snapshot(
    path: Path, display: str, *, rank: int = 0, rank_how: str = "", max_memory: int | None = None
) -> Snapshot:
    """Reads one snapshot, plain or gzipped, in a child process limited to `max_memory` bytes (default: a share of
    what is available) and to a processor time in proportion to the file.

    Raises NotACapture for a pickle of something else (or no pickle at all), DamagedCapture for a snapshot that is
    cut off, contradicts the format or is not all of its file, TooLarge for one beyond the limits, OSError for a file that cannot be opened;
    each with one line. `display` is the path to show.
    """
    memory = max_memory or memory_limit()
    most = memory // _LEAST_GROWTH
    seconds = _LEAST_SECONDS + path.stat().st_size // _BYTES_PER_SECOND
    try:
        return isolated(
            lambda: read_snapshot(path, display, rank=rank, rank_how=rank_how, most=most),
            memory=memory,
            seconds=seconds,
        )
    except OutOfMemory:
        raise TooLarge(
            f"{display}: reading this pickle needs more than {text(memory)} of memory (--max-memory)"
        ) from None
    except OutOfTime:
        raise TooLarge(
            f"{display}: reading this pickle takes more than {seconds} s, which no sound snapshot of its size does"
        ) from None
    except Crashed as crash:
        raise DamagedCapture(
            f"{display}: no memory snapshot; reading this pickle kills the reader ({crash})"
        ) from None


def is_another_pickle(data: bytes) -> bool:
    """Whether these bytes are a sound pickle of plain data, and no snapshot. Read in a child process as well."""
    try:
        return isolated(
            lambda: _kind(PlainUnpickler(BytesIO(data)).load()) is not None,
            memory=_OF_ANOTHER,
            seconds=_LEAST_SECONDS,
        )
    except Exception:  # a hostile pickle can raise anything
        return False


def read_snapshot(
    path: Path, display: str, *, rank: int = 0, rank_how: str = "", most: int | None = None
) -> Snapshot:
    """`load_snapshot` in this process and without limits but one, how many decompressed bytes are read: for trusted
    files and for fuzzing. Raises OutOfMemory beyond `most`, on every system."""
    stream = ByteStream(path, ratio=None)
    head = stream.head(HEAD)
    if stream.problem:
        raise DamagedCapture(f"{display}: {stream.problem}")
    _refuse_foreign(head, display)
    with _no_gc():
        file = BufferedReader(_CountingReader(stream, most), HEAD)
        data = _unpickled(file, display, ours=any(key in head for key in _KEYS))
        snapshot = _columns(data, display, rank, rank_how)
        if _goes_on(file) or stream.trailing:  # such as a second snapshot, which may tell something else
            raise DamagedCapture(f"{display}: the file goes on after its memory snapshot")
        return snapshot


def _columns(data: Any, display: str, rank: int, rank_how: str) -> Snapshot:
    """Columns of what the pickle held. Called with the garbage collector off: the objects are many and short-lived."""
    kind = _kind(data)
    if kind is not None:
        raise NotACapture(f"{display}: no memory snapshot; it is {kind}")
    try:
        return Columns(data).snapshot(display, rank, rank_how)
    except MemoryError:
        raise
    except Exception as error:  # anything can stand where the format wants a number or a list
        raise DamagedCapture(
            f"{display}: damaged memory snapshot ({type(error).__name__}: {_line(error)})"
        ) from None


def _unpickled(file: IO[bytes], display: str, *, ours: bool) -> Any:
    try:
        return PlainUnpickler(file).load()
    except _Refused as refused:
        raise NotACapture(
            f"{display}: no memory snapshot; its pickle asks for {_line(refused)}, a snapshot holds plain data "
            "only. Nothing of it was executed"
        ) from None
    except (DamagedCapture, MemoryError, OutOfMemory):
        raise
    except Exception as error:  # a hostile pickle can raise anything
        if ours:
            raise DamagedCapture(
                f"{display}: the memory snapshot is cut off or damaged ({_line(error)})"
            ) from None
        raise NotACapture(
            f"{display}: no memory snapshot; it cannot be read as a pickle ({_line(error)})"
        ) from None


def _goes_on(file: IO[bytes]) -> bool:
    try:
        return bool(file.read(1))
    except EOFError:  # what follows is damaged
        return True


def _kind(data: Any) -> str | None:
    """What a harmless pickle is when it is no snapshot; None for a snapshot."""
    if isinstance(data, dict):
        if isinstance(data.get("segments"), (list, tuple)):
            return None
        if "entries" in data and ("pg_config" in data or "pg_status" in data or "version" in data):
            return "an NCCL flight-recorder dump"
        keys = ", ".join(repr(k[:40]) if isinstance(k, str) else type(k).__name__ for k in list(data)[:3])
        return f"a pickled dict with {_line(keys) if keys else 'nothing in it'}"
    if isinstance(data, (list, tuple)):
        if data and all(isinstance(s, dict) and "blocks" in s and "total_size" in s for s in data):
            return None
        return f"a pickled {type(data).__name__} of {len(data)}"
    return f"a pickled {type(data).__name__}"


def _refuse_foreign(head: bytes, display: str) -> None:
    if head[:4] == b"PK\x03\x04":
        raise NotACapture(f"{display}: no memory snapshot; it is a torch.save archive")
    if not head:
        raise NotACapture(f"{display}: no memory snapshot; the file is empty")


@contextmanager
def _no_gc() -> Iterator[None]:
    """Millions of live containers make every collection slow (3x on a million entries)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _line(what: object) -> str:
    """One short printable line."""
    text = " ".join(str(what)[:1000].split())
    return "".join(c if c.isprintable() else "?" for c in text)[:120] or type(what).__name__
