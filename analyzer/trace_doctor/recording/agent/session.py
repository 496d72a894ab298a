"""One per process: watches it from the import of torch on, and records it once it turns out to be one that trains."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trace_doctor.recording import process_log, whole_files
from trace_doctor.recording.agent import ending, ranks
from trace_doctor.recording.agent.executed_lines import ExecutedLines
from trace_doctor.recording.agent.losses import Losses
from trace_doctor.recording.agent.memory import MemoryHistory
from trace_doctor.recording.agent.recorder import Recorder
from trace_doctor.recording.agent.status import Status
from trace_doctor.recording.agent.step_detection import Finder, whose_loop
from trace_doctor.recording.agent.timing import Moment, now
from trace_doctor.recording.agent.tracing import OtherProfilers
from trace_doctor.recording.options import MOST_WINDOWS, Phase, RecordOptions
from trace_doctor.recording.plan import Plan

_of_this_process: list[Session] = []


def current() -> Session | None:
    """That of this process; None where torch has not been imported, or nothing is to be recorded."""
    return _of_this_process[0] if _of_this_process else None


def begin(torch: Any, options: RecordOptions, find_steps: bool = True) -> Session:
    """Starts the session of this process, in place of one that has ended."""
    for before in _of_this_process:
        before.close()
    _of_this_process[:] = [Session(torch, options)]
    _of_this_process[0].install(find_steps)
    return _of_this_process[0]


class Session:
    """Nothing of it raises anything but the SystemExit that stops the script."""

    def __init__(self, torch: Any, options: RecordOptions) -> None:
        self.torch = torch
        self.options = self.first = options
        self.folder = Path(options.folder)
        whole_files.hold(self.folder)
        self.recorder: Recorder | None = None
        self.passive = False
        self.done = False
        self._windows = 1
        """recordings that were begun, or are next"""
        self._next: RecordOptions | None = None
        """of the recording that is waited for"""
        self._step = 0
        """that runs meanwhile"""
        self._begin: Moment | None = None
        self._stopping = False
        self._call_off: Callable[[], None] = lambda: None
        self._busy = threading.Lock()
        self.losses = Losses(torch)
        self.others = OtherProfilers(torch)
        self.memory = MemoryHistory(torch, options.memory_entries)
        self.finder = Finder(torch, self.step_ended, options.step_every)
        self.lines = ExecutedLines(torch, self.folder) if options.lines else None

    def install(self, find_steps: bool) -> None:
        """Wraps what tells steps, losses and profilers. `find_steps`: by the optimizer; else the script marks them."""
        self.finder.on_begin = self.first_step
        self.finder.on_training = self._quietly(self._training_begins)
        self.losses.before_backward = self.first_step
        self.losses.install()
        if find_steps:
            self.finder.install()
        self.others.install()
        if "memory" in self.options.phases:
            self.memory.install()
            # what runs out of memory mostly does so at once: from the initialisation of CUDA on, whenever that comes
            self.torch.cuda._lazy_call(self._quietly(self.memory.start))
            self.torch.cuda._lazy_call(self._quietly(self._watch_out_of_memory))
        ending.watch(self._quietly(self.finish), self._quietly(self.failed))
        os.register_at_fork(after_in_child=self._forked)
        if self.lines is not None:
            self.lines.start()

    # -- what the watchers call

    def first_step(self) -> None:
        """The first step has begun: everything before it was set-up."""
        if self._begin is None:
            self.finder.on_begin = self.losses.before_backward = None
            try:
                self._begin = now(self.torch)
            except Exception as error:
                self.give_up(error)

    def step_ended(self, found_by: str) -> None:
        """A step is over. Raises SystemExit when enough is recorded and the script is not to go on."""
        if self.passive or not self._busy.acquire(blocking=False):
            return
        try:
            self._step_ended(found_by)
        except Exception as error:
            self.give_up(error)
        finally:
            self._busy.release()
        if self.done and not self.options.let_it_run:
            self._stop()

    def _step_ended(self, found_by: str) -> None:
        if self.done:
            return
        if self._next is not None:
            self._step += 1
            if self._step >= self._next.at:
                self._open_window(self._next)
            return
        if self.recorder is None:
            self._start(found_by)
        if self.recorder is not None:
            by_optimizer = found_by == "optimizer"
            closing = self.finder.closing if by_optimizer else self.finder.calling
            if found_by != "backward passes" and (closing.changed or (by_optimizer and not closing.sure)):
                self.recorder.restart()
            self.done = self.recorder.boundary()
            if self.done:
                self._wait_for_window(self.recorder.step + 1)
            waiting = self.options.warmup_steps < self.recorder.step < self.options.at
            if self.lines is not None and self.recorder.phase in ("warmup", "detailed") and not waiting:
                self.lines.start()
            elif self.lines is not None:
                self.lines.stop()
            if self.recorder.phase == "timing":
                self.finder.closing.freeze()
            if self.done and self.options.let_it_run:
                self._uninstall()

    def _wait_for_window(self, step: int) -> None:
        """Enough is recorded for now, and `step` begins: nothing is on until the next recording, if there is one."""
        while self.first.every is not None and self._windows < MOST_WINDOWS:
            following = self.first.window(self._windows)
            self._windows += 1
            if following.at >= step:
                self.done, self._next, self._step = False, following, step
                return

    def _open_window(self, options: RecordOptions) -> None:
        """The next recording, in its own folder."""
        assert self.recorder is not None
        before, self._next, self.options = self.recorder.status, None, options
        folder = Path(options.folder)
        folder.mkdir(exist_ok=True)
        whole_files.hold(folder)
        status = Status(folder, before.rank, before.manifest["world_size"])
        status.manifest["found_steps_by"] = before.manifest["found_steps_by"]
        if not status.claim():
            raise FileExistsError(f"{status.path.name} is in the folder of the next recording already")
        self.losses.keep = True
        self._record(status, (), now(self.torch), self._step)

    # -- begin and end

    def _start(self, found_by: str | None) -> None:
        """Records this process, if it is one to be recorded."""
        rank, size = ranks.rank_and_size(sys.modules)
        status = Status(self.folder, rank, size)
        status.manifest["found_steps_by"] = whose_loop() if found_by == "optimizer" else found_by
        trains = found_by in ("optimizer", "backward passes")
        child = self._is_child(trains)
        if child or not status.claim():
            if not child and (trains or status.holder_parent() != os.getpid()):
                process_log.say(str(self.folder), process_log.SECOND)
            self._withdraw()
            return
        without: tuple[Phase, ...] = ()
        if "memory" in self.options.phases and (self.memory.theirs or not self.memory.possible):
            without = ("memory",)
            if self.memory.theirs:
                status.warn("memory: not captured: the script keeps a history itself")
            else:
                status.manifest["without"]["memory"] = "the allocator keeps a history on CUDA only"
        self._record(status, without, self._begin or now(self.torch))
        self.losses.before_backward = self.finder.on_begin = None
        ending.watch_termination(self._quietly(self.finish))

    def _record(self, status: Status, without: tuple[Phase, ...], begin: Moment, step: int = 0) -> None:
        """`begin`: of the first step, which has the number `step`."""
        several = status.manifest["world_size"] > 1
        plan = Plan(self.options, without, lead=ranks.LEAD if several else 0)
        deciding: Any = plan
        if several:
            leads = ranks.leads(status.rank)
            deciding = ranks.Leader(plan, status.folder) if leads else ranks.Follower(status.folder)
        self.recorder = Recorder(
            self.torch,
            self.options,
            status,
            deciding,
            self.losses,
            self.others,
            self.memory,
            begin,
            lambda: self.finder.closing.optimizers,
            step,
        )
        status.write()

    def _is_child(self, trains: bool) -> bool:
        """A worker of a DataLoader, or of a pool that uses a model; but processes that a script starts to train in are none."""
        if self.torch.utils.data.get_worker_info() is not None:
            return True
        if trains:
            return False
        distributed = self.torch.distributed
        in_group = distributed.is_available() and distributed.is_initialized()
        return multiprocessing.parent_process() is not None and not in_group

    def _withdraw(self) -> None:
        self.passive = True
        self.losses.before_backward = self.finder.on_begin = None
        self._uninstall()

    def _uninstall(self) -> None:
        """Nothing more is to be seen."""
        for watcher in (self.finder, self.losses, self.others, self.memory):
            with contextlib.suppress(Exception):
                watcher.uninstall()
        if self.lines is not None:
            self.lines.stop()

    def _training_begins(self) -> None:
        """What was taken for inference steps came before the training: an evaluation, or features of another model."""
        if self.recorder is not None and not self.done and self.options is self.first and self._next is None:
            self.recorder.discard()
            self.recorder = None

    def leave(self, error: BaseException | None) -> None:
        """The script leaves the block that is recorded, by this error or by none."""
        if error is not None:
            self._quietly(self.failed)(error)
        self._quietly(self.finish)("script")
        self.close()

    def close(self) -> None:
        """Nothing of this session sees anything from now on; what it has recorded stays."""
        self.passive = True
        self._call_off()
        self._uninstall()

    def finish(self, reason: str) -> None:
        """Writes what is left to write. `ended`: why the recording ends."""
        if self.recorder is not None and not self.passive:
            if self.lines is not None:
                self.lines.finish()
            self.recorder.finish(reason)

    def failed(self, error: BaseException) -> None:
        """An exception has reached the top of the script."""
        if self.passive or isinstance(error, SystemExit):
            return
        if self.recorder is None and self._begin is not None:
            self._start(None)
        if self.recorder is None:
            return
        interrupted = isinstance(error, KeyboardInterrupt)
        no_memory = isinstance(error, getattr(self.torch, "OutOfMemoryError", ()))
        if not no_memory:
            self.recorder.snapshot_of_failure("exception")
        if not interrupted:
            self.recorder.status.warn(f"the script ended with {process_log.kind_of(error)}")
        self.recorder.finish("signal" if interrupted else "oom" if no_memory else "exception")

    def give_up(self, error: Exception) -> None:
        """Something of ours failed: the recorder is off from here on, and says so."""
        why = f"the recorder failed and switched itself off: {process_log.told(error)}"
        recorder = self.recorder
        acts: list[Callable[[], None]] = [self._withdraw]
        if recorder is None:
            acts.append(lambda: process_log.say(str(self.folder), process_log.FAILED, why=why))
        else:
            acts += [
                lambda: recorder.status.warn(why),
                lambda: recorder.finish("recorder failed"),
                recorder.let_go,
                recorder.status.write,
            ]
        for act in acts:  # what one of them leaves undone the next may still do
            with contextlib.suppress(Exception):
                act()

    def _stop(self) -> None:
        """At a step boundary, by SystemExit: `finally` blocks, context managers and exit handlers of the script run.

        A script that catches it is asked again at each step, and after the grace period ended. To Ray Train it would be a failed
        worker: there the launcher ends the command."""
        if not self._stopping:
            self._stopping = True
            if ending.is_ray_worker() and process_log.is_kept(str(self.folder)):
                self.finish("enough")
                self._withdraw()
                process_log.say(str(self.folder), process_log.STAYS)
                return
            self._call_off = ending.leave_within(self.options.grace_seconds, self._quietly(self._forced))
        raise SystemExit(0)

    def _forced(self) -> None:
        if self.recorder is not None:
            self.recorder.status.warn(
                f"the script did not leave within {self.options.grace_seconds:g} s and was ended"
            )
            self.recorder.status.write()

    # -- other things that happen to a process

    def _watch_out_of_memory(self) -> None:
        def observer(device: int, alloc: int, device_alloc: int, device_free: int) -> None:
            self._quietly(self._out_of_memory)()

        self.torch._C._cuda_attach_out_of_memory_observer(observer)

    def _out_of_memory(self) -> None:
        if self.recorder is None and not self.passive:
            self._start(None)
        if self.recorder is not None:
            self.recorder.snapshot_of_failure("oom")
            self.recorder.status.write()

    def _forked(self) -> None:
        """A child of a process that records stays out of it; that of one that does not may be a rank itself."""
        if self.recorder is not None:
            self._withdraw()
            self.recorder = None
            ending.end_without_libraries()
        self._busy = threading.Lock()

    def _quietly(self, act: Callable[..., None]) -> Callable[..., None]:
        def quiet(*args: Any) -> None:
            try:
                act(*args)
            except Exception as error:
                self.give_up(error)

        return quiet
