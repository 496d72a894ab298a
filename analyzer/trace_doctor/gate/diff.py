"""What changed between two recordings of a job, beyond the noise."""

from __future__ import annotations

from collections.abc import Iterable
from math import hypot

from msgspec.structs import replace

from trace_doctor.gate.comparable import another_clock, comparable, no_fix_shows, other_kinds, side
from trace_doctor.gate.evidence import not_judged, not_whole
from trace_doctor.gate.matching import faults, follow
from trace_doctor.gate.runs import cost, runs_of
from trace_doctor.gate.samples import Figures, Sample, kernels, operators, peak_parts, time_parts
from trace_doctor.gate.step_times import LEAST_CHANGE, LEAST_STEPS, in_noise, step_times
from trace_doctor.gate.verify import VARIES, memory_change
from trace_doctor.model import Confidence, Finding, Outcome, Result, Unit
from trace_doctor.model.comparison import StepChange
from trace_doctor.model.difference import Change, Difference, RuleChange

LEAST_OF_STEP = 0.005
"""of the step: a part of it that changed by less matters to nobody"""
LEAST_BYTES = 2.0 * 2**20
"""one block of the caching allocator's small pool"""
MOST = 20
_CONFIDENCE: tuple[Confidence, ...] = ("low", "medium", "high")


def difference(before: Result, after: Result, *, ranks: str = "", allow_partial: bool = False) -> Difference:
    """Compares two results of one job: the step and its parts, operators, kernels, the peak's make-up, the rules. Code 3
    where a side is not whole (`allow_partial` lets that pass; `ranks` says how many each has to have), else 0."""
    missing = not_whole(before, after, ranks)
    undecided = [
        *([] if allow_partial else missing),
        *another_clock(before, after),
        *other_kinds(before, after),
        *not_judged(before, after),
    ]
    followed, new = follow(before, after, before.findings)
    for why in no_fix_shows((f.fate for f in followed), before, after):
        undecided.append(why)
        followed = [replace(f, fate="not_captured", reason=why) if f.fate == "gone" else f for f in followed]
    step = step_times(before, after)
    followed = [
        replace(f, fate="within_noise", reason=VARIES)
        if f.fate == "gone" and in_noise(f.promised, step)
        else f
        for f in followed
    ]
    new = [replace(f, within_noise=in_noise(f.saving, step)) for f in new]
    warnings = comparable(before, after)
    judge = _Judge(before, after, step, bool(warnings))
    limits: list[str] = []
    comparison = Difference(
        tool=after.tool,
        verdict="",
        before=side(before),
        after=side(after),
        findings=followed,
        new=new,
        step_time=step,
        memory=memory_change(before, after),
        warnings=warnings,
        code=3 if undecided else 0,
        undecided=undecided,
        partial=missing if allow_partial else [],
        per_step=step.before is not None and step.after is not None,
        time=judge.all(time_parts(before), time_parts(after), "us"),
        operators=_top(judge.all(operators(before), operators(after), "us"), "operators", limits),
        kernels=_top(
            judge.all(kernels(before), kernels(after), "us", _kinds(before, after)), "kernels", limits
        ),
        peak=_peak(judge, before, after),
        rules=_rules(before, after),
        limits=limits,
    )
    return replace(comparison, verdict=_verdict(comparison))


class _Judge:
    """What is noise between these two results."""

    def __init__(self, before: Result, after: Result, step: StepChange, doubted: bool) -> None:
        self.few = min((t.steps if t else 0) for t in (step.before, step.after)) < LEAST_STEPS
        self.step_us = step.before.median_us if step.before else 0.0
        runs = [len(set(runs_of(r).values())) for r in (before, after)]
        self.most: Confidence = "low" if doubted else "high" if min(runs) > 1 else "medium"

    def all(
        self, before: Figures, after: Figures, unit: Unit, kinds: dict[str, str] | None = None
    ) -> list[Change]:
        """One change for each name that either side has; none where a side captured nothing of the sort."""
        if not before or not after:
            return []
        names = dict.fromkeys([*before.samples, *after.samples])
        changes = [self.change(n, before.of(n), after.of(n), unit, (kinds or {}).get(n, "")) for n in names]
        return [c for c in changes if c.before or c.after]

    def change(self, name: str, a: Sample, b: Sample, unit: Unit, kind: str = "") -> Change:
        """`unit`: us or bytes. Noise within three standard errors, and within what LEAST_CHANGE and its siblings allow."""
        moved = b.value - a.value
        floor = LEAST_OF_STEP * self.step_us if unit == "us" else LEAST_BYTES
        noise = max(3 * hypot(a.error, b.error), LEAST_CHANGE * a.value, floor)
        hidden = a.at_most or b.at_most
        if (a.at_most and moved < 0) or (b.at_most and moved > 0):
            moved = 0.0  # it may have been as long as that on the other side as well
        row = Change(
            name=name,
            kind=kind,
            unit=unit,
            before=a.value,
            after=b.value,
            at_most=hidden,
            change=moved,
            noise=noise,
        )
        if unit == "us" and self.few:
            return replace(row, verdict="too_few_steps")
        if abs(moved) <= noise:
            return replace(row, verdict="within_noise")
        sure = self.most if abs(moved) >= 2 * noise else "low"
        return replace(row, verdict="more" if moved > 0 else "less", confidence=sure)


