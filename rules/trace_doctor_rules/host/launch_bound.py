"""TD202 launch-bound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

from trace_doctor import NOTE_FROM, Claim, Confidence, Context, Fix, Table, threshold
from trace_doctor.evidence.host.host_bound import HALF, HostBound
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.intervals import total
from trace_doctor.evidence.replay.what_if import Removal, Replay
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.evidence.trace.recorded_operators import RecordedOperators
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid, without_gpu
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import TimeRule, spans_of


def _training(
    *,
    kernel_us: float = 5,
    host_us: float = 20,
    count: int = 60,
    steps: int = 6,
    stacks: bool = False,
    extra: str = "",
    marked: bool = True,
    stall: float = 0,
    optimizer: float = 20,
) -> RunBuilder:
    """Steps of small kernels, each behind some host work of its own."""
    b = RunBuilder(stacks=stacks)
    for n in range(steps):
        step = b.annotation("execute_context_1(64)_generation_0(0)") if extra == "engine" else b.step()
        with step if marked else nullcontext(), b.python("train.py", 12, "train_step"):
            if extra == "loader":
                b.loader(count * host_us * 1.5)
            if n == 1 and stall:
                b.stall(stall)
            for _ in range(count):
                with (
                    b.op("## Call CompiledFxGraph fabc ##") if extra == "compiled" else nullcontext(),
                    b.op("aten::add", us=host_us),
                ):
                    b.launch(kernel_us)
            if extra == "item":
                for _ in range(count):
                    b.launch(30)
                    b.item()
            with b.optimizer_step() if extra != "engine" else nullcontext():
                b.wait(optimizer)
    return b


def _blocking(held: float = 1.0, *, kernel_us: float = 100, marked: bool = True) -> RunBuilder:
    """Launch calls that return when their kernel has ended, as with CUDA_LAUNCH_BLOCKING=1; of the rest nobody waits."""
    b = RunBuilder()
    for _ in range(6):
        with b.step() if marked else nullcontext():
            for n in range(40):
                b.run_op("aten::mm", kernel_us, host_us=40, held=n < 40 * held)
    return b


def _splitting(op: str) -> RunBuilder:
    """A few kernels a step, and one operator after the other that launches nothing."""
    b = RunBuilder()
    for _ in b.steps(6):
        for _ in range(20):
            b.run_op("aten::add", 5, host_us=5)
        for _ in range(60):
            b.run_op(op, host_us=50)
    return b


_SCRIPT = """import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches:
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_PATCHED = _SCRIPT.replace("optimizer =", 'model = torch.compile(model, mode="reduce-overhead")\noptimizer =')


