"""TD204 tensor-indexing-loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

from msgspec.structs import replace

from trace_doctor import Claim, Context, Rule, Table, threshold
from trace_doctor.evidence.compute.operator_loops import OperatorLoop, OperatorLoops
from trace_doctor.evidence.idle.gaps import IdleCauses
from trace_doctor.evidence.replay.what_if import Removal, Replay, ReplayOutcome
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.evidence.trace.recorded_operators import RecordedOperators
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques


def _training(
    repeats: int = 32,
    *,
    indexing: bool = True,
    stacks: bool = True,
    gpu: bool = True,
    body_us: float = 10,
    calls: str = "",
    held_up_us: float = 0,
    branches: bool = False,
    each: bool = False,
    unbound: bool = False,
    steps: int = 5,
    backward: tuple[str, ...] = (),
) -> RunBuilder:
    """Steps with a loop over the rows of a tensor, in which something else has the core once."""
    b = RunBuilder(stacks=stacks) if gpu else RunBuilder(gpu=None, stacks=stacks)
    for n in range(5):
        with b.step(), b.python("train.py", 8, "train"):
            for _ in range(4):
                b.run_op("aten::mm", 30, host_us=10)
            with b.python("train.py", 3, "pairwise"):
                if unbound:
                    b.run_op("aten::unbind", host_us=3)
                for i in range(repeats if n < steps else 0):
                    with b.python("train.py", 20, "one") if each else nullcontext():
                        if indexing:
                            b.run_op("aten::select", host_us=3)
                        with b.python("nn.py", 5 + i, calls) if calls else b.op("aten::mul", us=body_us):
                            b.compute(2)
                    if branches and i * i % 7 < 3:
                        b.run_op("aten::flip", host_us=3)
                    b.wait(2 + held_up_us * (i == 7))
            for node in backward * repeats:
                b.run_op(f"autograd::engine::evaluate_function: {node}", host_us=20)
    return b


def _layers(*, stacks: bool) -> RunBuilder:
    """Twelve layers one after the other, each with a slice."""
    b = RunBuilder(stacks=stacks)
    for _ in range(5):
        with b.step(), b.python("model.py", 8, "forward"):
            for n in range(12):
                with b.python(f"nn.Module: Block_{n}", 1, "x"), b.python("model.py", 30, "block"):
                    for name in ("linear", "slice", "mul"):
                        b.run_op(f"aten::{name}", 5, host_us=20)
    return b


class TensorIndexingLoop(Rule):
    """A Python loop handles a tensor element by element.

    What it does
    Finds functions in which the same few operators, an indexing one among them, repeat ten times and more in a step.

    Why is this bad
    Each repetition costs the interpreter and the dispatcher some 10 to 50 us whatever its size, and on a GPU a launch for
    each operator. One operator over the whole tensor does the same in one go.

    Evidence
    Operators on the main thread directly below one frame of the user's (with `with_stack=True`), or below a function that
    is called again and again: a group of up to twenty that begins with `select`, `slice`, `index` or a relative, or stands
    behind `unbind` or `split`, repeated ten times and more, in every step, each repetition short. Without stacks the same
    within a step, where none of the operators belongs to a layer. Backward, optimizer and loader are left out; loops over layers index nothing.

    How the saving is estimated
    A model: the steps simulated with one repetition instead of all, each as long as the median one, and with one of the nodes
    of autograd that come as often as the repetitions. What the vectorised form takes is not known, so that it stays a hint.

    Fix
    Vectorise: broadcasting, reductions over a dimension, gather / scatter / index_add, torch.vmap.

    Fix safety
    Not edited.

    When to ignore
    When one repetition needs the result of the one before (a recurrence), and then consider torch.compile.

    References
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    https://docs.pytorch.org/docs/stable/generated/torch.vmap.html
    """

    code = "TD204"
    name = "tensor-indexing-loop"
    title = "Python loop over tensor elements"
    needs = (Steps, OperatorLoops, Replay, Moments)
    to_pass = (RecordedOperators, IdleCauses)
    yields_to = ("TD201", "TD309")

    min_share: float = threshold(
        0.01, "saving by the model, as a share of the step", unit="share", source="less is lost in noise"
    )
    max_operator_us: float = threshold(
        100.0,
        "one repetition, by its operators: in a longer one the overhead is small",
        unit="us",
        source="an operator costs the host 5 to 50 us, with stacks two to three times that",
    )

    VALID = [
        Valid("few repetitions", lambda: _training(8)),
        Valid("a loop over layers", lambda: _training(indexing=False)),
        Valid("in three steps of five", lambda: _training(steps=3)),
        Valid("a small part", _training, thresholds={"min_share": 0.95}),
        Valid("long repetitions", lambda: _training(body_us=900)),
        Valid("layers with a rotation, no stacks", lambda: _layers(stacks=False)),
        Valid("layers with a rotation", lambda: _layers(stacks=True)),
    ]
    INVALID = [
        Invalid("32 rows", _training, message="pairwise() (train.py)", confidence="medium", severity="info", file="train.py"),
        Invalid("on the CPU", lambda: _training(gpu=False), message="32 times", saving_us=532, tolerance=0.1),
        Invalid("the same backward", lambda: _training(gpu=False, backward=("MulBackward0", "SelectBackward0")), saving_us=532 + 2 * 31 * 20, tolerance=0.02),
        Invalid("as many parameters and layers as rows", lambda: _training(gpu=False, backward=("AddmmBackward0", "torch::autograd::AccumulateGrad")), saving_us=532, tolerance=0.1),
        Invalid("other programs hold it up", lambda: _training(gpu=False, held_up_us=30_000), message="32 times", saving_us=532, tolerance=0.1),
        Invalid("a body with a branch", lambda: _training(gpu=False, branches=True), message="repeats aten::select, aten::mul"),
        Invalid("in four steps of five", lambda: _training(steps=4), message="26 times"),
        Invalid("the body is a function", lambda: _training(calls="body"), message="aten::select"),
        Invalid("a function for each element", lambda: _training(each=True), message="aten::select", file="train.py"),
        Invalid("over the parts of a tensor", lambda: _training(indexing=False, unbound=True), message="aten::mul"),
        Invalid("no stacks", lambda: _training(stacks=False), message="Code without a recorded name", confidence="low", severity="info"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        loops, replay, count = ctx[OperatorLoops], ctx[Replay], ctx[Steps].count
        for loop in loops.loops:
            if loop.steps < max(1, count - 1) or (
                loop.repetition_ns > self.max_operator_us * 1e3 * len(loop.group)
            ):
                continue
            removal = Removal(
                host_spans=tuple(
                    (
                        loops.thread,
                        start + first,
                        min(end, start + first + (repeats - 1) * loop.repetition_ns),
                    )
                    for (start, end), first, repeats in zip(loop.spans, loop.first, loop.repeats, strict=True)
                )
                + loop.backward
            )
            outcome = replay.without(removal)
            if outcome.share_of_step >= self.min_share:
                yield self._claim(ctx, loop, outcome)

    def _claim(self, ctx: Context, loop: OperatorLoop, outcome: ReplayOutcome) -> Claim:
        moments, count = ctx[Moments], ctx[Steps].count
        saving = outcome.saving()
        return Claim(
            message=_message(loop, count),
            confidence="medium" if loop.site else "low",
            severity="info",
            saving=replace(
                saving, basis="model", how=f"a model: one repetition instead of all; {saving.how}"
            ),
            location=location(loop.site, ts_us=moments.ts_us(loop.spans[0][0])),
            evidence=[_table(loop, count)],
            spans=moments.longest(loop.spans, "loop over a tensor"),
            fixes=[techniques.vectorise(_VERIFY, loop.site.target if loop.site else None)],
            owned=loop.spans,
            key="/".join(loop.group),
        )


_VERIFY = "Record the same steps again: the operators of the loop are gone and the step is shorter"


def _message(loop: OperatorLoop, count: int) -> str:
    often = sum(loop.repeats) / count
    group = ", ".join(loop.group[:4]) + (" …" if len(loop.group) > 4 else "")
    who = str(loop.site) if loop.site else "Code without a recorded name"
    return f"{who} repeats {group} {often:,.0f} times per step, once per element instead of once per tensor."


def _table(loop: OperatorLoop, count: int) -> Table:
    return Table.with_units(
        "The loop, per steady step",
        {
            "operators": "code",
            "executions": "count",
            "repetitions": "count",
            "time each": "us",
            "time per step": "us",
        },
        [
            [
                ", ".join(loop.group),
                round(len(loop.spans) / count, 1),
                round(sum(loop.repeats) / count, 1),
                loop.repetition_ns / 1e3,
                sum(end - start for start, end in loop.spans) / count / 1e3,
            ]
        ],
    )
