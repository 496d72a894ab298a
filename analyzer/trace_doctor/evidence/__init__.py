"""Derived facts, typed, made on demand, cached and shared by rules."""

from trace_doctor.evidence.base import Evidence, Facts, Options
from trace_doctor.evidence.replay.what_if import Removal

__all__ = ["Evidence", "Facts", "Options", "Removal"]
