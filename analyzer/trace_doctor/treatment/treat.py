"""`treat`: record, diagnose, try each fix, measure, keep what helps. The library's twin of `trace-doctor treat`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import get_args

from trace_doctor.api import analyze, diff
from trace_doctor.config import Config
from trace_doctor.errors import TraceDoctorError, UsageError, printable
from trace_doctor.fixes.apply import apply as write_scripts
from trace_doctor.fixes.plan import Plan, plan
from trace_doctor.loading.load_files import available_cores
from trace_doctor.model import Result, Tool
from trace_doctor.model.difference import Difference
from trace_doctor.model.treatment import ByHand, FileChange, Method, Treatment
from trace_doctor.recording.agent.copy_up import REFUSED
from trace_doctor.recording.command_line import masked
from trace_doctor.recording.recording_warnings import loads_no_recorder
from trace_doctor.recording.startable import missing_script, several_machines
from trace_doctor.reporters.treatment_words import changed_words, verdict
from trace_doctor.treatment import losses, statistics
from trace_doctor.treatment.acceptance import InForce
from trace_doctor.treatment.batches import BatchSearch
from trace_doctor.treatment.candidates import Candidate, Setup, candidates
from trace_doctor.treatment.copy.worktree import source_of
from trace_doctor.treatment.installed import in_place
from trace_doctor.treatment.launching import CommandRunner, Steps, leftover_note
from trace_doctor.treatment.loop import Loop, Say, key
from trace_doctor.treatment.measurement import RunFailed
from trace_doctor.treatment.own_files import look_at_writes, refuse_writes
from trace_doctor.treatment.progress import Progress
from trace_doctor.treatment.quiet import IfBusy, look_around
from trace_doctor.treatment.scratch import Scratch
from trace_doctor.treatment.trial import Clock, OutOfTime, Rules
from trace_doctor.treatment.values import Values
from trace_doctor.version import VERSION

_log = logging.getLogger(__name__)
_MOST_CHANGES = 1_000
Choose = Callable[[list[Candidate]], list[Candidate]]


@dataclass(frozen=True)
class TreatOptions:
    """What to try and how much. Raises UsageError for what cannot be."""

    unsafe: bool = False
    """also fixes that may change numerics, randomness or memory"""
    select: tuple[str, ...] = ()
    """only these findings: ids, prefixes of codes, names"""
    repeats: int = statistics.LEAST_REPEATS
    """runs with each fix, and as many without it; twice as many where these are not clear"""
    max_steps: int | None = None
    """of a plain run, warm-up included; None: what takes some seconds"""
    max_seconds: float = 3600.0
    """of everything"""
    max_trials: int | None = None
    if_busy: IfBusy = "more"
    """what to do where others kept the machine busy while the script was recorded: more pairs, wait for a quiet one, stop"""
    search_batch: bool = False
    """also search for a batch size, and for accumulation, by samples per second"""
    step_every: int | None = None
    least_gain: float = statistics.LEAST_GAIN
    loss_tolerance: float = losses.TOLERANCE
    without_losses: bool = False
    link: tuple[str, ...] = ()
    """files and folders that the scratch copy shares with the original"""
    copy_data: bool = False
    """copy large files and folders of data as well, instead of sharing them"""
    data_writes: bool = False
    """go on where runs write to files of the user's that the copy cannot have of its own"""
    scratch: Path | None = None
    """where the scratch copy is made (default: the system's folder for temporary files)"""
    logs: Path | None = None
    """where the recordings before and after are kept (default: nowhere)"""
    resume: Treatment | None = None
    """an earlier treatment that was interrupted: what it has decided is not tried again"""

    def __post_init__(self) -> None:
        if self.repeats < statistics.LEAST_REPEATS:
            raise UsageError(
                f"--repeats: fewer than {statistics.LEAST_REPEATS} pairs of runs cannot show anything"
            )
        if self.max_steps is not None and self.max_steps < 4:
            raise UsageError("--max-steps: a run has at least 4 steps, half of them to warm up")
        if self.if_busy not in get_args(IfBusy):
            raise UsageError(f"--if-busy: more, wait or stop, not {self.if_busy!r}")
        if not 0 < self.max_seconds < inf:
            raise UsageError(f"--max-minutes: {self.max_seconds:g} s is no time above 0")


