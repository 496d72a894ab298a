"""What all captures come to: the summary, what the fixes may give together, the outcome of each rule."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from trace_doctor.engine.examine import Examination, with_numbers
from trace_doctor.engine.findings import Filing
from trace_doctor.evidence.base import NO_DUMP, NO_SNAPSHOT, NO_TRACE
from trace_doctor.evidence.idle.profiler_cost import PlainPace
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model import (
    LOOKED,
    PART_NAMES,
    Finding,
    HowKnown,
    Outcome,
    OutcomeKind,
    ReplayQuality,
    SavingUpTo,
    Summary,
    Unowned,
    WhatIf,
    known_together,
    listed,
)
from trace_doctor.rule import Rule


def summary(
    examinations: Sequence[Examination], what_if: Sequence[WhatIf], findings: Sequence[Finding], left_out: int
) -> Summary:
    """Of several captures: the slowest step, the busy share of all steady time, the highest peak, the largest saving."""
    with_steps = [
        (s.step_ns, e.summary)
        for e in examinations
        if (s := e.summary.get(Steps)) is not None and s.source != "none"
    ]
    slowest = max(with_steps, key=lambda pair: pair[0], default=None)
    plain = slowest[1].get(PlainPace) if slowest else None
    rows = [row for e in examinations for row in e.display.time_ledger if row.phase == "steady"]
    window = sum(r.window_ns for r in rows)
    idle = sum(r.idle_ns.total() for r in rows)
    on_gpu = bool(rows) and all(r.device >= 0 for r in rows)
    memory = [row for e in examinations for row in e.display.memory_ledger]
    replays = [e.display.replay for e in examinations]
    errors = [r.base_error for r in replays if r.base_error is not None]
    unexplained = [r.unexplained_share for r in replays if r.unexplained_share is not None]
    judged = {number for number, e in with_numbers(examinations) if not e.display.shortage}
    reserved = [m.max_reserved_bytes for m in memory if m.max_reserved_bytes is not None]
    return Summary(
        step_us=slowest[0] / 1e3 if slowest else None,
        plain_step_us=plain.mean_ns / 1e3 if plain else None,
        gpu_busy_share=(window - idle) / window if window and on_gpu else None,
        gpu_idle_share=idle / window if window and on_gpu else None,
        peak_allocated_bytes=max((m.peak_bytes for m in memory), default=None),
        peak_reserved_bytes=max(reserved, default=None),
        replay=ReplayQuality(
            base_error=median(errors) if errors else None, unexplained_share=max(unexplained, default=None)
        ),
        saving_up_to=_saving_up_to(
            [w for w in what_if if w.input in judged], [f for f in findings if f.input in judged]
        ),
        left_out=left_out,
    )


def _saving_up_to(what_if: Sequence[WhatIf], findings: Sequence[Finding]) -> SavingUpTo:
    """Of several captures the one that gains the largest share, as findings are ordered by share too."""
    best: tuple[float, float, HowKnown] | None = None
    claimed = {f.id: f.saving for f in findings if f.saving}
    for number in sorted({w.input for w in what_if}):
        rows = [w for w in what_if if w.input == number]
        today, least = rows[0].step_us, min(rows, key=lambda w: w.step_us)
        saved = today - least.step_us
        if today > 0 and (best is None or saved / today > best[1]):
            known = known_together(claimed[i] for i in least.fixes if i in claimed)
            best = (saved, saved / today, known)
    if best is None:
        claims = [
            (f.saving.time_us_per_step, f.saving.share_of_step or 0.0, known_together([f.saving]))
            for f in findings
            if f.saving and f.saving.time_us_per_step and any(x.safety != "display" for x in f.fixes)
        ]
        best = max(claims, key=lambda c: c[1], default=None)
    known = best[2] if best else HowKnown()
    # Falls of the peak do not add up either: without one replay of all removals, the largest is what is sure.
    memory = [f.saving.bytes for f in findings if f.saving and f.saving.bytes]
    return SavingUpTo(
        time_us_per_step=best[0] if best else None,
        share_of_step=best[1] if best else None,
        bytes=max(memory, default=None),
        known=known.known,
        low=known.low,
        high=known.high,
    )


UNDECIDED_FROM = 0.10
"""share of the steady steps: where so much time of the kind that a rule is about has no owner, it has not passed"""


def outcomes(
    examinations: Sequence[Examination],
    rules: Sequence[Rule],
    findings: Sequence[tuple[Finding, Filing]],
    unowned: Sequence[Unowned],
) -> list[Outcome]:
    """One outcome per rule over all captures: the strongest of fired, error, passed, skipped; undecided instead of passed
    where much of what it is about has no owner."""
    order: tuple[OutcomeKind, ...] = ("fired", "error", "passed", "skipped")
    rows = []
    for i, rule in enumerate(rules):
        verdicts = [e.verdicts[i] for e in examinations]
        kind = next(k for k in order if any(v.outcome == k for v in verdicts) or k == "skipped")
        example = next((v for v in verdicts if v.outcome == kind and v.reason), None)
        reason = example.reason if example else None
        if kind == "passed" and (open_question := _open_question(rule, unowned)):
            kind, reason = "undecided", open_question
        skips = _skips(examinations, i) if kind in LOOKED else []
        owners = sorted({c for v in verdicts if v.outcome != "fired" for c in v.refers_to})
        rows.append(
            Outcome(
                code=rule.code,
                name=rule.name,
                title=rule.title,
                outcome=kind,
                reason=reason,
                capture=example.capture if example else None,
                refers_to=[f.id for f, _ in findings if f.code in owners],
                inputs=[
                    number for number, e in with_numbers(examinations) if e.verdicts[i].outcome in LOOKED
                ],
                skipped_on=[number for number, _ in skips],
                skipped_because=skips[0][1] if skips else None,
            )
        )
    return rows


def _skips(examinations: Sequence[Examination], i: int) -> list[tuple[int, str]]:
    """Captures on which the i-th rule should have decided and did not, with the reason. A trace lacks no snapshot where its
    rank has one elsewhere, or where no other rank is known to have one; a snapshot lacks no trace, and none a flight recorder dump."""
    looked = [e for e in examinations if e.verdicts[i].outcome in LOOKED]
    ranks = {e.rank for e in looked}
    with_snapshot = {
        e.rank for e in looked if any(f.kind == "snapshot" and f.rank_how for f in e.display.inputs)
    }
    return [
        (number, verdict.reason or verdict.outcome)
        for number, e in with_numbers(examinations)
        if (verdict := e.verdicts[i]).outcome not in LOOKED
        and verdict.reason not in (NO_TRACE, NO_DUMP)
        and (verdict.reason != NO_SNAPSHOT or (with_snapshot and e.rank not in ranks))
    ]


def _open_question(rule: Rule, unowned: Sequence[Unowned]) -> str:
    """What of a device's time the rule is about, and nobody owns; "" where that is little."""
    worst = max(
        ({part: row.by_part.get(part, 0.0) for part in rule.about} for row in unowned),
        key=lambda parts: sum(parts.values()),
        default={},
    )
    share = sum(worst.values())
    if share < UNDECIDED_FROM:
        return ""
    parts = [PART_NAMES[p] for p in sorted(worst, key=worst.__getitem__, reverse=True) if worst[p] >= 0.01]
    return f"no finding explains {share:.0%} of the step: {listed(parts)}"
