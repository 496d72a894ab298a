"""Work on untrusted bytes in a child process: what it takes is limited, and its crash is only its own.

Python's unpickler can be made to hash or nest for ever, to take all memory, and to overflow the C stack, by files of
a few kilobytes. None of that can be stopped from inside the process; a child can be limited by the system and given up.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1


class OutOfMemory(Exception):
    """The work needed more memory than it was given."""


class OutOfTime(Exception):
    """The work needed more processor time than it was given."""


class Crashed(Exception):
    """The child died."""


def program_in(path: str, *names: str) -> str | None:
    """The first of the programs in the folders of a PATH, never one that lies in the working folder: a relative entry would find what
    a stranger's project has there."""
    folders = [folder for folder in path.split(os.pathsep) if os.path.isabs(folder)]
    programs = (os.path.join(folder, name) for folder in folders for name in names)
    return next((p for p in programs if os.path.isfile(p) and os.access(p, os.X_OK)), None)


def isolated(work: Callable[[], T], *, memory: int, seconds: int) -> T:
    """What `work` returns (any picklable thing), or its error.

    Raises OutOfMemory beyond `memory` bytes on top of what this process has now, OutOfTime beyond `seconds` of
    processor time, Crashed when the child dies. macOS limits the time, not the memory; Windows has no fork, and the
    work is done here without limits. What must hold everywhere is for `work` to count.
    """
    if not hasattr(os, "fork"):
        return _in_this_process(work)
    readable, writable = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads, whose locks a child inherits locked. This one only computes and exits.
        warnings.simplefilter("ignore", DeprecationWarning)
        parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(readable)  # else writing would wait for a reader that is gone
        _end_with(parent)
        _serve(work, writable, memory, seconds)
    os.close(writable)
    answer: tuple[bool, object] | None = None
    try:
        with os.fdopen(readable, "rb") as pipe, contextlib.suppress(EOFError, pickle.UnpicklingError):
            answer = pickle.load(pipe)
    except BaseException:  # Ctrl-C while the child is at work
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if answer is None:
        raise _died(os.waitstatus_to_exitcode(status))
    succeeded, value = answer
    if succeeded:
        return value  # type: ignore[return-value]
    raise value  # type: ignore[misc]


def _in_this_process(work: Callable[[], T]) -> T:
    try:
        return work()
    except MemoryError:
        raise OutOfMemory from None


def _died(code: int) -> Exception:
    if code == -signal.SIGXCPU:
        return OutOfTime()
    if code == -signal.SIGKILL:  # by the system, when the whole machine runs out
        return OutOfMemory()
    return Crashed(signal.Signals(-code).name if code < 0 else f"exit code {code}")


def _serve(work: Callable[[], object], writable: int, memory: int, seconds: int) -> NoReturn:
    """The child: works, writes the answer and is gone, without any clean-up of what belongs to its parent."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        faulthandler.disable()
        sys.excepthook = _say_nothing  # CPython prints an error of its own where a bytearray finds no memory
        _restrict(memory, seconds)
        answer: tuple[bool, object]
        try:
            answer = (True, _in_this_process(work))
        except Exception as error:
            error.__traceback__ = error.__context__ = None
            answer = (False, error)
        with os.fdopen(writable, "wb") as pipe:
            pickle.dump(answer, pipe, protocol=5)
        code = 0
    finally:
        os._exit(code)


def _end_with(parent: int) -> None:
    """Has the system end this process when its parent is killed; where it cannot (macOS), the work goes on to its end."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _say_nothing(*_: object) -> None:
    pass


def _restrict(memory: int, seconds: int) -> None:
    import resource

    def lower(kind: int, limit: int) -> None:
        soft, hard = resource.getrlimit(kind)
        limits = [n for n in (soft, hard, limit) if n != resource.RLIM_INFINITY]
        with contextlib.suppress(ValueError, OSError):  # macOS refuses some
            resource.setrlimit(kind, (min(limits), hard))

    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_CPU, seconds)
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb") as file:
            mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        lower(resource.RLIMIT_AS, mapped + memory)
