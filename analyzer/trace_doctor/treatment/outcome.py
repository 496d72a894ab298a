"""What a treatment has shown, kept whatever ends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from trace_doctor.api import analyze, diff
from trace_doctor.config import Config
from trace_doctor.errors import TraceDoctorError, UsageError, printable
from trace_doctor.fixes.apply import apply as write_scripts
from trace_doctor.fixes.plan import Plan
from trace_doctor.model import Result, Tool
from trace_doctor.model.difference import Difference
from trace_doctor.model.treatment import ByHand, FileChange, Method, Treatment
from trace_doctor.reporters.treatment.words import verdict
from trace_doctor.treatment import statistics
from trace_doctor.treatment.batches import BatchSearch
from trace_doctor.treatment.launching import CommandRunner, Steps
from trace_doctor.treatment.loop import Loop, Say
from trace_doctor.treatment.measurement import RunFailed
from trace_doctor.treatment.options import TreatOptions
from trace_doctor.treatment.scratch import Scratch
from trace_doctor.version import VERSION

_MOST_CHANGES = 1_000


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


class Outcome:
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
        self._signal: BaseException | None = None
        """held until the end, for a signal whose exception nobody holds counts as lost and is raised again"""
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
        except KeyboardInterrupt as stop:
            self._signal = stop.with_traceback(None)
            self.interrupted = 130
        except SystemExit as stop:
            self._signal = stop.with_traceback(None)
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

    def so_far(self) -> Treatment:
        """For `--resume`, should the process be killed."""
        return replace(self.treatment().treatment, interrupted=True)

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
