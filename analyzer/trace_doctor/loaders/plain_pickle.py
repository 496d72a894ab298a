"""Pickles of plain data, read without ever executing anything of them.

The unpickler refuses every global, so that a file can only build dicts, lists, tuples, strings and numbers, in any
protocol from 0 to 5. Even plain data can be made to exhaust the machine or to crash Python (hashing a deeply nested tuple
does), so a child process does the reading.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader, BytesIO, RawIOBase
from pathlib import Path
from typing import IO, Any, TypeVar

from trace_doctor.errors import DamagedCapture, NotACapture, TooLarge
from trace_doctor.isolation import Crashed, OutOfMemory, OutOfTime, isolated
from trace_doctor.loaders.stream import ByteStream
from trace_doctor.memory_limit import memory_limit, text

HEAD = 1 << 16
_LEAST_GROWTH = 2
"""A pickle takes at least so many times its own bytes once it is read; sound snapshots take six to seven."""
_OF_ANOTHER = 256 << 20
"""Bytes of memory for what only has to be told from a capture."""
_LEAST_SECONDS, _BYTES_PER_SECOND = 20, 1 << 18
"""Processor time for any file, and what more of it (compressed) buys: a hundred times what a sound one takes."""
T = TypeVar("T")


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


def contained(
    read: Callable[[int], T], path: Path, display: str, what: str, max_memory: int | None = None
) -> T:
    """What `read` makes of a file, in a child process limited to `max_memory` bytes (default: a share of what is available)
    and to a processor time in proportion to the file. `read` is given how many decompressed bytes it may read; `what` the
    file should be, as "memory snapshot".

    Raises TooLarge beyond the limits, DamagedCapture where the reader dies, OSError for a file that is gone, and what `read`
    raises.
    """
    memory = max_memory or memory_limit()
    seconds = _LEAST_SECONDS + path.stat().st_size // _BYTES_PER_SECOND
    try:
        return isolated(lambda: read(memory // _LEAST_GROWTH), memory=memory, seconds=seconds)
    except OutOfMemory:
        raise TooLarge(
            f"{display}: reading this pickle needs more than {text(memory)} of memory (--max-memory)"
        ) from None
    except OutOfTime:
        sound = what.rpartition(" ")[2]
        raise TooLarge(
            f"{display}: reading this pickle takes more than {seconds} s, which no sound {sound} of its size does"
        ) from None
    except Crashed as crash:
        raise DamagedCapture(
            f"{display}: no {what}; reading this pickle kills the reader ({crash})"
        ) from None


@contextmanager
def unpickled(
    path: Path, display: str, what: str, most: int | None, is_ours: Callable[[bytes], bool]
) -> Iterator[Any]:
    """The plain data of a pickle, while the garbage collector is off: the objects are many and short-lived. `is_ours`: whether
    the first bytes are those of such a file. Raises NotACapture or DamagedCapture with one line, also where the file goes on
    behind the pickle; OutOfMemory beyond `most` decompressed bytes, on every system."""
    stream = ByteStream(path, ratio=None)
    head = stream.head(HEAD)
    if stream.problem:
        raise DamagedCapture(f"{display}: {stream.problem}")
    if head[:4] == b"PK\x03\x04":
        raise NotACapture(f"{display}: no {what}; it is a torch.save archive")
    if not head:
        raise NotACapture(f"{display}: no {what}; the file is empty")
    with _no_gc():
        file = BufferedReader(_CountingReader(stream, most), HEAD)
        yield _load(file, display, what, ours=is_ours(head))
        if _goes_on(file) or stream.trailing:  # such as a second one, which may tell something else
            raise DamagedCapture(f"{display}: the file goes on after its {what}")


def is_plain(data: bytes, judge: Callable[[Any], bool]) -> bool:
    """Whether these bytes are a sound pickle of plain data of which `judge` says so. It is read, and judged, in a child process."""
    try:
        return isolated(
            lambda: judge(PlainUnpickler(BytesIO(data)).load()), memory=_OF_ANOTHER, seconds=_LEAST_SECONDS
        )
    except Exception:  # a hostile pickle can raise anything
        return False


def _load(file: IO[bytes], display: str, what: str, *, ours: bool) -> Any:
    try:
        return PlainUnpickler(file).load()
    except _Refused as refused:
        raise NotACapture(
            f"{display}: no {what}; its pickle asks for {line(refused)}, a {what.rpartition(' ')[2]} holds plain data "
            "only. Nothing of it was executed"
        ) from None
    except (DamagedCapture, MemoryError, OutOfMemory):
        raise
    except Exception as error:  # a hostile pickle can raise anything
        if ours:
            raise DamagedCapture(f"{display}: the {what} is cut off or damaged ({line(error)})") from None
        raise NotACapture(f"{display}: no {what}; it cannot be read as a pickle ({line(error)})") from None


def _goes_on(file: IO[bytes]) -> bool:
    try:
        return bool(file.read(1))
    except EOFError:  # what follows is damaged
        return True


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


def line(what: object) -> str:
    """One short printable line."""
    text = " ".join(str(what)[:1000].split())
    return "".join(c if c.isprintable() else "?" for c in text)[:120] or type(what).__name__
