"""The ways in which a process ends, so that none of them loses what was recorded."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

Finish = Callable[[str], None]
Failed = Callable[[BaseException], None]


def watch(finish: Finish, failed: Failed) -> None:
    """`failed` hears of an exception that reaches the top, `finish` of the end by whatever way there is."""
    atexit.register(finish, "script")
    _watch_exceptions(failed)
    _watch_exit(finish)


def _watch_exceptions(failed: Failed) -> None:
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        failed(error)
        before(kind, error, trace)

    sys.excepthook = hook


def _watch_exit(finish: Finish) -> None:
    """os._exit runs no exit handler: multiprocessing leaves a forked child by it."""
    leave = os._exit

    def watched(status: int) -> Any:
        finish("os._exit")
        leave(status)

    os._exit = watched


def is_ray_worker() -> bool:
    """Whether this is the thread in which a worker of Ray Train trains: whatever it raises, SystemExit included, is a failure of it."""
    return "ray.train" in sys.modules and threading.current_thread() is not threading.main_thread()


def end_without_libraries() -> None:
    """In a child of a process that was profiled: it ends with its own code once Python is done, before the libraries of the parent
    are taken down. The profiler's waits for threads there that the child does not have, and would wait for ever."""
    try:
        c = ctypes.CDLL(None)
        c.on_exit(ctypes.cast(c._exit, ctypes.c_void_p), None)
    except (OSError, AttributeError):  # no glibc
        return


def watch_termination(finish: Finish) -> None:
    """SIGTERM, where the script leaves it to the system: written down first, then as before."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    process = os.getpid()

    def handler(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() == process:
            finish("signal")
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handler)


def leave_within(seconds: float, report: Callable[[], None]) -> Callable[[], None]:
    """A script that was asked to stop and is still there after so many seconds is ended without asking.

    Gives what calls that off."""

    def end() -> None:
        report()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer.cancel