def _kinds(*results: Result) -> dict[str, str]:
    return {k.name: k.kind for r in results for k in r.kernels}


def _top(changes: Iterable[Change], what: str, limits: list[str]) -> list[Change]:
    """Those beyond the noise, largest first; then the largest of the others."""
    judged = sorted(
        changes,
        key=lambda c: (c.verdict == "within_noise", -abs(c.change or 0.0), -(c.before or 0.0), c.name),
    )
    if len(judged) > MOST:
        limits.append(f"showing {MOST} of {len(judged)} {what} that a side lists")
    return judged[:MOST]


def _peak(judge: _Judge, before: Result, after: Result) -> list[Change]:
    """By category, where both sides know the categories: a trace knows totals only."""
    a, b = peak_parts(before), peak_parts(after)
    categorised = [any(f.of(n).value for n in f.samples if n != "unknown") for f in (a, b)]
    return judge.all(a, b, "bytes") if all(categorised) else []


def _rules(before: Result, after: Result) -> list[RuleChange]:
    outcomes = [{o.code: o for o in r.outcomes} for r in (before, after)]
    changes = []
    for code in sorted({*outcomes[0], *outcomes[1]}):
        a, b = (side.get(code) for side in outcomes)
        by_side = [[f for f in r.findings if f.code == code] for r in (before, after)]
        change = _rule(code, a, b, by_side[0], by_side[1])
        if (change.before, change.findings_before, change.cost_before) != (
            change.after,
            change.findings_after,
            change.cost_after,
        ):
            changes.append(change)
    return changes


def _rule(
    code: str, a: Outcome | None, b: Outcome | None, before: list[Finding], after: list[Finding]
) -> RuleChange:
    outcome = a or b
    assert outcome is not None
    sure = [f.confidence for f in (*before, *after)]
    blind = next((o for o in (b, a) if o is not None and o.outcome in ("skipped", "error")), None)
    return RuleChange(
        code=code,
        name=outcome.name,
        title=outcome.title,
        before=a.outcome if a else None,
        after=b.outcome if b else None,
        findings_before=len(set(faults(before).values())),
        findings_after=len(set(faults(after).values())),
        cost_before=max((c for f in before if (c := cost(f)) is not None), default=None),
        cost_after=max((c for f in after if (c := cost(f)) is not None), default=None),
        confidence=max(sure, key=_CONFIDENCE.index, default=None),
        reason=blind.reason if blind else None,
    )


_PACE_WORDS = {
    "faster": "faster",
    "slower": "slower",
    "within_noise": "within noise",
    "machine": "the same work changed pace: likely the machine, not the code",
    "too_few_steps": "too few steps to tell",
    "not_captured": "step time not captured",
}


def _verdict(difference: Difference) -> str:
    step, gone = difference.step_time, difference.count("gone")
    sentence = _PACE_WORDS[step.verdict]
    if step.before is not None and step.change_us is not None and step.verdict in ("faster", "slower"):
        sentence = (
            f"{abs(step.change_us) / step.before.median_us:.1%} {sentence}"
            if step.before.median_us
            else sentence
        )
    peak = _peak_words(difference.memory.allocated_before, difference.memory.allocated_after)
    if peak:
        sentence = peak if step.verdict == "not_captured" else f"{sentence}, {peak}"
    new = sum(f.checked_before and not f.within_noise for f in difference.new)
    noisy = difference.count("within_noise"), sum(f.checked_before and f.within_noise for f in difference.new)
    moved = [
        f"{n} finding{'s' if n > 1 else ''} {word}"
        for n, word in (
            (gone, "fixed"),
            (new, "new"),
            (noisy[0], "gone, within noise"),
            (noisy[1], "new, within noise"),
        )
        if n
    ]
    sentence = ", ".join([sentence, *(moved or ["no finding came or went"])])
    sentence = f"{sentence}; not all of both sides was compared" if difference.undecided else sentence
    return sentence[0].upper() + sentence[1:]


def _peak_words(before: int | None, after: int | None) -> str:
    if not before or after is None or abs(after - before) <= max(LEAST_CHANGE * before, LEAST_BYTES):
        return ""
    return f"peak {abs(after - before) / before:.1%} {'lower' if after < before else 'higher'}"
