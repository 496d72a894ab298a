"""TD304 single-tensor-optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from msgspec import structs

from trace_doctor import NOTE_FROM, Claim, Confidence, Context, Fix, Rule, Run, Saving, Table, threshold
from trace_doctor.evidence.compute.optimizer_work import OptimizerWork
from trace_doctor.evidence.compute.update_loops import UpdateLoops
from trace_doctor.evidence.durations import three_figures
from trace_doctor.evidence.idle.cpu_timeline import Processor
from trace_doctor.evidence.idle.gaps import IdleCauses
from trace_doctor.evidence.idle.host_causes import CAUSE, HostCauses
from trace_doctor.evidence.intervals import covered, union
from trace_doctor.evidence.replay.what_if import Removal, Replay, ReplayOutcome
from trace_doctor.evidence.trace.call_sites import CallSites, Site, location
from trace_doctor.evidence.trace.recorded_operators import OperatorsOfWork, RecordedOperators
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import site_of, table, target
from trace_doctor_rules.kernels import _single_tensor_optimizer_cases as cases
from trace_doctor_rules.kernels._updates import (
    Rows,
    Update,
    by_hand,
    by_optimizers,
    left_on_cpu,
    removal_on_cpu,
    removal_on_gpu,
)


class SingleTensorOptimizer(Rule):
    """The optimizer updates one parameter after the other, each with about a dozen small kernels.

    What it does
    Finds `Optimizer.step` of a torch.optim class that runs many small operators and none of the `_foreach_` or `_fused_`
    ones that update all parameters in one call. Finds loops in user code that do the same to one tensor after the other:
    an update rule, an average of the weights, clipping.

    Why is this bad
    Every parameter costs about ten launches. Between backward and the next forward the host launches kernels of a few
    microseconds, and the GPU waits for most of them. On a CPU each operator reads and writes whole tensors.

    Evidence
    Operators and GPU work inside `Optimizer.step#…`. PyTorch 2 uses foreach by default where all parameters are on the
    GPU: single-tensor updates come from `foreach=False`, an older PyTorch, parameters on the CPU or tensor subclasses.
    Fused optimizers of other libraries and compiled ones do not count. A loop in user code is a run of elementwise
    operators that work in place, with nothing between: inside the `step()` of a user's class, or, in training, over
    tensors of several shapes or as many as backward had gradients.

    On a CPU PyTorch 2.13 uses neither by default, so the finding is info there. It is for Adam, AdamW and Adagrad, whose
    fused step takes a third of the time or less (torch 2.13, 60 to 150 tensors of 64 to a million numbers: 13 to 50%).
    Other classes and loops count only where operators are so small that calling them takes most of their time.

    How the saving is estimated
    The captured steps are simulated without the host time of these operators except the first, and without two of three of
    their kernels: a fused Adam reads and writes 7 numbers for each parameter, the single operators about 20. (Of a loop
    with two operators half the kernels stay, of one with one all.) On a CPU two of three operators are left out, or every
    other one. It is an estimate. On a GPU foreach reads and writes as much as the single operators (all kernels stay), and
    small parameters cost a fused optimizer next to nothing (none stay). On a CPU the fused step took 13 to 50% of the
    time.

    Fix
    Set `fused=True` where the class has it in the torch of the capture, else `foreach=True`. In own loops use
    `torch._foreach_…` on lists of tensors, or `torch.compile` for the function with the loop.

    Fix safety
    Unsafe: updates are not bitwise identical, and foreach needs temporaries as large as the parameters.

    When to ignore
    When memory is short (foreach) or the parameters are few and large.

    References
    https://docs.pytorch.org/docs/stable/optim.html#algorithms
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "TD304"
    name = "single-tensor-optimizer"
    title = "Optimizer updates parameters one by one"
    of_training = True
    about = ("optimizer",)
    needs = (Steps, Processor, UpdateLoops, HostCauses, Replay, Moments)
    wants = (CallSites, OptimizerWork)
    to_pass = (RecordedOperators, OperatorsOfWork, IdleCauses)

    min_saving: float = threshold(
        0.02,
        "saving, as a share of the step",
        unit="share",
        source="smaller ones lie within the spread of step times",
        note_from=NOTE_FROM,
    )
    min_saving_on_cpu: float = threshold(
        0.05,
        "the same on a CPU",
        unit="share",
        source="PyTorch's default is worth an info finding only where the saving is large",
    )
    small_us: float = threshold(
        15.0,
        "median operator of a step() on a CPU up to which calling it costs as much as its work",
        unit="us",
        source="torch 2.13: foreach halves RMSprop and NAdam of 150 tensors of 64 to 4,096 numbers (10 us), and gains nothing at 65,536 (36 us)",
    )
    min_operators: int = threshold(
        50, "operators of one step()", source="a foreach AdamW runs about a dozen per group of tensors"
    )

    VALID = [
        Valid("foreach", lambda: cases.training("foreach"), thresholds={"min_operators": 1}),
        Valid("fused", lambda: cases.training("fused"), thresholds={"min_operators": 1}),
        Valid("compiled", lambda: cases.training("compiled"), thresholds={"min_operators": 1}),
        Valid("kernels of a compiler", lambda: cases.training("kernels of a compiler"), thresholds={"min_operators": 1}),
        Valid("offloaded to the CPU beside a GPU", lambda: cases.training(offloaded=True, gpu_us=10)),
        Valid("another library's fused optimizer", lambda: cases.training("apex", parameters=1)),
        Valid("a class without a foreach form", lambda: cases.training(optimizer="LBFGS")),
        Valid("few parameters", lambda: cases.training(parameters=4)),
        Valid("hidden behind GPU work", lambda: cases.training(gpu_us=20_000)),
        Valid("a loop of one shape, in a simulation", lambda: cases.by_hand(shapes=(64,), gradients=7), skipped=cases.NO_STEP),
        Valid("several shapes, and no training", lambda: cases.by_hand(backward=False), skipped=cases.NO_STEP),
        Valid("neither shapes nor gradients tell", lambda: cases.by_hand(shapes=(), gradients=7), skipped=cases.NO_STEP),
        Valid("products between, as Muon has them", lambda: cases.by_hand(optimizer="Muon", between="aten::mm")),
        Valid("gradients filled with zeros", lambda: cases.by_hand(("aten::zero_",)), skipped=cases.NO_STEP),
        Valid("tensors that are only moved", lambda: cases.by_hand(("aten::copy_",)), skipped=cases.NO_STEP),
        Valid("an average of few tensors", lambda: cases.by_hand(tensors=8), skipped=cases.NO_STEP),
        Valid("CPU, fused", lambda: cases.training("fused", gpu=False)),
        Valid("CPU, less than asked for", lambda: cases.training(gpu=False), thresholds={"min_saving_on_cpu": 0.9}),
        Valid("CPU, large tensors: SGD gains little", lambda: cases.training(optimizer="SGD", gpu=False, us=50)),
        Valid("CPU, by hand, of two operators for each large tensor", lambda: cases.by_hand(optimizer="MyEma", gpu=False, us=50)),
        Valid("CPU, an average of large tensors", lambda: cases.by_hand(gpu=False, us=50), skipped=cases.NO_STEP),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "AdamW with foreach=False", cases.training, message="AdamW.step() updates parameters one by one. Its 280 operators per step take 1.96 ms on the host.", confidence="medium", thresholds={"min_operators": 280},
            codemod="optimizer-args", before=cases.SCRIPT, after=cases.PATCHED,
        ),
        Invalid("NAdam has no fused form", lambda: cases.training(optimizer="NAdam"), codemod="optimizer-args", message="NAdam"),
        Invalid("Adagrad, of which most GPUs' torch has no fused form", lambda: cases.training(optimizer="Adagrad"), message="Adagrad", fixes=("foreach=True",)),
        Invalid("one update is skipped", lambda: cases.training(skipped=3), message="234 operators"),
        Invalid("a queue that stands still", lambda: cases.training(stall=500), confidence="low"),
        Invalid("with stacks", lambda: cases.training(stacks=True), file="train.py", confidence="low"),
        Invalid("Adam written by hand", lambda: cases.by_hand(cases.PARTS, optimizer="MyAdam"), message="MyAdam.step()"),
        Invalid(
            "the same in its first step",
            lambda: cases.by_hand(cases.PARTS, optimizer="MyAdam", cold=True),
            confidence="low",
            severity="info",
            message="lazy loading",
        ),
        Invalid("an average of the weights", cases.by_hand, message="A loop", confidence="low", fixes=("_foreach_",)),
        Invalid("an average that is written back", lambda: cases.by_hand(("aten::mul", "aten::mul", "aten::add", "aten::copy_")), message="A loop"),
        Invalid("views and reads between", lambda: cases.by_hand((*cases.PARTS, "aten::view", "aten::item")), message="A loop"),
        Invalid("as many tensors as gradients", lambda: cases.by_hand(shapes=()), message="A loop"),
        Invalid("CPU", lambda: cases.training(gpu=False, us=50), severity="info", message="A fused version for CPUs exists.", codemod="optimizer-args"),
        Invalid("CPU, NAdam of small tensors", lambda: cases.training(optimizer="NAdam", gpu=False), severity="info", message="on the host.", thresholds={"small_us": 3.0}),
        Invalid("CPU, by hand", lambda: cases.by_hand(cases.PARTS, optimizer="MyAdam", gpu=False, us=50), severity="info"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        work = ctx.get(OptimizerWork)
        for update in by_optimizers(work) if work is not None else ():
            yield from self._claims(ctx, update)
        of_loops = [claim for update in by_hand(ctx[UpdateLoops]) for claim in self._claims(ctx, update)]
        if not of_loops:
            ctx[OptimizerWork]  # raises where none was recorded, so that nothing is said to be in order
        yield from of_loops

    def _claims(self, ctx: Context, update: Update) -> Iterator[Claim]:
        run, count, on_gpu = ctx[UpdateLoops].run, ctx[Steps].count, ctx[Processor].gpu
        operators = np.concatenate(update.runs)
        if len(operators) < self.min_operators * len(update.runs):
            return
        gpu = ctx[UpdateLoops].gpu_rows(operators)
        if on_gpu and not len(gpu):
            return
        if not on_gpu:
            small = float(np.median(run.dur[operators])) / 1e3 <= self.small_us
            update = replace(update, of=left_on_cpu(update, small=small))

        def removal_with(of: int) -> Removal:
            some = replace(update, of=of)
            return removal_on_gpu(run, some, gpu) if on_gpu else removal_on_cpu(run, some)

        replay, removal = ctx[Replay], removal_with(update.of)
        outcome = replay.without(removal)
        if outcome.share_of_step < (self.min_saving if on_gpu else self.min_saving_on_cpu):
            return
        cold = _mostly_cold(ctx, update)
        site = site_of(ctx, int(operators[0]))
        host = sum(end - start for start, end in update.spans) / count / 1e3
        yield Claim(
            message=(
                f"{update.who}{f' in {site}' if site else ''} updates parameters one by one. "
                f"Its {len(operators) / count:,.0f} operators per step take {three_figures(host)} on the host."
                f"{' A fused version for CPUs exists.' if update.fused and not on_gpu else ''}"
                f"{' Most of that time is lazy loading of kernels at their first use.' if cold else ''}"
            ),
            confidence="low" if cold else _confidence(ctx, outcome, update),
            severity="info" if cold or not on_gpu else None,
            saving=_saving(
                outcome,
                replay.without(removal_with(1 if on_gpu else max(update.of - 1, 1))),
                replay.without(removal_with(len(gpu) if on_gpu else _FASTEST)),
                update.of,
                on_gpu=on_gpu,
            ),
            location=location(site, ts_us=ctx[Moments].ts_us(update.spans[0][0])),
            evidence=[
                _table(run, update, operators, gpu, count),
                outcome.table("Simulated: all parameters updated in one call", "fused"),
            ],
            spans=ctx[Moments].longest(list(update.spans), update.who),
            fixes=_fixes(update, site, run, on_gpu=on_gpu),
            removal=removal,
            owned=list(update.spans),
            key=update.optimizer or "loop",
        )


def _mostly_cold(ctx: Context, update: Update) -> bool:
    """Whether most of its time is the loading of kernels that are used for the first time: that comes once."""
    cover = ctx[HostCauses].on(int(ctx[UpdateLoops].run.thread[update.runs[0][0]]))
    cold = union(cover.pieces[cover.cause == CAUSE["cold_start"]])
    return 2 * int(covered(np.array(update.spans), cold).sum()) > sum(
        end - start for start, end in update.spans
    )


def _confidence(ctx: Context, outcome: ReplayOutcome, update: Update) -> Confidence:
    """Stacks make small operators two to three times as long: then how much a fused step would save is not known. What
    is no optimizer may be meant as it is."""
    if not update.optimizer or outcome.basis != "replay" or ctx.get(CallSites) is not None:
        return "low"
    return "medium"


_FASTEST = 8
"""Of so many operators on a CPU one is left at best: the fastest fused step took 13% of the time (torch 2.13)."""


def _saving(
    outcome: ReplayOutcome, least: ReplayOutcome, most: ReplayOutcome, of: int, *, on_gpu: bool
) -> Saving:
    """How long one update of all parameters takes is assumed: between all that a form could leave and next to nothing."""
    share = {1: "all", 2: "half"}.get(of, "a third")
    whose = "kernels'" if on_gpu else "operators'"
    return structs.replace(
        outcome.saving_between(least, most),
        basis="bound",
        how=f"{outcome.how}; {share} of the {whose} time remains for one update of all parameters",
    )


def _table(run: Run, update: Update, operators: Rows, gpu: Rows, count: int) -> Table:
    return table(
        "Work of step()",
        {
            "optimizer": "text",
            "operators/step": "count",
            "kernels/step": "count",
            "host/step": "us",
            "GPU/step": "us",
        },
        [
            [
                update.who,
                round(len(operators) / count, 1),
                round(len(gpu) / count, 1) if len(gpu) else None,
                sum(end - start for start, end in update.spans) / count / 1e3,
                float(run.dur[gpu].sum()) / count / 1e3 if len(gpu) else None,
            ]
        ],
    )


_VERIFY = "Record the same steps again: Optimizer.step runs a few _fused_ or _foreach_ operators and the step is shorter."

_VERIFY_LOOP = (
    "Record the same steps again: a few _foreach_ operators replace the loop and the step is shorter."
)


_FUSED_SINCE = {"Adam": (2, 0), "AdamW": (2, 0), "SGD": (2, 3), "Adagrad": (2, 12)}
"""the torch whose GPU form it is; that of CPUs came with 2.4"""
_TOGETHER_SINCE = (2, 0)
"""the torch that takes the foreach form by itself"""


def _fixes(update: Update, site: Site | None, run: Run, *, on_gpu: bool) -> list[Fix]:
    if update.loop is not None:
        return [techniques.update_together(_VERIFY_LOOP, target(site))]
    newest = _release(run.torch_version.max)
    older = newest is not None and newest < _TOGETHER_SINCE
    update_first = [techniques.newer_torch(_VERIFY)] if on_gpu and older else []
    if update.fused and _has_fused(update.optimizer, run, on_gpu=on_gpu):
        return [*update_first, techniques.fused_optimizer(update.optimizer, _VERIFY, on_gpu=on_gpu)]
    return [*update_first, techniques.foreach_optimizer(update.optimizer, _VERIFY)]


def _has_fused(optimizer: str, run: Run, *, on_gpu: bool) -> bool:
    """Whether the torch of the capture may have the fused form of a class; that of Adagrad, which came late, where it has."""
    if not on_gpu:
        return True
    since, newest, oldest = (
        _FUSED_SINCE.get(optimizer, (0, 0)),
        _release(run.torch_version.max),
        _release(run.torch_version.min),
    )
    if optimizer == "Adagrad":
        return oldest is not None and oldest >= since
    return newest is None or newest >= since


def _release(version: str | None) -> tuple[int, ...] | None:
    parts = (version or "").split("+")[0].split(".")[:2]
    return tuple(map(int, parts)) if len(parts) == 2 and all(p.isdigit() for p in parts) else None
