"""TD606 rank-imbalance."""

from __future__ import annotations

from collections.abc import Iterator
from math import hypot

from trace_doctor import NOTE_FROM, Claim, Context, NotCaptured, Rule, Saving, threshold
from trace_doctor.evidence.distributed.blame.evidence import JobBlame
from trace_doctor.evidence.distributed.blame.verdicts import WORK, WorkLimits
from trace_doctor.evidence.distributed.ranks import Ranks
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.idle.cpu_timeline import Processor
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules._shared import advice
from trace_doctor_rules.comms._blame_cases import WORK_INVALID, WORK_VALID
from trace_doctor_rules.comms._blame_claims import imbalance


def _job(*compute_us: float, gpu: bool = True, operators: tuple[int, ...] = ()) -> tuple[RunBuilder, ...]:
    """Ranks that compute for so long, with so many operators (one each)."""
    size = len(compute_us)
    device = "NVIDIA A100-SXM4-40GB" if gpu else None
    ranks = tuple(RunBuilder(gpu=device, rank=r, world_size=size) for r in range(size))
    for b, us, count in zip(ranks, compute_us, operators or (1,) * size, strict=True):
        for _ in b.steps(5):
            b.loader(5)
            for _ in range(count):
                b.run_op("aten::mm", us / count)
            b.wait(max(compute_us) - us)
            if gpu:
                b.sync()
    return ranks


def _with_backlog() -> tuple[RunBuilder, ...]:
    """Both compute 1000 us a step; the GPU of rank 1 still runs what was launched before the first one."""
    ranks = RunBuilder(rank=0, world_size=2), RunBuilder(rank=1, world_size=2)
    for b, before in zip(ranks, (0, 1500), strict=True):
        if before:
            b.launch(before)
        for _ in b.steps(5):
            b.loader(5)
            b.run_op("aten::mm", 1000)
            b.sync()
    return ranks


def _first_use() -> tuple[RunBuilder, ...]:
    """One kernel of rank 0 takes 2.4 ms in the only step, where it takes 10 us otherwise."""
    ranks = RunBuilder(rank=0, world_size=2), RunBuilder(rank=1, world_size=2)
    for b, first in zip(ranks, (2400, 10), strict=True):
        b.run_op("aten::mm", first)
        for _ in range(20):
            b.run_op("aten::mm", 10)
        b.wait(2410 - first)
        b.sync()
    return ranks


def _unsteady() -> tuple[RunBuilder, ...]:
    """One step of five is long on rank 1."""
    ranks = RunBuilder(rank=0, world_size=2), RunBuilder(rank=1, world_size=2)
    for n in range(5):
        for b in ranks:
            with b.step():
                b.loader(5)
                b.run_op("aten::mm", 3000 if n == 3 and b is ranks[1] else 1000)
                b.wait(2000 if n == 3 and b is ranks[0] else 0)
                b.sync()
    return ranks


