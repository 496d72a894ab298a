"""What a result comes to, in sentences: the gravest fault, how much is start-up, what no finding explains, what is missing."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from trace_doctor.model import (
    LOOKED,
    MEMORY_NAMES,
    PART_NAMES,
    Finding,
    MemoryLedgerRow,
    Result,
    Unowned,
    UnownedBlock,
    ranks_text,
    unowned,
    unowned_memory,
)
from trace_doctor.reporters.engine_steps import sentence as engine_sentence
from trace_doctor.reporters.labels import (
    Names,
    bytes_words,
    figure_words,
    how_known,
    peak_words,
    short_kernel,
)
from trace_doctor.reporters.units import estimate_share, plural, share

UNOWNED_FROM = 0.20
"""share of the step without an owner, from which on it is part of the verdict"""
START_UP_FROM = 0.40
"""share of the capture, from which on it tells more of the start than of the steps"""
DOUBT_FROM = 0.10
"""share of the step that a note would save, from which on no verdict reassures: a sure fault of that size is critical"""
FEW_STEPS = 3
"""So many and fewer show no habit"""


def headline(result: Result) -> str:
    """The diagnosis in one sentence: the gravest fault and what it costs, else what keeps it from being a clean bill."""
    return verdict(result)[0]


def verdict(result: Result) -> list[str]:
    """The diagnosis in up to five sentences: the gravest fault, or how much of the capture is start-up and which large fault is
    not certain; how much of the step, and of the memory peak, no finding explains; and which steps an inference engine ran."""
    jobs = {i.job for i in result.inputs}
    if len(jobs) > 1:
        return _verdicts(result)
    if why := not_judged(result):
        return [why]
    warnings = [f for f in result.findings if f.severity != "info"]
    first = next((f for f in warnings if not _is_unjudged(f, result)), next(iter(warnings), None))
    if first is None and not _looked(result):
        return [_without_fault(result)]
    start, rest = _start_up(result), _without_owner(result, bare=first is not None)
    sentences = [_fault(first, result)] if first is not None else []
    doubt = _uncertain(result) if first is None else ""
    sentences += filter(None, (start, doubt, rest, _memory_without_owner(result)))
    if sentences and first is None and result.summary.left_out:
        left_out = plural(result.summary.left_out, "finding")
        sentences.append(f"{left_out} below min-confidence or min-saving left out")
    steps = engine_sentence(result)
    return [*(sentences or [_without_fault(result)]), *([steps] if steps else [])]


def is_clean(result: Result) -> bool:
    """Whether nothing was found, and nothing keeps that from being a clean bill, as much time that no finding explains does."""
    return headline(result) == _without_fault(result)


_MOST_JOBS = 3


def _verdicts(result: Result) -> list[str]:
    """One sentence for each of the first jobs, those with the gravest findings first, and how many more there are."""
    by_job: dict[int, list[int]] = {}
    for number, source in enumerate(result.inputs):
        by_job.setdefault(source.job, []).append(number)
    # the capture that a job's sentence is about: that of its gravest finding, else its first
    named: dict[int, int] = {}
    grave = [f.input for f in result.findings if f.severity != "info" and f.input < len(result.inputs)]
    for number in [*grave, *(numbers[0] for numbers in by_job.values())]:
        named.setdefault(result.inputs[number].job, number)
    sentences = [
        f"{result.inputs[number].path}: {_lower(headline(_of_job(result, job)))}"
        for job, number in list(named.items())[:_MOST_JOBS]
    ]
    more = len(named) - _MOST_JOBS
    return [*sentences, f"{plural(more, 'more job')} in the findings below"] if more > 0 else sentences


def _of_job(result: Result, job: int) -> Result:
    """What of the result is about one job."""

    def own(number: int) -> bool:
        return number < len(result.inputs) and result.inputs[number].job == job

    too_little = [i.too_little for i in result.inputs if i.job == job]
    as_others = too_little[0] if all(too_little) else ""
    inputs = [
        i if i.job == job else msgspec.structs.replace(i, job=job, start_up_share=None, too_little=as_others)
        for i in result.inputs
    ]
    return msgspec.structs.replace(
        result,
        inputs=inputs,
        outcomes=[
            o
            if o.outcome not in LOOKED or o.inputs is None or any(map(own, o.inputs))
            else msgspec.structs.replace(o, outcome="skipped")
            for o in result.outcomes
        ],
        findings=[f for f in result.findings if own(f.input)],
        jobs=[j for j in result.jobs or () if j.job == job] or UNSET,
        time_ledger=[row for row in result.time_ledger if own(row.input)],
        ownership=[row for row in result.ownership if own(row.input)],
        memory_ledger=[row for row in result.memory_ledger if own(row.input)],
    )


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:] if sentence[1:2].islower() else sentence


def _fault(first: Finding, result: Result) -> str:
    if names_who_delays(first, result):
        return first.message.rstrip(".")
    title = first.title or first.name
    saving = first.saving
    if saving and saving.share_of_step and saving.share_of_step >= (saving.share_of_peak or 0.0):
        several = len({i.rank for i in result.inputs if i.kind == "trace"}) > 1
        ranks = first.location.about_ranks
        of_whom = f" ({ranks_text(ranks)})" if several and ranks else ""
        return f"{title}: {how_known(saving)} {figure_words(saving, saving.share_of_step, estimate_share)} of step time{of_whom}"
    if saving and saving.bytes:
        return f"{title}: {how_known(saving)} {figure_words(saving, saving.bytes, bytes_words(saving))} of {peak_words(saving)}"
    return title


def names_who_delays(finding: Finding, result: Result) -> bool:
    """Whether its message says who delays a job of several process groups, by how much and why: more than any title."""
    return any(
        job.blamed == finding.location.ranks
        and finding.saving is not None
        and finding.input < len(result.inputs)
        and result.inputs[finding.input].job == job.job
        for job in result.jobs or ()
        if job.blamed
    )


def _uncertain(result: Result) -> str:
    """The largest fault that is only a note, and what is missing to be sure of it; not where the user made it one."""
    silenced = result.config.get("severity", {}).get("value") or {}
    notes = [
        (f.saving.share_of_step, f, f.saving)
        for f in result.findings
        if f.saving and f.saving.share_of_step and f.code not in silenced and f.name not in silenced
    ]
    size, note, saving = max(notes, key=lambda n: n[0], default=(0.0, None, None))
    if note is None or saving is None or size < DOUBT_FROM:
        return ""
    source = result.inputs[note.input]
    steps = source.pace.steps if source.pace is not None else 0
    if not steps:
        why = "the capture shows no steps: record five or more, marked"
    elif steps <= FEW_STEPS:
        why = f"seen in {plural(steps, 'step')}: record five or more"
    elif saving.basis == "model":
        why = "estimated, not measured: try the fix, and compare with trace-doctor verify"
    elif saving.basis == "bound":
        why = "the simulation does not reproduce this capture: record again, with nothing else running"
    else:
        why = "its finding says why"
    fault, _, _ = _fault(note, result).partition(". ")
    return f"{fault}, which is not certain ({why})"


def _start_up(result: Result) -> str:
    """What a capture that is mostly the start of a program can still tell."""
    most = max(result.inputs, key=lambda i: i.start_up_share or 0.0, default=None)
    if most is None or (most.start_up_share or 0.0) < START_UP_FROM:
        return ""
    steady = most.pace.steps if most.pace is not None else 0
    about = (
        f"findings are about the {plural(steady, 'step')} after it"
        if steady > 1
        else "record steps after it to judge them"
    )
    queued = most.queued_share or 0.0
    if 2 * queued >= (most.start_up_share or 0.0):
        return f"For {share(queued, 0)} of the capture the GPU runs, or waits for, work that was queued before the recording: {about}"
    return f"{share(most.start_up_share or 0.0, 0)} of the capture is start-up (warm-up, lazy initialization, compilation): {about}"


def least_explained(result: Result) -> Unowned | None:
    """The device of which most of the step is neither compute, nor start-up, nor explained; None where that is little."""
    rows = unowned(result.time_ledger, result.ownership)
    worst = max(rows, key=lambda row: sum(row.by_part.values()), default=None)
    return worst if worst is not None and sum(worst.by_part.values()) >= UNOWNED_FROM else None


def unexplained(result: Result) -> list[tuple[str, UnownedBlock, int]]:
    """(part, stretches of one name, number of steady steps) of that device, the largest first."""
    if (worst := least_explained(result)) is None:
        return []
    at = (worst.input, worst.device)
    steps = next(r.steps for r in result.time_ledger if (r.input, r.device) == at and r.phase == "steady")
    blocks = [
        (PART_NAMES.get(row.part, row.part), block, max(steps, 1))
        for row in result.ownership
        if (row.input, row.device) == at
        for block in row.blocks
    ]
    return sorted(blocks, key=lambda b: -b[1].total_us)


def between_words(block: UnownedBlock) -> str:
    """What ran before and behind the longest."""
    ends = [
        f"after {_last_part(block.before)}" if block.before else "",
        f"before {_last_part(block.behind)}" if block.behind else "",
    ]
    return ", ".join(e for e in ends if e)


def _without_owner(result: Result, *, bare: bool) -> str:
    """What of the steps is neither compute nor explained. `bare`: without what the device did."""
    if (worst := least_explained(result)) is None:
        return ""
    rest = sum(worst.by_part.values())
    named = [(part, of) for part, of in worst.by_part.items() if of >= 0.02][:3]
    parts = [f"{PART_NAMES[part]} {share(of, 0)}" for part, of in named]
    if rest - sum(of for _, of in named) >= 0.02:
        parts.append("and others")
    name = Names(result).of(worst.input)
    where = f"{name}: " if name else ""
    if bare:
        return f"{where}{'no' if where else 'No'} finding explains {share(rest, 0)} of the step: {', '.join(parts)}"
    busy = "GPU computes" if worst.device >= 0 else "Main thread computes"
    return f"{where}{busy} {share(worst.compute, 0)} of the step; no finding explains {share(rest, 0)} of it: {', '.join(parts)}"


def unexplained_memory(result: Result) -> tuple[MemoryLedgerRow, dict[str, float]] | None:
    """The device of whose peak most needs a reason that no finding gives, and the shares of it; None where that is little."""
    rows = [(row, unowned_memory(row)) for row in result.memory_ledger]
    row, parts = max(rows, key=lambda r: sum(r[1].values()), default=(None, {}))
    return (row, parts) if row is not None and sum(parts.values()) >= UNOWNED_FROM else None


def _memory_without_owner(result: Result) -> str:
    if (worst := unexplained_memory(result)) is None:
        return ""
    row, parts = worst
    name = Names(result).of(row.input)
    start = f"{name}: no" if name else "No"
    named = [f"{MEMORY_NAMES[part]} {share(of, 0)}" for part, of in parts.items() if of >= 0.02]
    if sum(of for of in parts.values() if of < 0.02) >= 0.02:
        named.append("and others")
    return f"{start} finding explains {share(sum(parts.values()), 0)} of the memory peak: {', '.join(named)}"


def _looked(result: Result) -> int:
    """How many rules could look."""
    return sum(o.outcome in LOOKED for o in result.outcomes)


def nothing_captured(result: Result) -> bool:
    """Traces without a single event of a profiler: whatever passed on them looked at nothing."""
    return bool(result.inputs) and all(i.kind == "trace" and i.events == 0 for i in result.inputs)


def not_judged(result: Result) -> str:
    """That no capture holds enough, or nothing that can be so, and why the first does not; empty where one does."""
    reasons = [i.too_little for i in result.inputs]
    return f"Not judged: {reasons[0]}" if reasons and all(reasons) else ""


def _is_unjudged(finding: Finding, result: Result) -> bool:
    """Whether the capture that a finding is of holds too little, or what cannot be so."""
    return finding.input < len(result.inputs) and bool(result.inputs[finding.input].too_little)


def shortages(result: Result) -> list[str]:
    """What this diagnosis is not of: captures that were not read, ranks that are missing, captures with too little."""
    few = dict.fromkeys(f"{i.path} cannot be judged: {i.too_little}" for i in result.inputs if i.too_little)
    return list(dict.fromkeys([*result.incomplete, *few]))


def _without_fault(result: Result) -> str:
    if nothing_captured(result):
        return "No torch.profiler events were recorded; `trace-doctor capture` prints how to record some"
    looked = _looked(result)
    if not looked:
        why = ": the snapshot has no usable allocation history" if result.memory_held else ""
        return f"No rule could run{why}"
    if result.findings:
        return f"No warnings; {len(result.findings):,} info"
    blind = sum(o.outcome in ("skipped", "error") for o in result.outcomes)
    rest = f", {blind:,} skipped" if blind else ""
    above = " above min-confidence and min-saving" if result.summary.left_out else ""
    return f"No problems{above}{but_suppressed(result)}: {plural(looked, 'rule')} passed{rest}"


def but_suppressed(result: Result) -> str:
    """What keeps "nothing found" from being a clean bill."""
    return f" but {plural(len(result.suppressed), 'suppressed finding')}" if result.suppressed else ""


def _last_part(name: str) -> str:
    """`at::native::vectorized_elementwise_kernel` -> `vectorized_elementwise_kernel`; operators keep their namespace."""
    short = short_kernel(name)
    return short if short.startswith(("aten::", "c10d::")) else short.rsplit("::", 1)[-1] or short
