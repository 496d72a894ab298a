"""Runs of the user's command in the scratch copy, recorded and read."""

from __future__ import annotations

import codecs
import math
import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median

from trace_doctor.errors import one_line
from trace_doctor.files import read_regular
from trace_doctor.recording.command_line import without_secrets
from trace_doctor.recording.launch import OUTPUT_FILE, Recorded, record_command
from trace_doctor.recording.options import RecordOptions
from trace_doctor.reporters.units import plural
from trace_doctor.treatment.candidates import Setup
from trace_doctor.treatment.measurement import LONG_STEPS, Figure, Measured, RunFailed
from trace_doctor.treatment.scratch import Scratch

_PATIENCE = 4.0
"""a run that takes so many times as long as the first recording did is taken to hang"""
_LEAST_SECONDS = 180.0
"""before a run is taken to hang: to compile a model takes a while"""
_TIMED_SECONDS = 5.0
"""of a plain run, without being told otherwise; to start the command takes longer than that"""
_FEWEST_STEPS, _MOST_STEPS = 40, 400
_FEWEST_TIMED = 4
_TO_LEAVE = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""signals to us that mean to end, as Ctrl-C does"""
_TAIL = 1 << 16
"""bytes of a log in which the failure is looked for"""
_LONGEST_DOTENV = 1 << 20
"""bytes; one that is larger is not read, and a message that it could hide is not shown"""
_RAISED = re.compile(r"(?:\[rank\d+\]: *)?((?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?::.*)?)")
"""the line of a traceback that names the exception"""
_ASSIGNMENT = re.compile(r"^[ \t]*(?:export[ \t]+)?(\w+)[ \t]*=[ \t]*(.*?)\s*$", re.MULTILINE)
_LONGEST_WORDS = 200
_OF_LAUNCHER = "ChildFailedError"
_LEAD = 16
"""steps that several ranks may need to agree on where warm-up ends"""


class _TooFew(RunFailed):
    """A run with fewer steps than it was to have; `steps`: how many the script has, 0 where it was cut short."""

    def __init__(self, why: str, steps: int) -> None:
        super().__init__(why)
        self.steps = steps


@dataclass(frozen=True)
class Steps:
    """Which steps every plain run takes: so many to warm up, then so many that count."""

    warmup: int
    timing: int
    by: Figure = "median"


class CommandRunner:
    """A Runner of one command. `steps` and `max_seconds` of a run are set by the first recording. `recordings` is where
    recordings are kept; None: beside the copy, as long as that is there. `left`: seconds that the command may still run."""

    def __init__(
        self,
        scratch: Scratch,
        command: Sequence[str],
        cwd: Path,
        *,
        recordings: Path | None,
        max_steps: int | None,
        step_every: int | None = None,
        max_seconds: float = 600.0,
        left: Callable[[], float] = lambda: math.inf,
        environment: Mapping[str, str] = os.environ,
        say: Callable[[str], None] = lambda line: None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._scratch = scratch
        self._command = scratch.command(command, cwd)
        self._environment = scratch.environment(environment)
        self._recordings = recordings
        self._max_steps = max_steps
        self._step_every = step_every
        self._max_seconds = max_seconds
        self._left = left
        self._numbers = count(1)
        self._say, self._tick = say, tick
        self.seconds: list[float] = []
        """of each plain run so far"""
        self.leftover_processes = 0
        """processes that runs have left running, and that were ended"""
        self.steps = Steps(0, 1)
        self.loaded: frozenset[str] = frozenset()
        """files of Python that the first recording had loaded, but for installed packages"""
        self.before: Recorded | None = None
        """what came of the first recording"""

    def record(self, setup: Setup, name: str, *, short: bool = False) -> Path:
        """Records the command with this setup, `short`: with few steps without the profiler; the folder of the recording."""
        if self._recordings is None:
            folder = self._scratch.new_folder(f"recordings/{name}")
        else:
            folder = self._recordings / name
            folder.mkdir(parents=True)
        options = replace(self._options(folder), imports=name == "before", lines=True)
        if short:
            options = replace(options, timing_steps=3, memory_steps=1)
        outcome = self._run(setup, options)
        if not outcome.steps:
            why = "".join(f"; {warning}" for warning in outcome.warnings[:1])
            raise RunFailed(f"no step was seen: no optimizer step, and no call of a module{why}")
        if name == "before":
            self._settle(outcome)
            self.before = outcome
            ranks = outcome.recording.ranks.values() if outcome.recording else ()
            self.loaded = frozenset(file for rank in ranks for file in rank.imports)
        return folder

    def time(self, setup: Setup) -> Measured:
        """Runs the command with this setup without a profiler: its step times, peak and losses."""
        name = f"runs/{next(self._numbers)}"
        folder = self._scratch.new_folder(name)
        steps = self.steps
        options = replace(
            self._options(folder),
            phases=("warmup", "timing"),
            warmup_steps=steps.warmup,
            max_warmup_steps=steps.warmup,
            timing_steps=steps.timing,
            max_steps=steps.warmup + steps.timing + _LEAD,
        )
        outcome = self._run(setup, options)
        self.seconds.append(outcome.seconds)
        self._scratch.drop_folder(name)
        rows = [(rank, step) for rank, rank_steps in outcome.steps.items() for step in rank_steps]
        times = {(rank, s.step): s.milliseconds * 1e3 for rank, s in rows if s.phase == "timing"}
        if len(times) < steps.timing * len(outcome.steps) or not times:
            number = max((s.step for _, s in rows), default=-1) + 1
            late = f", stopped after {outcome.seconds:.0f} s" if outcome.stopped_by_us else ""
            why = "".join(f"; {warning}" for warning in outcome.warnings[:2])
            total = steps.warmup + steps.timing
            fewer = "" if late else "; --max-steps says how many to time"
            raise _TooFew(f"it has only {number} of {total} steps{late}{fewer}{why}", 0 if late else number)
        losses = {(rank, s.step): s.loss for rank, s in rows if s.loss is not None}
        wait = max(outcome.waited_for_cpu.values(), default=None)
        return Measured(times, losses, _peak(outcome), steps.by, wait)

    def pilot(self, setup: Setup) -> Measured:
        """The first plain run: whether the script can be timed at all, with how many steps, and by which figure."""
        try:
            run = self.time(setup)
        except _TooFew as few:  # the recording was over before the script was
            if few.steps < _FEWEST_TIMED or self._max_steps:
                raise
            warmup = min(self.steps.warmup, few.steps // 2)
            self.steps = Steps(warmup, few.steps - warmup)
            run = self.time(setup)
        if run.in_long_steps() >= LONG_STEPS:
            self.steps = replace(self.steps, by="mean")
        return run

    def _options(self, folder: Path) -> RecordOptions:
        seconds = max(min(self._max_seconds, self._left()), 1.0)
        return RecordOptions(folder=str(folder), max_seconds=round(seconds, 1), step_every=self._step_every)

    def _settle(self, outcome: Recorded) -> None:
        """The warm-up that the recording found, and as many steps as the script has, within what was asked for."""
        steps = min(outcome.steps.values(), key=len)
        there = max(s.step for s in steps) + 1
        first = min((s.step for s in steps if s.phase != "warmup"), default=there)
        limit = self._max_steps or _enough(s.milliseconds for s in steps if s.phase == "timing")
        most = limit if outcome.stopped_by_us else min(limit, there)
        warmup = max(1, min(first, most // 2))
        self.steps = Steps(warmup, max(most - warmup, 1))
        self._max_seconds = min(self._max_seconds, max(_LEAST_SECONDS, _PATIENCE * outcome.seconds))

    def _run(self, setup: Setup, options: RecordOptions) -> Recorded:
        """Raises RunFailed where the command fails, with what it said last."""
        self._scratch.prepare(setup.files())
        outcome = record_command(
            [*self._command, *setup.arguments],
            options,
            cwd=self._scratch.cwd,
            env={**self._environment, **setup.environment},
            quiet_output=True,
            leave_nothing=True,
            most_seconds=self._left(),
            say=self._say,
            tick=self._tick,
        )
        if outcome.leftover_processes and not self.leftover_processes:
            self._say(leftover_note(outcome.leftover_processes))
        self.leftover_processes += outcome.leftover_processes
        if outcome.received_signal == signal.SIGINT:
            raise KeyboardInterrupt
        if outcome.received_signal in _TO_LEAVE:
            raise SystemExit(128 + outcome.received_signal)
        code = outcome.exit_code
        if outcome.stopped_by_us and not outcome.steps:
            raise RunFailed(f"no step in {outcome.seconds:.0f} s, then it was stopped")
        if (
            code and not outcome.empty and not outcome.stopped_by_us
        ):  # what comes behind the training may miss its end
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            try:
                known = {**_of_dotenv(self._scratch.cwd), **self._environment}
            except OSError:
                raise RunFailed(f"{how} (its message is hidden: a .env file cannot be read)") from None
            raise RunFailed(how + _last_words(Path(options.folder) / OUTPUT_FILE, self._command, known))
        return outcome


def leftover_note(count: int) -> str:
    """What is said of processes that outlived their run."""
    return f"the command left {plural(count, 'process', 'processes')} running, which {'was' if count == 1 else 'were'} ended"


def _enough(milliseconds: Iterable[float]) -> int:
    """How many steps take _TIMED_SECONDS, within bounds: what else a machine does comes and goes in seconds."""
    times = list(milliseconds)
    count = round(_TIMED_SECONDS * 1e3 / median(times)) if times else 0
    return max(_FEWEST_STEPS, min(count, _MOST_STEPS))


_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
"""to another variable, as programs that read a `.env` resolve it"""


def _of_dotenv(folder: Path) -> dict[str, str]:
    """The variables that a `.env` beside the command gives it: whatever its encoding is, no other line of it is a reason to
    show a secret. Raises OSError where one cannot be read, or is larger than any."""
    variables = {}
    for path in filter(Path.is_file, folder.glob(".env*")):
        data = read_regular(path, _LONGEST_DOTENV)
        utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = data.decode("utf-16" if utf16 else "utf-8-sig", "replace")
        for name, value in _ASSIGNMENT.findall("\n".join(text.splitlines())):
            variables[name] = value.strip("\"'")
    known = {**os.environ, **variables}
    return {
        name: _REFERENCE.sub(lambda m: known.get(m[1] or m[2], m[0]), value)
        for name, value in variables.items()
    }


def _last_words(log: Path, command: Sequence[str], environment: Mapping[str, str]) -> str:
    """What a failed command said of its failure, without secrets and then cut to be short."""
    words = one_line(without_secrets(_of_failure(log), command, environment))
    return f": {words[:_LONGEST_WORDS]}" if words else ""


def _of_failure(log: Path) -> str:
    """The line of a log that tells of the failure: the last exception, else the last line. Where a launcher tells of ranks
    that failed, the first one: the others lost their connection to it."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    exceptions = [match[1] for line in lines if (match := _RAISED.fullmatch(line.rstrip()))]
    own = [line for line in exceptions if _OF_LAUNCHER not in line]
    if own:
        return own[0] if len(own) < len(exceptions) else own[-1]
    return next((line for line in reversed(lines) if any(map(str.isalnum, line))), "")


def _peak(outcome: Recorded) -> int | None:
    """The highest peak of any rank's device, where all ranks tell it."""
    ranks = outcome.recording.ranks.values() if outcome.recording else ()
    peaks = [rank.peak_allocated_bytes for rank in ranks]
    nonzero = [p for p in peaks if p]
    return max(nonzero) if nonzero and len(nonzero) == len(peaks) else None