class LaunchBound(TimeRule):
    """The GPU is done with each kernel before the host has launched the next one.

    What it does
    Finds steps of many small kernels in which the GPU mostly waits for the host to run operators, Python and optimizer
    code, and re-times them with half of that host work.

    Why is this bad
    An operator costs the host 5 to 50 us whatever its size. When kernels are shorter than that, the GPU waits for
    launches: it would not get faster on a better GPU, and larger batches cost next to nothing.

    Evidence
    Idle time of the GPU, in gaps shorter than 1 ms, while the host ran operators, Python or optimizer code, and in longer
    gaps while it made views of tensors, which compute nothing: at least 15% of the step, and more than cold starts,
    compilation, data loading, allocation and waits for the device together; at least 100 kernels with a median below
    50 us. With Python stacks recorded the profiler itself makes host work two to three times as long: then the steps must
    be launch-bound still when it is halved, and confidence is one step lower; where they are not, it is a note from 30% on.
    Where nine of ten launch calls return only when their kernel has ended, however long it takes, the host is not slow: it
    is held (`CUDA_LAUNCH_BLOCKING`), and nothing is ever queued.

    How the saving is estimated
    The captured steps are simulated with half of the host's own work. An estimate: compilation without CUDA graphs spares
    about half of what operators take, and nothing of the Python and the optimizer around them; a CUDA graph over the whole
    step takes all of it, so that the GPU's work is left. Where launches are held: with calls that return as their kernel begins.

    Fix
    torch.compile(model, mode="reduce-overhead") launches a recorded graph instead of single kernels; CUDA graphs by
    hand do the same for steps with fixed shapes; a larger batch makes the kernels longer at the same number of
    launches; a fused optimizer replaces hundreds of launches by a few. Held launches: unset CUDA_LAUNCH_BLOCKING.

    Fix safety
    Unsafe: compiled code may differ in the last bits, its outputs are overwritten by the next call with CUDA graphs;
    another batch size is another training.

    When to ignore
    When the profile was recorded with stacks and the step is much shorter without the profiler.

    References
    https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html
    https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/
    """

    code = "TD202"
    name = "launch-bound"
    title = "GPU is launch-bound"
    costs_host_time = True
    about = ("dispatch", "python", "optimizer", "launch")
    needs = (Steps, HostBound, Moments, Replay)
    wants = (TimeLedger,)
    to_pass = (RecordedOperators,)
    yields_to = ("TD101", "TD201", "TD203", "TD501", "TD304", "TD701", "TD702", "TD703")

    min_saving: float = threshold(
        0.10,
        "what halving the host work must save",
        unit="share",
        source="the severity `critical` begins there",
        note_from=NOTE_FROM,
    )
    max_kernel_us: float = threshold(
        50.0,
        "median kernel",
        unit="us",
        source="an operator costs the host 5 to 50 us (real captures): longer ones hide that",
    )
    min_kernels: int = threshold(
        100, "kernels in the steady steps", unit="count", source="fewer are a probe, not a workload"
    )
    min_share: float = threshold(
        0.15,
        "idle in which the host runs operators, Python or optimizer code",
        unit="share",
        source="real captures: 20 to 84% where the host is the limit, under 10% elsewhere",
        note_from=NOTE_FROM,
    )
    min_share_with_stacks: float = threshold(
        0.30,
        "the same where recording Python stacks may be what makes the host slow: a note",
        unit="share",
        source="stacks make host work two to three times as long",
    )
    min_held: float = threshold(
        0.9,
        "launch calls that return only when their kernel has ended, and kernel time of these, from which on launching blocks",
        unit="share",
        source="197 of 197 in a public capture, under 5% of the calls in all others",
    )
    min_optimizer_share: float = threshold(
        0.20,
        "share of that idle time in the optimizer, from which on fusing it is advised",
        unit="share",
        source="less is not felt",
    )

    VALID = [
        Valid("kernels that hide what an operator costs", lambda: _training(kernel_us=30, host_us=20)),
        Valid("large kernels", lambda: _training(kernel_us=100)),
        Valid("kernels that are not short", _training, thresholds={"max_kernel_us": 5.0}),
        Valid("few kernels", lambda: _training(count=10)),
        Valid("short waits", _training, thresholds={"min_share": 0.6}),
        Valid("half the host work saves little", _training, thresholds={"min_saving": 0.6}),
        Valid("the host is faster than the GPU", lambda: _training(host_us=1)),
        Valid("waits for data instead", lambda: _training(extra="loader")),
        Valid("waits for the device instead", lambda: _training(extra="item", host_us=4)),
        Valid("works on the CPU meanwhile", lambda: _splitting("aten::sort")),
        Valid("slow only because of the stacks", lambda: _training(kernel_us=18, host_us=30, stacks=True)),
        Valid("every other launch takes as long as its kernel", lambda: _blocking(0.5)),
        Valid(
            "held launches of kernels beside which the host's work is nothing",
            lambda: _blocking(kernel_us=9000),
        ),
        Valid("no GPU", lambda: without_gpu("aten::add", 20), skipped="no GPU work"),
    ]
    INVALID = [
        Invalid(
            "20 us of host work for kernels of 5 us",
            _training,
            message="60 launches per step",
            confidence="high",
            saving_us=730,
            thresholds={"min_kernels": 360, "min_saving": 0.5, "min_share_with_stacks": 1.0},
            fixes=("torch.compile", "CUDA graph", "batch"),
            codemod="compile-model",
            before=_SCRIPT,
            after=_PATCHED,
        ),
        Invalid("with stacks", lambda: _training(stacks=True), confidence="medium"),
        Invalid("in an inference engine", lambda: _training(extra="engine"), fixes=("--enforce-eager",)),
        Invalid("without marks of steps", lambda: _training(count=120, steps=1, marked=False), severity="info"),
        Invalid("a queue that stands still for a while", lambda: _training(stall=250), confidence="medium", thresholds={"max_unattributed": 1e-3}),
        Invalid("a queue that stands still for long", lambda: _training(stall=2000), confidence="low"),
        Invalid("much of it in the optimizer", lambda: _training(optimizer=300), fixes=("torch.compile", "fused", "CUDA graph", "batch")),
        Invalid("code that is compiled already", lambda: _training(extra="compiled"), fixes=("CUDA graph", "batch")),
        Invalid("a slow host", lambda: _training(kernel_us=25, host_us=60), confidence="high"),
        Invalid(
            "with stacks, which may be what makes it slow",
            lambda: _training(kernel_us=16.5, host_us=30, stacks=True),
            message="without Python stacks",
            severity="info",
        ),
        Invalid("views by the hundred", lambda: _splitting("aten::as_strided"), message=" launches per step"),
        Invalid(
            "launches return when their kernel has ended",
            _blocking,
            message="240 of 240 launch calls return only when their kernel has ended, as with CUDA_LAUNCH_BLOCKING=1",
            confidence="high",
            saving_us=1900,
            tolerance=0.15,
            fixes=("Unset CUDA_LAUNCH_BLOCKING",),
        ),
        Invalid("the same without marks of steps", lambda: _blocking(marked=False), confidence="medium", message="LAUNCH_BLOCKING"),
        Invalid("kernels so short that they end within their call", lambda: _blocking(kernel_us=6), message="launches per step"),
        Invalid("two steps", lambda: _training(steps=2), confidence="high"),
        Invalid("one step", lambda: _training(count=120, steps=1), confidence="medium"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        host_bound = ctx[HostBound]
        if host_bound.kernels < self.min_kernels:
            return
        if host_bound.held_share >= self.min_held:
            yield from self._held(ctx, host_bound)
            return
        if host_bound.median_kernel_us >= self.max_kernel_us:
            return
        if host_bound.own_share < self.min_share or host_bound.own <= host_bound.other:
            return
        if host_bound.halved.share_of_step < self.min_saving or not (
            self._lasts(host_bound) or self._plainly(host_bound)
        ):
            return
        moments, replay, outcome = ctx[Moments], ctx[Replay], host_bound.halved
        operators = host_bound.by_cause.get("dispatch", 0) / host_bound.own
        owned = spans_of(host_bound.owned)
        confidence = self._confidence(ctx, host_bound)
        yield Claim(
            message=_message(host_bound, ctx[Steps].count, lasts=self._lasts(host_bound)),
            confidence=confidence,
            severity="info" if confidence == "low" else None,
            saving=outcome.saving_between(
                replay.without(Removal(host_share=1 - 0.5 * operators)), replay.without(_NO_HOST)
            ),
            location=location(None, device=host_bound.device, ts_us=moments.ts_us(owned[0][0])),
            evidence=_tables(ctx, host_bound),
            spans=moments.longest(owned, "waiting for a launch", device=host_bound.device),
            fixes=_fixes(
                fused=host_bound.by_cause.get("optimizer", 0) >= self.min_optimizer_share * host_bound.own,
                compiled=host_bound.compiled,
                engine=ctx[Steps].of_server,
            ),
            removal=HALF,
            owned=owned,
            key="launches",
        )

    def _held(self, ctx: Context, host_bound: HostBound) -> Iterator[Claim]:
        moments, outcome = ctx[Moments], ctx[Replay].without(host_bound.returning)
        owned = spans_of(host_bound.owned)
        if outcome.share_of_step < self.min_saving or not owned:
            return
        sure = outcome.basis == "replay" and ctx[Steps].source != "none" and not self.much_unattributed(ctx)
        yield Claim(
            message=(
                f"{host_bound.held_launches:,} of {host_bound.launched:,} launch calls return only when their kernel has ended, as with "
                f"CUDA_LAUNCH_BLOCKING=1. Nothing is queued, so the GPU idles {total(host_bound.owned) / max(host_bound.length, 1):.0%} "
                "of the step between launches."
            ),
            confidence="high" if sure else "medium",
            saving=outcome.saving(),
            location=location(None, device=host_bound.device, ts_us=moments.ts_us(owned[0][0])),
            evidence=[outcome.table("Simulated: launches return immediately", "asynchronous launches")],
            spans=moments.longest(owned, "waiting for a launch", device=host_bound.device),
            fixes=[techniques.launches_do_not_wait(_VERIFY)],
            removal=host_bound.returning,
            owned=owned,
            key="held launches",
        )

    def _lasts(self, host_bound: HostBound) -> bool:
        """Whether so much is to be had without what recording stacks costs, too."""
        return host_bound.lasting >= self.min_saving

    def _plainly(self, host_bound: HostBound) -> bool:
        """Whether the GPU waits for so long that it is worth a note whatever the stacks cost."""
        return host_bound.own_share >= self.min_share_with_stacks

    def _confidence(self, ctx: Context, host_bound: HostBound) -> Confidence:
        steps = ctx[Steps]
        if host_bound.halved.basis != "replay" or steps.source == "none" or not self._lasts(host_bound):
            return "low"
        doubts = host_bound.stacks + (steps.alike < 2) + self.much_unattributed(ctx)
        return ("high", "medium", "low")[min(doubts, 2)]


def _message(host_bound: HostBound, steps: int, *, lasts: bool) -> str:
    doubt = "" if lasts else " Low confidence: without Python stacks the host may be fast enough."
    return (
        f"The GPU idles {host_bound.own_share:.0%} of the step waiting for {host_bound.kernels / steps:,.0f} launches per step "
        f"(median kernel {host_bound.median_kernel_us:.1f} µs). The saving is simulated with half the host work.{doubt}"
    )


_NO_HOST = Removal(host_share=0.0)
_CAUSES = {
    "dispatch": "operators and launch calls",
    "python": "Python or unrecorded",
    "optimizer": "optimizer",
}


def _tables(ctx: Context, host_bound: HostBound) -> list[Table]:
    count = ctx[Steps].count
    return [
        Table.with_units(
            "Host activity while the GPU idles, per steady step",
            {"host": "text", "GPU idle": "us", "of the step": "share"},
            [
                [_CAUSES[cause], ns / count / 1e3, ns / max(host_bound.length, 1)]
                for cause, ns in sorted(host_bound.by_cause.items(), key=lambda item: -item[1])
                if ns
            ],
        ),
        Table.with_units(
            "Launches",
            {"kernels per step": "count", "median kernel": "us", "step per kernel": "us"},
            [
                [
                    round(host_bound.kernels / count, 1),
                    host_bound.median_kernel_us,
                    host_bound.length / max(host_bound.kernels, 1) / 1e3,
                ]
            ],
        ),
        host_bound.halved.table("Simulated: half the host work", "half the host work"),
    ]


_VERIFY = "Record the same steps again: TD202 is gone and the step is shorter"


def _fixes(*, fused: bool, compiled: bool, engine: bool) -> list[Fix]:
    """`compiled`: whether compiled code runs already. `engine`: an inference engine has options of its own."""
    if engine:
        return [techniques.decode_in_graphs(_VERIFY)]
    return [
        *([] if compiled else [techniques.compile_model(_VERIFY, "reduce-overhead")]),
        *([techniques.fused_optimizer(None, _VERIFY)] if fused else []),
        techniques.cuda_graphs(_VERIFY),
        techniques.fill_the_gpu(_VERIFY),
    ]
