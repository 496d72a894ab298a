"""Runs every rule on one capture. A rule ends in one of four outcomes; its exception never ends the run."""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from trace_doctor.errors import NotCaptured, by_signal
from trace_doctor.evidence.intervals import intersect, intervals, total
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model import OutcomeKind, Saving
from trace_doctor.rule import Claim, Rule, View

log = logging.getLogger("trace_doctor")


@dataclass(frozen=True)
class Verdict:
    """How one rule ended on one capture, or on one rank of a job."""

    rule: Rule
    outcome: OutcomeKind
    claims: tuple[Claim, ...] = ()
    reason: str | None = None
    capture: str | None = None
    refers_to: tuple[str, ...] = field(default=())


def run_rules(
    view: View,
    rules: Sequence[Rule],
    progress: Callable[[str], None] = lambda _: None,
    further: Sequence[View] = (),
) -> list[Verdict]:
    """One verdict per rule, in the order of the rules. `view` is a capture, or a rank for rules over several of them.

    `further` are asked, one after the other, where it cannot tell: what they show besides is the doing of their
    recording.
    """
    verdicts = []
    for rule in rules:
        progress(rule.code)
        start = time.perf_counter()
        verdicts.append(_first_to_tell(view, further, rule))
        log.debug("%s %s in %.0f ms", rule.code, verdicts[-1].outcome, (time.perf_counter() - start) * 1e3)
    return verdicts


def _first_to_tell(view: View, further: Sequence[View], rule: Rule) -> Verdict:
    verdict = _run(view, rule)
    for other in further:
        if verdict.outcome != "skipped":
            break
        answer = _run(other, rule)
        if answer.outcome in ("fired", "passed"):
            verdict = replace(answer, claims=tuple(_at_pace(c, other, view) for c in answer.claims))
    return verdict


def _at_pace(claim: Claim, other: View, view: View) -> Claim:
    """A claim on another recording of the same run: its moments mean nothing here, and its time is the same share of
    the shorter step. It takes no part in the replay, which knows no row of the other recording."""
    own, theirs = view.get(Steps), other.get(Steps)
    gain = claim.saving
    if gain is not None and gain.time_us_per_step is not None and own is not None and theirs is not None:
        pace = min(1.0, own.step_ns / max(theirs.step_ns, 1))
        gain = msgspec.structs.replace(gain, time_us_per_step=gain.time_us_per_step * pace)
    return replace(claim, saving=gain, removal=None, owned=())


def _run(view: View, rule: Rule) -> Verdict:
    try:
        claims = tuple(rule.claims(view)) or _notes(view, rule)
        _must_be_finite(claims)
        blind = _unable_to_pass(view, rule)
        if blind and not claims:
            raise blind
    except NotCaptured as missing:
        return Verdict(rule, "skipped", reason=missing.reason, capture=missing.capture)
    except BaseException as error:
        if by_signal(error):
            raise
        log.debug("%s failed on rank %d", rule.code, view.rank, exc_info=True)
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
        return Verdict(rule, "error", reason=f"{type(error).__name__}: {error} ({place}); please report it")
    if blind:
        return Verdict(rule, "fired", claims, blind.reason, blind.capture)
    return Verdict(rule, "fired" if claims else "passed", claims)


def _unable_to_pass(view: View, rule: Rule) -> NotCaptured | None:
    """Why finding nothing says nothing, and finding something not all; None where it does."""
    try:
        rule.must_be_able_to_pass(view)
    except NotCaptured as missing:
        return missing
    return None


def _must_be_finite(claims: Sequence[Claim]) -> None:
    """Raises ValueError for a saving that is no number: it would be below every limit."""
    for claim in claims:
        figures = msgspec.structs.asdict(claim.saving) if claim.saving is not None else {}
        for name, value in figures.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"the {name} of a saving is {value}")


def _notes(view: View, rule: Rule) -> tuple[Claim, ...]:
    """What costs less than the rule's thresholds, and yet enough for a note."""
    lower = rule.for_notes()
    if lower is None:
        return ()
    try:
        return tuple(replace(claim, minor=True) for claim in lower.claims(view))
    except NotCaptured:
        return ()


def one_owner(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """A rule gives up the claims that a rule it yields to also makes: same moments, or same call site. Time that the
    owner has not claimed goes with them."""
    by_code = {v.rule.code: v for v in verdicts if v.claims}
    rest = []
    by_owner: dict[int, Claim] = {}
    for verdict in verdicts:
        owners = [by_code[c] for c in verdict.rule.yields_to if c in by_code]
        overlaps = [(w, c, o) for c in verdict.claims for w in owners for o in w.claims if _same(c, o)]
        if not overlaps:
            rest.append(verdict)
            continue
        overlap_ids = {id(c) for _, c, _ in overlaps}
        claims = tuple(c for c in verdict.claims if id(c) not in overlap_ids)
        codes = tuple(dict.fromkeys(w.rule.code for w, _, _ in overlaps))
        for _, claim, owner in overlaps:
            by_owner.setdefault(id(owner), claim)
        rest.append(replace(verdict, outcome="fired" if claims else "passed", claims=claims, refers_to=codes))
    return [replace(v, claims=tuple(_with_time_of(c, by_owner.get(id(c))) for c in v.claims)) for v in rest]


def _with_time_of(owner: Claim, claim: Claim | None) -> Claim:
    """The owner's claim with the time of one that it takes over, where it has none itself."""
    gain = claim.saving if claim is not None else None
    own = owner.saving or Saving(basis=gain.basis if gain is not None else "bound")
    if claim is None or gain is None or gain.time_us_per_step is None or own.time_us_per_step is not None:
        return owner
    saving = msgspec.structs.replace(
        own,
        time_us_per_step=gain.time_us_per_step,
        share_of_step=gain.share_of_step,
        known=gain.known,
        low=gain.low,
        high=gain.high,
        how="; ".join(filter(None, [own.how, gain.how])),
    )
    return replace(owner, saving=saving, removal=owner.removal or claim.removal)


def _same(claim: Claim, owner: Claim) -> bool:
    """Whether two claims speak of one fault: half of the claim's moments are the owner's, on all ranks together where both are of
    several; without moments on both sides the capture itself is what they share."""
    if claim.owned_on and owner.owned_on:
        each = {rank: intervals(spans) for rank, spans in claim.owned_on.items()}
        shared = sum(
            total(intersect(own, intervals(owner.owned_on.get(rank, [])))) for rank, own in each.items()
        )
        return shared * 2 >= sum(map(total, each.values()))
    if not claim.owned or not owner.owned:
        return True
    own = intervals(claim.owned)
    return total(intersect(own, intervals(owner.owned))) * 2 >= total(own)
