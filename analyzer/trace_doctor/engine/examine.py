"""One capture with every rule, and the rows that its evidence adds to the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from trace_doctor.capture import Capture
from trace_doctor.engine.coverage import too_little
from trace_doctor.engine.input_rows import inputs_of, must_select
from trace_doctor.engine.rule_runs import Verdict, run_rules
from trace_doctor.engine.sizes import MAX_SHAPES, share
from trace_doctor.evidence.base import Facts, Options, join_jobs
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model import Input, StepRow
from trace_doctor.rule import Rule

R = TypeVar("R", bound=msgspec.Struct)


@dataclass(frozen=True)
class Examination:
    """One capture with everything that was found on it."""

    number: int
    """of its first file in Result.inputs"""
    facts: Facts
    verdicts: list[Verdict]
    further: tuple[Facts, ...]
    """of the other files of its recording"""
    inputs: tuple[Input, ...]
    """its files, as the result names them"""
    shortage: str
    """why it tells nothing, whatever rules are asked; "" where it does"""

    @property
    def rank(self) -> int:
        return self.facts.capture.rank


def examine(
    captures: Sequence[Capture],
    rules: Sequence[Rule],
    options: Options | None = None,
    progress: Callable[[str, str], None] = lambda phase, what: None,
) -> list[Examination]:
    """Every capture with every rule, in the order given. Pure: no file is written and nothing of the inputs is executed.

    `progress` is told the code of each rule and the file that it looks at. Raises UsageError where the options select
    nothing of any capture.
    """
    everything = [Facts(capture, options) for capture in captures]
    join_jobs(everything)
    shapes = share(MAX_SHAPES, len(everything), 4, 24)
    made: list[Examination] = []
    for facts in everything:
        number = sum(len(e.inputs) for e in made)
        made.append(_examined(facts, rules, options, number, shapes, progress))
    must_select([e.facts for e in made], options or Options())
    return made


def _examined(
    facts: Facts,
    rules: Sequence[Rule],
    options: Options | None,
    number: int,
    shapes: int,
    progress: Callable[[str, str], None],
) -> Examination:
    """One capture with every rule. `number` is that of its first input."""
    path = facts.capture.path
    further = tuple(Facts(c, options) for c in facts.capture.others)
    verdicts = run_rules(facts, rules, lambda code: progress(code, path), further)
    shortage = too_little((facts, *further))
    inputs = [replace(f, too_little=shortage) for f in inputs_of(facts, further, shapes)]
    return Examination(number, facts, verdicts, further, tuple(inputs), shortage)


def rows_of(examined: Sequence[Examination], kind: type[Any], rows: Callable[[Any], Sequence[R]]) -> list[R]:
    """The rows of one evidence over all captures, each with the number of its input."""
    found: list[R] = []
    for e in examined:
        if (evidence := e.facts.get(kind)) is not None:
            found += [replace(row, input=e.number, rank=e.rank) for row in rows(evidence)]
    return found


def steps_of(examined: Sequence[Examination]) -> list[StepRow]:
    found = []
    for e in examined:
        if (steps := e.facts.get(Steps)) is None or steps.source == "none":
            continue
        zero = steps.window[0]
        found += [
            StepRow(
                input=e.number,
                rank=e.rank,
                index=s.index,
                start_us=(s.start - zero) / 1e3,
                dur_us=(s.end - s.start) / 1e3,
                pace_us=s.pace / 1e3,
                warmup=s.warmup,
            )
            for s in steps.steps
        ]
    return found
