"""`treat`: record, diagnose, try each fix, measure, keep what helps. The library's twin of `trace-doctor treat`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trace_doctor.api import analyze
from trace_doctor.config import Config
from trace_doctor.errors import UsageError, printable
from trace_doctor.fixes.plan import Plan, plan
from trace_doctor.loading.load_files import available_cores
from trace_doctor.model import Result
from trace_doctor.model.treatment import ByHand, Treatment
from trace_doctor.recording.agent.copy_up import COPIED, REFUSED
from trace_doctor.recording.command_line import masked
from trace_doctor.recording.recording_warnings import loads_no_recorder
from trace_doctor.recording.startable import missing_script, several_machines
from trace_doctor.reporters.treatment.words import changed_words
from trace_doctor.treatment.candidates import Candidate, Setup, candidates
from trace_doctor.treatment.copy.worktree import source_of
from trace_doctor.treatment.fixes_of_run import FixesOfRun
from trace_doctor.treatment.installed import in_place
from trace_doctor.treatment.launching import CommandRunner, leftover_note
from trace_doctor.treatment.loop import Loop, Say, key
from trace_doctor.treatment.measurement import RunFailed
from trace_doctor.treatment.options import TreatOptions
from trace_doctor.treatment.outcome import Outcome, Treated
from trace_doctor.treatment.progress import Progress
from trace_doctor.treatment.quiet import look_around
from trace_doctor.treatment.scratch import Scratch
from trace_doctor.treatment.search.values import Values
from trace_doctor.treatment.trial import Clock, OutOfTime, Rules

_log = logging.getLogger(__name__)
Choose = Callable[[list[Candidate], Plan], list[Candidate]]


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
    after_each: Callable[[Treatment], None] = lambda treatment: None,
) -> Treated:
    """Runs `command` in a copy of the project that holds `source`, and tries the fixes of what its recording shows.

    No edit is made below `source`; what the command itself changed there is listed in the outcome. `choose` picks from the
    fixes that could be tried, with the plan that they are of; `after_each` gets what is known when the trial of one has
    ended. Interrupted (KeyboardInterrupt or SystemExit) after the first recording, it returns what is
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
        trials = FixesOfRun(runner, scratch, result, options, source, config, torch_version)
        edit_plan = trials.plan(result, options.select)
        queue, by_hand = _editable(scratch, runner.loaded, say, *candidates(edit_plan))
        say(_summary(result, queue, by_hand))
        if choose is not None:
            queue = choose(queue, edit_plan)
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
        cannot: UsageError | None = None
        outcome = Outcome(
            options, runner.steps, loop, by_hand, [*scratch.notes, *[busy] * bool(busy)], fingerprint
        )
        loop.after_each = lambda: after_each(outcome.so_far())
        with outcome.whatever_comes():
            if queue or options.search_batch:
                cannot = _pilot(runner, Setup(edit_plan), clock)
            if cannot is None:
                loop.run(queue, options.max_trials)
                outcome.difference(runner, result, scratch, config)
                if options.search_batch:
                    outcome.batch.run(loop, values, runner, say)
        if cannot is not None:
            raise cannot
        if runner.leftover_processes:
            outcome.notes.append(leftover_note(runner.leftover_processes))
        outcome.compare(scratch)
        if outcome.changes:
            say(changed_words(outcome.changes, len(outcome.changes)))
        outcome.clear(scratch, say)
        return outcome.treatment()


def _editable(
    scratch: Scratch, loaded: Collection[str], say: Say, queue: Sequence[Candidate], by_hand: Sequence[ByHand]
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


def _pilot(runner: CommandRunner, setup: Setup, clock: Clock) -> UsageError | None:
    """Times the script as it is; why that is not possible."""
    try:
        clock.run(lambda: runner.pilot(setup))
    except RunFailed as failure:
        return UsageError(f"the command cannot be timed as it is: {failure}")
    except OutOfTime:
        pass  # the loop says so of each fix
    return None


def _recordings(options: TreatOptions) -> Path | None:
    if options.logs is None:
        return None
    from trace_doctor.recording.launch import new_folder

    return Path(new_folder(options.logs))


def _summary(result: Result, queue: Sequence[Candidate], by_hand: Sequence[ByHand]) -> str:
    findings = f"{len(result.findings)} findings" if len(result.findings) != 1 else "1 finding"
    fixes = f"{len(queue)} fixes to try" if len(queue) != 1 else "1 fix to try"
    return f"{findings}, {fixes}" + (f", {len(by_hand)} left to you" if by_hand else "")


_MOST_NAMED = 5


def look_at_writes(scratch: Scratch, allow: bool, say: Callable[[str], None]) -> None:
    """Tells what the recording wrote of its own in place of the user's files. Raises UsageError where it was to write to the
    user's own, or did through a link that nobody asked for: each trial would again."""
    refuse_writes(scratch.writes_of_runs(REFUSED))
    if copied := scratch.writes_of_runs(COPIED):
        say(f"the command writes to {_some(copied)}: each run gets a copy of its own")
    if not allow:
        through = [c.name for c in scratch.changes() if c.through and c.through not in scratch.asked]
        refuse_writes(through)


def refuse_writes(names: Sequence[str]) -> None:
    """Raises UsageError where there is one."""
    if names:
        raise UsageError(
            f"the command writes to files of yours that the copy has no copy of: {_some(names)}; --copy-data copies data, "
            "--allow-data-writes lets it write"
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return printable(", ".join(names[:_MOST_NAMED])) + more
