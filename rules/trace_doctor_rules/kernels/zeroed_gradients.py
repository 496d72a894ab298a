"""TD305 zeroed-gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from trace_doctor import Claim, Confidence, Context, Fix, Rule, Saving, Table, threshold
from trace_doctor.evidence.idle.cpu_timeline import Processor
from trace_doctor.evidence.idle.gaps import IdleCauses
from trace_doctor.evidence.replay.what_if import Removal, Replay, ReplayOutcome
from trace_doctor.evidence.trace.call_sites import CallSites, Site, location
from trace_doctor.evidence.trace.operator_inputs import OperatorInputs, tensor_bytes
from trace_doctor.evidence.trace.recorded_operators import OperatorsOfWork, RecordedOperators
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules._shared import patch, table, target
from trace_doctor_rules.kernels._shared import negligible
from trace_doctor_rules.kernels._zeroed_gradients_evidence import GradientFills

Rows = npt.NDArray[np.int64]
_FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"


def _training(
    zeroing: str = "aten::zero_",
    *,
    parameters: int = 40,
    gpu: bool = True,
    every: int = 1,
    stacks: bool = False,
    mark: str = "Optimizer.zero_grad#AdamW.zero_grad",
    gradients: int = 40,
    us: float = 100,
    shapes: bool = True,
    stall: float = 0,
) -> RunBuilder:
    """Steps with zero_grad() at their end; each gradient is a 4 MiB tensor."""
    b = RunBuilder(gpu="NVIDIA A100-SXM4-40GB" if gpu else None, shapes=shapes, stacks=stacks)
    for n in range(6):
        with b.step(), b.python("train.py", 12, "train"):
            b.stall(stall)
            for _ in range(10):
                with b.op("aten::mm", us=10 if gpu else 100):
                    if gpu:
                        b.launch(us, "ampere_bf16_s16816gemm_bf16_128x128")
            for _ in range(gradients):
                b.run_op("torch::autograd::AccumulateGrad", host_us=0.1)
            with b.optimizer_step():
                _operator(b, "aten::_fused_adamw_", 50)
            with b.annotation(mark):
                if n % every == 0:
                    for _ in range(parameters if zeroing == "aten::zero_" else 1):
                        _operator(b, zeroing, 6)
    return b


def _operator(b: RunBuilder, name: str, us: float) -> None:
    if not name:
        return
    shape = [1024, 1024]
    many = name == "aten::_foreach_zero_"
    with b.op(
        name, us=4, dims=[[shape] * 40] if many else [shape], types=["TensorList" if many else "float"]
    ):
        b.compute(us, _FILL)


def _no_optimizer() -> RunBuilder:
    b = RunBuilder()
    for _ in range(3):
        with b.step(), b.op("aten::zero_"):
            b.launch(10, _FILL)
    return b


_SCRIPT = """for batch in loader:
    loss = model(batch).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
