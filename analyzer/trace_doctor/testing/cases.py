"""`Valid` and `Invalid`: a rule's own cases. `tests/test_rule_cases.py` runs them for every rule, an outside rule
pack calls `run_case`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose
from typing import Any

from trace_doctor.capture import Capture
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.rank_summary import RankSummary, ranks_of_jobs, summarised
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model import Confidence, Severity
from trace_doctor.model.parameters import misfit
from trace_doctor.recording.folder import RankRecord, periodic_work
from trace_doctor.rule import Claim, Rule, View
from trace_doctor.testing.flight_builder import FlightBuilder
from trace_doctor.testing.run_builder import RunBuilder

Built = Any
"""A RunBuilder, a SnapshotBuilder, a FlightBuilder, or a tuple: of one run recorded in several ways, or of the ranks of a job."""


@dataclass(frozen=True, kw_only=True)
class _Case:
    options: Mapping[str, Any] = field(default_factory=dict)
    """fields of `Options`"""
    thresholds: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Valid(_Case):
    """A sound capture: the rule says nothing, or abstains where `skipped` is given."""

    name: str
    build: Callable[[], Built]
    skipped: str | None = None
    """part of the reason, when the rule is to abstain"""


@dataclass(frozen=True)
class Invalid(_Case):
    """A capture with the fault. Every field that is given is checked on the first claim."""

    name: str
    build: Callable[[], Built]
    saving_us: float | None = None
    """per step, within `tolerance`"""
    saving_bytes: int | None = None
    missing: int | None = None
    """bytes that have to be freed for a failed allocation, and for what follows"""
    tolerance: float = 0.05
    message: str | None = None
    """part of the message"""
    confidence: Confidence | None = None
    severity: Severity | None = None
    """what the claim itself declares"""
    file: str | None = None
    line: int | None = None
    claims: int = 1
    shown: str | None = None
    """part of its tables: of a title, or cells that stand side by side, as `a | b`"""
    codemod: str | None = None
    """of the first fix"""
    fixes: tuple[str, ...] | None = None
    """part of the title or the text of each, in order"""
    fix_bytes: tuple[int | None, ...] | None = None
    """what each fix saves by itself"""
    before: str | None = None
    after: str | None = None
    """a script, and what the first fix with a codemod makes of it"""


def captures_of(built: Built) -> list[Capture]:
    """What a case builds, through the real loaders: one capture per rank. A snapshot belongs to the first, a dump to its rank."""
    parts = built if isinstance(built, tuple) else (built,)
    builders = [p for p in parts if isinstance(p, RunBuilder)]
    dumps = {p.rank: p.dump() for p in parts if isinstance(p, FlightBuilder)}
    snapshot = next((p.snapshot() for p in parts if not isinstance(p, RunBuilder | FlightBuilder)), None)
    captures = [
        Capture(rank=run.rank, run=run, step_ms=b.step_ms, record=_record(run.rank, b))
        for b in builders
        for run in [b.run()]
    ]
    traced = {c.rank for c in captures}
    captures = [replace(c, flight=dumps.get(c.rank)) for c in captures]
    captures += [Capture(rank, flight=dump) for rank, dump in dumps.items() if rank not in traced]
    first = captures[0] if captures else Capture(rank=0, run=None)
    return [replace(first, snapshot=snapshot), *captures[1:]]


def _record(rank: int, b: RunBuilder) -> RankRecord | None:
    if b.waited_for_cpu is None and b.periodic is None and not b.ended and not b.recorded_device:
        return None
    found = periodic_work(b.periodic)
    return RankRecord(
        rank,
        device=b.recorded_device,
        ended=b.ended,
        observed=b.periodic is not None,
        periodic=found,
        waited_for_cpu=b.waited_for_cpu,
    )


def claims_of(rule: Rule, built: Built) -> list[Claim]:
    """What the rule says of the captures built. Raises NotCaptured when it abstains."""
    return claims_on(rule, [Facts(capture) for capture in captures_of(built)])


def claims_on(rule: Rule, ranks: Sequence[Facts]) -> list[Claim]:
    """What the rule says of these captures, one per rank. Raises NotCaptured when it abstains."""
    views: Sequence[View] = ranks
    if rule.over_ranks():
        kinds = summarised((*rule.needs, *rule.wants, *rule.to_pass))
        views = ranks_of_jobs([RankSummary.of(facts, kinds) for facts in ranks], rule.limits_in_force())
    claims: list[Claim] = []
    for view in views:
        found = rule.claims(view)
        if not found:
            rule.must_be_able_to_pass(view)
        claims += found
    return claims


def run_case(rule: type[Rule], case: Valid | Invalid) -> list[Claim]:
    """Runs one case and raises AssertionError where the rule does not do what the case says."""
    made = rule(**case.thresholds)
    try:
        ranks = [Facts(capture, Options(**case.options)) for capture in captures_of(case.build())]
        claims = claims_on(made, ranks)
    except NotCaptured as missing:
        assert isinstance(case, Valid) and case.skipped is not None, f"abstained: {missing.reason}"
        assert case.skipped in missing.reason, f"abstained for another reason: {missing.reason}"
        assert missing.capture != "", f"{rule.code} abstains without saying how to capture it"
        return []
    if isinstance(case, Valid):
        assert case.skipped is None, f"expected to abstain ({case.skipped})"
        assert not claims, f"false alarm: {claims[0].message}"
        return claims
    assert len(claims) == case.claims, [c.message for c in claims]
    first = claims[0]
    expected = {
        "confidence": (case.confidence, first.confidence),
        "severity": (case.severity, first.severity),
        "file": (case.file, first.location.file),
        "line": (case.line, first.location.line),
        "missing": (case.missing, first.missing_bytes),
        "codemod": (case.codemod, first.fixes[0].codemod if first.fixes else None),
    }
    for what, (want, got) in expected.items():
        assert want is None or want == got, f"{what}: wanted {want!r}, got {got!r}"
    assert case.message is None or case.message in first.message, first.message
    tables = [table.title for table in first.evidence]
    tables += [" | ".join(map(str, row)) for table in first.evidence for row in table.rows]
    assert case.shown is None or any(case.shown in row for row in tables), tables
    if case.fixes is not None:
        texts = [f"{fix.title}\n{fix.text}" for fix in first.fixes]
        assert len(texts) == len(case.fixes), texts
        assert all(part in text for part, text in zip(case.fixes, texts, strict=True)), texts
    if case.fix_bytes is not None:
        figures = tuple(fix.saving and fix.saving.bytes for fix in first.fixes)
        assert case.fix_bytes == figures, figures
    for claim in claims:
        for fix in claim.fixes:
            why = misfit(fix.codemod, fix.params) if fix.codemod else ""
            assert not why, f"{fix.codemod} takes no such parameters: {why}"
    saved = first.saving
    for amount, claimed in (
        (case.saving_us, saved and saved.time_us_per_step),
        (case.saving_bytes, saved and saved.bytes),
    ):
        if amount is not None:
            assert isinstance(claimed, int | float), "no saving"
            assert abs(claimed - amount) <= case.tolerance * abs(amount), (
                f"saving: wanted {amount}, got {claimed}"
            )
    for claim in claims:
        _of_the_mean_step(claim, ranks)
    return claims


def _of_the_mean_step(claim: Claim, ranks: Sequence[Facts]) -> None:
    """Raises AssertionError where time and share of a saving are not of one step, the mean one of a rank, or exceed it."""
    steps = [s.step_ns / 1e3 for facts in ranks if (s := facts.get(Steps)) is not None]
    gain = claim.saving
    if gain is None or gain.time_us_per_step is None or gain.share_of_step is None or not steps:
        return
    time, share = gain.time_us_per_step, gain.share_of_step
    assert share <= 1 and any(isclose(time, share * us, rel_tol=1e-3, abs_tol=0.1) for us in steps), (
        f"{time} us are not {share:.2%} of a mean step of {steps} us"
    )
