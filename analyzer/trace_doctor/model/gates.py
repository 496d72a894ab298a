"""What `check` decided."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from trace_doctor.model.findings import Unit


class Budget(Struct, frozen=True, kw_only=True):
    """One figure that the gate judged. `unit` is us, bytes or share; `found` is the aggregate over the runs."""

    name: str
    unit: Unit
    level: Literal["error", "warning"] = "error"
    """a warning is said, and never fails the gate"""
    status: Literal["passed", "failed", "undecided"]
    found: float | None = None
    values: list[float] = field(default_factory=list)
    """one for each run"""
    limit: float | None = None
    """more than this fails"""
    baseline: float | None = None
    noise: float | None = None
    """k x MAD: differences from the baseline up to this are noise"""
    how: str = ""
    """what makes the limit, or why nothing could be decided"""


class Gate(Struct, frozen=True, kw_only=True):
    """What `check` decided."""

    code: int
    """the exit code: 0 passed, 1 failed, 3 could not decide"""
    verdict: str
    fail_on: str = "warning"
    failing: list[str] = field(default_factory=list)
    """ids of the findings that fail it"""
    with_baseline: bool = False
    """whether findings and figures were compared with those of a baseline"""
    known: list[str] = field(default_factory=list)
    """ids of the findings that the baseline holds"""
    budgets: list[Budget] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    """why it could not be decided, budgets aside: captures not read, ranks missing, rules that could not look"""
    partial: list[str] = field(default_factory=list)
    """of such reasons those that --allow-partial let pass"""
    notes: list[str] = field(default_factory=list)
