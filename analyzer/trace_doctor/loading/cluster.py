"""An executor on the workers of a Dask cluster. Each call runs in a child process of a worker, so that a crash costs that call
alone: whether Dask runs the calls of a dead worker again, and how often, are settings of its scheduler.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from trace_doctor.errors import TraceDoctorError, UsageError
from trace_doctor.loading.executor import ChildEnded, ChildNotStarted, Contained, NoRoom
from trace_doctor.version import VERSION

_LOG = logging.getLogger("distributed")
WAIT_S = 7.0
"""for the scheduler, and for its first worker"""
_IDLE_S = 30.0
"""after which a worker ends its child processes: whoever asked may have died"""
_MOST_CHILDREN = 1024
"""of a worker, which has as many as it runs calls"""


class WorkerLost(ChildEnded):
    """The workers that ran the call ended, perhaps for another reason."""


class ClusterLost(TraceDoctorError):
    """There is no connection to the scheduler anymore."""


def scheduler_of(executor: str) -> str | None:
    """The address in `dask:ADDRESS`; None for `local`. Raises UsageError for anything else."""
    kind, _, address = executor.partition(":")
    if executor == "local":
        return None
    if kind != "dask" or not address:
        raise UsageError(f"--executor: {executor!r} is not local, dask:ADDRESS or slurm")
    return address


class Cluster(Executor):
    """Calls on the workers of the scheduler at an address. A call takes at most `timeout_s` seconds. It runs in the
    working folder of this process: workers see the same files. Raises UsageError without the extra `cluster`, or where no
    scheduler or no worker answers."""

    def __init__(self, address: str, timeout_s: float) -> None:
        try:
            import distributed
        except ImportError as error:
            raise UsageError(
                f"--executor dask needs Dask ({error}): pip install 'trace-doctor[cluster]'"
            ) from None
        self._log_level = _LOG.level
        _LOG.setLevel(logging.CRITICAL)  # what it logs is said by our errors
        self._address, self._timeout_s, self._folder = address, timeout_s, os.getcwd()
        try:
            self._client = _in_time(
                partial(distributed.Client, address, timeout=WAIT_S, set_as_default=False)
            )
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            _LOG.setLevel(self._log_level)
            reason = str(error).splitlines() or [f"no answer in {WAIT_S:g} s"]
            raise UsageError(f"--executor: no Dask scheduler at {address}: {reason[0]}") from None
        try:
            self._client.wait_for_workers(1, timeout=WAIT_S)
        except TimeoutError:
            self._client.close()
            _LOG.setLevel(self._log_level)
            raise UsageError(f"--executor: the Dask scheduler at {address} has no worker") from None
        self._calls = self._client.get_executor(pure=False, retries=0)
        self.width = max(1, sum(self._client.nthreads().values()))
        """calls that the workers run at a time"""

    def check(self, probe: object, folder: str) -> None:
        """Raises UsageError where a worker cannot import what `probe` is made of, has another version of trace-doctor, or does
        not see a folder."""
        answers = self._client.run(_unfit, VERSION, pickle.dumps(probe), folder, on_error="return")
        for worker, why in sorted(answers.items()):
            if why:
                reason = f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else why
                raise UsageError(f"--executor: the Dask worker {worker} cannot read captures: {reason}")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The call. Its exception may be WorkerLost or ClusterLost beside those of `Contained`."""
        call = pickle.dumps((fn, args, kwargs))
        outcome: Future[Any] = Future()
        self._calls.submit(_contained, self._folder, call, self._timeout_s).add_done_callback(
            partial(self._hand_over, outcome)
        )
        return outcome

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leaves the cluster as it is. Calls under way end there by themselves; nobody waits for them."""
        self._calls.shutdown(wait=False)
        self._client.close()
        _LOG.setLevel(self._log_level)

    def _hand_over(self, outcome: Future[Any], done: Future[Any]) -> None:
        from distributed.scheduler import KilledWorker

        if done.cancelled():
            gone = f"the Dask scheduler at {self._address} is gone; with --summaries what was read is kept"
            outcome.set_exception(ClusterLost(gone))
            return
        error = done.exception()
        if error is None:
            outcome.set_result(done.result())
        elif isinstance(error, KilledWorker):
            outcome.set_exception(WorkerLost("had its Dask worker killed"))
        elif isinstance(error, ChildEnded | ChildNotStarted | NoRoom | TraceDoctorError | RuntimeError):
            outcome.set_exception(error)
        else:
            outcome.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))


def _in_time(call: Callable[[], Any]) -> Any:
    """What it returns, or a TimeoutError: Dask waits without end for what accepts a connection and then says nothing."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(WAIT_S + 1)


# -- in a worker -----------------------------------------------------------------------------------------------------


def _unfit(version: str, probe: bytes, folder: str) -> str:
    if version != VERSION:
        return f"it has trace-doctor {VERSION} and not {version}"
    try:
        pickle.loads(probe)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if os.path.isdir(folder) else f"it does not see {folder}"


class _Children:
    """The child processes of a worker, for the calls of all that use it. They end when none has been made for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executor: Contained | None = None
        self._calls = 0
        self._timer: threading.Timer | None = None

    @contextmanager
    def used(self) -> Iterator[Contained]:
        with self._lock:
            self._calls += 1
            if self._timer is not None:
                self._timer.cancel()
            if self._executor is None:
                self._executor = Contained(_MOST_CHILDREN)
            executor = self._executor
        try:
            yield executor
        finally:
            with self._lock:
                self._calls -= 1
                if not self._calls:
                    self._timer = threading.Timer(_IDLE_S, self._end)
                    self._timer.daemon = True
                    self._timer.start()

    def _end(self) -> None:
        with self._lock:
            if self._calls or self._executor is None:
                return
            executor, self._executor = self._executor, None
        executor.shutdown()


_children = _Children()


def _contained(folder: str, call: bytes, timeout_s: float) -> Any:
    with _children.used() as executor:
        return executor.submit_within(timeout_s, _in_folder, folder, call).result()


def _in_folder(folder: str, call: bytes) -> Any:
    """In a child process, which has one call at a time: relative paths mean what they mean to whoever asks."""
    os.chdir(folder)
    fn, args, kwargs = pickle.loads(call)
    return fn(*args, **kwargs)
