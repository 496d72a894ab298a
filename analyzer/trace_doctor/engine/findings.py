"""From claims to findings: severity, fingerprint, merging over captures, order, ids."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_claim
from functools import cached_property
from pathlib import PurePosixPath

from msgspec.structs import replace

from trace_doctor.config import Settings
from trace_doctor.engine.ownership import Owner
from trace_doctor.evidence.intervals import intervals
from trace_doctor.evidence.replay.what_if import Removal
from trace_doctor.model import (
    MAX_ROWS,
    Cell,
    Column,
    Confidence,
    Finding,
    Fix,
    Saving,
    Severity,
    Table,
    enough_first,
)
from trace_doctor.model.parameters import misfit
from trace_doctor.recording.folder import BUSY
from trace_doctor.rule import Claim, Rule
from trace_doctor.user_frames import one_name_each

LEVEL: dict[Severity, int] = {"info": 0, "warning": 1, "critical": 2}
WEIGHT: dict[Confidence, float] = {"high": 1.0, "medium": 0.7, "low": 0.4}
MAX_SPANS = 20


@dataclass(frozen=True)
class Filing:
    """A claim with the place it comes from and the finding made of it."""

    rule: Rule
    claim: Claim
    input: int
    rank: int
    path: str
    finding: Finding


def file_claim(rule: Rule, claim: Claim, input: int, rank: int, path: str, settings: Settings) -> Filing:
    """The finding of one claim, still without its id."""
    saving = _clean(claim.saving)
    finding = Finding(
        id="",
        code=rule.code,
        name=rule.name,
        title=claim.title or rule.title,
        severity=severity(rule, claim, settings),
        confidence=claim.confidence,
        message=claim.message,
        fingerprint=fingerprint(rule, claim),
        input=input,
        rank=rank,
        location=replace(claim.location, rank=rank),
        saving=saving,
        evidence=[_cut(t) for t in claim.evidence],
        spans=list(claim.spans[:MAX_SPANS]),
        fixes=[_verifiable(_safe_fix(f), rule.code) for f in claim.fixes],
        missing_bytes=claim.missing_bytes,
        thresholds=rule.thresholds(),
        why=rule.sections().get("Why is this bad", ""),
    )
    return Filing(rule, claim, input, rank, path, finding)


def on_a_busy_machine(rule: Rule, claim: Claim, wait_share: float | None) -> Claim:
    """The claim, less sure of itself where the recording says that the training could have run and did not for as much
    as half of what it costs. `wait_share`: for which share of its time; None where nothing says."""
    cost = (claim.saving.share_of_step if claim.saving is not None else None) or 0.0
    if not rule.costs_host_time or wait_share is None or wait_share < max(BUSY, cost / 2):
        return claim
    less: dict[Confidence, Confidence] = {"high": "medium", "medium": "low", "low": "low"}
    doubt = f"The main thread waited {wait_share:.0%} of the time for a CPU: CPU contention is likely."
    return replace_claim(claim, confidence=less[claim.confidence], message=f"{claim.message} {doubt}")


def _safe_fix(fix: Fix) -> Fix:
    """A fix with parameters that its codemod does not take, as damaged captures and plug-ins give, is only shown."""
    if fix.codemod is None or not (why := misfit(fix.codemod, fix.params)):
        return fix
    risk = " ".join(
        filter(None, [fix.risk, f"No edit, as {fix.codemod} does not take its parameters: {why}."])
    )
    return replace(fix, kind="advice", safety="display", codemod=None, params={}, risk=risk)


def _verifiable(fix: Fix, code: str) -> Fix:
    """Every fix says how to see that it helped: what its rule says, and the command that compares two captures."""
    command = f"`trace-doctor verify BEFORE AFTER --select {code}` compares the captures"
    return replace(fix, verify="; ".join(filter(None, [fix.verify.rstrip("."), command])))


def severity(rule: Rule, claim: Claim, settings: Settings) -> Severity:
    """From the saving's share; what is declared caps it, and so does how the saving is known: low confidence
    and a model of it give `info`, medium confidence at most `warning`; what is below the rule's thresholds is a note."""
    if claim.minor:
        return "info"
    if override := settings.severity.get(rule.code) or settings.severity.get(rule.name):
        return next(s for s in LEVEL if s == override)
    share = _share(claim.saving)
    if share is None:
        level = LEVEL[claim.severity or "info"]
    else:
        level = 2 if share >= settings.critical_at else 1 if share >= settings.warning_at else 0
        level = min(level, LEVEL[claim.severity or "critical"])
    if claim.confidence == "low" or (claim.saving is not None and claim.saving.basis == "model"):
        level = 0
    elif claim.confidence == "medium":
        level = min(level, 1)
    return ("info", "warning", "critical")[level]


def _share(saving: Saving | None) -> float | None:
    if saving is None:
        return None
    shares = [s for s in (saving.share_of_step, saving.share_of_peak) if s is not None]
    return max(shares, default=None)


