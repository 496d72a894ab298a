"""The other end of `workers`: a process that loads one file after another and writes the columns where it is told.

It talks through one socket: a job comes as a message and an open file, answers go back as messages. Its standard input
is a pipe that nobody writes to: when it ends, whoever started this process is gone, and so is the work.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import signal
import socket
import struct
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from trace_doctor import tuning

if TYPE_CHECKING:
    from trace_doctor.loaders.columns import Content

log = logging.getLogger("trace_doctor")

LENGTH = struct.Struct("<I")
_EVERY = 0.05
"""Seconds between two reports of progress."""


def send(channel: socket.socket, message: dict[str, Any], files: tuple[int, ...] = ()) -> None:
    """One message, with the descriptors of open files."""
    body = msgspec.msgpack.encode(message)
    head = LENGTH.pack(len(body))
    if files:
        socket.send_fds(channel, [head], files)
        channel.sendall(body)
    else:
        channel.sendall(head + body)


def main(descriptor: int) -> None:
    """Serves jobs until the socket ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _offer_to_the_kernel()
    tuning.tune()
    channel = socket.socket(fileno=descriptor)
    from trace_doctor.loading import single  # the imports that take their time

    assert single
    send(channel, {"ready": True})
    while (job := _receive(channel)) is not None:
        message, files = job
        with _opened(files) as targets:
            send(channel, _done(channel, message, *targets))
        gc.collect()  # columns and what was made of them refer to each other: some hundred megabytes


@contextlib.contextmanager
def _opened(descriptors: list[int]) -> Iterator[list[IO[bytes]]]:
    files: list[IO[bytes]] = [os.fdopen(descriptor, "wb") for descriptor in descriptors]
    try:
        yield files
    finally:
        for file in files:
            with contextlib.suppress(OSError):  # no room: it has been told, and closing tries once more
                file.close()


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    head, files, _, _ = socket.recv_fds(channel, LENGTH.size, 2)
    if not head:
        return None
    head += _exactly(channel, LENGTH.size - len(head))
    return msgspec.msgpack.decode(_exactly(channel, LENGTH.unpack(head)[0])), files


def _exactly(channel: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = channel.recv(count - len(found))
        if not piece:
            os._exit(1)
        found += piece
    return found


def _done(
    channel: socket.socket, message: dict[str, Any], target: IO[bytes], prefetched: IO[bytes] | None = None
) -> dict[str, Any]:
    """The last message of a job: how it ended."""
    from trace_doctor.errors import TraceDoctorError
    from trace_doctor.loaders import columns
    from trace_doctor.loaders.discover import Found
    from trace_doctor.loaders.progress import listening
    from trace_doctor.loading import single

    found = Found(
        path=Path(os.fsdecode(message["path"])),
        display=os.fsdecode(message["display"]),
        kind=message["kind"],
        rank=message["rank"],
        rank_how=message["rank_how"],
    )
    reports = _Reports(channel)
    try:
        with listening(reports.read):
            content = single.load(found, message["memory"], core_free=message["core_free"])
        single.derive(content)
    except TraceDoctorError as error:
        return {"error": type(error).__name__, "text": str(error).encode("utf-8", "surrogateescape")}
    except Exception:
        return {"broken": traceback.format_exc().encode("utf-8", "replace")}
    try:
        columns.write(target, content, message["key"])
    except (OSError, ValueError) as error:
        return {"unwritten": str(error)}
    if prefetched is not None:
        try:
            _prefetch(message, single.described(content, found.path), prefetched)
        except Exception:  # the analysis makes it again, and says what is wrong
            log.debug("%s: nothing prefetched", found.display, exc_info=True)
    return {"done": True}


def _prefetch(message: dict[str, Any], content: Content, target: IO[bytes]) -> None:
    from trace_doctor.loaders import columns

    function, given = message["prefetch"]
    module, _, name = function.partition(":")
    columns.write_arrays(
        target, getattr(importlib.import_module(module), name)(content, given), message["key"]
    )


class _Reports:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._count = 0
        self._last = time.monotonic()

    def read(self, count: int) -> None:
        self._count += count
        now = time.monotonic()
        if now - self._last >= _EVERY:
            send(self._channel, {"read": self._count})
            self._count, self._last = 0, now


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)  # with whatever this process has started


def _offer_to_the_kernel() -> None:
    """Where memory runs out, this process is the one to be killed: its parent can tell of it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
