"""A command and all processes it starts: run, watched, bounded and, when it is time, ended.

The command stays in our process group: what is typed at the terminal reaches it as if we were not there, and so does
what is sent to the group. What is sent to us alone is handed on.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import current_thread, main_thread
from typing import IO, Literal

from trace_doctor.errors import UsageError
from trace_doctor.recording import folder, process_log, processes
from trace_doctor.recording.adoption import adopting
from trace_doctor.recording.command_line import shown
from trace_doctor.recording.guardian import guarding
from trace_doctor.recording.options import OPTIONS_VARIABLE, RecordOptions
from trace_doctor.recording.plan import TRACED

_LOOKS_EVERY = 0.25
_TYPED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
"""what a terminal sends to everybody in the foreground"""
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_START_UP = 30.0
"""seconds that a command gets to import torch, however little is to be recorded"""
_MEAN_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_TO_END = ((signal.SIGINT, 0.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))
"""what ends a script, and how many seconds it gets before the next"""
_TO_LEAVE = 2.0
"""seconds that helpers of a command, such as a manager of shared memory, get to see that it has ended"""
_LOOKS, _BETWEEN_LOOKS = 4, 0.015
"""how many looks in a row find nobody where nobody is left, and the seconds between them"""
_TO_STOP, _TO_DIE = 3.0, 5.0
"""seconds for stopping all that is left, and for these to be gone after SIGKILL"""
_MOST_NAMED = 5

Why = Literal["enough", "time"]


@dataclass(frozen=True)
class CommandOutcome:
    """How a command ended."""

    exit_code: int
    """negative: the signal that ended it"""
    seconds: float
    """that it ran"""
    why: Why | None = None
    """why we ended it; None: it ended by itself"""
    received_signal: int | None = None
    """the signal that somebody sent us and we handed on"""
    waited: Mapping[int, float] = field(default_factory=dict)
    """rank -> share of its time that its main thread was ready and waited for a CPU; empty where Linux does not say"""
    leftover_processes: int = 0
    """processes that it left running and that we ended, as we were asked to"""
    others: processes.OtherLoad = processes.OtherLoad()


def run(
    command: Sequence[str],
    options: RecordOptions,
    *,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str],
    output: Path | None,
    say: Callable[[str], None],
    leave_nothing: bool = False,
    most_seconds: float = math.inf,
    tick: Callable[[], None] = lambda: None,
) -> CommandOutcome:
    """Runs the command to its end; no process of it is left when we ended it, nor ever with `leave_nothing`. `most_seconds`:
    from its start, after which it is ended whatever it does. `tick` is called while it runs. Raises UsageError when it cannot be started."""
    began = time.monotonic()
    meter = processes.Meter(env if {*TRACED} & {*options.phases} else None)
    mark = env[OPTIONS_VARIABLE]
    leftover = 0
    with (
        _file(output) as to,
        guarding(OPTIONS_VARIABLE, mark, options.grace_seconds) as guard,
        adopting() if leave_nothing else nullcontext(list) as orphans,
    ):
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=dict(env),
                stdout=to,
                stderr=subprocess.STDOUT if to else None,
                close_fds=False,  # `<(...)` of a shell, the pipe of a make: ours are inherited by nobody
            )
        except (OSError, ValueError) as error:
            raise UsageError(
                f"cannot start {shown(command[0])}: {getattr(error, 'strerror', None) or error}"
            ) from None
        guard(process.pid)
        started = processes.Started(OPTIONS_VARIABLE, mark, process.pid)
        watch = _Watch(options, say, lambda stop=False: started.pids(orphans(), stop=stop), most_seconds)
        with _handing_on(process) as signals, _leaving_nothing(watch.pids, say):
            while process.poll() is None:
                try:
                    process.wait(_LOOKS_EVERY)
                except subprocess.TimeoutExpired:
                    watch.look(leave_nothing and any(number in _MEAN_TO_END for number in signals))
                    tick()
            seconds = time.monotonic() - began
            others = meter.read()
            if leave_nothing and watch.why is None:
                leftover = _end_left(watch.pids, options.grace_seconds, say)
        if watch.why is not None or any(n in (signal.SIGTERM, signal.SIGHUP) for n in signals):
            _end_rest(watch.pids, options.grace_seconds, say)
    received = signals[-1] if signals else None
    return CommandOutcome(process.returncode, seconds, watch.why, received, watch.waited, leftover, others)


@contextmanager
def _leaving_nothing(pids: Pids, say: Callable[[str], None]) -> Iterator[None]:
    """A failure of ours, or an interrupt that we do not handle, ends the command as well."""
    try:
        yield
    except BaseException:
        _end_rest(pids, 5.0, say)
        raise


@contextmanager
def _file(path: Path | None) -> Iterator[IO[bytes] | None]:
    if path is None:
        yield None
        return
    with path.open("wb") as file:
        yield file


Pids = Callable[..., list[int]]
"""the processes of a command that run; with True, its orphans are stopped as they are found"""


class _Watch:
    """Looks at a running command from time to time, and ends it when it has had enough time."""

    def __init__(
        self,
        options: RecordOptions,
        say: Callable[[str], None],
        pids: Pids,
        most_seconds: float,
    ) -> None:
        self.why: Why | None = None
        self.pids = pids
        self._options = options
        self._folder = Path(options.folder)
        self._say = say
        self._now = time.monotonic()
        self._age = 0.0
        self._last = max(options.max_seconds, _START_UP)
        self._most = most_seconds
        self._until_asked = math.inf
        """until when a command that was asked to end may go on"""
        self._until = math.inf
        """until when the recorder inside is not cut short while it writes"""
        self._torches = 0
        self._enough: float | None = None
        self._left: float | None = None
        self._to_come = iter(_TO_END)
        self._next = 0.0
        self._size = 0
        self._seen = 0
        self._wrote = 0.0
        """when the folder last changed"""
        self._manifests: tuple[tuple[str, int], ...] = ()
        self._to_begin = options.at > 0
        """whether the step with which recording begins is still to come"""
        self._ranks: dict[int, int] = {}
        self._waits: dict[int, list[tuple[float, float]]] = {}
        """rank -> (seconds, seconds waited), first and last"""

    @property
    def waited(self) -> dict[int, float]:
        """Rank -> share of the time since its first step that it waited for a CPU. Our own clock falls behind where we wait
        for one as well: it is all of that time at most."""
        spans = {
            rank: (last[0] - first[0], last[1] - first[1]) for rank, (first, last) in self._waits.items()
        }
        return {rank: min(round(waited / age, 4), 1.0) for rank, (age, waited) in spans.items() if age > 0}

    def look(self, asked_to_leave: bool = False) -> None:
        """Time in which we were stopped (Ctrl-Z) does not count: the command was stopped as well. `asked_to_leave`: it got a
        signal that means to end, which a shell keeps to itself until what it has started ends."""
        now = time.monotonic()
        self._age += min(now - self._now, 4 * _LOOKS_EVERY)
        self._now = now
        self._hear()
        for rank, pid in self._ranks.items():
            if (waited := processes.waited_for_cpu(pid)) is not None:
                self._waits.setdefault(rank, [(self._age, waited)] * 2)[1] = (self._age, waited)
        if self._options.let_it_run:
            return
        if asked_to_leave:
            self._until_asked = min(self._until_asked, self._age + _TO_LEAVE)
        if self.why is None:
            self.why = self._time_to_end()
        if self.why is not None and self._age >= self._next:
            self._end()

    def _time_to_end(self) -> Why | None:
        if self._enough is not None:
            if any(process_log.STAYS in events for events in process_log.heard(self._folder).values()):
                return "enough"
            if self._stays():
                self._to_come = iter(_TO_END[1:])
                return "enough"
        if self._age >= self._until_asked:
            self._say("ending the command, which goes on after the signal to end")
            return "time"
        if self._age >= self._most:
            self._say(f"ending the script {self._age:.0f} s after its start: no time is left for it")
            return "time"
        if self._age < self._last or (self._manifests and self._lives()):
            return None
        silent = f"no step for {self._age - self._wrote:.0f} s" if self._manifests else "no step yet"
        self._say(
            f"ending the script {self._age:.0f} s after its start: {silent} (--max-seconds {self._options.max_seconds:g})"
        )
        return "time"

    def _lives(self) -> bool:
        """Whether the recorder inside has written lately, and may be about to end the recording itself: it keeps to the
        time as well, at the end of a step, and needs a moment to write. It gets no more than a grace period."""
        grace = self._options.grace_seconds
        lately = min(grace, self._options.max_seconds / 2)
        return self._age < min(self._wrote + lately, self._last + grace)

    def _stays(self) -> bool:
        """Whether the command is still there long after its ranks have left, or they do not leave at all, though they
        end themselves."""
        if self._left is None and not any(map(processes.alive, self._ranks.values())):
            self._left = self._age
        grace = self._options.grace_seconds
        return self._age >= min((self._enough or 0) + 3 * grace, (self._left or math.inf) + grace)

    def _hear(self) -> None:
        """What the processes have said since. The time is counted from the last import of torch (a launcher imports it
        before its workers do), then from the first step."""
        size = _size(self._folder)
        if size != self._seen:
            self._seen, self._wrote = size, self._age
        if not self._manifests:
            event_lists = process_log.heard(self._folder).values()
            torches = sum(process_log.TORCH in events for events in event_lists)
            if torches > self._torches:
                self._torches = torches
                self._last = self._age + self._options.max_seconds
        if self._to_begin and self._manifests:  # steps come as long as the folder grows
            self._last = self._wrote + self._options.max_seconds
        manifests = tuple(sorted((p.name, _changed(p)) for p in self._folder.glob("rank*.recording.json")))
        if manifests == self._manifests:
            return
        if not self._manifests:
            self._last = self._age + self._options.max_seconds
        self._manifests = manifests
        ranks = recording.ranks.values() if (recording := folder.read(self._folder)) else ()
        if self._to_begin and any(rank.phases for rank in ranks):
            self._to_begin, self._last = False, self._age + self._options.max_seconds
        self._ranks = {r.rank: r.pid for r in ranks if r.pid is not None and processes.alive(r.pid)}
        if ranks and self._enough is None and all(r.ended == "enough" for r in ranks):
            self._enough = self._age

    def _end(self) -> None:
        size = _size(self._folder)
        writing, self._size = size != self._size, size
        if not self._next:
            self._until = self._age + 3 * self._options.grace_seconds
        elif writing and self._age < self._until:
            # the recorder inside writes what it has: not to be cut short
            self._next = self._age + self._options.grace_seconds / 2
            return
        number, patience = next(self._to_come, _TO_END[-1])
        processes.send(number, self.pids())
        self._next = self._age + max(patience, self._options.grace_seconds if number == signal.SIGINT else 0)


def _changed(path: Path) -> int:
    """When, in ns; 0 where it is gone."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _size(folder: Path) -> int:
    """Bytes of all files in the folder; they come and go meanwhile, and so may the folder."""
    total = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                total += entry.stat().st_size
    return total


