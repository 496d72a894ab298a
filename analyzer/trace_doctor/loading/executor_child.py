"""The other end of `contained`: a process that makes one call after another.

Its standard input is a pipe that nobody writes to: when it ends, whoever started this process is gone, and so is the work.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

_EVERY = 0.05
"""Seconds between two reports of progress"""


def main(descriptor: int) -> None:
    """Serves calls until the socket ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _offer_to_the_kernel()
    channel, connection = socket.socket(fileno=os.dup(descriptor)), Connection(descriptor)
    from trace_doctor.loading import load_file as single  # the imports that take their time

    assert single
    connection.send(True)
    with contextlib.suppress(EOFError, OSError):
        while True:
            _serve(channel, connection)
            gc.collect()  # columns and what was made of them refer to each other: some hundred megabytes
            if not gc.get_freeze_count():
                gc.freeze()  # what the first call has imported stays: it is not searched after each


def _serve(channel: socket.socket, connection: Connection) -> None:
    """One call: numbers of bytes that were read, then the exception, or None and a file."""
    from trace_doctor.errors import TraceDoctorError
    from trace_doctor.loaders.progress import listening
    from trace_doctor.loading import mapped_arrays
    from trace_doctor.loading.executor import NoRoom

    fn, args, kwargs = connection.recv()
    try:
        reports = _Reports(connection)
        with listening(reports.read):
            value = fn(*args, **kwargs)
        reports.send()
    except TraceDoctorError as error:
        connection.send(error.with_traceback(None))
        return
    except Exception as error:  # of our own code; not every exception can be sent
        failure = RuntimeError(f"{type(error).__name__}: {error}")
        failure.add_note(traceback.format_exc())
        connection.send(failure)
        return
    try:
        file = mapped_arrays.write(value)
    except OSError as error:
        connection.send(NoRoom(error.strerror or str(error)))
        return
    with file:
        connection.send(None)
        socket.send_fds(channel, [b"f"], [file.fileno()])


class _Reports:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._count = 0
        self._last = time.monotonic()

    def read(self, count: int) -> None:
        """`count` more bytes of the file; reports at most one message in each interval."""
        self._count += count
        now = time.monotonic()
        if now - self._last >= _EVERY:
            self.send()
            self._last = now

    def send(self) -> None:
        """The bytes since the last report."""
        self._connection.send(self._count)
        self._count = 0


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)  # with whatever this process has started


def _offer_to_the_kernel() -> None:
    """Where memory runs out, this process is the one to be killed: its parent can tell of it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
