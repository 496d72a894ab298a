"""Did the fix do what the finding promised? Two results of one job, before and after."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from trace_doctor.gate.comparable import another_clock, comparable, no_fix_shows, other_kinds, side
from trace_doctor.gate.decision import LEVELS
from trace_doctor.gate.evidence import (
    hidden,
    hidden_findings,
    hiding,
    not_followed,
    not_judged,
    not_looked_for,
    not_whole,
    too_few_steps,
)
from trace_doctor.gate.matching import ON_THE_CAPTURE, Fault, faults, follow
from trace_doctor.gate.step_times import in_noise, step_times
from trace_doctor.model import Finding, Result, Saving, Severity, WhatIf, known_together
from trace_doctor.model.comparison import Appeared, Followed, MemoryChange, StepChange
from trace_doctor.model.verification import Promise, Verification

VARIES = "no longer found; a step varies by more than that"


def verify(
    before: Result,
    after: Result,
    *,
    chosen: Collection[str] | None = None,
    fail_on: str = "warning",
    ranks: str = "",
    allow_partial: bool = False,
    whole_before: Result | None = None,
    whole_after: Result | None = None,
) -> Verification:
    """Compares two results of one job. `chosen` are ids of findings of `before` (all without it).

    Code 0: all of them are gone. 1: one is still there (smaller ones too), or AFTER has a new finding of at least the
    severity `fail_on` (critical, warning, info; `never` for none). 3: AFTER cannot tell of one, was not looked at for all
    that BEFORE was, has times in another unit or too few steps, or a side is not whole (`allow_partial` lets that pass; `ranks` says how many each has to have). 1
    beats 3.

    Findings below `fail_on` are notes: without `chosen` they are followed but decide only where BEFORE has nothing else,
    and what AFTER only notes is no failure.

    `whole_before`, `whole_after`: the sides diagnosed without the settings that hide findings, where they can be. What is
    gone is looked for there as well; what BEFORE hides is named, and makes it undecided where BEFORE shows nothing else.
    """
    requested = [f for f in before.findings if chosen is None or f.id in chosen]
    followed, new = follow(before, after, requested)
    if whole_after is not None:
        unhidden, _ = follow(before, whole_after, requested)
        followed = [_unless_hidden(f, there, after) for f, there in zip(followed, unhidden, strict=True)]
    change = step_times(before, after)
    clock = another_clock(before, after)
    for why in clock:
        followed = [replace(f, fate="not_captured", reason=why, capture=None) for f in followed]
        new = [replace(f, checked_before=False) for f in new]
        change = StepChange(before=change.before, after=change.after, how=why)
    followed = [
        replace(f, reason=VARIES) if f.fate == "gone" and in_noise(f.promised, change) else f
        for f in followed
    ]
    memory = memory_change(before, after)
    promise = _promise(before, requested, followed, change, memory)
    deciding = followed if chosen is not None else _deciding(followed, fail_on)
    missing = not_whole(before, after, ranks)
    undecided = [
        *([] if allow_partial else missing),
        *clock,
        *other_kinds(before, after),
        *not_judged(before, after),
        *too_few_steps(before, after),
        *hidden(before, after),
    ]
    undecided += no_fix_shows((f.fate for f in deciding), before, after)
    undecided += [*_without_findings("BEFORE", before), *_without_findings("AFTER", after)]
    undecided += not_looked_for(before, after) if fail_on != "never" else []
    unseen = hidden_findings(before, whole_before) if chosen is None else []
    unseen = [f for f in unseen if _counts(f.severity, fail_on)]
    veiled = [not_followed(before, unseen)] if unseen else []
    if not followed:
        undecided += veiled
    code, verdict = _decide(deciding, new, fail_on, undecided)
    if not code and not followed and whole_before is None and (settings := hiding(before)):
        verdict += f"; its settings may hide some: {', '.join(settings)}"
    if not code and (remaining := sum(f.fate != "gone" and f not in deciding for f in followed)):
        verdict += f"; {remaining} note{'s are' if remaining > 1 else ' is'} not"
    if not code and veiled:
        verdict += f"; {veiled[0]}"
    return Verification(
        tool=after.tool,
        code=code,
        verdict=verdict,
        before=side(before),
        after=side(after),
        findings=_measured(requested, followed, promise),
        new=new,
        step_time=change,
        memory=memory,
        promise=promise,
        warnings=[
            *(w for w in comparable(before, after) if not any(u.startswith(w) for u in undecided)),
            *(veiled if followed else []),
        ],
        undecided=undecided,
        partial=missing if allow_partial else [],
    )


def _without_findings(name: str, side: Result) -> Iterator[str]:
    """A saved result can have lost what its rules found: what is not in it was not fixed."""
    told = {f.code for f in [*side.findings, *(s.finding for s in side.suppressed)]}
    lost = sorted({o.code for o in side.outcomes if o.outcome == "fired"} - told)
    if lost and not hiding(side):
        yield f"{name} has no finding of {', '.join(lost)}, which fired"


def _unless_hidden(followed: Followed, there: Followed, after: Result) -> Followed:
    """`there`: the same finding, looked for in AFTER without the settings that hide findings."""
    if followed.fate != "gone" or there.fate not in ("still_there", "smaller"):
        return followed
    return replace(there, after_id=None, reason=f"AFTER's settings hide it: {', '.join(hiding(after))}")


def _deciding(followed: Sequence[Followed], fail_on: str) -> Sequence[Followed]:
    """Those that are no notes; the notes where there is nothing else, those on the program before those on the capture."""
    return (
        [f for f in followed if _counts(f.severity, fail_on) or _became_more(f, fail_on)]
        or [f for f in followed if not f.code.startswith(ON_THE_CAPTURE)]
        or followed
    )


def _counts(severity: Severity, fail_on: str) -> bool:
    least = "critical" if fail_on == "never" else fail_on
    return LEVELS.index(severity) >= LEVELS.index(least)


def _became_more(finding: Followed, fail_on: str) -> bool:
    """A note of BEFORE that is as bad in AFTER as a new finding that decides."""
    return (
        fail_on != "never" and finding.after_severity is not None and _counts(finding.after_severity, fail_on)
    )


def _became_a_note(finding: Followed, fail_on: str) -> bool:
    after = finding.after_severity
    if finding.fate != "smaller" or after is None:  # one that costs as much is there, whatever is known of it
        return False
    return _counts(finding.severity, fail_on) and not _counts(after, fail_on)


def _decide(
    followed: Sequence[Followed], new: Sequence[Appeared], fail_on: str, undecided: Sequence[str]
) -> tuple[Literal[0, 1, 3], str]:
    there = [
        f.id for f in followed if f.fate in ("still_there", "smaller") and not _became_a_note(f, fail_on)
    ]
    bad = [f.id for f in new if f.checked_before and fail_on != "never" and _counts(f.severity, fail_on)]
    unknown = [f.id for f in followed if f.fate == "not_captured"]
    if there or bad:
        parts = [f"{', '.join(there)} not fixed"] * bool(there) + [f"{', '.join(bad)} new"] * bool(bad)
        parts += [f"inconclusive for the rest: {'; '.join(undecided[:3])}"] * bool(undecided)
        return 1, f"verify failed: {'; '.join(parts)}"
    blind = [f"AFTER does not show whether {', '.join(unknown)} is fixed"] * bool(unknown)
    if blind or undecided:
        return 3, f"verify is inconclusive: {'; '.join([*blind, *undecided[:3]])}"
    if not followed:
        return 0, "nothing to verify: BEFORE has no finding"
    noted = [f.id for f in followed if f.fate != "gone"]
    gone = "the finding is" if len(followed) == 1 else f"all {len(followed)} findings are"
    if noted:
        return (
            0,
            f"verify passed: {', '.join(noted)} {'is' if len(noted) == 1 else 'are'} downgraded to info",
        )
    if noisy := [f.id for f in followed if f.reason == VARIES]:
        cost = f"{', '.join(noisy)} cost{'s' * (len(noisy) == 1)}"
        return 0, f"verify passed: {gone} gone; a step varies by more than {cost}"
    return 0, f"verify passed: {gone} fixed"


def memory_change(before: Result, after: Result) -> MemoryChange:
    """The peaks on both sides, bytes; None where they were not captured."""
    return MemoryChange(
        allocated_before=before.summary.peak_allocated_bytes,
        allocated_after=after.summary.peak_allocated_bytes,
        reserved_before=before.summary.peak_reserved_bytes,
        reserved_after=after.summary.peak_reserved_bytes,
    )


def _promise(
    before: Result,
    requested: Sequence[Finding],
    followed: Sequence[Followed],
    change: StepChange,
    memory: MemoryChange,
) -> Promise:
    """What the findings that are gone promised, together. Measured is all that changed, whatever changed it."""
    went = {f.id for f in followed if f.fate == "gone"}
    resolved = [f for f in requested if f.id in went]
    timed = [f for f in resolved if f.saving and f.saving.time_us_per_step]
    sized = [f.saving.bytes for f in resolved if f.saving and f.saving.bytes]
    promise = Promise(
        findings=[f.id for f in resolved],
        measured_us=_saved(change),
        bytes=max(sized, default=None),
        measured_bytes=None
        if memory.allocated_before is None or memory.allocated_after is None
        else memory.allocated_before - memory.allocated_after,
    )
    if not timed:
        return promise
    if (replayed := _replayed(before, timed)) is not None:
        promise = replace(promise, time_us_per_step=replayed[0], basis=replayed[1].basis, how=replayed[2])
        return _as_known(promise, [f.saving for f in timed if f.saving])
    known_as = faults(timed)
    once: dict[Fault, Saving] = {}  # recorded several times, a fault still promises once: the most it did
    for f in timed:
        assert f.saving is not None
        if _time(f.saving) >= _time(once.get(known_as[f.id])):
            once[known_as[f.id]] = f.saving
    total, step = sum(map(_time, once.values())), before.summary.step_us
    alone = len(once) == 1
    promise = replace(
        promise,
        time_us_per_step=total if step is None else min(total, step),
        basis=next(iter(once.values())).basis if alone else "bound",
        how="what the finding claims" if alone else "the sum of what the findings claim, at most the step",
    )
    return _as_known(promise, once.values())


def _as_known(promise: Promise, savings: Iterable[Saving]) -> Promise:
    known = known_together(savings)
    return replace(promise, known=known.known, low=known.low, high=known.high)


def _saved(change: StepChange) -> float | None:
    """us of a mean step, as promises are; of the median where only that is known."""
    saved = change.change_us if change.mean_change_us is None else change.mean_change_us
    return None if saved is None else -saved


def _time(saving: Saving | None) -> float:
    return (saving.time_us_per_step if saving else None) or 0.0


def _replayed(before: Result, timed: Sequence[Finding]) -> tuple[float, WhatIf, str] | None:
    """us per step from re-timing captures of BEFORE without these findings; None where none shows them all. Of several
    recordings the one that promises most.

    A combination that was not replayed gives at most what its members give alone, and at most what all give together.
    """
    known_as = faults(timed)
    best: tuple[float, WhatIf, str] | None = None
    for number in sorted({w.input for w in before.what_if}):
        own_rows = [w for w in before.what_if if w.input == number]
        here = {f.id for f in timed if f.input == number}
        today = next((w for w in own_rows if not w.fixes), None)
        alone = {w.fixes[0]: w for w in own_rows if len(w.fixes) == 1}
        if today is None or not here <= set(alone) or {known_as[id] for id in here} != set(known_as.values()):
            continue
        exact = next((w for w in own_rows if set(w.fixes) == here), None)
        if exact is not None:
            saving = (
                today.step_us - exact.step_us,
                exact,
                "one re-timing of the captured steps without them",
            )
        else:
            least = min(own_rows, key=lambda w: w.step_us)
            total = sum(today.step_us - alone[i].step_us for i in here)
            saving = (
                min(total, today.step_us - least.step_us),
                least,
                "the sum of re-timings without each of them",
            )
        if best is None or saving[0] > best[0]:
            best = saving
    return best


def _measured(requested: Sequence[Finding], followed: Sequence[Followed], promise: Promise) -> list[Followed]:
    """Measured changes beside a promise, where only one fault that went can have made them."""
    known_as = faults(requested)

    def alone(quantity: Literal["time_us_per_step", "bytes"]) -> Fault | None:
        moved = [f for f in followed if f.fate in ("gone", "smaller")]
        promised = {known_as[f.id] for f in moved if f.promised and getattr(f.promised, quantity)}
        return next(iter(promised)) if len(promised) == 1 else None

    time, memory = alone("time_us_per_step"), alone("bytes")
    return [
        replace(
            f,
            measured_us=promise.measured_us if _moved(f) and known_as[f.id] == time else None,
            measured_bytes=promise.measured_bytes if _moved(f) and known_as[f.id] == memory else None,
        )
        for f in followed
    ]


def _moved(followed: Followed) -> bool:
    return followed.fate in ("gone", "smaller")
