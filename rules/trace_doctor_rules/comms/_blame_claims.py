"""TD602 and TD606 in a job of several process groups: who delays it, by its ranks timed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from trace_doctor import Claim, Confidence, Context, Fix, Location, Saving, Severity, Table
from trace_doctor.evidence.compute.gpu_clock import RankClocks
from trace_doctor.evidence.distributed.blame.evidence import JobBlame
from trace_doctor.evidence.distributed.blame.verdicts import Link, Root
from trace_doctor.evidence.distributed.ranked_collectives import RankedCollectives
from trace_doctor.evidence.distributed.ranks import Ranks, listed, named
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.intervals import total
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor_rules._shared import advice, spans_of, table
from trace_doctor_rules.comms._straggler_causes import LOWER_CLOCK, lower_clock

ENOUGH_STEPS = 3
"""of fewer, standard errors tell little"""
READ = 0.95
"""share of the ranks of the job of which the verdict is sure"""
_HOW = "the steps of all ranks timed again with {} no slower than ranks with the same role"


def delays(ctx: Context, found: JobBlame) -> Iterator[Claim]:
    """TD602: the ranks or hosts that delay the job, else the links. One finding, of the first of its ranks that was read."""
    verdict, step = found.verdict, ctx[Steps].step_ns
    if verdict.roots:
        late = [rank for root in verdict.roots for rank in root.ranks]
        if ctx.rank == late[0]:
            yield _late(ctx, found, late, step)
    elif verdict.links:
        link = verdict.links[0]
        ranks = [rank for n in link.groups for rank in found.groups[n]]
        if ctx.rank == min(set(ranks) & set(found.ranks)):
            yield _slow_link(ctx, found, link, step)


def _late(ctx: Context, found: JobBlame, late: Sequence[int], step: int) -> Claim:
    ranked, gain = ctx[RankedCollectives], min(found.verdict.gain_ns, step)
    positions = [ranked.ranks.index(rank) for rank in late if rank in ranked.ranks]
    waits = {rank: ranked.waits_for(positions, rank) for rank in ranked.ranks}
    longest = max(map(total, waits.values())) / ctx[Steps].count
    slower = _same_kernels_slower(ctx[Ranks], found)
    clocks = None
    if slower is not None:
        clocks = lower_clock(ctx[Ranks], ctx.get(RankClocks), late, found.delays.usual)
    return Claim(
        message=_who_delays(found, gain, step, slower, clocks) + _doubt(found),
        confidence=_confidence(found),
        severity=_severity(found),
        saving=Saving(
            time_us_per_step=gain / 1e3,
            share_of_step=gain / max(step, 1),
            basis="replay",
            how=f"{_HOW.format('these' if len(late) > 1 else 'it')}; of up to {milliseconds(longest / 1e3)} that others wait for "
            f"{'these' if len(late) > 1 else 'it'} now, they would wait the rest for the next slowest rank",
        ),
        location=Location(ranks=list(late)),
        evidence=[_roots(found), _figures(found), ctx[Ranks].table()],
        fixes=[_investigate(found, slower, clocks)],
        tells_of={late[0]: ("TD310",)} if clocks is not None else {},
        owned_on={rank: spans_of(own) for rank, own in waits.items()},
        key="straggler",
    )


def _slow_link(ctx: Context, found: JobBlame, link: Link, step: int) -> Claim:
    gain = min(link.gain_ns, step)
    ranks = sorted({rank for n in link.groups for rank in found.groups[n]})
    cost = f"{milliseconds(gain / 1e3)} ({gain / max(step, 1):.1%})"
    often = f"in {link.steps} of {found.verdict.steps} steps"
    if link.unread:
        what = f"{named(link.unread)} {'was' if len(link.unread) == 1 else 'were'} not read and may delay the others by {cost}, {often}."
    else:
        what = f"A step takes {milliseconds(step / 1e3)}; {cost} for slow transfers between {named(ranks).lower()}, {often}."
    return Claim(
        message=what + _doubt(found),
        confidence="low" if link.unread else _confidence(found),
        severity="info" if link.unread else _severity(found),
        saving=Saving(
            time_us_per_step=gain / 1e3,
            share_of_step=gain / max(step, 1),
            basis="replay",
            how="the steps of all ranks timed again with transfers as long as in other groups of this size",
        ),
        location=Location(ranks=[rank for rank in ranks if rank in found.ranks]),
        evidence=[_figures(found), ctx[Ranks].table()],
        fixes=[_RECORD_ALL if link.unread else _CHECK_LINK],
        key="straggler",
    )


def imbalance(ctx: Context, found: JobBlame) -> Iterator[Claim]:
    """TD606: a role with more work than others, or uneven batches."""
    verdict, ranks = found.verdict, ctx[Ranks]
    step = ranks.step_ns[ranks.ranks.index(ctx.rank)] if ctx.rank in ranks.ranks else 0
    if verdict.stage is not None and ctx.rank == verdict.stage.ranks[0]:
        yield Claim(
            message=(
                f"{named(verdict.stage.ranks)} have {verdict.stage.times:.2f} times the work per step of other pipeline stages "
                f"or roles.{_doubt(found)}"
            ),
            confidence="low",
            severity="info",
            location=Location(ranks=list(verdict.stage.ranks)),
            evidence=[ranks.table()],
            fixes=[_BALANCE_STAGES],
            key="stage",
        )
    if verdict.batches is not None and ctx.rank == found.ranks[0]:
        yield Claim(
            message=(
                f"The work of a rank varies by {verdict.batches.deviation:.0%} from step to step, alike on ranks that share a batch. "
                f"A step takes {milliseconds(step / 1e3)}, {verdict.slowdown_own:.2f} times as long as with even work.{_doubt(found)}"
            ),
            confidence="low",
            severity="info",
            location=Location(ranks=list(found.ranks)),
            evidence=[_figures(found), ranks.table()],
            fixes=[_BALANCE_BATCHES],
            key="batches",
        )


def _who(root: Root) -> str:
    return named(root.ranks).lower()


def _who_delays(
    found: JobBlame, gain: float, step: int, slower: float | None, clocks: tuple[float, float] | None
) -> str:
    """`Rank 5 delays all 64 ranks by 1.07 ms per step of 8.70 ms (12%), in 5 of 5 steps. ….`"""
    verdict = found.verdict
    whom = f"all {found.world:,} ranks" if len(found.ranks) >= found.world else "the job"
    cost = f"{whom} by {milliseconds(gain / 1e3)} per step of {milliseconds(step / 1e3)} ({gain / max(step, 1):.1%})"
    first, *others = verdict.roots
    if others:
        who = listed([_with_cause(root, verdict.steps) for root in verdict.roots])
        return f"{who[0].upper()}{who[1:]} delay {cost}."
    text = f"{named(first.ranks)} {'delays' if len(first.ranks) == 1 else 'delay'} {cost}"
    if verdict.steps > 1:
        text += f", in {first.steps} of {verdict.steps} steps"
    if slower is not None:
        why = "" if clocks is None else f": its SM clock is {clocks[0]:,.0f} MHz, theirs {clocks[1]:,.0f} MHz"
        return f"{text}. It runs as many kernels as ranks with the same role, and computes {slower:.2f} times as long{why}."
    return f"{text}: excess time in {first.cause}." if first.cause else f"{text}."


def _with_cause(root: Root, steps: int) -> str:
    about = [root.cause] if root.cause else []
    about += [f"in {root.steps} of {steps} steps"] if steps > 1 else []
    return f"{_who(root)} ({', '.join(about)})" if about else _who(root)


def _same_kernels_slower(ranks: Ranks, found: JobBlame) -> float | None:
    """How many times as long the one rank that delays the job computes, if it runs as many kernels as usual ranks of its role; else
    None: it has more work, or nothing tells."""
    first, usual = found.verdict.roots[0], found.delays.usual
    if len(found.verdict.roots) > 1 or len(first.ranks) > 1 or first.cause != "compute" or not usual:
        return None
    own, *others = (ranks.ranks.index(rank) for rank in (first.ranks[0], *usual))
    kernels, computes = ranks.kernels[own], mean(ranks.compute_ns[n] for n in others)
    if kernels is None or computes <= 0 or any(ranks.kernels[n] != kernels for n in others):
        return None
    return ranks.compute_ns[own] / computes


def _doubt(found: JobBlame) -> str:
    if len(found.ranks) < found.world:
        return f" Only {len(found.ranks)} of {found.world} ranks were read."
    if found.verdict.steps < ENOUGH_STEPS:
        return f" Only {found.verdict.steps} {'step was' if found.verdict.steps == 1 else 'steps were'} observed."
    if found.verdict.unknown_clocks:
        return f" The clocks of {len(found.verdict.unknown_clocks)} ranks could not be compared."
    return ""


def _confidence(found: JobBlame) -> Confidence:
    sure = len(found.ranks) >= READ * found.world and not found.verdict.unknown_clocks
    return "medium" if sure and found.verdict.steps >= ENOUGH_STEPS else "low"


def _severity(found: JobBlame) -> Severity | None:
    return "info" if found.verdict.steps < ENOUGH_STEPS else None


def _roots(found: JobBlame) -> Table:
    return table(
        "Ranks that delay the job",
        {"ranks": "text", "saved without": "us", "slow in steps": "count", "excess time": "text"},
        [[_who(r), r.gain_ns / 1e3, r.steps, r.cause or "not explained"] for r in found.verdict.roots],
    )


def _figures(found: JobBlame) -> Table:
    verdict = found.verdict
    return table(
        "Step time over that of even ranks and transfers",
        {"what is even": "text", "factor": "count"},
        [
            ["work and transfers", round(verdict.slowdown, 3)],
            ["work", round(verdict.slowdown_own, 3)],
            ["transfers", round(verdict.slowdown_transfer, 3)],
        ],
    )


def _investigate(found: JobBlame, slower: float | None, clocks: tuple[float, float] | None) -> Fix:
    who = listed([_who(root) for root in found.verdict.roots])
    if slower is None:
        title = f"Investigate {who}"
        text = (
            f"Compare with a rank that has the same role: the clocks of the GPU (`{_CLOCKS}`), the data it works on, and what "
            "else runs on its host."
        )
    elif clocks is not None:
        title, text = f"Check the GPU cooling and power limit of {who}", LOWER_CLOCK
    else:
        title = f"Compare clocks of {who} and rank {found.delays.usual[0]}"
        text = (
            f"Run `{_CLOCKS}` on both. As many kernels that take longer: the GPU runs at lower clocks (heat, a power limit), shares its device, or works on "
            "larger inputs. If the clocks agree, compare the sizes of the batches."
        )
    return advice(
        title=title,
        text=text,
        verify="record all ranks again: TD602 is gone and the step is shorter",
        risk="none: nothing is changed",
    )


_CLOCKS = "nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE"
_CHECK_LINK = advice(
    title="Check the link between these ranks",
    text="Run nccl-tests between these ranks and between others. Check `nvidia-smi topo -m`, `nvidia-smi nvlink -s` and the "
    "counters of the network interfaces.",
    verify="record all ranks again: TD602 is gone and the step is shorter",
    risk="none: nothing is changed",
)
_RECORD_ALL = advice(
    title="Record all ranks",
    text="The others wait for these ranks, or the transfer to them is slow: only their own trace tells which.",
    verify="analyze the folder with all traces: TD602 names a rank or a link",
    risk="none: nothing is changed",
)
_BALANCE_STAGES = advice(
    title="Balance the pipeline stages",
    text="Move layers to stages with less work. The first stage also has the embedding, the last one the loss.",
    verify="record all ranks again: the stages take the same time",
    risk="the layout of checkpoints changes",
)
_BALANCE_BATCHES = advice(
    title="Balance the batches",
    text="Pack sequences to equal token counts, or sort them by length and deal them out in turn.",
    verify="record all ranks again: steps take the same time",
    risk="the order of samples changes, and with it the losses",
)
