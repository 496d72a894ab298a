"""Did the fix do what the finding promised? Two results of one job, before and after."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from msgspec.structs import replace

from trace_doctor.gate.comparable import comparable, side
from trace_doctor.gate.decision import LEVELS
from trace_doctor.gate.matching import follow
from trace_doctor.gate.step_times import step_change, step_time
from trace_doctor.model import Finding, Result, WhatIf
from trace_doctor.verification import Appeared, Followed, MemoryChange, Promise, StepChange, Verification


def verify(
    before: Result, after: Result, *, chosen: Collection[str] | None = None, fail_on: str = "warning"
) -> Verification:
    """Compares two results of one job. `chosen` are ids of findings of `before` (all without it).

    Code 0: all of them are gone. 1: one is still there (smaller ones too), or AFTER has a new finding of at least the
    severity `fail_on` (critical, warning, info; `never` for none). 3: AFTER cannot tell of one. 1 beats 3.
    """
    asked = [f for f in before.findings if chosen is None or f.id in chosen]
    followed, new = follow(before, after, asked)
    change = step_change(step_time(before), step_time(after))
    memory = _memory(before, after)
    promise = _promise(before, asked, followed, change, memory)
    code, verdict = _decide(followed, new, fail_on)
    return Verification(
        tool=after.tool,
        code=code,
        verdict=verdict,
        before=side(before),
        after=side(after),
        findings=_measured(followed, promise),
        new=new,
        step_time=change,
        memory=memory,
        promise=promise,
        warnings=comparable(before, after),
    )


def _decide(
    followed: Sequence[Followed], new: Sequence[Appeared], fail_on: str
) -> tuple[Literal[0, 1, 3], str]:
    there = [f.id for f in followed if f.fate in ("still_there", "smaller")]
    bad = [
        f.id
        for f in new
        if f.checked_before and fail_on != "never" and LEVELS.index(f.severity) >= LEVELS.index(fail_on)
    ]
    unknown = [f.id for f in followed if f.fate == "not_captured"]
    if there or bad:
        said = [f"{', '.join(there)} not gone"] * bool(there) + [f"{', '.join(bad)} new"] * bool(bad)
        return 1, f"verify failed: {'; '.join(said)}"
    if unknown:
        return 3, f"verify could not decide: AFTER does not show whether {', '.join(unknown)} is gone"
    if not followed:
        return 0, "nothing to verify: BEFORE has no finding"
    gone = "the finding is" if len(followed) == 1 else f"all {len(followed)} findings are"
    return 0, f"verify passed: {gone} gone"


def _memory(before: Result, after: Result) -> MemoryChange:
    return MemoryChange(
        allocated_before=before.summary.peak_allocated_bytes,
        allocated_after=after.summary.peak_allocated_bytes,
        reserved_before=before.summary.peak_reserved_bytes,
        reserved_after=after.summary.peak_reserved_bytes,
    )


def _promise(
    before: Result,
    asked: Sequence[Finding],
    followed: Sequence[Followed],
    change: StepChange,
    memory: MemoryChange,
) -> Promise:
    """What the findings that are gone promised, together. Measured is all that changed, whatever changed it."""
    went = {f.id for f in followed if f.fate == "gone"}
    gone = [f for f in asked if f.id in went]
    timed = [f for f in gone if f.saving and f.saving.time_us_per_step]
    sized = [f.saving.bytes for f in gone if f.saving and f.saving.bytes]
    made = Promise(
        findings=[f.id for f in gone],
        measured_us=None if change.change_us is None else -change.change_us,
        bytes=max(sized, default=None),
        measured_bytes=None
        if memory.allocated_before is None or memory.allocated_after is None
        else memory.allocated_before - memory.allocated_after,
    )
    if not timed:
        return made
    replayed = _replayed(before, [f.id for f in timed])
    if replayed is not None:
        return replace(made, time_us_per_step=replayed[0], basis=replayed[1].basis, how=replayed[2])
    savings = [f.saving for f in timed if f.saving]
    total = sum(s.time_us_per_step or 0.0 for s in savings)
    step = before.summary.step_us
    return replace(
        made,
        time_us_per_step=total if step is None else min(total, step),
        basis=savings[0].basis if len(savings) == 1 else "bound",
        how="what the finding claims"
        if len(savings) == 1
        else "the sum of what the findings claim, at most the step",
    )


def _replayed(before: Result, ids: Sequence[str]) -> tuple[float, WhatIf, str] | None:
    """us per step from re-timing one capture of BEFORE without these findings; None where they were not re-timed.

    A combination that was not replayed gives at most what its members give alone, and at most what all give together.
    """
    for number in sorted({w.input for w in before.what_if}):
        mine = [w for w in before.what_if if w.input == number]
        today = next((w for w in mine if not w.fixes), None)
        alone = {w.fixes[0]: w for w in mine if len(w.fixes) == 1}
        if today is None or not set(ids) <= set(alone):
            continue
        exact = next((w for w in mine if set(w.fixes) == set(ids)), None)
        if exact is not None:
            return today.step_us - exact.step_us, exact, "one re-timing of the captured steps without them"
        least = min(mine, key=lambda w: w.step_us)
        total = sum(today.step_us - alone[i].step_us for i in ids)
        return min(total, today.step_us - least.step_us), least, "the sum of re-timings without each of them"
    return None


def _measured(followed: Sequence[Followed], promise: Promise) -> list[Followed]:
    """Measured changes beside a promise, where only one finding that went can have made them."""

    def alone(f: Followed, quantity: Literal["time_us_per_step", "bytes"]) -> bool:
        moved = [x for x in followed if x.fate in ("gone", "smaller")]
        mine = [x for x in moved if x.promised and getattr(x.promised, quantity)]
        return [x.id for x in mine] == [f.id]

    return [
        replace(
            f,
            measured_us=promise.measured_us if alone(f, "time_us_per_step") else None,
            measured_bytes=promise.measured_bytes if alone(f, "bytes") else None,
        )
        for f in followed
    ]
