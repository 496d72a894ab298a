"""TD602 straggler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from statistics import mean

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from trace_doctor import (
    NOTE_FROM,
    Cell,
    Claim,
    Confidence,
    Context,
    Fix,
    Location,
    Rule,
    Saving,
    Table,
    Unit,
    threshold,
)
from trace_doctor.evidence.distributed.blame.evidence import JobBlame
from trace_doctor.evidence.distributed.collectives import RankedCollectives
from trace_doctor.evidence.distributed.ranks import PARTS, Ranks, listed, named
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules._shared import spans_of, table
from trace_doctor_rules.comms._blame_claims import delays
from trace_doctor_rules.comms._straggler_evidence import lateness

_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"

TWO_VALUES = 7.0
"""the spread of two values is itself uncertain: their mean must be so many times as many standard errors away as that of
many values to be as sure (Student's t of one degree of freedom: 14 for 2)"""


def _job(
    *late_us: float, steps: int = 5, loading: Sequence[int] = (), every: int = 1, small: int = 0
) -> tuple[RunBuilder, ...]:
    """Ranks that compute for 1 ms a step and join in an all-reduce of 0.2 ms; each is late by its own time in every
    so-many-th step, those of `loading` because of their loader. Then they join in small ones, to which rank 0 is late by 5 us."""
    ranks = tuple(RunBuilder(rank=r, world_size=len(late_us)) for r in range(len(late_us)))
    for n in range(steps):
        with ExitStack() as step:
            for r, (b, us) in enumerate(zip(ranks, late_us, strict=True)):
                step.enter_context(b.step())
                late = us if n % every == 0 else 0.0
                b.loader(10 + late if r in loading else 10)
                with b.op("aten::mm"):
                    b.launch(1000 if r in loading else 1000 + late)
            _all_reduce(ranks)
            for _ in range(small):
                for b in ranks:
                    b.launch(10 if b is not ranks[0] else 15)
                _all_reduce(ranks)
            for b in ranks:
                b.sync()
    return ranks


def _two_causes(compute_us: float, loading_us: float, waited: Sequence[float] = ()) -> tuple[RunBuilder, ...]:
    """Four ranks, one of which computes and loads longer than the others. `waited`: of each rank the share of its time in
    which it waited for a CPU."""
    ranks = tuple(RunBuilder(rank=r, world_size=4) for r in range(4))
    for b, share in zip(ranks, waited, strict=False):
        b.waited_for_cpu = share
    for _ in range(5):
        with ExitStack() as step:
            for r, b in enumerate(ranks):
                step.enter_context(b.step())
                b.loader(10 + loading_us * (r == 1))
                with b.op("aten::mm"):
                    b.launch(1000 + compute_us * (r == 1))
            _all_reduce(ranks)
            for b in ranks:
                b.sync()
    return ranks


def _late_in(*late_us: Sequence[float], size: int = 8) -> tuple[RunBuilder, ...]:
    """Eight steps of a job of `size` ranks, as above; the first ranks are late by so much, one step after another."""
    ranks = tuple(RunBuilder(rank=r, world_size=size) for r in range(size))
    for n in range(8):
        with ExitStack() as step:
            for r, b in enumerate(ranks):
                step.enter_context(b.step())
                b.loader(10)
                with b.annotation("preprocess") if r < len(late_us) else nullcontext():
                    b.wait(late_us[r][n % len(late_us[r])] if r < len(late_us) else 0)
                with b.op("aten::mm"):
                    b.launch(1000)
            _all_reduce(ranks)
            for b in ranks:
                b.sync()
    return ranks


def _began_apart() -> tuple[RunBuilder, ...]:
    """Four ranks of a single step: the last began it 1 ms after the others, and takes 200 us less until they meet; then rank 1
    takes 500 us longer until they meet again."""
    ranks = tuple(RunBuilder(rank=r, world_size=4) for r in range(4))
    ranks[3].wait(1000)
    with ExitStack() as step:
        for r, b in enumerate(ranks):
            step.enter_context(b.step())
            b.loader(10)
            with b.op("aten::mm"):
                b.launch(800 if r == 3 else 1000)
        _all_reduce(ranks)
        for r, b in enumerate(ranks):
            b.launch(1500 if r == 1 else 1000)
        _all_reduce(ranks)
        for b in ranks:
            b.sync()
    return ranks


def _truth(*late_us: Sequence[float], on_time: Sequence[int] | None = None) -> float:
    """us of a step by which that job is faster if these ranks (all that are late, unless told) are as fast as the others."""
    on_time = range(len(late_us)) if on_time is None else on_time
    by_step = [[of[n % len(of)] for of in late_us] for n in range(8)]
    left = [max([0.0, *(us for r, us in enumerate(step) if r not in on_time)]) for step in by_step]
    return sum(max(step) - rest for step, rest in zip(by_step, left, strict=True)) / len(by_step)


_SEVERAL: list[tuple[str, list[tuple[float, ...]], str]] = [
    ("one of eight, for what it does on its host", [(400.0,)], "for it"),
    ("two as late", [(400.0,), (400.0,)], "for them (25%), of it nothing for one of them alone."),
    ("two, one later", [(400.0,), (300.0,)], "of it 0.100 ms for rank 0 alone"),
    ("two in turn", [(400.0, 0.0), (0.0, 400.0)], "of it 0.200 ms for rank 0 alone"),
    ("three", [(400.0,), (300.0,), (450.0,)], "of it 0.0500 ms for rank 2 alone"),
    (
        "three in turn",
        [(400.0, 0.0, 0.0, 0.0), (0.0, 600.0, 0.0, 0.0), (0.0, 0.0, 400.0, 400.0)],
        "Ranks 0, 1 and 2 cause 100%",
    ),
]


def _all_reduce(ranks: Sequence[RunBuilder]) -> None:
    meet = max(b.gpu_free for b in ranks)
    for b in ranks:
        b.launch(meet - b.gpu_free + 200, _ALL_REDUCE)


_WORTH_SAYING = 0.05
"""share of the wait from which on a part of it is told apart"""
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
    most half of the ranks, and cause at least 80% of the waiting: it is in collectives at which they arrive last.
    Without such ranks, a wait that takes 10% of the step on some rank is an info finding: how long the ranks wait, which one is last,
    how often and by how much, and what of it is there because they began the first step at different times.
    In a job of several process groups a rank that comes late may only hand on a delay. There the steps of all ranks are timed again
    with the ranks on the critical path no slower than the median of their role, and what the job gains names them. Of fewer than
    three steps it is an info finding. Groups with slow transfers are named where no rank is.
    What they do longer than the others is named as the cause where it covers 80% of the delay, a single part with its share from half
    of it on. A recording of `trace-doctor record` says how long ranks waited for a CPU: where that is half of the delay, it is the
    cause. Other traces do not tell, and the finding says so where the host takes longer.

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
    needs = (RankedCollectives, Ranks, Steps)
    wants = (JobBlame,)

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
        2.0,
        "excess wait of the others over its own standard error, over the steps (of fewer than three: also the collectives)",
        source="two standard errors; equal ranks on a shared machine reach 1.1, a rank that sleeps 2.9",
    )
    many: int = threshold(
        20,
        "collectives of a single step that are enough to be sure",
        source="with 20 the error is below a quarter of the spread",
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
        Valid("ranks in step", lambda: _job(0, 0, 0, 0)),
        Valid("late by less than it costs", lambda: _job(0, 20, 0, 0)),
        Valid("late in one step of ten", lambda: _job(0, 900, 0, 0, steps=10, every=10)),
        Valid("one rank alone", lambda: _job(0), skipped="one rank"),
    ]
    INVALID = [
        Invalid(
            "one rank of four computes longer",
            lambda: _job(0, 500, 0, 0),
            saving_us=375,
            message="Each of the others waits at least 0.500 ms per step for it (29%). Excess time: compute.",
            confidence="medium",
            fixes=("They compute longer",),
            shown="1 | 0.0 | 200.0 | 1.0 | 5 | 500.0 | yes | 500.0",
        ),
        Invalid("one rank loads longer", lambda: _job(0, 0, 400, 0, loading=(2,)), message="data loading", fixes=("Their loader is slow",)),
        Invalid(
            "late to one collective of five, by far the longest wait",
            lambda: _job(0, 500, 0, 0, small=4),
            saving_us=375,
            message="Rank 1 causes 9",
        ),
        Invalid("the same in two steps", lambda: _job(0, 500, 0, 0, small=4, steps=2), message="Rank 1"),
        Invalid("two of eight", lambda: _job(300, 0, 0, 0, 0, 0, 310, 0), message="Ranks 0 and 6 cause"),
        Invalid(
            "two late, each for a reason of its own",
            lambda: _job(0, 480, 500, 0, 0, 0, loading=(2,)),
            message="Excess time: rank 1 compute; rank 2 data loading (CPU contention was not recorded).",
            fixes=("Rank 1: They compute longer", ),
        ),
        *(
            Invalid(name, lambda late=late: _late_in(*late), saving_us=_truth(*late), tolerance=0.02, message=message)  # type: ignore[misc]
            for name, late, message in _SEVERAL
        ),
        Invalid(
            "two of eight, and half of the ranks were read",
            lambda: _late_in((300,), (200,))[:4],
            confidence="low",
            message="Low confidence: only 4 of 8 ranks were read.",
        ),
        Invalid("two causes", lambda: _two_causes(300, 200), message="Excess time: compute and data loading"),
        Invalid(
            "two causes, one of which is most of it",
            lambda: _two_causes(300, 200),
            thresholds={"max_causes": 1},
            message="Excess time: compute, 0.300 ms of 0.500 ms, the rest unexplained.",
        ),
        Invalid(
            "it waited for a CPU",
            lambda: _two_causes(0, 500, (0.02, 0.3, 0.02, 0.02)),
            message="Excess time: CPU contention, 0.4",
            fixes=("Start fewer processes per host",),
        ),
        Invalid("all waited alike", lambda: _two_causes(0, 500, (0.3, 0.3, 0.3, 0.3)), message="Excess time: data loading."),
        Invalid("one of two", lambda: _job(0, 500), message="The other waits"),
        Invalid(
            "in one step, at many places",
            lambda: _job(0, 500, 0, 0, steps=1, small=4),
            thresholds={"many": 5, "min_errors": 0.0},
            confidence="medium",
        ),
        Invalid(
            "in one step, at few places",
            lambda: _job(0, 500, 0, 0, steps=1, small=4),
            thresholds={"many": 6, "min_errors": 0.0},
            confidence="low",
        ),
        Invalid(
            "late in one step of two",
            lambda: _job(0, 900, 0, 0, steps=2, every=2),
            severity="info",
            message="0.338 ms per step on average, rank 0 for 0.450 ms (27%). Rank 1 causes 100% of it: last to 1 of 2 collectives, by up to 0.900 ms.",
        ),
        Invalid("late to the only collective", lambda: _job(0, 900, 0, 0, steps=1), severity="info", confidence="low", message="last to 1 of 1"),
        Invalid("others cause as much", lambda: _job(0, 500, 0, 0), thresholds={"min_caused": 1.1}, severity="info", message="for 0.500 ms (29%)."),
        Invalid(
            "began a single step later, and another rank is slower in it",
            _began_apart,
            thresholds={"min_errors": 9.0},
            severity="info",
            message="0.600 ms of the average was there because they began the first step up to 1.00 ms apart. Rank 1 causes 100% of the rest",
            shown="0 | 1300.0 | 800.0 | 400.0 | 0.0 | 0",
        ),
        Invalid("more causes than are named", lambda: _job(0, 500, 0, 0), thresholds={"max_causes": 0}, message="0.500 ms per step for it (29%).", fixes=("",)),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        collectives, steps = ctx[RankedCollectives], ctx[Steps]
        if (blame := ctx.get(JobBlame)) is not None:
            yield from delays(ctx, blame)
            worst = int(np.argmax(collectives.wait_share))
            if not blame.delayed and ctx.rank == collectives.ranks[worst]:
                yield from self._no_straggler(ctx, collectives, collectives.wait_share[worst], of_groups=True)
            return
        late = _late(collectives, self.min_caused)
        worst = int(np.argmax(collectives.wait_share))
        if ctx.rank not in {collectives.ranks[i] for i in (*late[:1], worst)}:
            return  # the job has one finding: that of the straggler, else of the rank that waits most
        others = [i for i in range(len(collectives.ranks)) if i not in late]
        waited = collectives.saved_without(late) if late else 0.0
        share = waited / steps.step_ns if steps.step_ns else 0.0
        errors = _standard_errors(collectives, late, others) if late else 0.0
        if not late or share < self.min_share or errors < self.min_errors:
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
        causes = self._causes(collectives, ranks, late)
        because = f" Excess time: {_by_ranks(causes)}." if any(cause.parts for cause, _ in causes) else ""
        confidence: Confidence = "medium" if steps.count > 1 or matched >= self.many else "low"
        read, size = collectives.read
        if read < size:
            confidence, because = "low", f" Low confidence: only {read} of {size} ranks were read."
        alone = {i: collectives.saved_without([i]) for i in late}
        yield Claim(
            message=(
                f"{who} {'cause' if len(late) > 1 else 'causes'} {caused:.0%} of the wait in collectives. "
                f"{_the_others(len(others))} {milliseconds(waited / 1e3)} per step for "
                f"{'it' if len(late) == 1 else 'them'} ({share:.0%}){_best_alone(collectives, alone)}.{because}"
            ),
            confidence=confidence,
            saving=_saving(
                waited,
                steps.step_ns,
                any("compute" in c.parts for c, _ in causes),
                len(late) / len(collectives.ranks),
                errors,
            ),
            location=Location(ranks=numbers),
            evidence=[_waits(collectives, alone), ranks.table()],
            fixes=[_advice(who, causes)],
            owned_on={
                rank: [*spans_of(collectives.waits_for(late, rank)), *_lost(ranks, rank, causes)]
                for rank in collectives.ranks
            },
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
            evidence=[_waits(ranked, {}), ctx[Ranks].table()],
            fixes=[_record_more()],
            owned_on={
                rank: spans_of(ranked.waits_for(range(len(ranked.ranks)), rank)) for rank in ranked.ranks
            },
            key="waits",
        )

    def _causes(
        self, collectives: RankedCollectives, ranks: Ranks, late: Sequence[int]
    ) -> list[tuple[_Cause, list[int]]]:
        """What the stragglers do longer than the others, and which of them: apart where their main causes differ."""
        on_time = [i for i in range(len(collectives.ranks)) if i not in late]
        waits = collectives.wait_ns

        def cause(of: Sequence[int]) -> _Cause:
            lost = mean(waits[i] for i in on_time) - mean(waits[i] for i in of)
            own, others = ([collectives.ranks[i] for i in places] for places in (of, on_time))
            return self._cause(ranks, own, others, lost)

        by_main_cause: dict[str, list[int]] = {}
        for i in late:
            by_main_cause.setdefault(next(iter(cause([i]).parts), ""), []).append(i)
        return [(cause(of), [collectives.ranks[i] for i in of]) for of in by_main_cause.values()]

    def _cause(self, ranks: Ranks, own: Sequence[int], others: Sequence[int], lost: float) -> _Cause:
        """What covers so many ns of a step: waiting for a CPU, else the fewest parts, else the longest part, if it is half."""
        waits, usual = ranks.waits_for_cpu(own), ranks.waits_for_cpu(others)
        if waits is not None and usual is not None and waits - usual >= self.min_part * lost > 0:
            return _Cause((_CONTENTION,), min(waits - usual, lost), lost)
        more = ranks.excess(own, others)
        parts = tuple(more)[: self.max_causes]
        for count in range(1, len(parts) + 1):
            if sum(more[p] for p in parts[:count]) >= self.min_explained * lost:
                return _Cause(parts[:count], lost, lost, waits is None)
        longest = parts[:1] if parts and more[parts[0]] >= self.min_part * lost else ()
        return _Cause(longest, sum(more[p] for p in longest), lost, waits is None)


def _the_others(count: int) -> str:
    return "The other waits" if count == 1 else "Each of the others waits at least"


def _best_alone(collectives: RankedCollectives, alone: Mapping[int, float]) -> str:
    """What the straggler saves that saves most alone, where others stay late."""
    if len(alone) < 2:
        return ""
    best = max(alone, key=lambda i: alone[i])
    if milliseconds(alone[best] / 1e3) == milliseconds(0):
        return ", of it nothing for one of them alone"
    return f", of it {milliseconds(alone[best] / 1e3)} for rank {collectives.ranks[best]} alone"


class _Cause(Struct, frozen=True):
    """What stragglers do longer than the others. ns of a step."""

    parts: tuple[str, ...]
    covered_ns: float
    lost_ns: float
    """by how much they come later"""
    untold: bool = False
    """whether nothing recorded tells how long they waited for a CPU"""

    def __str__(self) -> str:
        """Without the share where it is all, or as good as all."""
        if not self.parts:
            return "not explained"
        doubt = " (CPU contention was not recorded)" if self.untold and _HOST & set(self.parts) else ""
        text = listed(self.parts) + doubt
        if self.covered_ns >= self.lost_ns:
            return text
        shares = f"{milliseconds(self.covered_ns / 1e3)} of {milliseconds(self.lost_ns / 1e3)}"
        return f"{text}, {shares}, the rest unexplained"


def _lost(ranks: Ranks, rank: int, causes: Sequence[tuple[_Cause, Sequence[int]]]) -> list[tuple[int, int]]:
    """When a straggler was idle for what makes it late: as much as it comes later, in its longest pieces."""
    return [
        span
        for cause, late in causes
        if rank in late
        for part in cause.parts
        for span in ranks.idle(rank, part, cause.covered_ns)
    ]


_CONTENTION = "CPU contention"
_HOST = frozenset(PARTS) - {"compute", "copies", "cold start"}
"""parts that take longer where threads outnumber cores"""


def _by_ranks(causes: Sequence[tuple[_Cause, Sequence[int]]]) -> str:
    if len(causes) == 1:
        return str(causes[0][0])
    return "; ".join(f"{named(ranks).lower()} {cause}" for cause, ranks in causes)


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


def _late(ranked_collectives: RankedCollectives, min_caused: float) -> list[int]:
    """Positions of the ranks that wait least and together cause enough of the waiting: up to half of all ranks, cut
    where the waits rise most. Empty where no such half does."""
    order = np.argsort(ranked_collectives.wait_ns, kind="stable")
    half = len(order) // 2
    caused = np.array(ranked_collectives.caused_ns)
    enough = caused[order[:half]].cumsum() >= min_caused * caused.sum()
    if not enough.any() or not caused.any():
        return []
    rises = np.diff(np.array(ranked_collectives.wait_ns)[order[: half + 1]])
    return sorted(order[: int(np.where(enough, rises, -1).argmax()) + 1].tolist())


def _standard_errors(ranked_collectives: RankedCollectives, late: list[int], others: list[int]) -> float:
    """How far the wait of the others is above that of the stragglers: its mean over its standard error. With two steps either they
    or the collectives may show it: where ranks meet often, they may be late to the same one of each step."""
    excess, when = [], []
    for match in ranked_collectives.matches:
        early = np.isin(match.members, others)
        if early.all() or not early.any():
            continue
        excess.append(match.wait[early].mean(axis=0) - match.wait[~early].mean(axis=0))
        when.append(match.end.max(axis=0))
    if not excess:
        return 0.0
    values, at = np.concatenate(excess), np.concatenate(when)
    borders = [s.done for s in ranked_collectives.members[late[0]][Steps].steady[:-1]]
    if not borders:
        return _errors(values)
    steps = np.bincount(np.searchsorted(borders, at), weights=values, minlength=len(borders) + 1)
    return _errors(steps) if len(borders) > 1 else max(_errors(steps) / TWO_VALUES, _errors(values))


def _errors(values: npt.NDArray[np.number]) -> float:
    """Mean over its standard error."""
    if len(values) < 2:
        return 0.0
    error = float(values.std(ddof=1)) / len(values) ** 0.5
    return float(values.mean()) / error if error else float("inf")


def _waits(ranked: RankedCollectives, alone: Mapping[int, float]) -> Table:
    """`alone`: the stragglers (positions), and the wait that ends with each of them alone."""
    late, caused = lateness(ranked), ranked.caused_ns
    everything = max(sum(caused), 1)
    worst_first = sorted(range(len(caused)), key=lambda i: (i not in alone, -caused[i]))
    columns: dict[str, tuple[Unit, Sequence[Cell]]] = {
        "rank": ("count", ranked.ranks),
        "wait": ("us", [ns / 1e3 for ns in ranked.wait_ns]),
        "of it before the first step": (
            "us",
            [ns / 1e3 for ns in late.before_ns] if any(late.before_ns) else (),
        ),
        "transfer": ("us", [ns / 1e3 for ns in ranked.transfer_ns]),
        "wait or transfer": ("us", [ns / 1e3 for ns in ranked.untold_ns] if any(ranked.untold_ns) else ()),
        "share of wait caused": ("share", [ns / everything for ns in caused]),
        "last to": ("count", [rank.last_to for rank in late.ranks]),
        "by up to": ("us", [rank.longest_ns / 1e3 for rank in late.ranks]),
        "straggler": ("text", ["yes" if i in alone else "" for i in range(len(caused))] if alone else ()),
        "waited for it alone": (
            "us",
            [alone[i] / 1e3 if i in alone else None for i in range(len(caused))] if alone else (),
        ),
    }
    shown = {name: column for name, column in columns.items() if column[1]}
    return table(
        "Exposed collectives per steady step and rank",
        {name: unit for name, (unit, _) in shown.items()},
        [[cells[i] for _, cells in shown.values()] for i in worst_first],
    )


_LOOK = {
    "compute": "They compute longer. Compare what they work on (sequence lengths, shards, experts) and how fast their "
    "GPU runs (`nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE`): the table shows whether they launch more kernels.",
    "data loading": "Their loader is slow: a slower disk, larger samples, fewer cores, or workers that share them. "
    "Balance the shards by size, and pin each rank to its own cores.",
    _CONTENTION: "More threads run than there are cores. Start fewer processes per host, set OMP_NUM_THREADS and the "
    "number of workers to what the cores allow, or give the job more cores (`nproc`, the limits of its container).",
}


def _record_more() -> Fix:
    return Fix(
        title="Record more steps of all ranks",
        kind="advice",
        safety="display",
        text="A rank that delays the others is late in every step. What ranks wait for in the first step was there before "
        "it: start the profilers after a barrier, and record ten steps. If the last rank changes from step to step, balance "
        "the work of each step (sequence lengths, samples, tables) over the ranks.",
        verify="record all ranks again: the wait is shorter, or TD602 names a straggler",
        risk="none: nothing is changed",
    )


def _advice(who: str, causes: Sequence[tuple[_Cause, Sequence[int]]]) -> Fix:
    look = [
        f"{named(ranks)}: {text}" if len(causes) > 1 else text
        for cause, ranks in causes
        for text in _look(cause.parts)
    ]
    return Fix(
        title=f"Investigate {who[0].lower() + who[1:]}",
        kind="advice",
        safety="display",
        text="\n".join(look),
        verify="record all ranks again: no rank causes most of the waiting",
        risk="none: nothing is changed",
    )


def _look(causes: Sequence[str]) -> list[str]:
    if look := [text for cause, text in _LOOK.items() if cause in causes]:
        return look
    if causes:
        return [
            f"They lose the time in {listed(causes)}. Check the findings of these ranks, and what else runs on "
            "their host: other jobs, shared cores, a NUMA node far from their GPU. `trace-doctor record` measures how "
            "long each rank waits for a CPU."
        ]
    return [
        "Their own time breakdown does not explain it. Check what else runs on their host, the pinning to cores and NUMA "
        "nodes, and the link of their GPU (`nvidia-smi topo -m`, `nvidia-smi nvlink -s`)."
    ]
