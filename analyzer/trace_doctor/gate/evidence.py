"""Whether a result has what a decision needs: the ranks that are expected, and rules that could look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from trace_doctor.config import CONFIDENCES, HIDING, Settings
from trace_doctor.gate.step_times import LEAST_STEPS
from trace_doctor.model import LOOKED, Finding, Outcome, Result
from trace_doctor.model.captures import NO_CAPTURE_BELOW


def not_all(result: Result) -> list[str]:
    """Why the result is not of all that was given or recorded, as far as that may be let pass: a folder that was named and
    holds nothing may not. Captures that were not read are a reason, whatever a saved result says of it."""
    empty = _empty_folders(result)
    reasons = result.incomplete or [*_shown_incomplete(result)]
    return [why for why in reasons if why not in empty]


def _shown_incomplete(result: Result) -> Iterator[str]:
    """The same by what else a result holds, for one that was changed since: an analysis says all of this itself."""
    yield from (i.why_unread for i in result.unread[:_MOST_NAMED])
    few = [i for i in result.inputs if i.too_little]
    if len(few) < len(result.inputs):
        yield from (f"{i.path} cannot be judged: {i.too_little}" for i in few[:_MOST_NAMED])
    read, world = result.ranks.read, result.ranks.world or 0
    there = sum(rank < world for rank in read)
    if len({i.job for i in result.inputs}) == 1 and len(read) > 1 and there < world:
        yield f"{there} of {world} ranks {'was' if there == 1 else 'were'} read"
    if len(read) > 1 and (lost := sorted({*result.ranks.recorded} - {*read})):
        yield f"nothing was read of rank {_listed(lost)} of the recording"


def _empty_folders(result: Result) -> list[str]:
    return [i.why_unread for i in result.unread if i.reason == NO_CAPTURE_BELOW]


_MOST_NAMED = 8


def fewer_ranks(result: Result, expected: str = "", before: int = 0) -> list[str]:
    """Why fewer ranks were read than `--ranks` (a number, or all of the job) expects, or than the baseline has."""
    read, world = len(_read(result)), result.ranks.world
    reasons = []
    if expected == "all" and world is None:
        reasons.append("--ranks all: no capture says how many ranks the job has; give --ranks N")
    elif expected and read < (requested := world or 0 if expected == "all" else int(expected)):
        reasons.append(f"{_ranks(read)} read, --ranks {expected} expects {requested}")
    if read < before:
        reasons.append(f"{_ranks(read)} read, the baseline has {before}")
    return reasons


def _read(result: Result) -> set[int]:
    """Where any rank has a trace, a rank of which there is a snapshot alone does not count."""
    ranks = {kind: {i.rank for i in result.inputs if i.kind == kind} for kind in ("trace", "snapshot")}
    snapshots = ranks["snapshot"] - ranks["trace"] if ranks["trace"] else set()
    return {*result.ranks.read, *(i.rank for i in result.inputs)} - snapshots


def _ranks(count: int) -> str:
    return f"{count} rank was" if count == 1 else f"{count} ranks were"


def nothing_judged(result: Result) -> list[str]:
    """Why nothing was judged, which must not pass for healthy: too little in the captures, a folder without any, or all rules
    skipped. A rule that failed counts as skipped."""
    found = _empty_folders(result)
    if result.inputs and all(i.too_little for i in result.inputs):
        few = result.inputs[0]
        found.append(f"the captures cannot be judged ({few.path}: {few.too_little})")
    blind = [o for o in result.outcomes if o.outcome in ("skipped", "error")]
    if result.inputs and result.outcomes and len(blind) == len(result.outcomes):
        reasons = {o.reason for o in blind if o.reason}
        why = f" ({reasons.pop()})" if len(reasons) == 1 else ""
        which = "the only rule was" if len(blind) == 1 else f"all {len(blind)} rules were"
        found.append(f"{which} skipped{why}")
    else:
        found += [f"{o.code} ({o.reason})" for o in blind if o.outcome == "error"]
        found += _dumps_not_judged(result)
    return found


def _dumps_not_judged(result: Result) -> list[str]:
    """Flight recorder dumps of a job on which no rule decided, though one should have: they are about one question only, and
    another job that passed does not answer it."""
    judged = {n for o in result.outcomes if o.outcome in LOOKED for n in o.inputs or ()}
    why = {n: o.skipped_because or o.reason for o in result.outcomes for n in o.skipped_on}
    jobs: dict[int, list[int]] = {}
    for number, file in enumerate(result.inputs):
        jobs.setdefault(file.job, []).append(number)
    jobs = {j: ns for j, ns in jobs.items() if all(result.inputs[n].kind == "flight_recorder" for n in ns)}
    unjudged = [numbers for numbers in jobs.values() if not judged & {*numbers} and why.keys() & {*numbers}]
    return [
        f"no rule could judge {captures_named(result, numbers)}: {why[next(n for n in numbers if n in why)]}"
        for numbers in unjudged[:_MOST_NAMED]
    ]


def skipped_on(result: Result, outcome: Outcome) -> str:
    """On which captures a rule could not decide, though it did on others."""
    return f"skipped on {captures_named(result, outcome.skipped_on)}: {outcome.skipped_because}"


def captures_named(result: Result, numbers: Sequence[int]) -> str:
    """The paths of captures by their positions."""
    return _listed([result.inputs[n].path for n in numbers if n < len(result.inputs)])


def not_whole(before: Result, after: Result, expected: str) -> list[str]:
    """What was not read or is missing on a side of a comparison. A rank that only one side has was compared with nothing."""
    sides = (("BEFORE", before, _read(after), "AFTER"), ("AFTER", after, _read(before), "BEFORE"))
    return [
        f"{which}: {why}"
        for which, side, wanted, other in sides
        for why in (*not_all(side), *fewer_ranks(side, expected), *_lacks(wanted - _read(side), other))
    ]


def _lacks(ranks: Collection[int], other: str) -> list[str]:
    if not ranks:
        return []
    numbers = _listed(sorted(ranks))
    return [
        f"rank {numbers} was not read, {other} has it"
        if len(ranks) == 1
        else f"ranks {numbers} were not read, {other} has them"
    ]


def not_judged(before: Result, after: Result) -> list[str]:
    """Sides on which nothing could be looked at."""
    sides = (("BEFORE", before), ("AFTER", after))
    return [f"{which}: {why}" for which, side in sides for why in nothing_judged(side)]


def too_few_steps(before: Result, after: Result) -> list[str]:
    """Ranks of which AFTER has fewer than three whole steps, and BEFORE has more: what is not seen in them may be gone by chance."""
    then, now = (_steps_of_ranks(side) for side in (before, after))
    return [
        f"AFTER: only {count} whole step{'s' if count > 1 else ''} of rank {rank}, BEFORE has {then[rank]}"
        for rank, count in now.items()
        if count < min(LEAST_STEPS, then.get(rank, 0))
    ][:_MOST_NAMED]


def _steps_of_ranks(side: Result) -> dict[int, int]:
    """The most steps that a trace of a rank has, of ranks whose steps are marked."""
    most: dict[int, int] = {}
    for i in side.inputs:
        if i.kind == "trace" and i.step_source is not None:
            most[i.rank] = max(i.steps, most.get(i.rank, 0))
    return most


def not_looked_for(before: Result, after: Result) -> list[str]:
    """Why AFTER might show nothing new though there is something: rules that looked at BEFORE and were not run on it. One
    that ran and found its evidence missing is no such rule."""
    run = {o.code for o in after.outcomes}
    lost = sorted({o.code for o in before.outcomes if o.outcome in LOOKED} - run)
    if lost:
        return [f"AFTER: {_listed(lost)} {'was' if len(lost) == 1 else 'were'} not run, but ran on BEFORE"]
    return [] if run or not after.inputs else ["AFTER: no rule was run"]


def hidden(before: Result, after: Result) -> list[str]:
    """Settings by which AFTER may leave out, or take for a note, what BEFORE's would have shown."""
    names = [
        name
        for name, hides in _HIDES.items()
        if (was := _setting(before, name)) != (now := _setting(after, name)) and hides(was, now)
    ]
    return (
        [f"AFTER: other settings than BEFORE, which may hide findings: {', '.join(names)}"] if names else []
    )


