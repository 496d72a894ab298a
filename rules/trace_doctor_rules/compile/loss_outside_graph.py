"""TD504 loss-outside-graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trace_doctor import Claim, Column, Context, Rule, Saving, Table, threshold
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.loss import EagerLoss
from trace_doctor.evidence.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques


def _training(loss_us: float, *, compiled: bool = True, inside: bool = False) -> RunBuilder:
    b = RunBuilder()
    for _ in range(4):
        with b.step():
            b.loader(5)
            if compiled:
                with b.region(0):
                    b.launch(1000, "triton_poi_fused_0")
                    if inside:
                        with b.op("aten::cross_entropy_loss"):
                            b.launch(loss_us, "triton_red_fused_1")
            else:
                with b.op("aten::mm"):
                    b.launch(1000)
            if not inside:
                with b.op("aten::cross_entropy_loss"), b.op("aten::log_softmax"):
                    b.launch(loss_us / 2, "cunn_SoftMaxForward")
                with b.op("autograd::engine::evaluate_function: LogSoftmaxBackward0"):
                    b.launch(loss_us / 2, "cunn_SoftMaxBackward")
            b.sync()
    return b


_SCRIPT = """import torch
model = torch.compile(model)
loss_fn = torch.nn.CrossEntropyLoss()
for x, y in loader:
    loss = loss_fn(model(x), y)
    loss.backward()
"""
_PATCHED = _SCRIPT.replace("torch.nn.CrossEntropyLoss()", "torch.compile(torch.nn.CrossEntropyLoss())")


@dataclass(frozen=True)
class LossOutsideGraph(Rule):
    """The model is compiled, its loss is not.

    What it does
    Finds GPU work of loss operators that runs outside compiled graphs in steps that run compiled graphs.

    Why is this bad
    With a large vocabulary the loss reads and writes the logits, the largest tensor of the step, several times: upcast,
    log-softmax, and their gradients. Compiled, they are one or two passes.

    Evidence
    Kernels launched by `aten::cross_entropy_loss`, `aten::log_softmax` and other losses or their backward, outside
    `Torch-Compiled Region`s, as a share of the steady steps.

    How the saving is estimated
    A model: passes over the logits that fusing takes away, 40 % of that GPU time.

    Fix
    Compile the loss too, or a function that calls model and loss.

    Fix safety
    Unsafe: the last bits differ.

    When to ignore
    When the loss is a fused kernel of a library already.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.compile.html
    https://github.com/linkedin/Liger-Kernel
    """

    code = "TD504"
    name = "loss-outside-graph"
    title = "The loss is not compiled"
    needs = (EagerLoss, Steps)

    min_share: float = threshold(
        0.05,
        "GPU time of the loss outside compiled graphs, as a share of the step",
        unit="share",
        source="a healthy compiled training spends 3 to 4 % there, of which fusing would save one or two",
    )
    fused_away: float = threshold(
        0.4,
        "part of that time which fusing saves",
        unit="share",
        source="log-softmax and its backward pass over the logits five times, fused three times",
    )

    VALID = [
        Valid("compiled with the model", lambda: _training(200, inside=True)),
        Valid("a small loss", lambda: _training(10)),
        Valid("nothing is compiled", lambda: _training(200, compiled=False), skipped="no compiled graph"),
    ]
    INVALID = [
        Invalid(
            "cross entropy beside a compiled model",
            lambda: _training(200),
            saving_us=80,
            message="aten::log_softmax",
            codemod="compile-loss",
            before=_SCRIPT,
            after=_PATCHED,
        )
    ]

    def check(self, ctx: Context) -> Iterator[Claim]:
        loss, steps = ctx[EagerLoss], ctx[Steps]
        us = loss.ns / loss.steps / 1e3
        share = us * 1e3 / steps.step_ns if steps.step_ns else 0.0
        if share < self.min_share:
            return
        yield Claim(
            message=(
                f"The model runs compiled, its loss does not: {milliseconds(us)} of a step ({share:.0%}) in "
                f"{loss.operators[0][0].removeprefix('autograd::engine::evaluate_function: ')} and the like."
            ),
            confidence="medium",
            saving=Saving(
                time_us_per_step=us * self.fused_away,
                share_of_step=share * self.fused_away,
                basis="model",
                how=f"{self.fused_away:.0%} of the loss's GPU time: the passes over the logits that fusing takes away",
            ),
            evidence=[
                Table(
                    title="The loss's GPU work in the steady steps",
                    columns=[
                        Column("operator", "code"),
                        Column("kernels", "count"),
                        Column("together", "us"),
                    ],
                    rows=[[name, count, ns / 1e3] for name, count, ns in loss.operators],
                )
            ],
            fixes=[techniques.compile_loss("record again: the loss's operators are gone from the trace")],
            key="loss",
        )