"""
_PATCHED = """for batch in loader:
    loss = model(batch).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class ZeroedGradients(Rule):
    """zero_grad() fills the gradients with zeros instead of freeing them.

    What it does
    Finds `zero_grad()` of optimizers and modules, and loops over parameters, that run `zero_` operators.

    Why is this bad
    Every gradient is written once with zeros and read again by the next backward, which adds to it. It keeps its memory
    through the forward, alongside the activations. Freed gradients cost neither: backward writes them instead of adding.

    Evidence
    `aten::zero_` and `aten::_foreach_zero_` inside `Optimizer.zero_grad#…`, in at least two steps. Elsewhere ten or more
    of them in a row, one for each gradient that backward accumulated, or of several shapes. With recorded shapes the size
    of the gradients is known as well.

    How the saving is estimated
    The captured steps are simulated without these operators and their GPU work. Reading the old gradients in backward
    comes on top. Severity is never above info: the profiler's overhead for an operator this small is as long as the
    operator. The bytes are those of the gradients that one zero_grad() fills: the most that the forward can gain.

    Fix
    Remove `set_to_none=False`: since torch 2.0 zero_grad() frees the gradients. Before, pass `set_to_none=True`.

    Fix safety
    Unsafe: the optimizer then skips a parameter without a gradient instead of updating it with a zero gradient (weight
    decay, momentum). Code that reads `.grad` between step() and backward sees None.

    When to ignore
    When gradients must keep their addresses, as under CUDA graphs captured by hand.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "TD305"
    name = "zeroed-gradients"
    title = "zero_grad() fills gradients instead of freeing"
    of_training = True
    needs = (Steps, GradientFills, Replay, Moments)
    wants = (OperatorInputs, CallSites)
    to_pass = (RecordedOperators, OperatorsOfWork, IdleCauses, Processor)
    yields_to = ("TD404",)

    min_steps: int = threshold(
        2, "steady steps in which gradients are filled", source="once may be the first step, or a test"
    )

    VALID = [
        Valid("gradients are freed", lambda: _training("")),
        Valid("in one step of six", lambda: _training(every=6)),
        Valid("other tensors than gradients", lambda: _training(mark="clear", gradients=17)),
        Valid("no optimizer", _no_optimizer, skipped="no step of an optimizer"),
    ]
    INVALID = [
        Invalid(
            "one operator for each gradient", _training, saving_us=240, tolerance=0.1, message="fills gradients with zeros (40 operators per step) and keeps 160 MiB through forward.", confidence="high",
            codemod="zero-grad", before=_SCRIPT, after=_PATCHED,
        ),
        Invalid("with stacks", lambda: _training(stacks=True), file="train.py"),
        Invalid("one operator for all", lambda: _training("aten::_foreach_zero_"), message="160 MiB"),
        Invalid("in two steps of six", lambda: _training(every=3), message="keeps their memory through forward."),
        Invalid("without shapes", lambda: _training(shapes=False), message="keeps their memory through forward."),
        Invalid("next to no time", lambda: _training(us=9000), message="saving is negligible"),
        Invalid("a queue that stands still", lambda: _training(stall=500), confidence="low"),
        Invalid("ten gradients", lambda: _training(mark="clear", parameters=10, gradients=10), message="10 operators"),
        Invalid("zero_grad() of a module", lambda: _training(mark="clear"), saving_us=240, tolerance=0.1, message="or a loop"),
        Invalid("CPU", lambda: _training(gpu=False), saving_us=400, tolerance=0.1, confidence="medium"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        fills, steps, replay = ctx[GradientFills], ctx[Steps], ctx[Replay]
        operators, when = fills.operators, list(fills.spans)
        run = fills.run
        steps_with = np.unique(steps.steady_at(run.ts[operators]))
        if len(steps_with) < max(min(self.min_steps, steps.count), 1):
            return
        removal = Removal(
            host_spans=tuple((int(run.thread[operators[0]]), s, e) for s, e in when),
            gpu_rows=tuple(fills.gpu_rows().tolist()),
        )
        outcome = replay.without(removal)
        size = _gradient_bytes(ctx, fills)
        site = _site(ctx, operators)
        yield Claim(
            message=_message(outcome, fills, steps.count, size, site),
            confidence=_confidence(outcome, replay),
            severity="info",
            saving=_saving(outcome, size),
            location=location(site, ts_us=ctx[Moments].ts_us(int(run.ts[operators[0]]))),
            evidence=[
                _table(fills, steps.count),
                outcome.table("Simulated: gradients freed", "set_to_none=True"),
            ],
            spans=ctx[Moments].longest(when, "zero_grad() fills gradients"),
            fixes=[_fix(site)],
            removal=removal,
            owned=when,
            key="zero_grad",
        )


def _confidence(outcome: ReplayOutcome, replay: Replay) -> Confidence:
    if outcome.basis == "replay":
        return "high"
    return "low" if replay.base_error is not None else "medium"


def _gradient_bytes(ctx: Context, fills: GradientFills) -> int | None:
    """What is filled once in the typical step, by each optimizer; None where shapes were not recorded."""
    inputs = ctx.get(OperatorInputs)
    if inputs is None:
        return None
    once: dict[str, Rows] = {}
    for name, rows in zip(fills.names, fills.runs, strict=True):
        if len(typical := inputs.typical(rows)):
            once.setdefault(name, typical)
    filled = [row for each in once.values() for row in each.tolist()]
    return (
        sum(tensor_bytes(*tensor) for operands in inputs.of(filled) for tensor in operands.tensors()) or None
    )


def _site(ctx: Context, operators: Rows) -> Site | None:
    sites = ctx.get(CallSites)
    return sites.site(int(operators[0])) if sites is not None else None


def _message(
    outcome: ReplayOutcome, fills: GradientFills, count: int, size: int | None, site: Site | None
) -> str:
    what = "zero_grad()" if all(fills.names) else "zero_grad() or a loop"
    often = len(fills.operators) / count
    kept = f"{size / 2**20:,.0f} MiB" if size else "their memory"
    return (
        f"{what}{f' in {site}' if site else ''} fills gradients with zeros ({often:,.0f} operator{'s' * (often >= 1.5)} per step) "
        f"and keeps {kept} through forward.{negligible(outcome.share_of_step)}"
    )


def _saving(outcome: ReplayOutcome, size: int | None) -> Saving:
    saving = outcome.saving()
    return Saving(
        time_us_per_step=saving.time_us_per_step,
        share_of_step=saving.share_of_step,
        bytes=size,
        basis=saving.basis,
        how=saving.how
        + ("; the bytes are those of the gradients that one zero_grad() fills" if size else ""),
    )


def _table(fills: GradientFills, count: int) -> Table:
    run, operators, gpu = fills.run, fills.operators, fills.gpu_rows()
    return table(
        "Work of zero_grad()",
        {"optimizer": "text", "operators/step": "count", "host/step": "us", "GPU/step": "us"},
        [
            [
                ", ".join(sorted(set(fills.names) - {""})) or None,
                round(len(operators) / count, 1),
                float(run.dur[operators].sum()) / count / 1e3,
                float(run.dur[gpu].sum()) / count / 1e3,
            ]
        ],
    )


def _fix(site: Site | None) -> Fix:
    return patch(
        title="Use set_to_none=True",
        codemod="zero-grad",
        params={"mode": "drop-set-to-none-false"},
        target=target(site),
        text="optimizer.zero_grad()   # before torch 2.0: zero_grad(set_to_none=True)",
        verify="Record the same steps again: Optimizer.zero_grad runs no zero_ operators.",
        risk="parameters without a gradient are skipped by the optimizer; code that reads .grad after step() sees None",
    )