@dataclass
class Treated:
    """The outcome, and what it takes to make it true."""

    treatment: Treatment
    edits: Plan
    """of the user's scripts, with what was kept ready"""
    batch_patch: bytes = b""
    """another batch size, on top of those edits; `apply` leaves it alone"""

    def apply(self, *, allow_dirty: bool = False) -> list[str]:
        """Edits the user's scripts as `fix --apply` does; the names of the files changed."""
        return write_scripts(self.edits, allow_dirty=allow_dirty)


def treat(
    command: Sequence[str],
    source: str | Path,
    options: TreatOptions | None = None,
    *,
    cwd: Path | None = None,
    config: Config | None = None,
    torch_version: str | None = None,
    choose: Choose | None = None,
    say: Say = lambda line: None,
) -> Treated:
    """Runs `command` in a copy of the project that holds `source`, and tries the fixes of what its recording shows.

    No edit is made below `source`; what the command itself changed there is listed in the outcome. `choose` picks from the
    fixes that could be tried. Interrupted (KeyboardInterrupt or SystemExit) after the first recording, it returns what is
    known so far. Raises UsageError where the command fails as it is.
    """
    options = options or TreatOptions()
    clock = Clock(options.max_seconds)
    progress = Progress(clock, say)
    say = progress.say
    source, cwd = Path(source), (cwd or Path.cwd()).resolve()
    if not source.exists():
        raise UsageError(f"--source {source}: no such folder or file")
    if (script := missing_script(command, cwd)) is not None:
        raise UsageError(f"{script}: no such file")
    source = source_of(command, source, cwd)
    if (why := loads_no_recorder(command) or several_machines(command, os.environ)) is not None:
        raise UsageError(why)
    with (
        Scratch(
            source, cwd, link=options.link, copy_data=options.copy_data, folder=options.scratch,
            imports=(imports := in_place(command, cwd, os.environ)),
        ) as scratch,
        _telling_changes(scratch, say),
    ):  # fmt: skip
        scratch.import_from(imports)
        for note in scratch.notes:
            say(note)
        for line in scratch.details:
            _log.info(line)
        recordings = _recordings(options)
        fingerprint = scratch.fingerprint(masked(command, cwd))
        if options.resume is not None and options.resume.fingerprint != fingerprint:
            raise UsageError("--resume: the command or a script has changed since: start without it")
        if recordings is not None:
            scratch.writes(recordings)
        scratch.keep_writes(options.data_writes)
        runner = CommandRunner(
            scratch,
            command,
            cwd,
            recordings=recordings,
            max_steps=options.max_steps,
            step_every=options.step_every,
            left=clock.left,
            say=say,
            tick=progress.tick,
        )
        say("recording the script as it is")
        before = _record_before(runner, Setup(plan(Result(), source)), options, scratch)
        look_at_writes(scratch, options.data_writes, say)
        result = analyze(before, source=source, config=config)
        trials = _Trials(runner, scratch, result, options, source, config, torch_version)
        edit_plan = trials.plan(result, options.select)
        queue, by_hand = _editable(scratch, runner.loaded, say, *candidates(edit_plan))
        say(_summary(result, queue, by_hand))
        if choose is not None:
            queue = choose(queue)
        more, busy = look_around(runner.before, options.if_busy, clock.left(), say) if queue else (0, "")
        rules = Rules(
            options.repeats + more, options.least_gain, options.loss_tolerance, options.without_losses
        )
        decided = (
            {key(a): a for a in options.resume.attempts if a.fate in ("kept", "rejected")}
            if options.resume
            else {}
        )
        values = Values(result, edit_plan, trials.plan, available_cores(), os.environ, command)
        loop = Loop(
            runner, rules, clock, Setup(edit_plan), say, trials.prove, trials.elsewhere, values.of, decided=decided
        )  # fmt: skip
        progress.follow(runner, loop, len(queue[: options.max_trials]))
        if queue or options.search_batch:
            _pilot(runner, Setup(edit_plan), clock)
        outcome = _Outcome(
            options, runner.steps, loop, by_hand, [*scratch.notes, *[busy] * bool(busy)], fingerprint
        )
        with outcome.whatever_comes():
            loop.run(queue, options.max_trials)
            outcome.difference(runner, result, scratch, config)
            if options.search_batch:
                outcome.batch.run(loop, values, runner, say)
        if runner.leftover_processes:
            outcome.notes.append(leftover_note(runner.leftover_processes))
        outcome.compare(scratch)
        if outcome.changes:
            say(changed_words(outcome.changes, len(outcome.changes)))
        outcome.clear(scratch, say)
        return outcome.treatment()


