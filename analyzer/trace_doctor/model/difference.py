"""The outcome of `diff`: what changed between two recordings of a job, beyond the noise.

Times are float microseconds (`_us`), memory is bytes, shares are 0..1. `None` means "not known", never zero.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from trace_doctor.model import Confidence, OutcomeKind, Unit
from trace_doctor.model.comparison import Comparison

ChangeVerdict = Literal["more", "less", "within_noise", "too_few_steps", "not_captured"]


class Change(Struct, frozen=True, kw_only=True):
    """One figure on both sides: a part of the step, an operator, a kernel, a category of memory.

    Of several captures of a side it is their median, over ranks and devices the mean. Times are means over the steady
    steps; where a side has no steps they are of the whole recorded window.
    """

    name: str
    kind: str = ""
    unit: Unit = "us"
    before: float | None = None
    after: float | None = None
    at_most: bool = False
    """the smaller side is not among the longest of its capture: it is at most what is given, the change at least"""
    change: float | None = None
    """after - before"""
    noise: float | None = None
    """smaller changes are noise: three standard errors of the difference, and never less than two recordings of one
    job differ by"""
    verdict: ChangeVerdict = "not_captured"
    confidence: Confidence | None = None
    """of a change beyond the noise. high: several recordings on both sides say so; medium: one on a side, which does
    not show how much runs differ; low: less than twice the noise, or the sides may not be of one job"""


class RuleChange(Struct, frozen=True, kw_only=True):
    """A rule that says something else of AFTER than of BEFORE. Costs are the largest share of the step or the peak that
    one of its findings claims."""

    code: str
    name: str
    title: str = ""
    before: OutcomeKind | None = None
    """None where the rule was not run"""
    after: OutcomeKind | None = None
    findings_before: int = 0
    findings_after: int = 0
    cost_before: float | None = None
    cost_after: float | None = None
    confidence: Confidence | None = None
    """of the findings, the surest"""
    reason: str | None = None
    """why a side could not look"""


class Difference(Comparison, frozen=True, kw_only=True):
    code: Literal[0, 3] = 0
    """exit code: 3 where a side is not whole"""
    per_step: bool = True
    """False where a side has no steps: whole windows are compared, and nothing says that they hold the same work"""
    time: list[Change] = field(default_factory=list)
    """the time ledger by part: together they are the step"""
    operators: list[Change] = field(default_factory=list)
    """self time on the host; largest change first"""
    kernels: list[Change] = field(default_factory=list)
    """largest change first"""
    peak: list[Change] = field(default_factory=list)
    """live bytes at the peak by category: together they are the peak"""
    rules: list[RuleChange] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
