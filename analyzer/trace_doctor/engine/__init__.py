"""Runs the rules over captures and makes one Result.

`examine` looks at one capture and needs nothing of any other. `judged` adds what rules over several ranks say, from
summaries alone; `merged_findings` makes one finding of each fault; `retime` and `ownership` are a second request to a
capture, once it is known which findings there are; `conclude` makes the Result of values.
"""

from __future__ import annotations

from collections.abc import Sequence

from trace_doctor.capture import Capture
from trace_doctor.config import Config
from trace_doctor.engine.conclude import conclude, judged, merged_findings, must_select
from trace_doctor.engine.examine import Examination, examine, numbered, retime
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
    "judged",
    "merged_findings",
    "must_select",
    "numbered",
    "ownership",
    "retime",
]


def diagnose(
    captures: Sequence[Capture], rules: Sequence[type[Rule]], config: Config, options: Options | None = None
) -> Result:
    """All of it, where nothing is silenced and nothing else was given."""
    everything = [Facts(capture, options) for capture in captures]
    configured = [config.rule(rule) for rule in rules]
    sizes = Sizes.among(len(captures), sum(capture.run is not None for capture in captures))
    examinations = judged([examine(facts, configured, sizes) for facts in everything], configured)
    must_select(examinations, options or Options())
    merged = merged_findings(examinations, config)
    numbers = [number for number, _ in numbered(examinations)]
    retimed = [retime(facts, merged.removals(n)) for facts, n in zip(everything, numbers, strict=True)]
    owned = [ownership(facts, merged.owners(n)) for facts, n in zip(everything, numbers, strict=True)]
    return conclude(examinations, merged, retimed, owned, configured, config)
