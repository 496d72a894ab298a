"""Runs the rules over captures and makes one Result: examine → merged findings → conclude."""

from __future__ import annotations

from collections.abc import Sequence

from trace_doctor.capture import Capture
from trace_doctor.config import Config
from trace_doctor.engine.conclude import conclude, merged_findings
from trace_doctor.engine.examine import Examination, examine
from trace_doctor.evidence.base import Options
from trace_doctor.model import Result
from trace_doctor.rule import Rule

__all__ = ["Examination", "conclude", "diagnose", "examine", "merged_findings"]


def diagnose(
    captures: Sequence[Capture], rules: Sequence[type[Rule]], config: Config, options: Options | None = None
) -> Result:
    """All of it, where nothing is silenced and nothing else was given."""
    made = [config.rule(rule) for rule in rules]
    examinations = examine(captures, made, options)
    return conclude(examinations, merged_findings(examinations, config), made, config)
