"""One capture: every rule, the summary that rules over several ranks take of it, and what a result shows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trace_doctor.engine.display import Display, display_of
from trace_doctor.engine.rule_runs import Verdict, run_rules
from trace_doctor.engine.sizes import Sizes
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.profiler_cost import PlainPace
from trace_doctor.evidence.rank_summary import RankSummary, summarised
from trace_doctor.evidence.replay.what_if import Removal, Replay
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model import JobDelays, WhatIf
from trace_doctor.rule import Rule


@dataclass(frozen=True)
class Examination:
    """All that the result takes of one capture. It holds nothing of the capture itself."""

    summary: RankSummary
    further: tuple[RankSummary, ...]
    """of the other files of its recording, which are asked where it cannot tell"""
    display: Display
    verdicts: tuple[Verdict, ...]
    """of the rules that look at one capture"""
    delays: JobDelays | None = None
    """of its job, where rules found out and the capture is the first of it"""

    @property
    def rank(self) -> int:
        """The rank of the capture."""
        return self.summary.rank


def examine(
    facts: Facts,
    rules: Sequence[Rule],
    sizes: Sizes,
    progress: Callable[[str, str], None] = lambda phase, what: None,
) -> Examination:
    """One capture with every rule; needs nothing of any other. Pure: no file is written and nothing of the inputs is
    executed. `progress` is told the code of each rule and the file that it looks at."""
    path = facts.capture.path
    further = tuple(Facts(c, facts.options) for c in facts.capture.others)
    verdicts = run_rules(
        facts, [r for r in rules if not r.over_ranks()], lambda code: progress(code, path), further
    )
    kinds = summary_kinds(rules)
    return Examination(
        summary=RankSummary.of(facts, kinds),
        further=tuple(RankSummary.of(other, kinds) for other in further),
        display=display_of(facts, further, sizes),
        verdicts=tuple(verdicts),
    )


def summary_kinds(rules: Sequence[Rule]) -> tuple[type[Evidence], ...]:
    """The evidence that a summary holds, for these rules."""
    of_rules = (k for r in rules if r.over_ranks() for k in (*r.needs, *r.wants, *r.to_pass))
    return summarised([*_ALWAYS, *of_rules])


_ALWAYS = (Steps, PlainPace)
"""evidence of a summary that the result needs, whatever rules there are"""


def with_numbers(examinations: Sequence[Examination]) -> Iterator[tuple[int, Examination]]:
    """Each with the number of its first file in `Result.inputs`."""
    number = 0
    for examination in examinations:
        yield number, examination
        number += len(examination.display.inputs)


def retime(facts: Facts, removals: Sequence[tuple[str, Removal]]) -> list[WhatIf]:
    """The step of a capture today, without each of the removals, and without all of them: one replay each, never a sum.
    `removals`: (id of the finding, what its fixes take out). Empty where nothing can be replayed."""
    replay = facts.get(Replay)
    if not removals or replay is None:
        return []
    cases: list[tuple[list[str], Removal]] = [([], Removal()), *(([id], removal) for id, removal in removals)]
    if len(removals) > 1:
        together = Removal()
        for _, removal in removals:
            together |= removal
        cases.append(([id for id, _ in removals], together))
    outcomes = [(ids, replay.without(removal)) for ids, removal in cases]
    return [
        WhatIf(rank=facts.rank, fixes=ids, step_us=outcome.step_us, basis=outcome.basis)
        for ids, outcome in outcomes
    ]
