"""Which finding of AFTER is the same fault as one of BEFORE, and what became of those that are not found again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from trace_doctor.config import CONFIDENCES
from trace_doctor.gate.baseline import path_of, same_file
from trace_doctor.gate.decision import LEVELS
from trace_doctor.gate.evidence import hiding
from trace_doctor.model import LOOKED, Finding, Input, Outcome, Result, Saving, unowned
from trace_doctor.model.captures import LEAST_LAUNCHES
from trace_doctor.model.comparison import Appeared, Fate, Followed
from trace_doctor.user_frames import one_name_each

SMALLER = 0.8
"""a fault found again is `smaller` when removing it would save at most this part of what it would have saved before"""
UNEXPLAINED = 0.5
"""of the time that a finding cost: so much more time without an owner may be the same"""
ON_THE_CAPTURE = "TD0"
"""how the codes of rules begin that look at how a capture was recorded, and not at what the program does"""
_NO_CHANGE = ("TD001", "TD003")
"""notes about how a capture was recorded, without any doubt about what it shows: a program is no worse for them"""
_OF_PLAIN_STEPS = "TD003"
"""compares steps with those that ran without the profiler, where these were timed"""
_EVERYTHING = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
_KINDS: dict[str, tuple[Callable[[Input], bool], str]] = {
    "kernels": (lambda i: i.work.kernels is not None, _EVERYTHING),
    "operators": (lambda i: i.work.operators is not None, _EVERYTHING),
    "launches of the GPU's work": (lambda i: (i.work.launches or 0.0) >= LEAST_LAUNCHES, _EVERYTHING),
    "step markers": (lambda i: i.step_source is not None, "prof.step() after each step"),
}
"""what a trace holds, whatever the program does in it -> whether a trace has it, how to record it"""


def follow(before: Result, after: Result, chosen: Sequence[Finding]) -> tuple[list[Followed], list[Appeared]]:
    """What became of the chosen findings of BEFORE, in its order, and what AFTER alone shows."""
    alike = _alike(before, after)
    same = _same(before.findings, after.findings, alike)
    known_as = faults(before.findings)
    followed = [
        _found_again(finding, again, before, after)
        if (again := _again(finding, before, same, known_as))
        else _lost(finding, before, after, alike)
        for finding in chosen
    ]
    known = {f.id for f in same.values()}
    checked = {o.code: o for o in before.outcomes}
    new = [
        Appeared(
            **f.mention(), message=f.message, saving=f.saving, checked_before=_decided(checked.get(f.code))
        )
        for f in after.findings
        if f.id not in known and f.code not in _NO_CHANGE
    ]
    return followed, new


def _again(
    finding: Finding, before: Result, same: Mapping[str, Finding], known_as: Mapping[str, Fault]
) -> Finding | None:
    """The finding of AFTER that is the same fault. A fault that several recordings of BEFORE show is found again when it
    is in one recording of AFTER."""
    own = known_as[finding.id]
    elsewhere = [f for f in before.findings if known_as[f.id] == own and f.input != finding.input]
    return next((same[f.id] for f in (finding, *elsewhere) if f.id in same), None)


Fault = tuple[str, str]
"""fingerprint, and the path that stands for the file"""


def faults(findings: Sequence[Finding]) -> dict[str, Fault]:
    """Id -> the fault, which several recordings and ranks of one side may show."""
    named = {f.id: (f.fingerprint, f.location.file or "") for f in findings}
    files = one_name_each(named.values())
    return {id: (name[0], files[name]) for id, name in named.items()}


def _alike(before: Result, after: Result) -> Callable[[Finding, Finding], int]:
    """How many last parts of their paths a finding of BEFORE and one of AFTER share; 0 where they are two faults. A fault that
    each side has in one file alone is the same, wherever the file was moved: nothing is called gone that may be there."""
    files = [
        Counter(
            fingerprint
            for fingerprint, _ in set(faults([*r.findings, *(s.finding for s in r.suppressed)]).values())
        )
        for r in (before, after)
    ]

    def shared(a: Finding, b: Finding) -> int:
        if a.fingerprint != b.fingerprint:
            return 0
        moved = all(count[a.fingerprint] == 1 for count in files)
        return same_file(path_of(a, before), path_of(b, after)) or int(moved)

    return shared


def _same(
    before: Sequence[Finding], after: Sequence[Finding], alike: Callable[[Finding, Finding], int]
) -> dict[str, Finding]:
    """Id of a finding of BEFORE -> the finding of AFTER: of the same fault (the most similar path and the same rank first); then
    of the same rule, where one of the two does not know its place in the script."""
    by_fault: dict[str, list[Finding]] = {}
    for other in after:
        by_fault.setdefault(other.fingerprint, []).append(other)
    same = [
        (-shared, finding.rank != other.rank, finding, other)
        for finding in before
        for other in by_fault.get(finding.fingerprint, ())
        if (shared := alike(finding, other))
    ]
    placeless = [(0, False, a, b) for a in before for b in after if _one_without_place(a, b)]
    pairs: dict[str, Finding] = {}
    taken: set[str] = set()
    for *_, finding, other in [*sorted(same, key=lambda pair: pair[:2]), *placeless]:
        if finding.id not in pairs and other.id not in taken:
            pairs[finding.id] = other
            taken.add(other.id)
    return pairs


def _one_without_place(a: Finding, b: Finding) -> bool:
    return a.code == b.code and (_place(a) is None or _place(b) is None)


def _place(finding: Finding) -> str | None:
    return finding.location.file or finding.location.function


def _found_again(finding: Finding, other: Finding, before: Result, after: Result) -> Followed:
    lower = LEVELS.index(other.severity) < LEVELS.index(finding.severity)
    less = _is_smaller(finding.saving, other.saving) or (lower and not _less_known(finding, other))
    if less and _time(finding.saving) is not None and _time(other.saving) is None:
        # of memory that is no doubt: how severe it is goes by how full the device is, whatever may be saved
        reason = f"AFTER has it as {other.id} and does not know what time it costs, which BEFORE knew"
        return _followed(finding, "not_captured", other=other, reason=reason)
    if less and (lacking := _not_recorded(finding, before, after)):
        return _followed(finding, "not_captured", other=other, reason=lacking[0], capture=lacking[1])
    fate: Fate = "smaller" if less else "still_there"
    return _followed(finding, fate, other=other)


def _less_known(finding: Finding, other: Finding) -> bool:
    """Whether it is less severe because less is known of it, as where only a step is left: no quantity that both know has clearly
    fallen, and one has not fallen at all or the confidence has."""
    doubt = CONFIDENCES.index(other.confidence) > CONFIDENCES.index(finding.confidence)
    costs = _costs(finding.saving, other.saving)
    return any(b >= a or (doubt and b > SMALLER * a) for a, b in costs)


def _is_smaller(before: Saving | None, after: Saving | None) -> bool:
    """Whether what it costs has clearly fallen: every quantity that both know, in absolute terms."""
    known = _costs(before, after)
    # `b < a`: the least float there is, times 0.8, is itself.
    return bool(known) and all(b < a and b <= SMALLER * a for a, b in known)


def _time(saving: Saving | None) -> float | None:
    return saving.time_us_per_step if saving is not None else None


def _costs(before: Saving | None, after: Saving | None) -> list[tuple[float, float]]:
    """Every quantity that both know, before and after."""
    if before is None or after is None:
        return []
    pairs = [(before.time_us_per_step, after.time_us_per_step), (before.bytes, after.bytes)]
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _lost(
    finding: Finding, before: Result, after: Result, alike: Callable[[Finding, Finding], int]
) -> Followed:
    """Not found again: gone only where the rule looked at the same rank with the same kind of recording."""
    if silenced := next((s for s in after.suppressed if alike(finding, s.finding)), None):
        return _followed(
            finding, "still_there", other=silenced.finding, reason=f"silenced by {silenced.where}"
        )
    outcome = next((o for o in after.outcomes if o.code == finding.code), None)
    if outcome is None:
        return _followed(finding, "not_captured", reason="its rule was not run on AFTER")
    if outcome.outcome == "error":
        return _followed(finding, "not_captured", reason="its rule failed on AFTER")
    if not _decided(outcome):
        return _followed(finding, "not_captured", reason=outcome.reason, capture=outcome.capture)
    if outcome.outcome == "fired" and not any(f.code == finding.code for f in after.findings):
        if hiding(after):
            return _followed(finding, "smaller", reason="AFTER's settings leave out findings this small")
        return _followed(
            finding, "not_captured", reason="AFTER says that its rule found something, and lists nothing"
        )
    if owner := next((f for f in after.findings if f.id in outcome.refers_to), None):
        return _followed(finding, "still_there", other=owner, reason=f"AFTER counts it to {owner.id}")
    ranks = _ranks_decided(outcome, after)
    if finding.rank is not None and finding.rank not in ranks:
        return _followed(finding, "not_captured", reason=_missing_rank(finding.rank, after))
    vague = next((f for f in after.findings if f.code == finding.code and _place(f) is None), None)
    if vague is not None and _place(finding) is not None:
        return _followed(finding, "not_captured", reason=f"AFTER does not say where its {vague.id} is")
    if finding.location.file is not None and _stacks(before) and not _stacks(after):
        return _followed(
            finding,
            "not_captured",
            reason="its rule found nothing, but AFTER was recorded without the Python stacks that BEFORE has",
            capture="with_stack=True, as BEFORE",
        )
    if lacking := _not_recorded(finding, before, after):
        return _followed(finding, "not_captured", reason=lacking[0], capture=lacking[1])
    if finding.code == _OF_PLAIN_STEPS and _plain_steps(before, finding) and not _plain_steps(after, finding):
        reason = "AFTER was recorded without the steps without the profiler that BEFORE has"
        return _followed(finding, "not_captured", reason=reason, capture="trace-doctor record, as BEFORE")
    if reason := _unexplained(finding, before, after):
        return _followed(finding, "not_captured", reason=reason)
    return _followed(finding, "gone")


def _unexplained(finding: Finding, before: Result, after: Result) -> str:
    """Why its time may still be there: where AFTER has about as much more time without an owner, and steps that are not as much
    shorter, it may be the same time."""
    lost = _time(finding.saving)
    then, now = (_without_owner(side, finding.rank) for side in (before, after))
    if not lost or then is None or now is None or now - then < UNEXPLAINED * lost:
        return ""
    steps = before.summary.step_us, after.summary.step_us
    if steps[0] is not None and steps[1] is not None and steps[0] - steps[1] >= UNEXPLAINED * lost:
        return ""
    return f"{(now - then) / 1e3:,.1f} ms per step more than in BEFORE have no cause that AFTER shows"


def _without_owner(side: Result, rank: int | None) -> float | None:
    """us per step whose cause the trace does not show, on the device where it is most; None where no trace says."""
    steps = {
        (r.input, r.device): r.window_ns / r.steps / 1e3
        for r in side.time_ledger
        if r.phase == "steady" and r.steps and rank in (None, r.rank)
    }
    owners = {(r.input, r.device) for r in side.ownership}
    return max(
        (
            row.total * steps[row.input, row.device]
            for row in unowned(side.time_ledger, side.ownership)
            if (row.input, row.device) in steps.keys() & owners
        ),
        default=None,
    )


def _plain_steps(side: Result, finding: Finding) -> bool:
    return any(i.plain is not None for i in side.inputs if finding.rank in (None, i.rank))


def _not_recorded(finding: Finding, before: Result, after: Result) -> tuple[str, str] | None:
    """What the traces of its rank held in BEFORE and do not in AFTER, as a sentence, and how to record it: time that is told by
    it may have gone with it. None where nothing is missing, or its rule is about just that, or about memory alone."""
    of_memory = finding.saving is not None and not finding.saving.time_us_per_step and finding.saving.bytes
    if of_memory or finding.code.startswith(ON_THE_CAPTURE):
        return None
    then, now = (
        [i for i in side.inputs if i.kind == "trace" and finding.rank in (None, i.rank)]
        for side in (before, after)
    )
    for what, (has, how) in _KINDS.items():
        if now and any(map(has, then)) and not any(map(has, now)):
            return f"AFTER was recorded without the {what} that BEFORE has", how
    return None


def _decided(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.outcome in LOOKED


def _ranks_decided(outcome: Outcome, result: Result) -> set[int]:
    """Ranks with a capture on which the rule could decide; of results that do not say it, all ranks."""
    if outcome.inputs is None:
        return {i.rank for i in result.inputs}
    return {result.inputs[n].rank for n in outcome.inputs if n < len(result.inputs)}


def _missing_rank(rank: int, after: Result) -> str:
    if all(i.rank != rank for i in after.inputs):
        return f"it was found on rank {rank}, of which AFTER has no capture"
    return f"it was found on rank {rank}, whose capture in AFTER lacks the evidence"


def _stacks(result: Result) -> bool:
    """Whether a trace holds Python stacks. Snapshots have their own."""
    return any(i.recorded.stacks for i in result.inputs if i.kind == "trace")


def _followed(
    finding: Finding,
    fate: Fate,
    *,
    other: Finding | None = None,
    reason: str | None = None,
    capture: str | None = None,
) -> Followed:
    return Followed(
        **finding.mention(),
        fate=fate,
        after_id=other.id if other else None,
        after_severity=other.severity if other else None,
        after_location=other.location if other else None,
        promised=finding.saving,
        after_saving=other.saving if other else None,
        reason=reason,
        capture=capture,
    )