def _clean(saving: Saving | None) -> Saving | None:
    """Never negative, whatever a rule computed. What goes by a model is an estimate."""
    if saving is None:
        return None
    if saving.basis == "model" and saving.known == "up_to":
        saving = saving.about()
    return replace(
        saving,
        time_us_per_step=None if saving.time_us_per_step is None else max(0.0, saving.time_us_per_step),
        share_of_step=None if saving.share_of_step is None else min(max(0.0, saving.share_of_step), 1.0),
        bytes=None if saving.bytes is None else max(0, int(saving.bytes)),
        share_of_peak=None if saving.share_of_peak is None else min(max(0.0, saving.share_of_peak), 1.0),
    )


def fingerprint(rule: Rule, claim: Claim) -> str:
    """Stable between captures of the same script: no times, no line numbers, no rank."""
    name = PurePosixPath((claim.location.file or "").replace("\\", "/")).name
    parts = [rule.code, name, claim.location.function or "", claim.key]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _cut(table: Table) -> Table:
    if len(table.rows) <= MAX_ROWS:
        return table
    return replace(table, rows=table.rows[:MAX_ROWS], of=table.of or len(table.rows))


def score(finding: Finding) -> float:
    """What the order goes by: share of the step or of the peak, weighted with the confidence. A fault that ends the
    run (critical without a saving) has cost all of it."""
    share = _share(finding.saving)
    if share is None:
        share = 1.0 if finding.severity == "critical" else 0.0
    return share * WEIGHT[finding.confidence]


@dataclass(frozen=True)
class Merged:
    """The findings, ordered and with ids, each with the claim that it was made of."""

    pairs: tuple[tuple[Finding, Filing], ...]
    left_out: int
    """below min-confidence or min-saving"""
    also: tuple[tuple[str, Filing], ...] = ()
    """(id of the finding, the same fault elsewhere): claims of other captures that are a row of its table"""
    jobs: Mapping[int, int] = field(default_factory=dict)
    """the job of each input"""

    @property
    def findings(self) -> list[Finding]:
        """The findings alone, by their numbers."""
        return [finding for finding, _ in self.pairs]

    def removals(self, number: int) -> list[tuple[str, Removal]]:
        """Of one input: (id of the finding, what its fixes take out), where a fix is more than shown."""
        return self._removals.get(number, [])

    @cached_property
    def _removals(self) -> dict[int, list[tuple[str, Removal]]]:
        by_input: dict[int, list[tuple[str, Removal]]] = {}
        for finding, filing in self.pairs:
            if filing.claim.removal and any(f.safety != "display" for f in finding.fixes):
                by_input.setdefault(filing.input, []).append((finding.id, filing.claim.removal))
        return by_input

    def owners(self, number: int, rank: int, path: str) -> list[Owner]:
        """Of one input, its rank and path: the findings that own time of it, the gravest first. A finding on a rank of its
        folder may explain what others wait for."""
        own, of_others = self._owners
        claims = [*own.get(number, ()), *of_others.get((str(PurePosixPath(path).parent), rank), ())]
        return [owner for _, owner in sorted(claims, key=lambda claim: claim[0])]

    @cached_property
    def _owners(
        self,
    ) -> tuple[
        dict[int, list[tuple[tuple[int, int], Owner]]],
        dict[tuple[str, int], list[tuple[tuple[int, int], Owner]]],
    ]:
        """By input, and by folder and rank, each with its place: of all claims once, as there may be some for every rank."""
        order = {finding.id: place for place, (finding, _) in enumerate(self.pairs)}
        own: dict[int, list[tuple[tuple[int, int], Owner]]] = {}
        of_others: dict[tuple[str, int], list[tuple[tuple[int, int], Owner]]] = {}
        claims = [*((finding.id, filing) for finding, filing in self.pairs), *self.also]
        for at, (id, filing) in enumerate(claims):
            claim, place = filing.claim, (order[id], 2 * at)
            owner = Owner(id, claim.location.device, intervals(claim.owned))
            own.setdefault(filing.input, []).append((place, owner))
            folder = str(PurePosixPath(filing.path).parent)
            for rank, spans in claim.owned_on.items():
                explained = Owner(id, None, intervals(spans))
                of_others.setdefault((folder, rank), []).append(((order[id], 2 * at + 1), explained))
        return own, of_others

    def without(self, ids: Collection[str]) -> Merged:
        """Those whose ids are not among the silenced."""
        return Merged(
            tuple(pair for pair in self.pairs if pair[0].id not in ids),
            self.left_out,
            tuple(pair for pair in self.also if pair[0] not in ids),
            self.jobs,
        )


Fault = tuple[str, str, int, str]
"""fingerprint, folder, job and file: what makes findings of several captures one"""


