"""TD602 straggler."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

import numpy as np

from trace_doctor import NOTE_FROM, Claim, Confidence, Context, Location, Rule, Saving, threshold
from trace_doctor.evidence.compute.gpu_clock import RankClocks
from trace_doctor.evidence.distributed.blame.evidence import JobBlame
from trace_doctor.evidence.distributed.blame.verdicts import DELAY, DelayLimits
from trace_doctor.evidence.distributed.ranked_collectives import RankedCollectives
from trace_doctor.evidence.distributed.ranks import Ranks, named
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, Valid
from trace_doctor_rules._shared import spans_of
from trace_doctor_rules.comms import _straggler_cases as cases
from trace_doctor_rules.comms._blame_cases import DELAYS_INVALID, DELAYS_VALID
from trace_doctor_rules.comms._blame_claims import delays
from trace_doctor_rules.comms._late_ranks import (
    best_alone,
    late_ranks,
    standard_errors,
    steps_late,
    the_others,
    waits_table,
)
from trace_doctor_rules.comms._straggler_causes import (
    advice,
    by_ranks,
    causes_of,
    lost_spans,
    record_more,
)
from trace_doctor_rules.comms._straggler_evidence import lateness

_WORTH_SAYING = 0.05
"""share of the wait from which on a part of it is told apart"""
_FEW = 3
"""fewer steps do not show whether the same rank is late in each"""
_EIGHTY = 1.28
"""so many standard errors to either side hold 80%"""


class Straggler(Rule):
    """Some ranks arrive late at collectives, and all others wait for them.

    What it does
    Matches the collectives of all ranks and finds the ranks that the others wait for. Reports how long they wait, and what
    the stragglers do meanwhile, where their time breakdown explains it.

    Why is this bad
    A collective ends when its last rank has arrived, so the slowest rank sets the pace of all. The wait of the others is
    recorded as communication, and looks like a slow network where there is none.

    Evidence
    Traces of two or more ranks of one job, recorded at the same time. The k-th collective of a kind and process group
    counted from the end of the capture (or by its recorded sequence number) is the same on every rank if those
    that overlap in time, or end nearer to one another than to the next, take 95% of the time of their kind. On each rank the
    time beyond the shortest over all ranks is waiting. What overlaps with compute does not count. Stragglers wait least, are at
    most half of the ranks, and cause at least 80% of the waiting: it is in collectives at which they arrive last. Where they are
    half of the ranks, each of them is late in the steps that hold most of it: two of four that are late in turn are chance. Without such ranks, a wait that takes 10% of the step on some rank is an info finding: how long the ranks wait, which one is last,
    how often and by how much, and what of it is there because they began the first step at different times.
    In a job of several process groups a rank that comes late may only hand on a delay. There the steps of all ranks are timed again
    with the ranks on the critical path no slower than the median of their role, and what the job gains names them. Of fewer than
    three steps it is an info finding. Groups with slow transfers are named where no rank is.
    What they do longer than the others is named as the cause where it covers 80% of the delay, a single part with its share from half
    of it on. A recording of `trace-doctor record` says how long ranks waited for a CPU: where that is half of the delay, it is the
    cause. Other traces do not tell, and the finding says so where the host takes longer. Where the SM clock was sampled on all ranks, and
    those that compute longer do so at a clock 5% below that of any other, which explains 80% of it, throttling is the cause.

    How the saving is estimated
    The collectives of all ranks are replayed with the stragglers never last: each then begins when the last of the other ranks
    comes. An upper bound of what all stragglers cost together: the other ranks do not get faster. What the others wait for one
    of them alone, while the rest stay late, is in the table. Where they compute longer, it is an estimate: balanced over the
    ranks their work remains, and of two ranks, one of them late, half the wait is saved. Its interval runs from that minus
    1.28 standard errors of the wait over the steps to all of the wait, which applies if the device is slow and not its work larger.
    Of a job that was read in part it is an info finding: ranks that were not read may be later.

    Fix
    What makes those ranks slow: their data, their host, their share of the work, or their GPU. The finding names it
    where the time breakdowns of the ranks differ by it.

    Fix safety
    Advice only.

    When to ignore
    When ranks do different work on purpose (pipeline stages), or their captures started at different times, so that the
    first steps only wait for the profiler to start.

    References
    https://docs.pytorch.org/tutorials/intermediate/monarch_distributed_tutorial.html
    https://hta.readthedocs.io/en/latest/source/intro/trace_collection.html
    """

    code = "TD602"
    name = "straggler"
    title = "Straggler delays all ranks"
    costs_host_time = True
    about = ("exposed_comm",)
    yields_to = ("TD708",)
    needs = (RankedCollectives, Ranks, Steps)
    wants = (JobBlame, RankClocks)
    limits = (DelayLimits,)

    min_share: float = threshold(
        0.03,
        "what all ranks save if the stragglers are never last, as a share of the step",
        unit="share",
        source="the severity `warning` begins there",
        note_from=NOTE_FROM,
    )
    min_caused: float = threshold(
        0.8,
        "share of all waiting that is in collectives at which the stragglers arrive last",
        unit="share",
        source="94% for the two slow ranks of a real Megatron job of eight, 52% for the slower of them alone",
    )
    min_errors: float = threshold(
        DELAY.min_errors,
        "excess wait of the others over its own standard error, over the steps (of fewer than three: also the collectives); "
        "with several process groups the excess work of the rank",
        source="two standard errors; equal ranks on a shared machine reach 1.1, a rank that sleeps 2.9",
    )
    min_gain: float = threshold(
        DELAY.min_gain,
        "with several process groups: what the job gains without the excess work of all ranks that are named, as a share of the step",
        unit="share",
        source="healthy simulated jobs gain up to 0.2% by chance",
    )
    min_spreads: float = threshold(
        DELAY.min_spreads,
        "with several process groups: excess work in a step over the spread of ranks with the same role, from which on a rank is "
        "slow in it; two such steps are enough",
        source="five standard deviations, taken from the median of the deviations",
    )
    min_link: float = threshold(
        DELAY.min_link,
        "with several process groups: what the job gains with usual transfers in one of them, as a share of the step",
        unit="share",
        source="the severity `warning` begins there; nothing is gained in healthy simulated jobs",
    )
    many: int = threshold(
        20,
        "collectives of a single step that are enough to be sure",
        source="with 20 the error is below a quarter of the spread",
    )
    min_steps: float = threshold(
        0.5,
        "where half of the ranks are late: waiting in steps in which each of them waits at most half as long as the others",
        unit="share",
        source="most of it decides; 0.44 where another of four ranks of an inference server was last in each step",
    )
    min_wait: float = threshold(
        0.1,
        "wait of a rank in collectives that is an info finding without a straggler, as a share of its step",
        unit="share",
        source="from there on time that no finding owns leaves a rule undecided",
    )
    min_explained: float = threshold(
        0.8, "part of the delay that a cause must cover to be named", unit="share", source="rule of thumb"
    )

    min_part: float = threshold(
        0.5,
        "part of the delay from which on one cause is named with its share",
        unit="share",
        source="more than all others together",
    )
    max_causes: int = threshold(3, "causes to name", source="more explain nothing")

    VALID = [
        Valid("ranks in step", lambda: cases.job(0, 0, 0, 0)),
        Valid("late by less than it costs", lambda: cases.job(0, 20, 0, 0)),
        Valid("late in one step of ten", lambda: cases.job(0, 900, 0, 0, steps=10, every=10)),
        Valid("one rank alone", lambda: cases.job(0), skipped="one rank"),
        *DELAYS_VALID,
    ]
    INVALID = [
        Invalid(
            "one rank of four computes longer",
            lambda: cases.job(0, 500, 0, 0),
            saving_us=375,
            message="Each of the others waits at least 0.500 ms per step for it (29%). Excess time: compute.",
            confidence="medium",
            fixes=("Compute takes longer",),
            shown="1 | 0.0 | 200.0 | 1.0 | 5 | 500.0 | yes | 500.0",
        ),
        Invalid("one rank loads longer", lambda: cases.job(0, 0, 400, 0, loading=(2,)), message="data loading", fixes=("The loader is slow",)),
        Invalid(
            "late to one collective of five, by far the longest wait",
            lambda: cases.job(0, 500, 0, 0, small=4),
            saving_us=375,
            message="Rank 1 causes 9",
        ),
        Invalid("the same in two steps", lambda: cases.job(0, 500, 0, 0, small=4, steps=2), message="Rank 1"),
        Invalid("two of eight", lambda: cases.job(300, 0, 0, 0, 0, 0, 310, 0), message="Ranks 0 and 6 cause"),
        Invalid(
            "two late, each for a reason of its own",
            lambda: cases.job(0, 480, 500, 0, 0, 0, loading=(2,)),
            message="Excess time: rank 1 compute; rank 2 data loading (CPU contention was not recorded).",
            fixes=("Rank 1: Compute takes longer", ),
        ),
        *(
            Invalid(name, lambda late=late: cases.late_in(*late), saving_us=cases.truth(*late), tolerance=0.02, message=message)  # type: ignore[misc]
            for name, late, message in cases.SEVERAL
        ),
        Invalid(
            "another one of two is late in each step",
            lambda: cases.late_in((500, 0, 0, 0), (0, 500, 500, 0), size=4),
            severity="info",
            confidence="low",
            message="Rank 1 causes 67% of it",
        ),
        Invalid(
            "two of eight, and half of the ranks were read",
            lambda: cases.late_in((300,), (200,))[:4],
            confidence="low",
            message="Low confidence: only 4 of 8 ranks were read.",
        ),
        Invalid("two causes", lambda: cases.two_causes(300, 200), message="Excess time: compute and data loading"),
        Invalid(
            "two causes, one of which is most of it",
            lambda: cases.two_causes(300, 200),
            thresholds={"max_causes": 1},
            message="Excess time: compute, 0.300 ms of 0.500 ms, the rest unexplained.",
        ),
        Invalid(
            "it waited for a CPU",
            lambda: cases.two_causes(0, 500, (0.02, 0.3, 0.02, 0.02)),
            message="Excess time: CPU contention, 0.4",
            fixes=("Start fewer processes per host",),
        ),
        Invalid(
            "at a lower clock than the others",
            lambda: cases.at_clocks(1980, 1410, 1980, 1980),
            message="Excess time: throttling (SM clock 1,410 MHz, others 1,980 MHz).",
            fixes=("ask the driver for the reason",),
            shown="yes",
        ),
        Invalid("at a clock as high", lambda: cases.at_clocks(1980, 1965, 1980, 1980), message="Excess time: compute."),
        Invalid("others at a clock as low", lambda: cases.at_clocks(1980, 1410, 1410, 1980), message="Excess time: compute."),
        Invalid("at a clock that explains little of it", lambda: cases.at_clocks(1980, 1800, 1980, 1980), message="Excess time: compute."),
        Invalid("the clocks of others were not sampled", lambda: cases.at_clocks(None, 1410, 1980, 1980), message="Excess time: compute."),
        Invalid("another kind of GPU", lambda: cases.at_clocks(1980, 1410, 1980, 1980, other="NVIDIA L4"), message="Excess time: compute."),
        Invalid("all waited alike", lambda: cases.two_causes(0, 500, (0.3, 0.3, 0.3, 0.3)), message="Excess time: data loading."),
        Invalid("one of two", lambda: cases.job(0, 500), message="The other waits"),
        Invalid(
            "in one step, at many places",
            lambda: cases.job(0, 500, 0, 0, steps=1, small=4),
            thresholds={"many": 5, "min_errors": 0.0},
            confidence="medium",
        ),
        Invalid(
            "in one step, at few places",
            lambda: cases.job(0, 500, 0, 0, steps=1, small=4),
            thresholds={"many": 6, "min_errors": 0.0},
            confidence="low",
        ),
        Invalid(
            "late in one step of two",
            lambda: cases.job(0, 900, 0, 0, steps=2, every=2),
            severity="info",
            message="0.338 ms per step on average, rank 0 for 0.450 ms (27%). Rank 1 causes 100% of it: last to 1 of 2 collectives, by up to 0.900 ms.",
        ),
        Invalid("late to the only collective", lambda: cases.job(0, 900, 0, 0, steps=1), severity="info", confidence="low", message="last to 1 of 1"),
        Invalid("others cause as much", lambda: cases.job(0, 500, 0, 0), thresholds={"min_caused": 1.1}, severity="info", message="for 0.500 ms (29%)."),
        Invalid(
            "began a single step later, and another rank is slower in it",
            cases.began_apart,
            thresholds={"min_errors": 9.0},
            severity="info",
            message="0.600 ms of the average was there because they began the first step up to 1.00 ms apart. Rank 1 causes 100% of the rest",
            shown="0 | 1300.0 | 800.0 | 400.0 | 0.0 | 0",
        ),
        Invalid("began a single step later, for which the others waited most", cases.began_apart, thresholds={"min_errors": 0.0, "min_caused": 0.5}, severity="info"),
        Invalid("more causes than are named", lambda: cases.job(0, 500, 0, 0), thresholds={"max_causes": 0}, message="0.500 ms per step for it (29%).", fixes=("",)),
        *DELAYS_INVALID,
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        collectives, steps = ctx[RankedCollectives], ctx[Steps]
        if (blame := ctx.get(JobBlame)) is not None:
            yield from delays(ctx, blame)
            worst = int(np.argmax(collectives.wait_share))
            if not blame.delayed and ctx.rank == collectives.ranks[worst]:
                yield from self._no_straggler(ctx, collectives, collectives.wait_share[worst], of_groups=True)
            return
        late = late_ranks(collectives, self.min_caused)
        worst = int(np.argmax(collectives.wait_share))
        if ctx.rank not in {collectives.ranks[i] for i in (*late[:1], worst)}:
            return  # the job has one finding: that of the straggler, else of the rank that waits most
        others = [i for i in range(len(collectives.ranks)) if i not in late]
        waited = collectives.saved_without(late) if late else 0.0
        length = max(member[Steps].step_ns for member in collectives.members)
        share = waited / length if length else 0.0
        before = lateness(collectives).before_ns
        if late and 2 * min(before[i] for i in others) >= waited:
            late = []  # the first steady step began apart, and no later one shows whether that comes back
        errors = standard_errors(collectives, late, others) if late else 0.0
        in_turn = len(late) == len(others) and steps.count >= _FEW
        steady = bool(late) and (not in_turn or steps_late(collectives, late, others) >= self.min_steps)
        if not steady or share < self.min_share or errors < self.min_errors:
            if ctx.rank == collectives.ranks[worst]:
                yield from self._no_straggler(ctx, collectives, collectives.wait_share[worst])
            return
        if ctx.rank != collectives.ranks[late[0]]:
            return
        caused = sum(collectives.caused_ns[i] for i in late) / sum(collectives.caused_ns)
        matched = sum(m.start.shape[1] for m in collectives.matches)
        ranks = ctx[Ranks]
        numbers = [collectives.ranks[i] for i in late]
        who = named(numbers)
        causes = causes_of(collectives, ranks, ctx.get(RankClocks), late, self)
        because = f" Excess time: {by_ranks(causes)}." if any(cause.parts for cause, _ in causes) else ""
        confidence: Confidence = "medium" if steps.alike > 1 or matched >= self.many else "low"
        read, size = collectives.read
        if read < size:
            confidence, because = "low", f" Low confidence: only {read} of {size} ranks were read."
        alone = {i: collectives.saved_without([i]) for i in late}
        yield Claim(
            message=(
                f"{who} {'cause' if len(late) > 1 else 'causes'} {caused:.0%} of the wait in collectives. "
                f"{the_others(len(others))} {milliseconds(waited / 1e3)} per step for "
                f"{'it' if len(late) == 1 else 'them'} ({share:.0%}){best_alone(collectives, alone)}.{because}"
            ),
            confidence=confidence,
            saving=_saving(
                waited,
                length,
                any("compute" in c.parts for c, _ in causes),
                len(late) / len(collectives.ranks),
                errors,
            ),
            location=Location(ranks=numbers),
            evidence=[waits_table(collectives, alone), ranks.table()],
            fixes=[advice(who, causes)],
            owned_on={
                rank: [*spans_of(collectives.waits_for(late, rank)), *lost_spans(ranks, rank, causes)]
                for rank in collectives.ranks
            },
            tells_of={rank: ("TD310",) for cause, of in causes if cause.clocks for rank in of},
            key="straggler",
        )

    def _no_straggler(
        self, ctx: Context, ranked: RankedCollectives, share: float, *, of_groups: bool = False
    ) -> Iterator[Claim]:
        """How long ranks wait for one another, where no few of them can be said to delay the rest. `share`: the wait of this
        rank, the one that waits most. `of_groups`: the job has several process groups, and who comes last may only hand on a delay."""
        if share < self.min_wait:
            return
        own = ranked.ranks.index(ctx.rank)
        late = lateness(ranked)
        average, before = mean(ranked.wait_ns), mean(late.before_ns)
        sentences = [
            f"Ranks wait for one another in collectives for {milliseconds(average / 1e3)} per step on average, "
            f"rank {ctx.rank} for {milliseconds(ranked.wait_ns[own] / 1e3)} ({share:.0%})."
        ]
        if before >= _WORTH_SAYING * average:
            began = f"they began the first step up to {milliseconds(max(late.began_ns) / 1e3)} apart"
            sentences.append(
                f"{milliseconds(before / 1e3)} of the average {'was' if ranked.members[0][Steps].count == 1 else 'is'} there because {began}."
            )
        caused = [rank.caused_ns for rank in late.ranks]
        if not of_groups and any(caused) and average - before >= _WORTH_SAYING * average:
            at = int(np.argmax(caused))
            most = late.ranks[at]
            sentences.append(
                f"Rank {ranked.ranks[at]} causes {most.caused_ns / sum(caused):.0%} of {'the rest' if len(sentences) > 1 else 'it'}: "
                f"last to {most.last_to} of {late.collectives} collectives, by up to {milliseconds(most.longest_ns / 1e3)}."
            )
        yield Claim(
            message=" ".join(sentences),
            confidence="low",
            severity="info",
            location=Location(ranks=list(ranked.ranks)),
            evidence=[waits_table(ranked, {}), ctx[Ranks].table()],
            fixes=[record_more()],
            owned_on={
                rank: spans_of(ranked.waits_for(range(len(ranked.ranks)), rank)) for rank in ranked.ranks
            },
            key="waits",
        )


def _saving(waited: float, step_ns: int, compute: bool, late: float, errors: float) -> Saving:
    """`late`: share of the ranks that are. Work is shared out, and stays; anything else may go."""
    how = "the collectives of all ranks replayed with the stragglers never last"
    left = 1.0 - late if compute else 1.0
    saving = Saving(
        time_us_per_step=waited * left / 1e3,
        share_of_step=waited * left / step_ns,
        basis="bound",
        how=f"{how}; their excess compute is balanced over all ranks" if compute else how,
    )
    return saving.about(1 - _EIGHTY / max(errors, _EIGHTY), 1 / left) if compute else saving
