"""Runs the rules over captures and makes one Result.

`examine` looks at one capture and needs nothing of any other. `judge` adds what rules over several ranks say, from
summaries alone; `merged_findings` makes one finding of each fault; `retime` and `ownership` are a second request to a
capture, once it is known which findings there are; `conclude` makes the Result of values.
"""

from __future__ import annotations

from collections.abc import Sequence

from trace_doctor.capture import Capture
from trace_doctor.config import Config
from trace_doctor.engine.conclude import conclude, judge, merged_findings, must_select
from trace_doctor.engine.examine import Examination, examine, retime, summary_kinds, with_numbers
from trace_doctor.engine.ownership import ownership
from trace_doctor.engine.sizes import Sizes
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.model import Result
from trace_doctor.rule import Rule

__all__ = [
    "Examination",
    "Sizes",
    "conclude",
    "diagnose",
    "examine",
    "judge",
    "merged_findings",
    "must_select",
    "ownership",
    "retime",
    "summary_kinds",
    "with_numbers",
]


def diagnose(
    captures: Sequence[Capture], rules: Sequence[type[Rule]], config: Config, options: Options | None = None
) -> Result:
    """All of it, where nothing is silenced and nothing else was given."""
    all_facts = [Facts(capture, options) for capture in captures]
    instances = [config.rule(rule) for rule in rules]
    sizes = Sizes.among(len(captures), sum(capture.run is not None for capture in captures))
    examinations = judge([examine(facts, instances, sizes) for facts in all_facts], instances)
    must_select(examinations, options or Options())
    findings = merged_findings(examinations, config)
    numbers = [number for number, _ in with_numbers(examinations)]
    what_ifs = [retime(facts, findings.removals(n)) for facts, n in zip(all_facts, numbers, strict=True)]
    owned = [
        ownership(facts, findings.owners(n, facts.rank, facts.capture.path))
        for facts, n in zip(all_facts, numbers, strict=True)
    ]
    return conclude(examinations, findings, what_ifs, owned, instances, config)
