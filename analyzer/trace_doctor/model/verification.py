"""The outcome of `verify`: two results of one job compared, before and after a fix.

Times are float microseconds (`_us`), memory is bytes, shares are 0..1. `None` means "not known", never zero.
"""

from __future__ import annotations

from typing import Literal

from msgspec import field

from trace_doctor.model import Basis, HowKnown
from trace_doctor.model.comparison import Comparison


class Promise(HowKnown, frozen=True, kw_only=True):
    """What the findings that are gone promised together, beside what was measured; an estimate where one of them is."""

    findings: list[str] = field(default_factory=list)
    time_us_per_step: float | None = None
    basis: Basis | None = None
    how: str = ""
    measured_us: float | None = None
    """of a mean step, as what is promised"""
    bytes: int | None = None
    measured_bytes: int | None = None


class Verification(Comparison, frozen=True, kw_only=True):
    code: Literal[0, 1, 3]
    """exit code: 0 all gone, 1 something still there or new, 3 AFTER cannot tell, or a side is not whole"""
    promise: Promise = Promise()