def _end_rest(pids: Pids, grace: float, say: Callable[[str], None]) -> None:
    """What the command has left behind when it was ended. Says what stays nevertheless."""
    if not (remaining := _running(pids)):
        return
    processes.send(signal.SIGTERM, remaining)
    _await_end(pids, grace)
    if remaining := _killed(pids):
        numbers = ", ".join(map(str, remaining[:_MOST_NAMED])) + ", ..." * (len(remaining) > _MOST_NAMED)
        say(f"still running, and could not be ended: process {numbers}")


def _end_left(pids: Pids, grace: float, say: Callable[[str], None]) -> int:
    """Ends what the command has left running, but for what is about to end by itself; how many processes that were."""
    if remaining := _await_end(pids, min(grace, _TO_LEAVE)):
        _end_rest(pids, min(grace, 5.0), say)
    return len(remaining)


def _running(pids: Pids) -> list[int]:
    """Those that run. One look can miss a process that has handed on to a child since the look began, so nobody is there
    only where several find nobody."""
    for _ in range(_LOOKS):
        if remaining := pids():
            return remaining
        time.sleep(_BETWEEN_LOOKS)
    return []


def _await_end(pids: Pids, seconds: float) -> list[int]:
    """Those that still run after so many seconds."""
    end = time.monotonic() + seconds
    while (remaining := _running(pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return remaining


def _killed(pids: Pids) -> list[int]:
    """Kills them; those that stay. All are stopped before the first is killed: who is stopped starts no other meanwhile."""
    end = time.monotonic() + _TO_STOP
    stopped: set[int] = set()
    empty = 0
    while empty < _LOOKS and time.monotonic() < end:
        new = sorted({*pids(True)} - stopped)
        processes.send(signal.SIGSTOP, new)
        stopped.update(new)
        empty = 0 if new else empty + 1
        time.sleep(0 if new else _BETWEEN_LOOKS)
    end = time.monotonic() + _TO_DIE
    while (remaining := _running(pids)) and time.monotonic() < end:
        processes.send(signal.SIGKILL, remaining)
    return remaining


@contextmanager
def _handing_on(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Hands signals on to the command while it runs; yields those that came. In the main thread only: no other gets any."""
    came: list[int] = []

    def hand_on(number: int, _: object) -> None:
        came.append(number)
        if number not in _TYPED or not _at_terminal():
            process.send_signal(number)
        if number == signal.SIGTSTP:  # as the kernel would: a group that nobody could continue is not stopped
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            signal.signal(number, hand_on)

    before = {}
    if current_thread() is main_thread():
        for number in (*_TYPED, *_FORWARDED):
            if signal.getsignal(number) is not signal.SIG_IGN:
                # nohup and background jobs: stays ignored, by both
                before[number] = signal.signal(number, hand_on)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _at_terminal() -> bool:
    """Whether we are in the foreground of a terminal: then the command has already got what was typed."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
