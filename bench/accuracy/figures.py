"""From findings and labels to figures."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from cases import Case

from trace_doctor.model import Finding, Result


@dataclass
class Count:
    """Of one rule: faults that it found, faults that it did not, and alarms without a fault."""

    found: int = 0
    warned: int = 0
    """of those found, by a finding above info"""
    missed: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)

    @property
    def precision(self) -> float | None:
        alarms = self.found + len(self.false)
        return self.found / alarms if alarms else None

    @property
    def recall(self) -> float | None:
        faults = self.found + len(self.missed)
        return self.found / faults if faults else None


@dataclass
class Figures:
    """Over all cases that were looked at."""

    cases: int = 0
    healthy: int = 0
    healthy_with_alarm: int = 0
    rules: dict[str, Count] = field(default_factory=lambda: defaultdict(Count))
    first_fixes: list[bool] = field(default_factory=list)
    """per planted fault with a known edit that was found: whether the first fix that edits is that edit"""
    lines: list[bool] = field(default_factory=list)
    """per planted fault on a line that was found: whether the finding or its edit names that line"""

    def add(self, case: Case, result: Result) -> None:
        """Counts one capture. A fault is found at any severity; an alarm is a finding above info."""
        self.cases += 1
        wanted = {fault.code for fault in case.faults}
        by_code: dict[str, list[Finding]] = defaultdict(list)
        for finding in result.findings:
            by_code[finding.code].append(finding)
        for code in sorted(wanted):
            if by_code[code]:
                self.rules[code].found += 1
                self.rules[code].warned += any(f.severity != "info" for f in by_code[code])
            else:
                self.rules[code].missed.append(case.name)
        alarms = {f.code for f in result.findings if f.severity != "info"} - wanted - case.either
        for code in sorted(alarms):
            self.rules[code].false.append(case.name)
        if not wanted:
            self.healthy += 1
            self.healthy_with_alarm += bool(alarms)
        for fault in case.faults:
            self._look_closer(fault.code, fault.line, fault.codemod, by_code[fault.code])

    def _look_closer(self, code: str, line: int | None, codemod: str | None, findings: list[Finding]) -> None:
        if not findings:
            return
        if line is not None:
            named = {f.location.line for f in findings}
            named |= {x.target.line for f in findings for x in f.fixes if x.target is not None}
            self.lines.append(line in named)
        if codemod is not None:
            firsts = [next((x.codemod for x in f.fixes if x.codemod), None) for f in findings]
            self.first_fixes.append(codemod in firsts)

    def overall(self) -> Count:
        """All rules together."""
        total = Count()
        for count in self.rules.values():
            total.found += count.found
            total.warned += count.warned
            total.missed += count.missed
            total.false += count.false
        return total
