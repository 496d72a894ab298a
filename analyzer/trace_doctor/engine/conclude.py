"""From examinations to the Result: rules over several ranks, the findings of all captures, rows, limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from trace_doctor.config import Config
from trace_doctor.engine.coverage import Scope, fewer_than_others, incomplete, ranks_of
from trace_doctor.engine.display import Display
from trace_doctor.engine.examine import Examination, with_numbers
from trace_doctor.engine.findings import Merged, file_claim, merge, on_a_busy_machine
from trace_doctor.engine.jobs import job_numbers
from trace_doctor.engine.rule_runs import Verdict, one_owner, run_rules
from trace_doctor.engine.sizes import (
    MAX_FINDINGS,
    MAX_IGNORED,
    MAX_LANES,
    MAX_POINTS,
    MAX_STEPS,
    limit,
    share,
    with_details,
)
from trace_doctor.engine.summary import outcomes, summary
from trace_doctor.errors import UsageError
from trace_doctor.evidence.base import Options
from trace_doctor.evidence.distributed.blame.evidence import JobBlame
from trace_doctor.evidence.memory.series import thinned
from trace_doctor.evidence.rank_summary import RankOfJob, RankSummary, ranks_of_jobs
from trace_doctor.model import (
    MEMORY_CATEGORIES,
    Finding,
    Lane,
    MemoryLedgerRow,
    OwnershipRow,
    Result,
    StepRow,
    Suppressed,
    Tool,
    WhatIf,
    unowned,
)
from trace_doctor.rule import Rule
from trace_doctor.version import VERSION

R = TypeVar("R", bound=msgspec.Struct)
S = TypeVar("S", StepRow, Lane)


def judge(examinations: Sequence[Examination], rules: Sequence[Rule]) -> list[Examination]:
    """The examinations of all captures with what rules over several ranks say of each, from the summaries alone; faults
    with two names went to their owner. Each has one verdict for each rule, in their order."""
    over_ranks = [r for r in rules if r.over_ranks()]
    examinations = _beside_others(examinations)
    limits = {kind: in_force for rule in over_ranks for kind, in_force in rule.limits_in_force().items()}
    ranks = ranks_of_jobs([e.summary for e in examinations], limits)
    complete = []
    for e, rank in zip(examinations, ranks, strict=True):
        further = [RankOfJob(summary) for summary in e.further]
        verdicts = {v.rule: v for v in (*e.verdicts, *run_rules(rank, over_ranks, further=further))}
        complete.append(replace(e, verdicts=tuple(one_owner([verdicts[rule] for rule in rules]))))
    complete = _told_elsewhere(complete, ranks)
    told: set[int] = set()
    for n, rank in enumerate(ranks):
        found = rank.job.found(JobBlame)
        if found is not None and id(rank.job) not in told:
            told.add(id(rank.job))
            complete[n] = replace(complete[n], delays=found.delays)
    return complete


def _told_elsewhere(examinations: Sequence[Examination], ranks: Sequence[RankOfJob]) -> list[Examination]:
    """Without the claims of rules whose fault a claim of another rank of the job names as its cause."""
    told_by: dict[tuple[int, int, str], str] = {}
    for e, rank in zip(examinations, ranks, strict=True):
        for verdict in e.verdicts:
            for claim in verdict.claims:
                for other, codes in claim.tells_of.items():
                    told_by |= {(id(rank.job), other, code): verdict.rule.code for code in codes}
    if not told_by:
        return list(examinations)

    def left(verdict: Verdict, rank: RankOfJob) -> Verdict:
        owner = told_by.get((id(rank.job), rank.rank, verdict.rule.code))
        if owner is None or not verdict.claims:
            return verdict
        return replace(verdict, outcome="passed", claims=(), refers_to=(owner,))

    return [
        replace(e, verdicts=tuple(left(v, rank) for v in e.verdicts))
        for e, rank in zip(examinations, ranks, strict=True)
    ]


def _beside_others(examinations: Sequence[Examination]) -> list[Examination]:
    """The same, where too little is in a capture beside those of other ranks with that as its shortage."""
    reasons = fewer_than_others(
        [e.summary for e in examinations], [e.display.work_events for e in examinations]
    )
    return [
        replace(e, display=e.display.too_little(why)) if why and not e.display.shortage else e
        for e, why in zip(examinations, reasons, strict=True)
    ]


def must_select(examinations: Sequence[Examination], options: Options) -> None:
    """Raises UsageError for steps or a device that no capture has: nothing would be looked at, and that would look like a
    clean bill."""
    displays = [e.display for e in examinations]
    if displays and options.steps is not None and all(d.no_steps for d in displays):
        raise UsageError(f"--steps: {displays[0].no_steps}")
    if options.device is not None:
        there = sorted({device for d in displays for device in d.devices})
        if options.device not in there:
            raise UsageError(
                f"--device {options.device}: the captures have {', '.join(map(str, there)) or 'no GPU work'}"
            )


def merged_findings(examinations: Sequence[Examination], config: Config) -> Merged:
    """The findings of all captures, one for each fault. The examinations are those of `judge`."""
    filings = [
        file_claim(
            verdict.rule,
            on_a_busy_machine(verdict.rule, claim, e.summary.waited_for_cpu),
            number,
            e.rank,
            e.summary.path,
            config.settings,
        )
        for number, e in with_numbers(examinations)
        for verdict in e.verdicts
        for claim in verdict.claims
    ]
    numbers = [number for number, _ in with_numbers(examinations)]
    return merge(filings, config.settings, dict(zip(numbers, job_numbers(examinations), strict=True)))


def _explained_memory(examination: Examination) -> list[MemoryLedgerRow]:
    """What the peaks are made of, and of which categories the claims on the same device speak, silenced or not."""
    spoken_of = [
        (claim.location.device, set(verdict.rule.about) & set(MEMORY_CATEGORIES))
        for verdict in examination.verdicts
        for claim in verdict.claims
    ]
    return [
        msgspec.structs.replace(
            row,
            rank=examination.rank,
            explained=sorted(
                set().union(*(about for device, about in spoken_of if device in (None, row.device)))
            ),
        )
        for row in examination.display.memory_ledger
    ]


def conclude(
    examinations: Sequence[Examination],
    merged: Merged,
    what_ifs: Sequence[Sequence[WhatIf]],
    owned: Sequence[Sequence[OwnershipRow]],
    rules: Sequence[Rule],
    config: Config,
    *,
    suppressed: Sequence[Suppressed] = (),
    scope: Scope | None = None,
) -> Result:
    """The result of all captures together: findings that are not silenced, what they may save together, and the rows of
    each capture. `what_ifs` and `owned`: what `retime` and `ownership` say of each; `scope` says what else was there."""
    scope = scope or Scope()
    visible = merged.without({s.finding.id for s in suppressed})
    limits = _left_out(visible.left_out) + [doubt for e in examinations for doubt in e.display.doubts]
    limits += _coarse([e.summary for e in examinations])
    unjudged = {number for number, e in with_numbers(examinations) if e.display.shortage}
    findings = [_without_saving(f) if f.input in unjudged else f for f in visible.findings]
    findings = limit(findings, MAX_FINDINGS, "findings", limits)
    findings = with_details(findings, limits)
    displays = [(number, e.rank, e.display) for number, e in with_numbers(examinations)]

    def rows(of: Callable[[Display], Sequence[R]]) -> list[R]:
        return [
            msgspec.structs.replace(row, input=number, rank=rank)
            for number, rank, display in displays
            for row in of(display)
        ]

    time = rows(lambda d: d.time_ledger)

    def of_inputs(of_each: Sequence[Sequence[R]]) -> list[R]:
        return [
            msgspec.structs.replace(row, input=number)
            for (number, _), own in zip(with_numbers(examinations), of_each, strict=True)
            for row in own
        ]

    jobs = [
        msgspec.structs.replace(e.delays, job=merged.jobs.get(number, 0))
        for number, e in with_numbers(examinations)
        if e.delays is not None
    ]
    named = [rank for job in jobs for rank in (*job.blamed, *job.usual)]

    def by_interest(of_all: list[S]) -> list[S]:
        """Those of the ranks that delay a job first, then of usual ones to compare with: not all are kept."""
        place = {rank: n for n, rank in reversed([*enumerate(named)])}
        return sorted(of_all, key=lambda row: place.get(row.rank, len(named)))

    what_if = [row for row in of_inputs(what_ifs) if row.input not in unjudged]
    owners = of_inputs(owned)
    memory = limit(rows(lambda d: d.memory_timeline), MAX_LANES, "memory charts", limits)
    return Result(
        tool=Tool(version=VERSION),
        inputs=[
            msgspec.structs.replace(file, job=merged.jobs.get(number, 0), capture=number)
            for number, e in with_numbers(examinations)
            for file in e.display.inputs
        ],
        ignored=limit(
            sorted(scope.ignored, key=lambda i: not i.unread),
            MAX_IGNORED,
            "files that were not analyzed",
            limits,
        ),
        ranks=ranks_of([e.summary for e in examinations], scope),
        incomplete=incomplete([(e.summary, e.display.shortage) for e in examinations], scope),
        summary=summary(examinations, what_if, findings, visible.left_out),
        time_ledger=time,
        ownership=owners,
        memory_ledger=of_inputs([_explained_memory(e) for e in examinations]),
        memory_held=rows(lambda d: d.memory_held),
        memory_pinned=rows(lambda d: d.memory_pinned),
        steps=limit(
            by_interest(rows(lambda d: d.steps)),
            MAX_STEPS,
            "steps",
            limits,
            of=sum(d.step_count for _, _, d in displays),
        ),
        engine_steps=rows(lambda d: d.engine_steps) or UNSET,
        timeline=limit(by_interest(rows(lambda d: d.timeline)), MAX_LANES, "device lanes", limits),
        memory_timeline=[thinned(m, share(MAX_POINTS, len(memory), 40, 400)) for m in memory],
        kernels=rows(lambda d: d.kernels),
        operators=rows(lambda d: d.operators),
        collectives=rows(lambda d: d.collectives),
        what_if=what_if,
        jobs=jobs or UNSET,
        findings=findings,
        outcomes=outcomes(examinations, rules, visible.pairs, unowned(time, owners)),
        suppressed=list(suppressed),
        config=_config(config),
        limits=limits,
        detail=rows(lambda d: d.detail) or UNSET,
    )


def _without_saving(finding: Finding) -> Finding:
    """What a fix saves is no more known than the capture that it is simulated on."""
    return msgspec.structs.replace(finding, saving=None)


def _coarse(summaries: Sequence[RankSummary]) -> list[str]:
    """What is less exact than the captures, with the number of captures of which each is true."""
    counts = Counter(how for summary in summaries for how in summary.coarse)
    return [f"coarsened in {n} summar{'ies' if n > 1 else 'y'}: {how}" for how, n in counts.items()]


def _left_out(count: int) -> list[str]:
    if not count:
        return []
    return [f"{count} finding{'s' if count > 1 else ''} below min-confidence or min-saving left out"]


def _config(config: Config) -> dict[str, Any]:
    """What differs from the defaults, with its origin: the rest is documented."""
    values = msgspec.to_builtins(config.settings)
    return {
        k.replace("_", "-"): {"value": values[k], "origin": origin}
        for k, origin in sorted(config.origins.items())
        if origin != "default" and k not in ("jobs", "output", "source", "baseline")
    }