@dataclass
class _Trials:
    """What the loop asks of a fix beside its times."""

    runner: CommandRunner
    scratch: Scratch
    before: Result
    options: TreatOptions
    source: Path
    config: Config | None
    torch_version: str | None
    _number: int = 0
    _missed: set[tuple[str, int]] = field(default_factory=set)
    """files and lines where an edit was not in force"""

    def plan(self, result: Result, select: Sequence[str] = ()) -> Plan:
        """The fixes of a result where the recorded script can have them in force."""
        return plan(
            result, self.source, unsafe=self.options.unsafe, select=select, torch_version=self.torch_version,
            without_effect=frozenset(self._missed), ran=self.scratch.names_of(self.runner.loaded),
        )  # fmt: skip

    def prove(self, without: Setup, candidate: Candidate) -> InForce:
        """What a short recording with the fix shows of it. Raises RunFailed."""
        self._number += 1
        folder = self.runner.record(without.with_(candidate), f"with-{self._number}", short=True)
        try:
            after = analyze(folder, config=self.config)
        except TraceDoctorError:
            after = Result()
        return InForce.of(folder, without, candidate, self.before, after)

    def elsewhere(self, candidate: Candidate, missed: Sequence[Candidate]) -> Candidate | None:
        """The same fix at the next place that it can be meant for."""
        changes = [c.item.change for c in missed if c.item.change is not None]
        self._missed.update(
            (file.name, file.line_of(edit.start)) for change in changes for file, edits in change.files for edit in edits
        )  # fmt: skip
        others = self.plan(self.before, self.options.select).items
        item = next((i for i in others if i.label == candidate.label and i.change is not None), None)
        if item is None or item.change is None or any(item.diff == c.item.diff for c in missed):
            return None
        if any(self.scratch.refuses(file.name) for file, _ in item.change.files):
            return None
        return Candidate(replace(item, status="ready", why=""))


def _editable(
    scratch: Scratch,
    loaded: Collection[str],
    say: Say,
    queue: Sequence[Candidate],
    by_hand: Sequence[ByHand],
) -> tuple[list[Candidate], list[ByHand]]:
    """The fixes whose edits stay in the copy, and are in what its runs load; the others are left to the user."""
    editable, rest, elsewhere = list[Candidate](), list(by_hand), dict[str, None]()
    for candidate in queue:
        change = candidate.item.change
        names = [file.name for file, _ in change.files] if change is not None else []
        refusals = [f"{name}: {why}" for name in names if (why := scratch.refuses(name))]
        others = [
            printable(f"{other} is loaded in place of {name}")
            for name in names
            if (other := scratch.loaded_instead(name, loaded))
        ]
        elsewhere |= dict.fromkeys(others)
        refusals += [f"{other}: no run would contain the edit" for other in others]
        if refusals:
            fix = candidate.item.fix
            rest.append(
                ByHand(label=candidate.label, fix=fix.title, why=printable(refusals[0]), text=fix.text)
            )
        else:
            editable.append(candidate)
    if elsewhere:
        say(
            f"the code is imported from another checkout, so its fixes cannot be tried: {'; '.join(elsewhere)}"
        )
    return editable, rest


@contextmanager
def _telling_changes(scratch: Scratch, say: Say) -> Iterator[None]:
    """What ends before there is an outcome says which files of the user's changed by then, and what is left of the copy."""
    try:
        yield
    except UsageError as error:
        if lines := _in_the_end(scratch):
            raise UsageError("; ".join([str(error), *lines])) from None
        raise
    except BaseException:
        for line in _in_the_end(scratch):
            say(line)
        raise


def _in_the_end(scratch: Scratch) -> list[str]:
    changes = scratch.changes()
    scratch.close()
    return [changed_words(changes, len(changes))] * bool(changes) + scratch.leftovers()


def _record_before(runner: CommandRunner, setup: Setup, options: TreatOptions, scratch: Scratch) -> Path:
    """The recording of the script as it is."""
    try:
        return runner.record(setup, "before")
    except RunFailed as failure:
        refuse_writes(scratch.writes_of_runs(REFUSED))
        output = f"{options.logs} keeps" if options.logs is not None else "--logs DIR keeps"
        raise UsageError(
            f"the command fails in the copy, before anything was changed: {failure} ({output} all it said)"
        ) from None