def merge(filings: Sequence[Filing], settings: Settings, jobs: Mapping[int, int] | None = None) -> Merged:
    """One finding per fault: the same fault on other ranks or files of one folder becomes a table in the worst one. `jobs`:
    the job of each input; without it all are of one."""
    files = one_name_each((f.finding.fingerprint, f.finding.location.file or "") for f in filings)

    def fault(filing: Filing) -> Fault:
        folder = str(PurePosixPath(filing.path).parent)
        known_as, file = filing.finding.fingerprint, filing.finding.location.file or ""
        return known_as, folder, (jobs or {}).get(filing.input, 0), files[known_as, file]

    groups: dict[Fault, list[Filing]] = {}
    for f in filings:
        groups.setdefault(fault(f), []).append(f)
    pairs = []
    elsewhere: dict[int, list[Filing]] = {}
    for group in groups.values():
        group.sort(key=lambda f: (-score(f.finding), f.rank, f.path))
        worst = group[0]
        same_file = [f for f in group if f.input == worst.input]
        for own in same_file:
            others = [f for f in group if f.input != worst.input] if own is worst else []
            pairs.append((_with_others(own.finding, others), own))
            elsewhere[id(own)] = others
    at_least = WEIGHT[next(c for c in WEIGHT if c == settings.min_confidence)]
    visible = [
        (finding, f)
        for finding, f in pairs
        if WEIGHT[finding.confidence] >= at_least and not _too_small(finding, settings.min_saving)
    ]
    visible.sort(key=lambda pair: _order(pair[0], pair[1].path))
    counts: Counter[str] = Counter()
    with_ids = []
    for finding, f in visible:
        counts[finding.code] += 1
        with_ids.append((replace(finding, id=f"{finding.code}-{counts[finding.code]}"), f))
    inputs: dict[int, set[int]] = {}
    for group in groups.values():  # one set for all of a fault, which may be on each of thousands of ranks
        of_fault = {f.input for f in group}
        inputs |= {id(f): of_fault for f in group}
    explaining = {code for _, f in with_ids for code in f.rule.explained_by}
    of_input: dict[tuple[int, str], list[Placed]] = {}
    for place, (finding, f) in enumerate(with_ids):
        for number in inputs[id(f)] if finding.code in explaining else ():
            of_input.setdefault((number, finding.code), []).append((place, finding, f))
    with_causes = tuple((_with_causes(finding, f, of_input), f) for finding, f in with_ids)
    also = tuple((finding.id, other) for finding, f in with_ids for other in elsewhere[id(f)])
    return Merged(with_causes, len(pairs) - len(visible), also, jobs or {})


Placed = tuple[int, Finding, Filing]
"""a finding with its place among all"""


def _with_causes(
    finding: Finding, filing: Filing, of_input: Mapping[tuple[int, str], Sequence[Placed]]
) -> Finding:
    """With the findings that explain it, on its capture and device, and their fixes behind its own; of a failed allocation
    those that are enough come first. `of_input`: findings by input and code."""
    near = [each for code in filing.rule.explained_by for each in of_input.get((filing.input, code), ())]
    causes = [
        other
        for _, other, f in sorted(near, key=lambda each: each[0])
        if f.input != filing.input or other.location.device in (None, finding.location.device)
    ]
    if not causes:
        return finding
    by_title = {(x.title, x.codemod): x for x in finding.fixes}
    missing = finding.missing_bytes
    for cause in causes:
        for fix in cause.fixes:
            saving = fix.saving if missing is None else fix.saving or cause.saving
            by_title.setdefault((fix.title, fix.codemod), replace(fix, saving=saving))
    fixes = list(by_title.values())
    if missing is not None:
        fixes = enough_first(fixes, missing)
    return replace(finding, refers_to=[cause.id for cause in causes], fixes=fixes)


def _too_small(finding: Finding, least: float) -> bool:
    share = _share(finding.saving)
    return share is not None and share < least


def _order(finding: Finding, path: str) -> tuple[int, float, str, str, int, float, str, str]:
    """The gravest first, then by what it costs."""
    at = finding.location
    return (
        -LEVEL[finding.severity],
        -score(finding),
        finding.code,
        at.file or "",
        at.line or 0,
        at.ts_us or 0.0,
        path,
        finding.message,
    )


def _with_others(finding: Finding, others: Sequence[Filing]) -> Finding:
    if not others:
        return finding
    rows: list[list[Cell]] = [
        [
            o.path,
            o.rank,
            o.finding.saving.time_us_per_step if o.finding.saving else None,
            o.finding.saving.bytes if o.finding.saving else None,
            o.finding.severity,
        ]
        for o in sorted(others, key=lambda o: (o.rank, o.path))
    ]
    columns = [
        Column("file"),
        Column("rank", "count"),
        Column("per step", "us"),
        Column("memory", "bytes"),
        Column("severity"),
    ]
    table = _cut(Table(title="The same in other captures", columns=columns, rows=rows))
    ranks = sorted({o.rank for o in others} - {finding.rank})
    where = "another capture" if len(others) == 1 else f"{len(others)} more captures"
    if ranks:
        where = f"rank{'s' if len(ranks) > 1 else ''} {_ranges(ranks)}"
    message = re.sub(r"\.?$", f" (also on {where}).", finding.message, count=1)
    return replace(finding, message=message, evidence=[*finding.evidence, table])


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 -> "1-3, 7"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
