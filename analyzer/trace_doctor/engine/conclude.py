"""From examinations to the Result: the findings of all captures, the combined what-if, rows, limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from trace_doctor.config import Config
from trace_doctor.engine.coverage import Given, incomplete, ranks_of
from trace_doctor.engine.examine import Examination, rows_of, steps_of
from trace_doctor.engine.findings import Filed, Merged, file_claim, merge, on_a_busy_machine
from trace_doctor.engine.sizes import (
    MAX_FINDINGS,
    MAX_IGNORED,
    MAX_KERNELS,
    MAX_LANES,
    MAX_OPERATORS,
    MAX_POINTS,
    MAX_SEGMENTS,
    MAX_STEPS,
    MAX_STRIP_SEGMENTS,
    detailed,
    limit,
    share,
)
from trace_doctor.engine.summary import outcomes, summary, what_if
from trace_doctor.evidence.compute.operators import Operators
from trace_doctor.evidence.idle.overview import Overview
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.memory.held import MemoryHeld
from trace_doctor.evidence.memory.ledger import MemoryLedger
from trace_doctor.evidence.memory.series import thinned
from trace_doctor.evidence.trace.capture_health import CaptureHealth
from trace_doctor.model import Lane, Result, Suppressed, Tool
from trace_doctor.rule import Rule
from trace_doctor.version import VERSION


def merged_findings(examinations: Sequence[Examination], config: Config) -> Merged:
    """The findings of all captures, one for each fault."""
    return merge(_filed(examinations, config), config.settings)


def conclude(
    examinations: Sequence[Examination],
    merged: Merged,
    rules: Sequence[Rule],
    config: Config,
    *,
    suppressed: Sequence[Suppressed] = (),
    given: Given | None = None,
) -> Result:
    """The result of all captures together: findings that are not silenced, what they may save together, and the rows of
    the evidence. `given` says what else was there."""
    given = given or Given()
    shown = merged.without({s.finding.id for s in suppressed})
    limits = _left_out(shown.left_out) + [said for e in examinations if (said := _doubt(e))]
    findings = limit(shown.findings, MAX_FINDINGS, "findings", limits)
    findings = detailed(findings, limits)
    replayed = [w for e in examinations for w in what_if(e, shown.numbered)]
    captures = [e.facts.capture for e in examinations]
    traces = sum(capture.run is not None for capture in captures)
    memory = limit(
        rows_of(examinations, MemoryLedger, lambda m: m.series), MAX_LANES, "memory charts", limits
    )
    return Result(
        tool=Tool(version=VERSION),
        inputs=[file for e in examinations for file in e.inputs],
        ignored=limit(
            sorted(given.ignored, key=lambda i: not i.unread),
            MAX_IGNORED,
            "files that were not analysed",
            limits,
        ),
        ranks=ranks_of(captures, given),
        incomplete=incomplete([(e.facts.capture, e.shortage) for e in examinations], given),
        summary=summary(examinations, replayed, findings, shown.left_out),
        time_ledger=rows_of(examinations, TimeLedger, lambda t: t.rows),
        memory_ledger=rows_of(examinations, MemoryLedger, lambda m: m.rows),
        memory_held=rows_of(examinations, MemoryHeld, lambda m: m.rows),
        steps=limit(steps_of(examinations), MAX_STEPS, "steps", limits),
        timeline=_lanes(examinations, traces, limits),
        memory_timeline=[thinned(m, share(MAX_POINTS, len(memory), 40, 400)) for m in memory],
        kernels=rows_of(examinations, Overview, lambda o: o.kernels(share(MAX_KERNELS, traces, 2, 20))),
        operators=rows_of(examinations, Operators, lambda o: o.rows(share(MAX_OPERATORS, traces, 2, 20))),
        collectives=rows_of(examinations, Overview, lambda o: o.collectives()),
        what_if=replayed,
        findings=findings,
        outcomes=outcomes(examinations, rules, shown.numbered),
        suppressed=list(suppressed),
        config=_config(config),
        limits=limits,
    )


def _filed(examinations: Sequence[Examination], config: Config) -> list[Filed]:
    """Every claim as a finding, in the order of captures and rules."""
    return [
        file_claim(
            verdict.rule,
            on_a_busy_machine(verdict.rule, claim, e.facts.capture.record),
            e.number,
            e.rank,
            e.facts.capture.path,
            config.settings,
        )
        for e in examinations
        for verdict in e.verdicts
        for claim in verdict.claims
    ]


def _left_out(count: int) -> list[str]:
    if not count:
        return []
    return [f"{count} finding{'s' if count > 1 else ''} below min-confidence or min-saving left out"]


def _lanes(examinations: Sequence[Examination], traces: int, limits: list[str]) -> list[Lane]:
    """The timeline of each device; the more captures, the coarser."""
    several = min(traces, MAX_LANES)
    segments = share(MAX_SEGMENTS, several, 60, 600)
    in_strip = share(MAX_STRIP_SEGMENTS, several, 12, 90)
    lanes = rows_of(examinations, Overview, lambda o: o.lanes(segments, in_strip))
    return limit(lanes, MAX_LANES, "device lanes", limits)


def _doubt(e: Examination) -> str:
    """How far a damaged file may put its time ledger off; "" for a sound one."""
    health = e.facts.get(CaptureHealth)
    if health is None or e.facts.get(TimeLedger) is None:
        return ""
    said = (
        [f"its time ledger may be off by about {health.may_be_off:.2%} of the window"]
        if health.may_be_off
        else []
    )
    if health.damage.truncated:
        said.append("what came behind the cut is unknown: steps that reach there look emptier than they were")
    return f"{e.facts.capture.path}: damaged; {'; '.join(said)}" if said else ""


def _config(config: Config) -> dict[str, Any]:
    """What differs from the defaults, with its origin: the rest is documented."""
    values = msgspec.to_builtins(config.settings)
    return {
        k.replace("_", "-"): {"value": values[k], "origin": origin}
        for k, origin in sorted(config.origins.items())
        if origin != "default" and k not in ("jobs", "output", "source", "baseline")
    }
