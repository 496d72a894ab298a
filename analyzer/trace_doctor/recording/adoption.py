"""Orphans of a command: on Linux a process can ask that those come to it which would otherwise belong to init.

So a process is found also where its parents have ended and it has lost the environment that it was started with.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from trace_doctor.recording import processes

_SET, _GET = 36, 37
"""PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER"""


@contextmanager
def adopting() -> Iterator[Callable[[], list[int]]]:
    """While this lasts, orphans among our descendants become our children. Gives those that run now, and with them what
    else became our child meanwhile: so none where another thread of ours may have started it, and none without Linux."""
    before = _reaper() if sys.platform.startswith("linux") else None
    if before is None or not _become_reaper(1):
        yield list
        return
    earlier = {(pid, when) for pid, (when, _) in processes.children().items()}

    def adopted(running: bool = True) -> list[int]:
        if threading.active_count() > 1:
            return []
        children = processes.children().items()
        return [pid for pid, (when, runs) in children if runs == running and (pid, when) not in earlier]

    try:
        yield adopted
    finally:
        _become_reaper(before)
        for pid in adopted(running=False):
            with suppress(OSError):  # the command itself, which was waited for
                os.waitpid(pid, os.WNOHANG)


def _reaper() -> int | None:
    is_one = ctypes.c_int()
    return is_one.value if _control(_GET, ctypes.byref(is_one)) else None


def _become_reaper(whether: int) -> bool:
    return _control(_SET, ctypes.c_ulong(whether))


def _control(what: int, value: object) -> bool:
    rest = (ctypes.c_ulong(0),) * 3
    try:
        return bool(ctypes.CDLL(None).prctl(what, value, *rest) == 0)
    except (OSError, AttributeError):
        return False
