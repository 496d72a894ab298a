"""The process of a command: its streams, its signals, and how it ends."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
from typing import NoReturn

from trace_doctor.errors import printable, unbroken


def prepare() -> None:
    """Before anything is read or written."""
    _unwind_when_ended()
    _hear_of_children()
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character is no reason to fail
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


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
    """SIGTERM, SIGHUP and SIGQUIT end the program as Ctrl-C does: nothing half-written is left, and no process."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    for name in ("SIGTERM", "SIGHUP", "SIGQUIT"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup: ignored, and stays so
            signal.signal(number, leave)