def hiding(result: Result) -> list[str]:
    """The settings under which a finding of the captures is not there at all."""
    return [name for key in HIDING if (name := key.replace("_", "-")) in result.config]


def hidden_findings(shown: Result, whole: Result | None) -> list[Finding]:
    """What a side has and does not show: what is suppressed, and what `whole`, the same side without settings that hide
    findings, has besides."""
    here = Counter(_fault(f) for f in shown.findings)
    besides = []
    for finding in whole.findings if whole is not None else ():
        if here[_fault(finding)]:
            here[_fault(finding)] -= 1
        else:
            besides.append(finding)
    return [*(s.finding for s in shown.suppressed), *besides]


def _fault(finding: Finding) -> tuple[str, str, str, int]:
    return finding.code, finding.fingerprint, finding.location.file or "", finding.input


def not_followed(before: Result, unseen: Sequence[Finding]) -> str:
    """That findings which BEFORE hides were not looked for in AFTER, and what hides them."""
    settings = [*hiding(before), *(["suppressions"] if before.suppressed else [])]
    names = _listed(sorted({f"{f.code} {f.name}" for f in unseen}))
    return f"not looked for: {names} of BEFORE, hidden by {', '.join(settings)}"


def _setting(result: Result, name: str) -> Any:
    """A result holds those that are no defaults; what was not asked for is None."""
    there = result.config.get(name)
    return (
        there.get("value") if isinstance(there, dict) else getattr(Settings(), name.replace("-", "_"), None)
    )


def _more(before: Any, after: Any) -> bool:
    numbers = isinstance(before, int | float) and isinstance(after, int | float)
    return not numbers or after > before


def _surer(before: Any, after: Any) -> bool:
    known = before in CONFIDENCES and after in CONFIDENCES
    return not known or CONFIDENCES.index(after) < CONFIDENCES.index(before)


def _narrower(before: Any, after: Any) -> bool:
    """Steps: whether those of AFTER, [first, last), do not hold all of BEFORE's."""
    if after is None:
        return False
    try:
        return not (after[0] <= before[0] and before[1] <= after[1])
    except (TypeError, IndexError):  # all of BEFORE, or no steps
        return True


def _one_only(before: Any, after: Any) -> bool:
    return after is not None


def _silences(before: Any, after: Any) -> bool:
    known = isinstance(before, dict) and isinstance(after, dict)
    return not known or not after.keys() <= before.keys()


def _other(before: Any, after: Any) -> bool:
    return True


_HIDES = {
    "min-confidence": _surer, "min-saving": _more, "warning-at": _more, "critical-at": _more, "severity": _other,
    "rules": _other, "suppress": _silences, "steps": _narrower, "device": _one_only,
}  # fmt: skip
"""setting -> whether its second value may hide what the first shows"""


def _listed(names: Collection[object]) -> str:
    text = ", ".join(str(n) for n in list(names)[:_MOST_NAMED])
    return text + (f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else "")
