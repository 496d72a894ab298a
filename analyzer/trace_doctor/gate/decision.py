"""From a result to an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trace_doctor.model import Result
from trace_doctor.registry import resolve

LEVELS = ("info", "warning", "critical")


@dataclass(frozen=True)
class Decision:
    """`code`: 0 ok, 1 a finding at or above the limit, 3 a required rule could not decide; 1 beats 3."""

    code: int
    text: str


def decide(result: Result, fail_on: str = "warning", require: Sequence[str] = ()) -> Decision:
    """A rule that is merely enabled and skipped never changes the code; a required one does."""
    failing = [
        f for f in result.findings if fail_on != "never" and LEVELS.index(f.severity) >= LEVELS.index(fail_on)
    ]
    outcomes = {o.code: o for o in result.outcomes}
    undecided = []
    for code in sorted({r.code for selector in require for r in resolve(selector)}):
        outcome = outcomes.get(code)
        if outcome is None:
            undecided.append(f"{code} (not selected)")
        elif outcome.outcome in ("skipped", "error"):
            undecided.append(f"{code} ({outcome.reason})")
    if failing:
        codes = ", ".join(sorted({f.code for f in failing}))
        plural = "s" if len(failing) > 1 else ""
        return Decision(1, f"check failed: {len(failing)} finding{plural} at {fail_on} or above ({codes})")
    if undecided:
        return Decision(3, f"check could not decide: {'; '.join(undecided)}")
    return Decision(
        0, "check passed" if fail_on == "never" else f"check passed: no finding at {fail_on} or above"
    )
