"""An executor whose calls cannot take this process with them: each thread has a child process, whose death is a value.

Children are fresh interpreters and no forks, so that it does not matter what threads or locks the calling program has, nor
that its main module can be imported. Each is a process group of its own: Ctrl-C reaches this process only, which then ends
them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from trace_doctor.loading import mapped_arrays

log = logging.getLogger("trace_doctor")

T = TypeVar("T")
_START = "import sys; sys.path[:] = sys.argv[2:]; from trace_doctor.loading.executor_child import main; main(int(sys.argv[1]))"


class ChildNotStarted(Exception):
    """No process can be started here, or it ended before it began."""


class ChildEnded(Exception):
    """The process ended during the call; the text says how."""


class NoRoom(Exception):
    """The answer could not be written."""


def usable() -> bool:
    """Whether child processes can be used on this system."""
    return hasattr(socket, "send_fds") and bool(sys.executable) and not getattr(sys, "frozen", False)


class Contained(Executor):
    """`width` calls at a time. A function of a module and its arguments go to the child as a pickle; what it returns comes
    back with its arrays mapped (`mapped`), what it raises as it is. `read` hears of the bytes of files that calls have read
    (`loaders.progress.listening`), from whichever thread. A call that takes longer than `timeout_s` seconds is ended.
    """

    def __init__(
        self,
        width: int,
        read: Callable[[int], None] = lambda count: None,
        timeout_s: float | None = None,
    ) -> None:
        self._threads = ThreadPoolExecutor(width, thread_name_prefix="trace-doctor")
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._children: list[_Child] = []
        self._ended = False
        self._read = read
        self._timeout_s = timeout_s

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """The call. Its exception may be ChildEnded, ChildNotStarted or NoRoom beside those of `fn`."""
        return self._threads.submit(self._call, self._timeout_s, fn, args, kwargs)

    def submit_within(self, timeout_s: float, fn: Callable[..., T], /, *args: Any) -> Future[T]:
        """The same with a time of its own."""
        return self._threads.submit(self._call, timeout_s, fn, args, {})

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends all children; calls under way end with ChildEnded."""
        with self._lock:
            self._ended = True
            for child in self._children:
                child.end()
        self._threads.shutdown(wait, cancel_futures=True)
        for child in self._children if wait else ():
            child.fate()

    def _call(
        self, timeout_s: float | None, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> T:
        child: _Child | None = getattr(self._mine, "child", None)
        if child is None:
            child = self._mine.child = self._started()
        try:
            succeeded, value = child.call((fn, args, kwargs), self._read, timeout_s)
        except TimeoutError:
            self._mine.child = None
            child.end()
            child.fate()
            raise ChildEnded(f"took longer than {timeout_s:g} s and was ended") from None
        except (EOFError, OSError):
            self._mine.child = None
            raise ChildEnded(child.fate()) from None
        if succeeded:
            return value  # type: ignore[no-any-return]
        raise value

    def _started(self) -> _Child:
        if self._ended:
            raise ChildNotStarted("the executor is shut down")
        child = _Child()
        with self._lock:
            self._children.append(child)
            if self._ended:
                child.end()
        child.await_ready()
        return child


class _Child:
    """One process and the socket to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        path = [os.path.abspath(p) if p else os.getcwd() for p in sys.path]
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, *_flags(), "-c", _START, str(theirs.fileno()), *path],
                    stdin=subprocess.PIPE,  # when it ends, so does the child: we are gone
                    stdout=subprocess.DEVNULL,
                    stderr=None if log.isEnabledFor(logging.DEBUG) else subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    process_group=0,
                )
            except OSError as error:
                ours.close()
                raise ChildNotStarted(str(error)) from None
        self._connection = Connection(ours.detach())

    def await_ready(self) -> None:
        """Raises ChildNotStarted where the process ends before it is ready."""
        try:
            self._connection.recv()
        except (EOFError, OSError):
            raise ChildNotStarted(f"a process for loading {self.fate()}") from None

    def call(self, request: object, read: Callable[[int], None], timeout_s: float | None) -> tuple[bool, Any]:
        """Whether the call succeeded, and its value or exception. Raises EOFError and OSError where the process is gone, and
        TimeoutError where it takes longer."""
        self._connection.send(request)
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while isinstance(message := self._message(end), int):
            read(message)
        if message is not None:
            return False, message
        with socket.socket(fileno=os.dup(self._connection.fileno())) as channel:
            _, [descriptor], _, _ = socket.recv_fds(channel, 1, 1)
        with os.fdopen(descriptor, "rb") as file:
            return True, mapped_arrays.read(file)

    def _message(self, end: float | None) -> Any:
        if not self._connection.poll(None if end is None else max(0.0, end - time.monotonic())):
            raise TimeoutError
        return self._connection.recv()

    def end(self) -> None:
        """Ends the process, and whatever it has started, if it still runs."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def fate(self) -> str:
        """Collects the process; how it ended."""
        self._connection.close()
        code = self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if code == -signal.SIGKILL:
            return "was killed, as the system does when memory runs out"
        if code < 0:
            return f"crashed ({signal.Signals(-code).name})"
        return f"ended with exit code {code}"


def _flags() -> list[str]:
    """Of the interpreter: no environment and no working folder may add modules; the caller's path is handed over."""
    return ["-I", "-X", "utf8"] if sys.flags.utf8_mode else ["-I"]
