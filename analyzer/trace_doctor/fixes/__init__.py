"""Fixes: from the data in a finding to a diff, a patch file, or an edited script."""

from __future__ import annotations

from trace_doctor.fixes.annotate import with_diffs
from trace_doctor.fixes.plan import Plan, plan
from trace_doctor.fixes.resolved import PlannedFix

__all__ = ["Plan", "PlannedFix", "plan", "with_diffs"]
