"""TD708 uneven-ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trace_doctor import NOTE_FROM, Claim, Context, Location, NotCaptured, Rule, threshold
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.intervals import total
from trace_doctor.evidence.serving.rank_loads import RankLoads
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import spans_of, table
from trace_doctor_rules.serving._shared import FEW, cost


def _server(
    *loads: int,
    us: Sequence[float] = (),
    collective: str = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
    name: str = "step[DECODE bs={}]",
) -> tuple[RunBuilder, ...]:
    """Ranks that decode so many requests each (0: a dummy step every other step), 10 us for each or `us`, then meet."""
    took = list(us) or [10.0 * load + 50 for load in loads]
    ranks = tuple(RunBuilder(rank=r, world_size=len(loads)) for r in range(len(loads)))
    for b, load, own in zip(ranks, loads, took, strict=True):
        for n in range(12):
            idle = not load and n % 2
            with b.annotation("step[IDLE bs=0]" if idle else name.format(max(load, 1))):
                b.launch(own, "gemm")
                b.launch(max(took) - own + 50, collective)
            b.sync("cudaEventSynchronize")
            b.wait(10)
    return ranks


def _dummy_beside(*, eager: Sequence[bool], steps: int = 12) -> tuple[RunBuilder, ...]:
    """Rank 0 decodes, rank 1 in every other step only. Rank 0 launches no graph in steps in which rank 1 has no request (True in `eager`),
    and in those in which it has some (False)."""
    ranks = tuple(RunBuilder(rank=r, world_size=2) for r in range(2))
    for rank, b in enumerate(ranks):
        for n in range(steps):
            is_idle = n % 2 == 1
            with b.annotation("step[IDLE bs=0]" if is_idle and rank else "step[DECODE bs=8]"):
                graph = is_idle not in eager
                b.launch(100, "gemm", call="cudaGraphLaunch" if graph else "cudaLaunchKernel")
                b.launch(50, "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL")
            b.sync("cudaEventSynchronize")
            b.wait(10)
    return ranks


class UnevenRanks(Rule):
    """Ranks of one server have different loads, and the less loaded wait in collectives.

    What it does
    Compares the requests or tokens that ranks have at the same time, and adds up how long those with fewer wait.

    Why is this bad
    With data-parallel attention each rank has requests of its own. All meet in the expert layers of each step, so the rank with
    most tokens sets the pace. A rank without requests runs dummy steps, and waits as well.

    Evidence
    Traces of two or more ranks, recorded at the same time. Collectives are matched over the ranks, and the names of the steps around
    them say the load. A wait counts if the rank that came last has the largest load, and the waiting one at least 10% less. Ranks of
    tensor parallelism have the same requests, so none of their waits counts, nor of pipeline stages, which send and receive. Ranks
    that run dummy steps only are left out. Where a rank without requests runs its dummy steps without a CUDA graph, some engines have all
    ranks do so: it is an info finding where at least 90% of the decode steps beside a dummy step launch no graph, and at most 10% of the
    others, of three steps each. What that costs is the saving of TD701.

    How the saving is estimated
    An upper bound: the mean of these waits over all ranks. With equal loads the last rank comes so much earlier.

    Fix
    Balance requests over the ranks.

    Fix safety
    Only shown: it is an option of the server.

    When to ignore
    At low load, with fewer requests than ranks.

    References
    https://github.com/NVIDIA/TensorRT-LLM/pull/6061
    https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/
    """

    code = "TD708"
    name = "uneven-ranks"
    title = "Requests are uneven over ranks"
    about = ("exposed_comm",)
    needs = (RankLoads, Steps)

    min_share: float = threshold(
        0.03,
        "mean wait of all ranks for one with a larger load",
        unit="share",
        source="the severity `warning` begins there; balancing gained 45% in TensorRT-LLM#6061",
        note_from=NOTE_FROM,
    )

    VALID = [
        Valid("equal loads", lambda: _server(32, 32)),
        Valid("tensor parallelism: one rank is slow", lambda: _server(32, 32, us=(400, 700))),
        Valid("nearly equal loads", lambda: _server(96, 100, us=(400, 700))),
        Valid("a rank comes last that has not the largest load", lambda: _server(16, 32, 64, us=(400, 700, 400))),
        Valid("stages of a pipeline", lambda: _server(16, 64, collective="ncclDevKernel_SendRecv"), skipped="names count requests"),
        Valid("a small part of the step", lambda: _server(16, 64), thresholds={"min_share": 0.9}),
        Valid("names do not count requests", lambda: _server(16, 64, name="step[PREBUILT]"), skipped="names count requests"),
        Valid("graphs beside a rank without requests", lambda: _dummy_beside(eager=())),
        Valid("two steps beside a rank without requests", lambda: _dummy_beside(eager=(True,), steps=6)),
        Valid("no graphs at all", lambda: _dummy_beside(eager=(True, False))),
        Valid("one rank alone", lambda: _server(16), skipped="one rank"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "a quarter of the requests",
            lambda: _server(16, 64),
            message="Rank 1 has 64 tokens per step on average, rank 0 has 16.",
            confidence="medium",
            saving_us=240,
            tolerance=0.05,
            fixes=("Balance requests over ranks",),
        ),
        Invalid(
            "names that count requests alone",
            lambda: _server(16, 64, name="[Executor] _forward_step 7: 0 ctx reqs, {} gen reqs"),
            message="Rank 1 has 64 requests per step",
        ),
        Invalid("dummy steps", lambda: _server(0, 64), shown="0.4545"),
        Invalid(
            "no graphs beside a rank without requests",
            lambda: _dummy_beside(eager=(True,)),
            severity="info",
            message="Rank 0 launches no CUDA graph in 5 of 5 decode steps while another rank has no request, and in 0 of 6 others.",
        ),
    ]

    def check(self, ctx: Context) -> Iterator[Claim]:
        loads = ctx[RankLoads]
        claims = [*_forced_eager(ctx.rank, loads), *self._uneven(ctx, loads, ctx[Steps])]
        if not claims and loads.graphs[loads.ranks.index(ctx.rank)].unknown:
            raise NotCaptured(
                "the launches of decode steps are not in the trace",
                "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
            )
        yield from claims

    def _uneven(self, ctx: Context, loads: RankLoads, steps: Steps) -> Iterator[Claim]:
        waited = [total(waits) for waits in loads.waits]
        most, least = (loads.load.index(limit(loads.load)) for limit in (max, min))
        if ctx.rank != loads.ranks[most]:
            return  # the server has one finding: that of the rank for which the others wait, as in TD602
        waits = cost(sum(waited) / len(waited) / 1e3, steps)
        if waits.share < self.min_share:
            return
        unit = "tokens" if loads.in_tokens else "requests"
        yield Claim(
            message=(
                f"Rank {loads.ranks[most]} has {loads.load[most]:,.0f} {unit} per step on average, rank "
                f"{loads.ranks[least]} has {loads.load[least]:,.0f}. Less loaded ranks wait in collectives, "
                f"{milliseconds(waits.us_per_step)} per step on the mean of all ranks."
            ),
            confidence="medium",
            saving=waits.saving("the mean wait over all ranks for a rank with a larger load"),
            location=Location(ranks=list(loads.ranks)),
            evidence=[
                table(
                    "Load and waits of each rank",
                    {
                        "rank": "count",
                        f"{unit} per step": "count",
                        "in dummy steps": "share",
                        "waits per step": "us",
                    },
                    [
                        [rank, load, without, ns / steps.count / 1e3]
                        for rank, load, without, ns in zip(
                            loads.ranks, loads.load, loads.without, waited, strict=True
                        )
                    ],
                )
            ],
            fixes=[
                techniques.balance_requests("Record all ranks again: their loads and waits differ by less")
            ],
            owned_on={rank: spans_of(own) for rank, own in zip(loads.ranks, loads.waits, strict=True)},
            key="load",
        )


_MOSTLY = 0.9
"""share of steps that a habit leaves out of at most a tenth"""


def _forced_eager(rank: int, loads: RankLoads) -> Iterator[Claim]:
    """A rank that leaves its CUDA graphs where another has no request, and there alone."""
    own = loads.graphs[loads.ranks.index(rank)]
    if min(own.beside_idle, own.others) < FEW:
        return
    if own.beside_idle_eager < _MOSTLY * own.beside_idle or own.others_eager > (1 - _MOSTLY) * own.others:
        return
    yield Claim(
        message=(
            f"Rank {rank} launches no CUDA graph in {own.beside_idle_eager} of {own.beside_idle} decode steps while another rank "
            f"has no request, and in {own.others_eager} of {own.others} others."
        ),
        confidence="medium",
        severity="info",
        location=Location(ranks=[rank]),
        fixes=[techniques.balance_requests("Record all ranks again: decode steps launch a graph")],
        key="eager",
    )