class RankImbalance(Rule):
    """The ranks of a job compute for different lengths of time.

    What it does
    Compares the compute time per steady step over all ranks.

    Why is this bad
    Ranks meet in every step. The one with most work sets the pace, and the others idle or wait in a collective.

    Evidence
    The time breakdowns of two or more ranks of one job, recorded at the same time. Which rank the others wait for in
    collectives is TD602, which owns the time where it can tell. These are info findings: CPUs where all ranks run as many
    operators; and on any device one captured step, or a difference below two of its standard errors over the steps.

    In a job of several process groups, stages differ on purpose: there it is an info finding where a stage has over 1.1 times the work
    of the median stage, or where the work varies from step to step, alike on ranks that share a batch.

    How the saving is estimated
    The compute of the busiest rank minus the mean: balanced work would take so much less. An upper bound.

    Fix
    Balance the work: group samples by length over ranks, balance shards and experts, even out pipeline stages.

    Fix safety
    Advice only.

    When to ignore
    When ranks do different work on purpose and none waits for another.

    References
    https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    code = "TD606"
    name = "rank-imbalance"
    title = "Compute load differs between ranks"
    costs_host_time = True
    needs = (Ranks,)
    wants = (Processor, JobBlame)
    limits = (WorkLimits,)
    to_pass = (Processor,)
    yields_to = ("TD602", "TD708")

    min_difference: float = threshold(
        0.10,
        "difference between the longest and the shortest compute time, as a share of the longest",
        unit="share",
        source="equal ranks of a real Megatron job differ by 5%",
    )
    min_errors: float = threshold(
        2.0,
        "excess of the busiest rank over its own standard error over the steps, for more than an info finding",
        source="two standard errors; one delayed kernel or a lazy initialization is not imbalance",
    )
    min_share: float = threshold(
        0.03,
        "compute of the busiest rank minus the mean, as a share of the step",
        unit="share",
        source="the severity `warning` begins there",
        note_from=NOTE_FROM,
    )
    min_stage: float = threshold(
        WORK.min_stage,
        "with several process groups: work of a pipeline stage or role over that of the median one",
        source="up to 1.004 among even stages of simulated jobs, 1.5 and 1.6 in two published jobs with uneven ones",
    )
    min_deviation: float = threshold(
        WORK.min_deviation,
        "with several process groups: standard deviation of the work of a rank over the steps, as a share of it",
        unit="share",
        source="12% in a published job with uneven batches; less costs little",
    )
    min_correlation: float = threshold(
        WORK.min_correlation,
        "with several process groups: correlation of these deviations between ranks that share a batch",
        source="up to 0.32 in simulated jobs with even batches, 1.00 in a published job with uneven ones",
    )

    VALID = [
        Valid("even", lambda: _job(1000, 1020, 990)),
        Valid("even, with a backlog on one of them", _with_backlog),
        Valid("not that different", lambda: _job(1000, 1500, 1000), thresholds={"min_difference": 0.5}),
        Valid("a small part of the step", lambda: _job(1000, 1500, 1000), thresholds={"min_share": 0.5}),
        Valid("one rank alone", lambda: _job(1000), skipped="fewer than two ranks"),
        *WORK_VALID,
    ]
    INVALID = [
        Invalid("rank 1 computes a third longer", lambda: _job(1000, 1500, 1000), saving_us=333, message="Rank 1 computes 1.50 ms per step. The mean of 3 ranks is 1.17 ms, the minimum 1.00 ms.", confidence="medium"),
        Invalid("rank 1 does more on its CPU", lambda: _job(1000, 1500, gpu=False, operators=(10, 15)), confidence="medium"),
        Invalid(
            "rank 1 takes longer on its CPU for as many operators",
            lambda: _job(1000, 1500, gpu=False),
            confidence="low",
            severity="info",
            message="other processes may have preempted it.",
        ),
        Invalid("a first use, in the only step", _first_use, confidence="low", severity="info", message="Only one step was observed.", fixes=("schedule(", "Pipeline stages")),
        Invalid("in one step of five", _unsteady, confidence="low", severity="info", message="within the variation from step to step", fixes=("schedule(", "Pipeline stages")),
        *WORK_INVALID,
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        ranks = ctx[Ranks]
        busiest, compute = ranks.ranks[ranks.busiest], ranks.compute_ns
        most = compute[ranks.busiest]
        if not most:
            raise NotCaptured(
                "neither kernels nor operators recorded",
                "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
            )
        step = ranks.step_ns[ranks.busiest]
        if (blame := ctx.get(JobBlame)) is not None:
            yield from imbalance(ctx, blame)
            return
        if ctx.rank != busiest or not step:
            return
        least, mean = min(compute), sum(compute) / len(compute)
        if most - least < self.min_difference * most:
            return
        share = (most - mean) / step
        if share < self.min_share:
            return
        alike = self._alike(ctx, ranks)
        error = _error(ranks, busiest)
        steady = error is not None and most - mean >= self.min_errors * error
        doubt = (
            " Only one step was observed."
            if error is None
            else " The difference is within the variation from step to step."
        )
        yield Claim(
            message=(
                f"Rank {busiest} computes {milliseconds(most / 1e3)} per step. The mean of {len(compute)} ranks is "
                f"{milliseconds(mean / 1e3)}, the minimum {milliseconds(least / 1e3)}."
                f"{'' if steady else doubt}{_ALIKE if alike else ''}"
            ),
            confidence="low" if alike or not steady else "medium",
            severity="info" if alike or not steady else None,
            saving=Saving(
                time_us_per_step=(most - mean) / 1e3,
                share_of_step=share,
                basis="bound",
                how="compute of the busiest rank minus the mean over all ranks",
            ),
            evidence=[ranks.table()],
            fixes=[_EVEN] if steady else [_RECORD, _EVEN],
            key="compute",
        )

    def _alike(self, ctx: Context, ranks: Ranks) -> bool:
        """Whether the ranks run about as many operators, on CPUs: what takes one of them longer then need not be its
        work."""
        counts = [count for count in ranks.kernels if count is not None]
        processor = ctx.get(Processor)
        if processor is None or processor.gpu or len(counts) < len(ranks.ranks):
            return False
        return max(counts) - min(counts) < self.min_difference * max(counts)


def _error(ranks: Ranks, busiest: int) -> float | None:
    """Of the busiest rank's mean compute less that of all, ns; None where a rank has one step."""
    errors = [error for error in ranks.compute_error_ns if error is not None]
    if len(errors) < len(ranks.ranks):
        return None
    share = 1 / len(errors)
    own = ranks.ranks.index(busiest)
    return hypot(*(error * ((n == own) - share) for n, error in enumerate(errors)))


_ALIKE = " All ranks run as many operators, so other processes may have preempted it."
_RECORD = advice(
    title="Record several steps after warm-up",
    text="one long kernel, lazy initialization or another process makes a single step uneven: "
    "torch.profiler.schedule(wait=5, warmup=2, active=6) on every rank, with profiler.step() after each step",
    verify="record all ranks again: a difference that remains is in every step",
    risk="none: nothing is changed",
)
_EVEN = advice(
    title="Balance the work",
    text=(
        "Sequences of different length: sort by length and deal them out in turn (transformers: group_by_length=True), or "
        "pack them to equal token counts. Sharded tables or experts: place them by their cost. Pipeline stages: move "
        "layers. The same number of kernels on every rank and still a difference: compare the clocks of the GPUs."
    ),
    verify="record all ranks again: their compute times differ by less",
    risk="the order of samples changes, and with it the losses",
)
