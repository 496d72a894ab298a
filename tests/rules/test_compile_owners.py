"""Compiling again is not a cold start."""

from __future__ import annotations

from trace_doctor.config import defaults
from trace_doctor.engine import diagnose
from trace_doctor.registry import resolve
from trace_doctor.testing import captures_of
from trace_doctor_rules.compile.recompile import Recompile


def test_code_that_is_made_again_in_every_step_is_no_cold_start() -> None:
    case = next(c for c in Recompile.INVALID if c.name == "in every step of the capture")
    captures = captures_of(case.build())
    alone = diagnose(captures, resolve("TD505"), defaults())
    both = diagnose(captures, [*resolve("TD505"), *resolve("TD502")], defaults())
    assert [f.code for f in alone.findings] == ["TD505"]
    assert [f.code for f in both.findings] == ["TD502"]
