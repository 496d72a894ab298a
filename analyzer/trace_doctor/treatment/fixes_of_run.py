"""The fixes that a recorded run can have in force, and whether one is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trace_doctor.api import analyze
from trace_doctor.config import Config
from trace_doctor.errors import TraceDoctorError
from trace_doctor.fixes.plan import Plan, plan
from trace_doctor.model import Result
from trace_doctor.treatment.acceptance import InForce
from trace_doctor.treatment.candidates import Candidate, Setup
from trace_doctor.treatment.launching import CommandRunner
from trace_doctor.treatment.options import TreatOptions
from trace_doctor.treatment.scratch import Scratch


@dataclass
class FixesOfRun:
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
