"""The process of a command: its streams, its signals, and how it ends."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import signal
import sys
import weakref
from typing import Any, NoReturn

from trace_doctor.errors import printable, unbroken


def prepare() -> None:
    """Before anything is read or written."""
    _unwind_when_ended()
    sys.unraisablehook = _unraisable
    _hear_of_children()
    _open_what_is_closed()
    for number, name in ((1, "stdout"), (2, "stderr")):
        if hasattr(os, "get_blocking") and not os.get_blocking(number):
            setattr(sys, name, _waiting(number, getattr(sys, name)))
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character is no reason to fail
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


class _Waiting(io.RawIOBase):
    """A descriptor that does not wait until there is room, as Node.js hands on its pipes: here whoever writes to it does. Whether it
    waits by itself is a matter of all that share it."""

    def __init__(self, number: int) -> None:
        self._number = number

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: Any) -> int:
        while True:
            try:
                return os.write(self._number, data)
            except BlockingIOError:
                select.select([], [self._number], [])


def _waiting(number: int, stream: Any) -> io.TextIOWrapper:
    raw = io.BufferedWriter(_Waiting(number))
    return io.TextIOWrapper(raw, encoding=stream.encoding, errors=stream.errors, line_buffering=number == 2)


class PrintableFormatter(logging.Formatter):
    """Lines of the log name files, and what is in them. A traceback below one keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # as logging calls it
        """The message as one line."""
        return unbroken(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """The line as it may reach a terminal or a log."""
        return printable(super().format(record))


def say(*lines: str) -> None:
    """Lines for the person at the terminal: whatever is said on stderr goes through here, or through the log. Each stays one,
    also where the name of a file in it holds several: none of these is taken for a word of ours."""
    print(*map(unbroken, lines), sep="\n", file=sys.stderr)


def tell(text: str) -> None:
    """What ends the program. The exit code says it as well where nobody can be told: 1 would be a verdict of `check`."""
    with contextlib.suppress(OSError):
        say(f"trace-doctor: {text}")


def interrupted() -> NoReturn:
    """The end of what Ctrl-C has ended."""
    tell("interrupted")
    sys.exit(130)


def leave_stdout() -> None:
    """What is still to be written goes nowhere: the interpreter would fail over it once more on its way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _open_what_is_closed() -> None:
    """Started with `>&-`, the next file that is opened would take the place of the standard output."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # the lowest free number: this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _hear_of_children() -> None:
    """Started with `trap "" CHLD`, the system would tell nobody how a process of ours has ended."""
    if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _unwind_when_ended() -> None:
    """SIGTERM, SIGHUP and SIGQUIT end the program as Ctrl-C does: nothing half-written is left, and no process. Where foreign
    code swallows what the handler raises (a callback of C, a `__del__`), it is raised again a second later."""
    heard: list[int] = []

    def leave(number: int, _: object) -> None:
        heard.append(number)
        raise _raised_again(_Interrupted() if number == signal.SIGINT else _Ended(128 + number))

    def once_more(_: int, frame: object) -> None:
        leave(heard[-1], frame)

    if hasattr(signal, "setitimer") and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup: ignored, and stays so
            signal.signal(number, leave)
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, once_more)


def _unraisable(problem: Any) -> None:
    """What a finalizer raises, as Python shows it, but for a signal that came while one ran: it is raised again, and no fault."""
    if not isinstance(problem.exc_value, _Ended | _Interrupted):
        sys.__unraisablehook__(problem)


class _Ended(SystemExit):
    """By a signal."""


class _Interrupted(KeyboardInterrupt):
    """By Ctrl-C."""


AGAIN_AFTER = 1.0
"""seconds"""
_raised: list[weakref.ref[BaseException]] = []


def _raised_again(error: BaseException) -> BaseException:
    """While the program ends, the interpreter holds the exception, for as long as cleaning up takes. Once nobody does and the program
    still runs, somebody has swallowed it. It has no name in the handler, whose frame the exception would hold."""
    if hasattr(signal, "setitimer"):
        owner = os.getpid()

        def lost(_: object) -> None:
            if os.getpid() == owner:
                signal.setitimer(signal.ITIMER_REAL, AGAIN_AFTER)

        _raised.append(weakref.ref(error, lost))
    return error
