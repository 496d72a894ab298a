"""Makes the Result: what the evidence shows of each capture, the findings, the combined what-if, the limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from trace_doctor.capture import Capture
from trace_doctor.config import Config
from trace_doctor.engine.capture_result import Examined, rows_of, steps_of
from trace_doctor.engine.coverage import Given, incomplete, ranks_of, too_little
from trace_doctor.engine.executor import run_rules
from trace_doctor.engine.findings import Filed, file_claim, merged, on_a_busy_machine
from trace_doctor.engine.input_rows import inputs_of, must_select
from trace_doctor.engine.sizes import (
    MAX_FINDINGS,
    MAX_IGNORED,
    MAX_KERNELS,
    MAX_LANES,
    MAX_OPERATORS,
    MAX_POINTS,
    MAX_SEGMENTS,
    MAX_SHAPES,
    MAX_STEPS,
    MAX_STRIP_SEGMENTS,
    detailed,
    limit,
    share,
)
from trace_doctor.engine.summary import outcomes, summary, what_if
from trace_doctor.evidence.base import Facts, Options, join_jobs
from trace_doctor.evidence.compute.operators import Operators
from trace_doctor.evidence.idle.overview import Overview
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.memory.held import MemoryHeld
from trace_doctor.evidence.memory.ledger import MemoryLedger
from trace_doctor.evidence.memory.series import thinned
from trace_doctor.evidence.trace.capture_health import CaptureHealth
from trace_doctor.model import Finding, Input, Lane, Result, Suppressed, Tool
from trace_doctor.rule import Rule
from trace_doctor.version import VERSION

_WAYS = ("jobs", "cache", "cache_dir")
"""Settings that change how an analysis goes, never what it says."""
Progress = Callable[[str, str], None]
Silence = Callable[[Sequence[Finding]], Sequence[Suppressed]]
"""Which of the findings a comment or the configuration silences."""


def diagnose(
    captures: Sequence[Capture],
    rules: Sequence[type[Rule]],
    config: Config,
    options: Options | None = None,
    *,
    given: Given | None = None,
    progress: Progress = lambda phase, what: None,
    silence: Silence = lambda findings: (),
    seen: Callable[[int, Facts], None] = lambda number, facts: None,
) -> Result:
    """Examines every capture with every rule. Pure: no file is written and nothing of the inputs is executed. `given` says
    what else was there."""
    given = given or Given()
    made = [config.rule(r) for r in rules]
    everything = [Facts(capture, options) for capture in captures]
    join_jobs(everything)
    inputs: list[Input] = []
    examined: list[Examined] = []
    for facts in everything:
        examined.append(_examine(facts, made, options, len(inputs), progress))
        seen(len(inputs), facts)
        files = inputs_of(facts, examined[-1].further, share(MAX_SHAPES, len(everything), 4, 24))
        inputs += [msgspec.structs.replace(f, too_little=too_little(examined[-1])) for f in files]
    must_select(examined, options or Options())
    numbered, left_out = merged(_filed(examined, config), config.settings)
    suppressed = list(silence([f for f, _ in numbered]))
    silent = {s.finding.id for s in suppressed}
    numbered = [(f, filed) for f, filed in numbered if f.id not in silent]
    limits = _left_out(left_out) + [said for e in examined if (said := _doubt(e))]
    findings = limit([f for f, _ in numbered], MAX_FINDINGS, "findings", limits)
    findings = detailed(findings, limits)
    replayed = [w for e in examined for w in what_if(e, numbered)]
    traces = sum(e.facts.capture.run is not None for e in examined)
    memory = limit(rows_of(examined, MemoryLedger, lambda m: m.series), MAX_LANES, "memory charts", limits)
    return Result(
        tool=Tool(version=VERSION),
        inputs=inputs,
        ignored=limit(
            sorted(given.ignored, key=lambda i: not i.unread),
            MAX_IGNORED,
            "files that were not analysed",
            limits,
        ),
        ranks=ranks_of(captures, given),
        incomplete=incomplete(examined, given),
        summary=summary(examined, replayed, findings, left_out),
        time_ledger=rows_of(examined, TimeLedger, lambda t: t.rows),
        memory_ledger=rows_of(examined, MemoryLedger, lambda m: m.rows),
        memory_held=rows_of(examined, MemoryHeld, lambda m: m.rows),
        steps=limit(steps_of(examined), MAX_STEPS, "steps", limits),
        timeline=_lanes(examined, traces, limits),
        memory_timeline=[thinned(m, share(MAX_POINTS, len(memory), 40, 400)) for m in memory],
        kernels=rows_of(examined, Overview, lambda o: o.kernels(share(MAX_KERNELS, traces, 2, 20))),
        operators=rows_of(examined, Operators, lambda o: o.rows(share(MAX_OPERATORS, traces, 2, 20))),
        collectives=rows_of(examined, Overview, lambda o: o.collectives()),
        what_if=replayed,
        findings=findings,
        outcomes=outcomes(examined, made, numbered),
        suppressed=suppressed,
        config=_config(config),
        limits=limits,
    )


def _examine(
    facts: Facts, rules: Sequence[Rule], options: Options | None, number: int, progress: Progress
) -> Examined:
    """One capture with every rule. `number` is that of its first input."""
    further = tuple(Facts(c, options) for c in facts.capture.others)
    verdicts = run_rules(facts, rules, lambda code: progress(code, facts.capture.path), further)
    return Examined(number, facts, verdicts, further)


def _filed(examined: Sequence[Examined], config: Config) -> list[Filed]:
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
        for e in examined
        for verdict in e.verdicts
        for claim in verdict.claims
    ]


def _left_out(count: int) -> list[str]:
    if not count:
        return []
    return [f"{count} finding{'s' if count > 1 else ''} below min-confidence or min-saving left out"]


def _lanes(examined: Sequence[Examined], traces: int, limits: list[str]) -> list[Lane]:
    """The timeline of each device; the more captures, the coarser."""
    several = min(traces, MAX_LANES)
    segments = share(MAX_SEGMENTS, several, 60, 600)
    in_strip = share(MAX_STRIP_SEGMENTS, several, 12, 90)
    lanes = rows_of(examined, Overview, lambda o: o.lanes(segments, in_strip))
    return limit(lanes, MAX_LANES, "device lanes", limits)


def _doubt(e: Examined) -> str:
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
        if origin != "default" and k not in (*_WAYS, "output", "source", "baseline")
    }