def _pilot(runner: CommandRunner, setup: Setup, clock: Clock) -> None:
    try:
        clock.run(lambda: runner.pilot(setup))
    except RunFailed as failure:
        raise UsageError(f"the command cannot be timed as it is: {failure}") from None
    except OutOfTime:
        pass  # the loop says so of each fix


def _recordings(options: TreatOptions) -> Path | None:
    if options.logs is None:
        return None
    from trace_doctor.recording.launch import new_folder

    return Path(new_folder(options.logs))


def _summary(result: Result, queue: Sequence[Candidate], by_hand: Sequence[ByHand]) -> str:
    findings = f"{len(result.findings)} findings" if len(result.findings) != 1 else "1 finding"
    fixes = f"{len(queue)} fixes to try" if len(queue) != 1 else "1 fix to try"
    return f"{findings}, {fixes}" + (f", {len(by_hand)} left to you" if by_hand else "")


class _Outcome:
    """What a treatment has shown so far."""

    def __init__(
        self,
        options: TreatOptions,
        steps: Steps,
        loop: Loop,
        by_hand: list[ByHand],
        notes: list[str],
        fingerprint: str,
    ) -> None:
        self.options, self.steps, self.loop, self.by_hand, self.notes = options, steps, loop, by_hand, notes
        self.fingerprint = fingerprint
        self.interrupted: int | None = None
        self.stopped = ""
        self.changes: list[FileChange] = []
        self.mounted: list[str] = []
        self.batch = BatchSearch()
        self._difference: Difference | None = None

    @contextmanager
    def whatever_comes(self) -> Iterator[None]:
        """An interrupt ends what runs inside, and so does a copy that cannot be put back; what is known by then is kept."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = 130
        except SystemExit as stop:
            self.interrupted = stop.code if isinstance(stop.code, int) else 130
        except UsageError as error:
            self.stopped = printable(str(error))

    def difference(
        self, runner: CommandRunner, before: Result, scratch: Scratch, config: Config | None
    ) -> None:
        """Records once more with all that was kept, and compares the recordings."""
        loop = self.loop
        if not loop.setup.fixes:
            return
        if loop.clock.left() < (runner.before.seconds if runner.before else 0.0):
            self.notes.append("no recording was made after: it would not end within --max-minutes")
            return
        loop.say("recording the script with what helped")
        try:
            after = analyze(runner.record(loop.setup, "after"), source=scratch.source, config=config)
        except (RunFailed, TraceDoctorError) as failure:
            self.notes.append(f"no recording was made after: {failure}")
            return
        self._difference = diff(before, after)

    def compare(self, scratch: Scratch) -> None:
        """Looks for what is no longer as it was among the user's files."""
        compared = False
        with self.whatever_comes():
            self.changes = scratch.changes()
            compared = True
        if not compared:
            self.notes.append("your own files were not compared with their state before: interrupted")

    def clear(self, scratch: Scratch, say: Say) -> None:
        """Takes the copy away, and says what is left of it."""
        with self.whatever_comes():
            scratch.close()
        self.mounted = scratch.mounted
        self.notes += scratch.leftovers()
        for line in scratch.leftovers():
            say(line)

    def treatment(self) -> Treated:
        """What is known by now, with its verdict and exit code, and the plan of what was kept."""
        loop, options = self.loop, self.options
        edits = loop.setup.edits
        treatment = Treatment(
            tool=Tool(version=VERSION),
            code=0,
            verdict="",
            method=Method(
                warmup_steps=self.steps.warmup,
                timed_steps=self.steps.timing,
                figure=self.steps.by,
                repeats=loop.rules.repeats,
                alpha=sum(statistics.LOOKS),
                least_gain=options.least_gain,
                loss_tolerance=options.loss_tolerance,
            ),
            attempts=loop.attempts,
            together=loop.together,
            confirmed=loop.confirmed,
            patch=edits.patch().decode("utf-8", "replace"),
            environment=loop.setup.environment,
            arguments=loop.setup.arguments,
            batch=self.batch.attempts,
            batch_patch=self.batch.patch.decode("utf-8", "replace"),
            by_hand=self.by_hand,
            difference=self._difference,
            notes=[*self.notes, *self.batch.notes],
            changed=self.changes[:_MOST_CHANGES],
            changed_count=len(self.changes),
            mounted=self.mounted,
            stopped=self.stopped,
            interrupted=self.interrupted is not None,
            fingerprint=self.fingerprint,
        )
        return Treated(verdict(treatment, self.interrupted), edits, self.batch.patch)
