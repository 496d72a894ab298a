"""Makes the Result: what the evidence shows of each capture, the findings, the combined what-if, the limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from trace_doctor import __version__
from trace_doctor.config import Config
from trace_doctor.engine.findings import Filed, file_claim, merged
from trace_doctor.engine.running import Verdict, run_rules
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
    detailed,
    limit,
    share,
)
from trace_doctor.errors import NotCaptured, UsageError
from trace_doctor.evidence.base import Evidence, Facts, Options, join_jobs
from trace_doctor.evidence.capture_health import CaptureHealth
from trace_doctor.evidence.memory_ledger import MemoryLedger
from trace_doctor.evidence.memory_series import thinned
from trace_doctor.evidence.operators import Operators
from trace_doctor.evidence.overview import Overview
from trace_doctor.evidence.replay import Removal, Replay
from trace_doctor.evidence.steps import Steps
from trace_doctor.evidence.time_ledger import TimeLedger
from trace_doctor.evidence.workload import Workload
from trace_doctor.model import (
    Finding,
    Ignored,
    Input,
    Outcome,
    OutcomeKind,
    Pace,
    ReplayQuality,
    Result,
    SavingUpTo,
    StepRow,
    Summary,
    Suppressed,
    Tool,
    WhatIf,
    Work,
)
from trace_doctor.rule import Rule
from trace_doctor.run import Capture

_WAYS = ("jobs", "cache", "cache_dir")
"""Settings that change how an analysis goes, never what it says."""
R = TypeVar("R", bound=msgspec.Struct)
Progress = Callable[[str, str], None]
Silence = Callable[[Sequence[Finding]], Sequence[Suppressed]]
"""Which of the findings a comment or the configuration silences."""


@dataclass(frozen=True)
class Examined:
    """One capture with everything that was found on it."""

    number: int
    """of its first file in Result.inputs"""
    facts: Facts
    verdicts: list[Verdict]

    @property
    def rank(self) -> int:
        return self.facts.capture.rank


def diagnose(
    captures: Sequence[Capture],
    rules: Sequence[type[Rule]],
    config: Config,
    options: Options | None = None,
    *,
    ignored: Sequence[Ignored] = (),
    progress: Progress = lambda phase, what: None,
    silence: Silence = lambda findings: (),
    seen: Callable[[int, Facts], None] = lambda number, facts: None,
) -> Result:
    """Examines every capture with every rule. Pure: no file is written and nothing of the inputs is executed."""
    made = [config.rule(r) for r in rules]
    inputs: list[Input] = []
    examined: list[Examined] = []
    everything = [Facts(capture, options) for capture in captures]
    join_jobs(everything)
    for facts in everything:
        number = len(inputs)
        path = facts.capture.path
        verdicts = run_rules(facts, made, lambda code, path=path: progress(code, path))  # type: ignore[misc]
        examined.append(Examined(number, facts, verdicts))
        seen(number, facts)
        inputs += _inputs(facts, share(MAX_SHAPES, len(everything), 4, 24))
    _must_select(examined, options or Options())
    filed = [
        file_claim(v.rule, c, e.number, e.rank, e.facts.capture.path, config.settings)
        for e in examined
        for v in e.verdicts
        for c in v.claims
    ]
    numbered, left_out = merged(filed, config.settings)
    suppressed = list(silence([f for f, _ in numbered]))
    silent = {s.finding.id for s in suppressed}
    numbered = [(f, filed) for f, filed in numbered if f.id not in silent]
    limits: list[str] = []
    if left_out:
        limits.append(
            f"{left_out} finding{'s' if left_out > 1 else ''} below min-confidence or min-saving left out"
        )
    limits += [said for e in examined if (said := _doubt(e))]
    findings = limit([f for f, _ in numbered], MAX_FINDINGS, "findings", limits)
    findings = detailed(findings, limits)
    what_if = [w for e in examined for w in _what_if(e, numbered)]
    traces = sum(e.facts.capture.run is not None for e in examined)
    memory = limit(_rows(examined, MemoryLedger, lambda m: m.series), MAX_LANES, "memory charts", limits)
    result = Result(
        tool=Tool(version=__version__),
        inputs=inputs,
        ignored=limit(list(ignored), MAX_IGNORED, "files that were not analysed", limits),
        summary=_summary(examined, what_if, findings, left_out),
        time_ledger=_rows(examined, TimeLedger, lambda t: t.rows),
        memory_ledger=_rows(examined, MemoryLedger, lambda m: m.rows),
        steps=limit(_steps(examined), MAX_STEPS, "steps", limits),
        timeline=limit(
            _rows(
                examined, Overview, lambda o: o.lanes(share(MAX_SEGMENTS, min(traces, MAX_LANES), 60, 600))
            ),
            MAX_LANES,
            "device lanes",
            limits,
        ),
        memory_timeline=[thinned(m, share(MAX_POINTS, len(memory), 40, 400)) for m in memory],
        kernels=_rows(examined, Overview, lambda o: o.kernels(share(MAX_KERNELS, traces, 2, 20))),
        operators=_rows(examined, Operators, lambda o: o.rows(share(MAX_OPERATORS, traces, 2, 20))),
        collectives=_rows(examined, Overview, lambda o: o.collectives()),
        what_if=what_if,
        findings=findings,
        outcomes=_outcomes(examined, made, numbered),
        suppressed=suppressed,
        config=_config(config),
        limits=limits,
    )
    return result


def _doubt(e: Examined) -> str:
    """How far a damaged file may put its time ledger off; "" for a sound one."""
    health = e.facts.get(CaptureHealth)
    if health is None or e.facts.get(TimeLedger) is None:
        return ""
    behind = ", for what stands in it; what came behind the cut is unknown" if health.damage.truncated else ""
    if not (health.may_be_off or behind):
        return ""
    return f"{e.facts.capture.path}: damaged; its time ledger may be off by about {health.may_be_off:.2%} of the window{behind}"


def _must_select(examined: Sequence[Examined], options: Options) -> None:
    """Steps or a device that no capture has would leave nothing to look at, and look like a clean bill."""
    if examined and options.steps is not None and not any(e.facts.get(Steps) for e in examined):
        raise UsageError(f"--steps: {_missing(examined[0].facts, Steps)}")
    if options.device is not None:
        there = sorted({d for e in examined for d in _devices(e.facts.capture)})
        if there and options.device not in there:
            raise UsageError(f"--device {options.device}: the captures have {', '.join(map(str, there))}")


def _missing(facts: Facts, kind: type[Evidence]) -> str:
    try:
        facts[kind]
    except NotCaptured as missing:
        return missing.reason
    return ""


def _devices(capture: Capture) -> set[int]:
    """Devices that worked or whose memory was recorded."""
    found: set[int] = set()
    if capture.run is not None:
        found |= set(np.unique(capture.run.device[capture.run.gpu]).tolist())
    if capture.snapshot is not None:
        found |= set(capture.snapshot.devices)
    return found


def _inputs(facts: Facts, shapes: int) -> list[Input]:
    capture, found = facts.capture, []
    if (run := capture.run) is not None:
        steps = facts.get(Steps)
        found.append(
            Input(
                path=run.path,
                kind="trace",
                rank=capture.rank,
                rank_how=run.rank_how,
                device_name=next(iter(run.device_names.values()), None),
                torch_version=run.torch_version,
                events=len(run) + len(run.memory),
                steps=len(steps.steps) if steps else 0,
                recorded=run.recorded,
                pace=_pace(steps),
                step_source=steps.source if steps and steps.source != "none" else None,
                work=_work(facts, shapes),
                warnings=list(run.warnings),
            )
        )
    if (snapshot := capture.snapshot) is not None:
        found.append(
            Input(
                path=snapshot.path,
                kind="snapshot",
                rank=capture.rank,
                rank_how=snapshot.rank_how,
                torch_version=snapshot.torch_version,
                events=len(snapshot),
                warnings=list(snapshot.warnings),
            )
        )
    found += [
        Input(
            path=log.path, kind="torch_trace", rank=capture.rank, events=len(log), warnings=list(log.warnings)
        )
        for log in capture.torch_logs
    ]
    return found


def _work(facts: Facts, shapes: int) -> Work:
    work, overview, operators = facts.get(Workload), facts.get(Overview), facts.get(Operators)
    return Work(
        kernels=work.kernels if work else None,
        operators=work.operators if work else None,
        kernel_names=overview.kernel_names if overview else None,
        operator_names=len(operators.names) if operators else None,
        shapes=list(work.shapes[:shapes]) if work else [],
    )


def _pace(steps: Steps | None) -> Pace | None:
    """Steady steps alone: without any there is nothing to compare."""
    times = [s.pace / 1e3 for s in steps.steps if not s.warmup] if steps and steps.source != "none" else []
    if not times:
        return None
    middle = median(times)
    return Pace(steps=len(times), median_us=middle, mad_us=median(abs(t - middle) for t in times))


def _rows(examined: Sequence[Examined], kind: type[Any], rows: Callable[[Any], Sequence[R]]) -> list[R]:
    """The rows of one evidence over all captures, each with the number of its input."""
    found: list[R] = []
    for e in examined:
        if (evidence := e.facts.get(kind)) is not None:
            found += [replace(row, input=e.number, rank=e.rank) for row in rows(evidence)]
    return found


def _steps(examined: Sequence[Examined]) -> list[StepRow]:
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


def _what_if(e: Examined, numbered: Sequence[tuple[Finding, Filed]]) -> list[WhatIf]:
    """Today, each fix alone, all fixes that are not display together: one replay each, never a sum."""
    mine = [
        (finding.id, filed.claim.removal)
        for finding, filed in numbered
        if filed.input == e.number
        and filed.claim.removal
        and any(f.safety != "display" for f in finding.fixes)
    ]
    replay = e.facts.get(Replay)
    if not mine or replay is None:
        return []
    together = Removal()
    for _, removal in mine:
        together |= removal
    cases: list[tuple[list[str], Removal]] = [([], Removal()), *(([id], removal) for id, removal in mine)]
    if len(mine) > 1:
        cases.append(([id for id, _ in mine], together))
    found = []
    for ids, removal in cases:
        outcome = replay.without(removal)
        found.append(
            WhatIf(input=e.number, rank=e.rank, fixes=ids, step_us=outcome.step_us, basis=outcome.basis)
        )
    return found


def _summary(
    examined: Sequence[Examined], what_if: Sequence[WhatIf], findings: Sequence[Finding], left_out: int
) -> Summary:
    """Of several captures: the slowest step, the busy share of all steady time, the highest peak, the largest saving."""
    with_steps = [s for e in examined if (s := e.facts.get(Steps)) is not None and s.source != "none"]
    ledgers = [row for e in examined if (t := e.facts.get(TimeLedger)) is not None for row in t.rows]
    rows = [r for r in ledgers if r.phase == "steady"] or ledgers
    window = sum(r.window_ns for r in rows)
    idle = sum(r.idle_ns.total() for r in rows)
    on_gpu = bool(rows) and all(r.device >= 0 for r in rows)
    memory = [row for e in examined if (m := e.facts.get(MemoryLedger)) is not None for row in m.rows]
    replays = [r for e in examined if (r := e.facts.get(Replay)) is not None]
    errors = [r.base_error for r in replays if r.base_error is not None]
    unexplained = [r.unexplained_share for r in replays if r.unexplained_share is not None]
    reserved = [m.max_reserved_bytes for m in memory if m.max_reserved_bytes is not None]
    return Summary(
        step_us=max((s.step_ns / 1e3 for s in with_steps), default=None),
        gpu_busy_share=(window - idle) / window if window and on_gpu else None,
        gpu_idle_share=idle / window if window and on_gpu else None,
        peak_allocated_bytes=max((m.peak_bytes for m in memory), default=None),
        peak_reserved_bytes=max(reserved, default=None),
        replay=ReplayQuality(
            base_error=median(errors) if errors else None,
            unexplained_share=max(unexplained, default=None),
        ),
        saving_up_to=_saving_up_to(what_if, findings),
        verdict=_verdict(findings, left_out),
    )


def _saving_up_to(what_if: Sequence[WhatIf], findings: Sequence[Finding]) -> SavingUpTo:
    """Of several captures the one that gains the largest share, as findings are ordered by share too."""
    best: tuple[float, float] | None = None
    for number in sorted({w.input for w in what_if}):
        mine = [w for w in what_if if w.input == number]
        today, least = mine[0].step_us, min(w.step_us for w in mine)
        if today > 0 and (best is None or (today - least) / today > best[1]):
            best = (today - least, (today - least) / today)
    if best is None:
        claimed = [
            (f.saving.time_us_per_step, f.saving.share_of_step or 0.0)
            for f in findings
            if f.saving and f.saving.time_us_per_step and any(x.safety != "display" for x in f.fixes)
        ]
        best = max(claimed, key=lambda c: c[1], default=None)
    # Falls of the peak do not add up either: without one replay of all removals, the largest is what is sure.
    memory = [f.saving.bytes for f in findings if f.saving and f.saving.bytes]
    return SavingUpTo(
        time_us_per_step=best[0] if best else None,
        share_of_step=best[1] if best else None,
        bytes=max(memory, default=None),
    )


def _verdict(findings: Sequence[Finding], left_out: int) -> str:
    counts = {s: sum(f.severity == s for f in findings) for s in ("critical", "warning", "info")}
    serious = counts["critical"] + counts["warning"]
    if not findings and left_out:
        return "No fault found above min-confidence and min-saving."
    if not findings:
        return "No fault found among those that could be checked."
    if not serious:
        return "No serious fault found; see the notes."
    first = findings[0]
    return f"{serious} fault{'s' if serious > 1 else ''} found; start with {first.code} {first.name}."


def _outcomes(
    examined: Sequence[Examined], rules: Sequence[Rule], numbered: Sequence[tuple[Finding, Filed]]
) -> list[Outcome]:
    """One outcome per rule over all captures: the strongest of fired, error, passed, skipped."""
    order: tuple[OutcomeKind, ...] = ("fired", "error", "passed", "skipped")
    found = []
    for i, rule in enumerate(rules):
        mine = [e.verdicts[i] for e in examined]
        kind = next(k for k in order if any(v.outcome == k for v in mine) or k == "skipped")
        speaking = next((v for v in mine if v.outcome == kind and v.reason), None)
        owners = sorted({c for v in mine if v.outcome != "fired" for c in v.refers_to})
        found.append(
            Outcome(
                code=rule.code,
                name=rule.name,
                title=rule.title,
                outcome=kind,
                reason=speaking.reason if speaking else None,
                capture=speaking.capture if speaking else None,
                refers_to=[f.id for f, _ in numbered if f.code in owners],
                inputs=[
                    e.number for e, v in zip(examined, mine, strict=True) if v.outcome in ("fired", "passed")
                ],
            )
        )
    return found


def _config(config: Config) -> dict[str, Any]:
    """What differs from the defaults, with its origin: the rest is documented."""
    values = msgspec.to_builtins(config.settings)
    return {
        k.replace("_", "-"): {"value": values[k], "origin": origin}
        for k, origin in sorted(config.origins.items())
        if origin != "default" and k not in (*_WAYS, "output", "source", "baseline")
    }
