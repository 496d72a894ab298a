"""Two results of one job compared: what `verify` and `diff` share. Schema version 1.

Times are float microseconds (`_us`), memory is bytes, shares are 0..1. `None` means "not known", never zero.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from trace_doctor.model import Location, Mention, Saving, Severity
from trace_doctor.model.results import Document

Fate = Literal["gone", "within_noise", "smaller", "still_there", "not_captured"]
StepVerdict = Literal["faster", "slower", "within_noise", "machine", "too_few_steps", "not_captured"]
"""`machine`: the same kernels and operators became faster or slower by about as much as the step"""


class Followed(Mention, frozen=True, kw_only=True):
    """A finding of BEFORE and what became of it.

    `gone`: its rule looked at the same rank and found nothing. `within_noise`: the same, and a step varies by more than it
    cost (`diff` alone says so; `verify` by its reason). `smaller`: found again, costing at most four fifths or of a lower severity.
    `still_there`: found again. `not_captured`: AFTER cannot tell, with the reason and how to record it.
    """

    fate: Fate
    after_id: str | None = None
    """the finding of AFTER that is the same fault"""
    after_severity: Severity | None = None
    after_location: Location | None = None
    promised: Saving | None = None
    """what BEFORE said that removing it saves: an upper bound"""
    after_saving: Saving | None = None
    """what removing it would still save"""
    measured_us: float | None = None
    """step time that went; only where no other finding that promised time went with it"""
    measured_bytes: int | None = None
    reason: str | None = None
    capture: str | None = None
    """how to record what is missing"""


class Appeared(Mention, frozen=True, kw_only=True):
    """A finding that AFTER alone has."""

    message: str = ""
    saving: Saving | None = None
    checked_before: bool = True
    """False where BEFORE could not have shown it: not known to be new"""
    within_noise: bool = False
    """whether a step varies by more than it costs (`diff` alone says so)"""


class StepTime(Struct, frozen=True, kw_only=True):
    """Steady steps of the slowest rank, over all its captures."""

    rank: int
    steps: int
    captures: int
    median_us: float
    spread_us: float
    """median absolute deviation"""
    noise_us: float
    """standard error of the median, or half the range of the captures' medians where that is more"""
    mean_us: float | None = None
    """what savings go by; None where a side does not say"""
    plain: bool = False
    """the steps ran without the profiler"""


class StepChange(Struct, frozen=True, kw_only=True):
    before: StepTime | None = None
    after: StepTime | None = None
    change_us: float | None = None
    """after − before, of the medians: one long step does not decide whether a change is more than noise"""
    mean_change_us: float | None = None
    """after − before, of the means: what savings are of. None where a side does not say"""
    noise_us: float | None = None
    """smaller changes are noise: three standard errors of the difference, at least 2 % of the step"""
    machine_us: float | None = None
    """by how much the step would have changed had only the same kernels and operators become faster or slower, as they did"""
    verdict: StepVerdict = "not_captured"
    how: str = ""


class MemoryChange(Struct, frozen=True, kw_only=True):
    """Highest peak over all captures of a side."""

    allocated_before: int | None = None
    allocated_after: int | None = None
    reserved_before: int | None = None
    reserved_after: int | None = None


class Side(Struct, frozen=True, kw_only=True):
    """One of the two results, as far as it says whether the two can be compared."""

    paths: list[str]
    findings: int
    ranks: int
    steps: int
    device_names: list[str] = field(default_factory=list)
    torch_version: list[str] = field(default_factory=list)


class Comparison(Document, frozen=True, kw_only=True):
    verdict: str
    """one sentence"""
    before: Side
    after: Side
    findings: list[Followed] = field(default_factory=list)
    new: list[Appeared] = field(default_factory=list)
    step_time: StepChange = StepChange()
    memory: MemoryChange = MemoryChange()
    warnings: list[str] = field(default_factory=list)
    """why the two may not be comparable"""
    undecided: list[str] = field(default_factory=list)
    """what was not read or is missing on a side: the exit code is then 3, where nothing failed"""
    partial: list[str] = field(default_factory=list)
    """the same where --allow-partial lets it pass"""

    def count(self, *fates: Fate) -> int:
        """How many findings of BEFORE came to one of these fates."""
        return sum(f.fate in fates for f in self.findings)
