"""TD304 single-tensor-optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trace_doctor import Claim, Column, Confidence, Context, Fix, Rule, Saving, Table, threshold
from trace_doctor.evidence import Removal
from trace_doctor.evidence.call_sites import CallSites, Site, location
from trace_doctor.evidence.durations import two_figures
from trace_doctor.evidence.gpu_timeline import GpuTimeline
from trace_doctor.evidence.moments import Moments
from trace_doctor.evidence.optimizer_work import OptimizerWork
from trace_doctor.evidence.replay import Replay, ReplayOutcome
from trace_doctor.evidence.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques

Rows = npt.NDArray[np.int64]
_FOREACH = frozenset(
    ["ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"]
)
"""classes of torch.optim with a foreach form (torch 2.0 and later)"""
_FUSED = frozenset(["Adagrad", "Adam", "AdamW", "SGD"])
"""those with a fused form as well"""
_PARTS = (
    "aten::lerp_",
    "aten::mul_",
    "aten::addcmul_",
    "aten::sqrt",
    "aten::div_",
    "aten::add_",
    "aten::addcdiv_",
)


def _training(
    kind: str = "single",
    *,
    parameters: int = 40,
    optimizer: str = "AdamW",
    gpu_us: float = 100.0,
    gpu: bool = True,
    stacks: bool = False,
) -> RunBuilder:
    b = RunBuilder(gpu="NVIDIA A100-SXM4-40GB" if gpu else None, stacks=stacks)
    for _ in range(6):
        with b.step(), b.python("train.py", 12, "train"):
            for _ in range(10):
                with b.op("aten::mm", us=10):
                    if gpu:
                        b.launch(gpu_us, "ampere_bf16_s16816gemm_bf16_128x128")
            with b.optimizer_step(optimizer):
                _update(b, kind, parameters, gpu)
    return b


def _update(b: RunBuilder, kind: str, parameters: int, gpu: bool) -> None:
    names = {
        "single": _PARTS * parameters,
        "foreach": tuple(f"aten::_foreach_{p.removeprefix('aten::')}" for p in _PARTS),
        "fused": ("aten::_fused_adamw_",),
        "compiled": ("Torch-Compiled Region: 0/0", *("triton_for_fused_0",) * 40),
        "apex": _PARTS * 8,
    }[kind]
    for name in names:
        with b.op(name, us=3):
            if gpu:
                b.launch(
                    2.0 if kind == "single" else 40.0,
                    "multi_tensor_apply_kernel" if kind == "apex" else "vectorized_elementwise_kernel<4>",
                )


_SCRIPT = """import torch

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
for batch in loader:
    loss = model(batch).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_PATCHED = """import torch

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for batch in loader:
    loss = model(batch).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass(frozen=True)
class SingleTensorOptimizer(Rule):
    """The optimizer updates one parameter after the other, each with a dozen small kernels.

    What it does
    Finds `Optimizer.step` of a torch.optim class that runs many small operators and none of the `_foreach_` or `_fused_`
    ones that update all parameters at once.

    Why is this bad
    Every parameter costs about ten launches. Between the backward and the next forward the host is busy launching
    kernels of a few microseconds, and the GPU waits for most of them.

    Evidence
    Operators and GPU work inside `Optimizer.step#…`. PyTorch 2 takes the foreach form by itself where all parameters lie
    on the GPU: single-tensor updates come from `foreach=False`, an older PyTorch, parameters on the CPU or tensor
    subclasses. Optimizers of other libraries and compiled ones do not count.

    How the saving is estimated
    The captured steps are re-timed without the host time of these operators but the first, and without two of three of
    their kernels: a fused Adam reads and writes 7 numbers for each parameter, the single operators about 20. A bound.

    Fix
    `fused=True` where the class has it, else `foreach=True`.

    Fix safety
    Unsafe: the last bits of updates differ; foreach keeps temporaries as large as the parameters.

    When to ignore
    When memory is short (foreach) or the parameters are few and large.

    References
    https://docs.pytorch.org/docs/stable/optim.html#algorithms
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "TD304"
    name = "single-tensor-optimizer"
    title = "The optimizer updates parameters one by one"
    needs = (Steps, GpuTimeline, OptimizerWork, Replay, Moments)
    wants = (CallSites,)

    min_saving: float = threshold(
        0.02,
        "saving, as a share of the step",
        unit="share",
        source="smaller ones lie within the spread of step times",
    )
    min_operators: int = threshold(
        50, "operators of one step()", source="a foreach AdamW runs about a dozen per group of tensors"
    )

    VALID = [
        Valid("foreach", lambda: _training("foreach")),
        Valid("fused", lambda: _training("fused")),
        Valid("compiled", lambda: _training("compiled")),
        Valid("another library's fused optimizer", lambda: _training("apex", parameters=1)),
        Valid("a class without a foreach form", lambda: _training(optimizer="LBFGS")),
        Valid("few parameters", lambda: _training(parameters=4)),
        Valid("hidden behind GPU work", lambda: _training(gpu_us=20_000)),
        Valid("CPU", lambda: _training(gpu=False), skipped="no GPU work"),
    ]
    INVALID = [
        Invalid(
            "AdamW with foreach=False", _training, message="280 operators", confidence="medium",
            codemod="optimizer-args", before=_SCRIPT, after=_PATCHED,
        ),
        Invalid("NAdam has no fused form", lambda: _training(optimizer="NAdam"), codemod="optimizer-args", message="NAdam"),
        Invalid("with stacks", lambda: _training(stacks=True), file="train.py", confidence="low"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        work = ctx[OptimizerWork]
        for optimizer in sorted({work.optimizer(m) for m in work.steps.tolist()} & _FOREACH):
            marks = np.array(
                [m for m in work.steps.tolist() if work.optimizer(m) == optimizer], dtype=np.int64
            )
            yield from self._claims(ctx, optimizer, marks)

    def _claims(self, ctx: Context, optimizer: str, marks: Rows) -> Iterator[Claim]:
        work, count = ctx[OptimizerWork], ctx[Steps].count
        operators = work.operators(marks)
        if len(operators) < self.min_operators * len(marks) or _at_once(work, operators):
            return
        gpu = work.gpu_rows(operators)
        if not len(gpu):
            return
        removal = _removal(work, marks, operators, gpu)
        outcome = ctx[Replay].without(removal)
        if outcome.share_of_step < self.min_saving:
            return
        run = work.run
        site = _site(ctx, marks)
        when = list(zip(run.ts[marks].tolist(), run.end[marks].tolist(), strict=True))
        yield Claim(
            message=(
                f"{optimizer}.step(){f' in {site}' if site else ''} updates parameters one by one, with "
                f"{len(operators) / len(marks):,.0f} operators and {two_figures(float(run.dur[marks].sum()) / count / 1e3)} "
                f"of host time a step: {outcome.promise}."
            ),
            confidence=_confidence(ctx, outcome),
            saving=_saving(outcome),
            location=location(site, ts_us=ctx[Moments].ts_us(int(run.ts[marks[0]]))),
            evidence=[
                _table(work, optimizer, marks, operators, gpu, count),
                outcome.table("What if all parameters were updated at once", "fused"),
            ],
            spans=ctx[Moments].longest(when, f"{optimizer}.step()"),
            fixes=_fixes(optimizer),
            removal=removal,
            owned=when,
            key=optimizer,
        )


def _at_once(work: OptimizerWork, operators: Rows) -> bool:
    """Whether step() runs operators or kernels that update many parameters at once."""
    run = work.run
    names = [run.names[i] for i in np.unique(run.name[operators]).tolist()]
    kernels = [run.names[i] for i in np.unique(run.name[work.gpu_rows(operators)]).tolist()]
    return any(
        n.startswith(("aten::_foreach_", "aten::_fused_", "Torch-Compiled", "triton_")) for n in names
    ) or any("multi_tensor_apply" in k or k.startswith("triton_") for k in kernels)


def _removal(work: OptimizerWork, marks: Rows, operators: Rows, gpu: Rows) -> Removal:
    """From the second operator of each step() to its last, and two of three kernels."""
    run = work.run
    spans = []
    for mark in marks.tolist():
        first, behind = np.searchsorted(run.ts[operators], [run.ts[mark], run.end[mark]])
        inside = operators[first:behind]
        if len(inside) > 1:
            spans.append((int(run.thread[mark]), int(run.ts[inside[1]]), int(run.end[inside[-1]])))
    return Removal(host_spans=tuple(spans), gpu_rows=tuple(np.delete(gpu, np.s_[::3]).tolist()))


def _confidence(ctx: Context, outcome: ReplayOutcome) -> Confidence:
    """Stacks make small operators two to three times as long: then how much a fused step would save is not known."""
    return "low" if outcome.basis != "replay" or ctx.get(CallSites) is not None else "medium"


def _saving(outcome: ReplayOutcome) -> Saving:
    """A bound even where the replay is good: how long one update of all parameters takes is an assumption."""
    return Saving(
        time_us_per_step=outcome.saved_us_per_step,
        share_of_step=outcome.share_of_step,
        basis="bound",
        how=f"{outcome.how}; a third of the kernels' time is left for one update of all parameters",
    )


def _site(ctx: Context, marks: Rows) -> Site | None:
    sites = ctx.get(CallSites)
    return sites.site(int(marks[0])) if sites is not None else None


def _table(work: OptimizerWork, optimizer: str, marks: Rows, operators: Rows, gpu: Rows, count: int) -> Table:
    run = work.run
    return Table(
        title="What step() does (per steady step)",
        columns=[
            Column("optimizer"),
            Column("operators", "count"),
            Column("kernels", "count"),
            Column("host", "us"),
            Column("GPU", "us"),
        ],
        rows=[
            [
                optimizer,
                round(len(operators) / count, 1),
                round(len(gpu) / count, 1),
                float(run.dur[marks].sum()) / count / 1e3,
                float(run.dur[gpu].sum()) / count / 1e3,
            ]
        ],
    )


_VERIFY = "record the same steps again: Optimizer.step holds a few _fused_ or _foreach_ operators, and the step is shorter"


def _fixes(optimizer: str) -> list[Fix]:
    if optimizer in _FUSED:
        return [techniques.fused_optimizer(optimizer, _VERIFY)]
    return [techniques.foreach_optimizer(optimizer, _VERIFY)]
