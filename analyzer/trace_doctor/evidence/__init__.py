"""Derived facts, typed, made on demand, shared by rules."""

from trace_doctor.evidence.base import Evidence, Facts, Options

__all__ = ["Evidence", "Facts", "Options"]
