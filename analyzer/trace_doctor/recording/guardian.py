"""Ends a command whose recorder is gone: a small process of its own session, which no signal to us or to our group reaches.

It waits at a pipe that we alone hold. Where that ends without a word, because we were killed, it ends all processes of
the command. Standard library only: it is to be there before the command is.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trace_doctor.errors import UsageError
from trace_doctor.recording import processes

_START = "import sys; sys.path.append(sys.argv[1]); from trace_doctor.recording.guardian import main; main(*sys.argv[2:])"
_DONE = b"done\n"
_LOOKS_EVERY = 0.1
_QUIET = 2.0
"""seconds without a process of the command until it is taken to be gone: one may just be starting"""
_PATIENCE = 60.0
"""seconds after SIGKILL that a process gets to go which the system holds"""


@contextmanager
def guarding(variable: str, value: str, grace: float) -> Iterator[Callable[[int], None]]:
    """While this lasts, all that was started with this environment variable ends when we do, however we end: first by
    SIGTERM, after `grace` seconds by SIGKILL. So it does where an exception leaves the block, but for a UsageError: then
    nothing was started. Gives what is to be told the process id of the command. Raises UsageError where no process can be
    started."""
    package = str(Path(__file__).parents[2])
    command = [sys.executable, "-I", "-S", "-B", "-c", _START, package, variable, value, str(grace)]
    nowhere = subprocess.DEVNULL
    try:
        guardian = subprocess.Popen(
            command,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=nowhere,
            stderr=nowhere,
            start_new_session=True,
            bufsize=0,
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot start a process: {getattr(error, 'strerror', None) or error}") from None
    pipe = guardian.stdin
    assert pipe is not None  # asked for above

    def tell(line: bytes) -> None:
        with suppress(OSError):  # somebody has killed it
            pipe.write(line)

    try:
        yield lambda pid: tell(b"%d\n" % pid)
    except UsageError:
        tell(_DONE)
        raise
    else:
        tell(_DONE)
    finally:
        with suppress(OSError):
            pipe.close()
        guardian.wait()


def main(variable: str, value: str, grace: str) -> None:
    """The guardian's life."""
    started = processes.Started(variable, value)
    for line in iter(sys.stdin.buffer.readline, b""):
        if line == _DONE:
            return
        started.add(int(line))
    _end(started, float(grace))


def _end(started: processes.Started, grace: float) -> None:
    began = last_activity = time.monotonic()
    terminated: set[int] = set()
    while (now := time.monotonic()) - last_activity < _QUIET and now - began < grace + _PATIENCE:
        if remaining := started.pids():
            last_activity = now
            late = now - began >= grace
            processes.send(
                signal.SIGKILL if late else signal.SIGTERM,
                remaining if late else sorted({*remaining} - terminated),
            )
            terminated.update(remaining)
        time.sleep(_LOOKS_EVERY)
