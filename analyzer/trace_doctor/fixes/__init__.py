"""Fixes: from the data in a finding to a diff, a patch file, or an edited script."""

from __future__ import annotations

from trace_doctor.fixes.plan import Plan, plan
from trace_doctor.fixes.planned import Planned
from trace_doctor.fixes.told import with_diffs

__all__ = ["Plan", "Planned", "plan", "with_diffs"]
