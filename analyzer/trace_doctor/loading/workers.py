"""Processes that load files: started, fed, listened to, and ended whatever happens.

They are fresh interpreters and no forks, so that it does not matter what threads or locks the calling program has, nor
that its main module be importable. Each runs in a process group of its own: Ctrl-C reaches this process only, which
then ends them. Results are written to files that have no name or are the cache's, so that nothing is left to clean up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Self

import msgspec

from trace_doctor import errors
from trace_doctor.loaders.discover import Found
from trace_doctor.loaders.progress import Progress
from trace_doctor.loading.ways import Prefetch
from trace_doctor.loading.worker import LENGTH, send

log = logging.getLogger("trace_doctor")

_POLL = 0.25
"""Seconds after which a worker is looked after that says nothing."""
_INTERRUPTIONS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_START = "import sys; sys.path[:] = sys.argv[2:]; from trace_doctor.loading.worker import main; main(int(sys.argv[1]))"


class Unable(Exception):
    """No process can be started here."""


class Broken(Exception):
    """An error in our own code; the text is its traceback."""


class Unwritten(Exception):
    """The worker could read the file, but not write the columns."""


@dataclass
class Job:
    """One file to load, and where its columns go."""

    found: Found
    target: IO[bytes]
    prefetch: Prefetch | None
    prefetched: IO[bytes] | None
    """where what it makes goes"""
    key: Mapping[str, Any]
    memory: int | None
    """bytes the process may take"""
    core_free: bool
    """whether there are more cores than processes"""
    read: Callable[[int], None]
    """told of bytes that have been read"""
    finish: Callable[[Exception | None], None]
    """called with None when the target holds the columns, else with a TraceDoctorError, Broken or Unwritten"""

    def message(self) -> dict[str, Any]:
        return {
            "path": os.fsencode(os.path.abspath(self.found.path)),
            "display": os.fsencode(self.found.display),
            "kind": self.found.kind,
            "rank": self.found.rank,
            "rank_how": self.found.rank_how,
            "key": dict(self.key),
            "memory": self.memory,
            "core_free": self.core_free,
            "prefetch": self.prefetch and (self.prefetch.function, self.prefetch.given),
        }

    def files(self) -> tuple[int, ...]:
        """Descriptors of what it is to write."""
        return tuple(file.fileno() for file in (self.target, self.prefetched) if file is not None)


def able() -> bool:
    """Whether processes can be used on this system."""
    return hasattr(socket, "send_fds") and bool(sys.executable) and not getattr(sys, "frozen", False)


def run_jobs(jobs: Iterable[Callable[[], Job]], count: int, progress: Progress) -> None:
    """Works off the jobs in `count` processes; each is made when a process is free for it.

    Raises Unable when a process does not come up; jobs that were not finished then are left.
    """
    with _Pool(deque(jobs), progress) as pool:
        pool.work(count)


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    ready: bool = False
    job: Job | None = None
    buffer: bytearray = field(default_factory=bytearray)

    def messages(self, data: bytes) -> Iterator[dict[str, Any]]:
        self.buffer += data
        while len(self.buffer) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self.buffer)[0]
            if len(self.buffer) < end:
                return
            message = msgspec.msgpack.decode(bytes(self.buffer[LENGTH.size : end]))
            del self.buffer[:end]
            yield message


class _Pool:
    def __init__(self, jobs: deque[Callable[[], Job]], progress: Progress) -> None:
        self._jobs = jobs
        self._progress = progress
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with _uninterrupted():
            for worker in list(self._workers):
                self._end(worker)
        self._selector.close()

    def work(self, count: int) -> None:
        for _ in range(min(count, len(self._jobs))):
            self._start()
        while self._workers:
            for selected, _ in self._selector.select(_POLL):
                self._hear(selected.data)
            for worker in [w for w in self._workers if _ended(w.process)]:
                self._hear(worker)  # what it said last
                self._lost(worker)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        path = [os.path.abspath(p) if p else os.getcwd() for p in sys.path]
        command = [sys.executable, *_flags(), "-c", _START, str(theirs.fileno()), *path]
        with theirs, _uninterrupted():
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=None if log.isEnabledFor(logging.DEBUG) else subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    process_group=0,
                )
            except OSError as error:
                ours.close()
                raise Unable(str(error)) from error
            worker = _Worker(process, ours)
            self._workers.append(worker)
            self._selector.register(ours, selectors.EVENT_READ, worker)

    def _hear(self, worker: _Worker) -> None:
        while worker in self._workers:
            try:
                data = worker.channel.recv(1 << 16)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self._lost(worker)
            for message in worker.messages(data):
                self._take(worker, message)

    def _take(self, worker: _Worker, message: dict[str, Any]) -> None:
        if "read" in message:
            if worker.job is not None:
                worker.job.read(message["read"])
            return
        worker.ready = True
        self._finish(worker, _error(message))
        if not self._jobs:
            self._end(worker)
            return
        worker.job = self._jobs.popleft()()
        self._progress("reading", worker.job.found.display)
        try:
            send(worker.channel, worker.job.message(), worker.job.files())
        except OSError:
            self._lost(worker)

    def _finish(self, worker: _Worker, error: Exception | None) -> None:
        job, worker.job = worker.job, None
        if job is not None:
            job.finish(error)

    def _lost(self, worker: _Worker) -> None:
        """The process is gone without being told to."""
        if worker not in self._workers:
            return
        self._end(worker)
        if not worker.ready:
            raise Unable("a process for loading ended before it began")
        if worker.job is not None:
            how = _fate(worker.process.returncode)
            shown = worker.job.found.display
            self._finish(worker, errors.DamagedCapture(f"{shown}: the process that read it {how}"))
        if self._jobs:
            self._start()

    def _end(self, worker: _Worker) -> None:
        """Ends the process, and whatever it has started, if it still runs."""
        self._workers.remove(worker)
        self._selector.unregister(worker.channel)
        worker.channel.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        if worker.process.stdin is not None:
            worker.process.stdin.close()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Within the block a signal waits that would raise: between its start and its being known, a process could not be
    ended. Blocking signals would not do, where other threads (of a BLAS) can receive them."""
    if threading.current_thread() is not threading.main_thread():  # nothing is raised there
        yield
        return
    waiting: list[int] = []
    handlers = {n: signal.getsignal(n) for n in _INTERRUPTIONS}
    ours = {n: h for n, h in handlers.items() if callable(h)}
    for number in ours:
        signal.signal(number, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for number in waiting:
            signal.raise_signal(number)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Without collecting it: until then its process group cannot be another's."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return process.poll() is not None


def _error(message: dict[str, Any]) -> Exception | None:
    """What the last message of a job says went wrong."""
    if "error" in message:
        kind = getattr(errors, message["error"])
        return kind(message["text"].decode("utf-8", "surrogateescape"))  # type: ignore[no-any-return]
    if "broken" in message:
        text = message["broken"].decode("utf-8", "replace").strip()
        return Broken(text)
    return Unwritten(message["unwritten"]) if "unwritten" in message else None


def _fate(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed, as the system does when memory runs out"
    if code < 0:
        return f"crashed ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def _flags() -> list[str]:
    """Of the interpreter: no environment and no working folder may add modules; the caller's path is handed over."""
    flags = ["-I"]
    if sys.flags.utf8_mode:
        flags += ["-X", "utf8"]
    return flags
