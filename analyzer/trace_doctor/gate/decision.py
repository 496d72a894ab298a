"""From a result to an exit code: findings against `--fail-on` and the baseline, budgets, required rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from trace_doctor.config import Settings
from trace_doctor.config.budget_table import Budgets, parse_budgets
from trace_doctor.errors import UsageError
from trace_doctor.gate.baseline import Baseline, Known, alike, read_baseline
from trace_doctor.gate.budgets import DEFAULT_REGRESSION, defaults_against, judge
from trace_doctor.gate.evidence import fewer_ranks, not_all, nothing_judged, skipped_on
from trace_doctor.gate.runs import cost, most_noise, step_noise
from trace_doctor.model import LOOKED, Budget, Finding, Gate, Result
from trace_doctor.registry import resolve

LEVELS = ("info", "warning", "critical")
_MOST_SAID = 4
WORSE = 0.03
"""of the step or of the peak: a known finding that costs so much more would be a warning by the difference alone"""


@dataclass(frozen=True)
class Terms:
    """What a result is held against."""

    fail_on: str = "warning"
    require: Sequence[str] = ()
    budgets: Budgets = field(default_factory=Budgets)
    baseline: Baseline | None = None
    ranks: str = ""
    """how many are expected: a number, or all of the job"""
    allow_partial: bool = False
    """what was not read or is missing is said, and decides nothing"""

    def against(self, baseline: Baseline) -> Terms:
        """The same terms with another baseline."""
        return replace(self, baseline=baseline)


def terms_of(settings: Settings, *, update: bool = False, allow_partial: bool = False) -> Terms:
    """What the settings ask for, read before the analysis: a mistake fails at once. With `update` the baseline is about
    to be written and need not be there. Raises UsageError, also where nothing is left to decide."""
    if update and not settings.baseline:
        raise UsageError("--update-baseline needs --baseline FILE")
    if not settings.chosen() and not settings.baseline and not parse_budgets(settings.budgets).limits:
        raise UsageError("the selection leaves no rule, and there is no budget and no baseline")
    return Terms(
        ranks=settings.ranks,
        allow_partial=allow_partial,
        fail_on=settings.fail_on,
        require=settings.require,
        budgets=parse_budgets(settings.budgets),
        baseline=read_baseline(Path(settings.baseline)) if settings.baseline and not update else None,
    )


def checked(result: Result, terms: Terms) -> Result:
    """The result with what the gate decided, so that every output can show it."""
    return msgspec.structs.replace(result, gate=decide(result, terms))


def partial(result: Result, terms: Terms) -> list[str]:
    """Why the result is not of all that was given, recorded or expected. `--allow-partial` lets it pass."""
    before = terms.baseline.ranks if terms.baseline is not None else 0
    return [*not_all(result), *fewer_ranks(result, terms.ranks, before)]


def unacceptable(result: Result, terms: Terms) -> list[str]:
    """Why a result is no baseline: what it does not show could not be missed later."""
    return [*([] if terms.allow_partial else partial(result, terms)), *nothing_judged(result)]


def decide(result: Result, terms: Terms | None = None) -> Gate:
    """0 ok; 1 a new finding at or above the limit, a regression or a broken budget; 3 where not all of it could be looked
    at: captures not read, ranks missing, no rule that could look, a required rule or a budget without its evidence. 1
    beats 3. A rule that is merely enabled and skipped never changes it."""
    terms = terms or Terms()
    known = _in_baseline(result, terms.baseline)
    judged = [f for f in result.findings if f.code not in terms.budgets.rules and _counts(f, terms.fail_on)]
    new = [f for f in judged if f.id not in known]
    worse = [b for f in judged if f.id in known and (b := _worse(result, f, known[f.id], terms)) is not None]
    budgets, notes = _budgets(result, terms)
    if terms.baseline is not None:
        notes = [*_stale(result, terms.baseline, known), *notes]
    missing = partial(result, terms)
    undecided = [] if terms.allow_partial else list(missing)
    undecided += _nothing_captured(result) or nothing_judged(result)
    needs_result = terms.baseline is not None or terms.budgets.limits
    if needs_result and not result.outcomes and all(b.status == "undecided" for b in budgets):
        undecided.append("no rule was selected, and no budget and no figure of a baseline was decided")
    undecided += [why for why in _undecided(result, terms.require) if why not in undecided]
    broken = [b for b in [*budgets, *worse] if b.status == "failed" and b.level == "error"]
    blind = [f"{b.name} ({b.how})" for b in budgets if b.status == "undecided" and b.level == "error"]
    code: Literal[0, 1, 3] = 1 if new or broken else 3 if undecided or blind else 0
    return Gate(
        code=code,
        verdict=_verdict(code, terms, new, broken, [*undecided, *blind], result.ranks.note),
        fail_on=terms.fail_on,
        failing=[f.id for f in new]
        + [f.id for f in judged if any(b.name.startswith(f"{f.id} ") for b in worse)],
        with_baseline=terms.baseline is not None,
        known=sorted(known),
        budgets=[*budgets, *worse],
        undecided=undecided,
        partial=missing if terms.allow_partial else [],
        notes=[*(f"accepted by --allow-partial: {m}" for m in missing if terms.allow_partial), *notes],
    )


def _budgets(result: Result, terms: Terms) -> tuple[list[Budget], list[str]]:
    """The budgets and what guards a baseline; notes of guards without evidence."""
    budgets = [judge(result, limit, terms.budgets, terms.baseline) for limit in terms.budgets.limits]
    if terms.baseline is None:
        return budgets, []
    guards = [
        judge(result, limit, terms.budgets, terms.baseline)
        for limit in defaults_against(result, terms.baseline, terms.budgets)
    ]
    # nobody asked for these: what the capture or the baseline lacks is no reason to stop
    decided = [g for g in guards if g.status != "undecided"]
    notes = [f"{g.name} not compared with the baseline: {g.how}" for g in guards if g.status == "undecided"]
    return [*budgets, *decided], notes


def _counts(finding: Finding, fail_on: str) -> bool:
    return fail_on != "never" and LEVELS.index(finding.severity) >= LEVELS.index(fail_on)


def _in_baseline(result: Result, baseline: Baseline | None) -> dict[str, Known]:
    """Id -> what the baseline holds of it: of each capture as many as it had, those of the most similar paths first."""
    if baseline is None:
        return {}
    entries: dict[str, list[tuple[int, Known]]] = {}
    for number, known in enumerate(baseline.findings):
        entries.setdefault(known.fingerprint, []).append((number, known))
    pairs = [
        (-shared, finding, number, known)
        for finding in result.findings
        for number, known in entries.get(finding.fingerprint, ())
        if (shared := alike(known, finding, result))
    ]
    taken: Counter[tuple[int, int]] = Counter()
    found: dict[str, Known] = {}
    for _, finding, number, known in sorted(pairs, key=lambda pair: pair[0]):
        if finding.id not in found and taken[number, finding.input] < known.count:
            taken[number, finding.input] += 1
            found[finding.id] = known
    return found


def _worse(result: Result, finding: Finding, known: Known, terms: Terms) -> Budget | None:
    """A known finding that costs clearly more than it did, as a broken budget of its own."""
    before, now = known.cost, cost(finding)
    if before is None or now is None:
        return None
    noise = min(terms.budgets.noise * step_noise(result), most_noise("share", before))
    limit = before + max(WORSE, DEFAULT_REGRESSION * before, noise)
    if now <= limit:
        return None
    return Budget(
        name=f"{finding.id} {finding.name}", unit="share", status="failed", found=now, values=[now], limit=limit,
        baseline=before, noise=noise, how="a known finding that costs more than it did",
    )  # fmt: skip


def _stale(result: Result, baseline: Baseline, known: Mapping[str, Known]) -> list[str]:
    """Findings of the baseline that are gone. Where its rule could not look, nothing is known."""
    here = {id(entry) for entry in known.values()}
    hushed = [s.finding for s in result.suppressed]
    looked = {o.code for o in result.outcomes if o.outcome in LOOKED}
    notes = []
    for entry in baseline.findings:
        if id(entry) in here:
            continue
        name = " ".join(p for p in (entry.code, entry.name, f"({entry.place})" if entry.place else "") if p)
        if any(f.fingerprint == entry.fingerprint and alike(entry, f, result) for f in hushed):
            notes.append(f"suppressed: {name} of the baseline; --update-baseline drops it")
        elif entry.code in looked:
            notes.append(f"fixed: {name} of the baseline; --update-baseline drops it")
        else:
            notes.append(f"baseline entry not checked: {name}, rule skipped")
    return notes


def _nothing_captured(result: Result) -> list[str]:
    """Captures without a single event or allocator entry: whoever records nothing must not pass for healthy."""
    holds_something = (
        result.findings or result.time_ledger or result.memory_ledger or any(i.events for i in result.inputs)
    )
    return ["the captures hold no event"] if result.inputs and not holds_something else []


def _undecided(result: Result, require: Sequence[str]) -> list[str]:
    outcomes = {o.code: o for o in result.outcomes}
    there = [*result.findings, *(s.finding for s in result.suppressed)]
    found = {f.code for f in there if _counts(f, "warning")}
    reasons = []
    for code in sorted({r.code for selector in require for r in resolve(selector)}):
        outcome = outcomes.get(code)
        if outcome is None:
            reasons.append(f"{code} (not selected)")
        elif outcome.outcome in ("skipped", "error", "undecided"):
            reasons.append(f"{code} ({outcome.reason})")
        elif outcome.reason and code not in found:
            reasons.append(f"{code} (info only, and {outcome.reason})")
        elif code not in found and any(f.code == code and _is_doubtful(f) for f in there):
            reasons.append(f"{code} (info only, of low confidence)")
        elif outcome.skipped_on:
            reasons.append(f"{code} ({skipped_on(result, outcome)})")
    return reasons


def _is_doubtful(finding: Finding) -> bool:
    """Whether a finding would be a warning if more were known of it."""
    share = finding.saving.share_of_step if finding.saving is not None else None
    return finding.confidence == "low" and (share or 0.0) >= Settings().warning_at


def _verdict(
    code: int,
    terms: Terms,
    new: Sequence[Finding],
    broken: Sequence[Budget],
    undecided: Sequence[str],
    ranks: str,
) -> str:
    few = f" ({ranks})" if ranks else ""
    if code == 3:
        return f"check is inconclusive{few}: {_listed(undecided)}"
    if code == 0:
        kind = "new finding" if terms.baseline is not None else "finding"
        never = "findings do not fail (fail-on never)"
        parts = [never if terms.fail_on == "never" else f"no {kind} at {terms.fail_on} or above"]
        if terms.budgets.limits or terms.baseline is not None:
            parts.append("no regression" if not terms.budgets.limits else "no budget broken")
        return f"check passed{few}: {', '.join(parts)}"
    reasons = []
    if new:
        kind = "new finding" if terms.baseline is not None else "finding"
        plural = "s" if len(new) > 1 else ""
        codes = ", ".join(sorted({f"{f.code}" for f in new}))
        reasons.append(f"{len(new)} {kind}{plural} at {terms.fail_on} or above ({codes})")
    if broken:
        reasons.append(
            f"{len(broken)} {'limits' if len(broken) > 1 else 'limit'} exceeded ({', '.join(b.name for b in broken)})"
        )
    if undecided:
        reasons.append(f"inconclusive for the rest: {_listed(undecided)}")
    return f"check failed{few}: {'; '.join(reasons)}"


def _listed(reasons: Sequence[str]) -> str:
    more = [f"{len(reasons) - _MOST_SAID} more reasons"] if len(reasons) > _MOST_SAID + 1 else []
    return "; ".join([*(reasons[:_MOST_SAID] if more else reasons), *more])
