"""TD504 loss-outside-graph."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor import Claim, Context, Rule, Saving, threshold
from trace_doctor.evidence.durations import three_figures
from trace_doctor.evidence.idle.gaps import IdleCauses
from trace_doctor.evidence.trace.recorded_operators import OperatorsOfWork
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table
from trace_doctor_rules.compile._loss_outside_graph_evidence import EagerLoss


def _training(
    loss_us: float, *, compiled: bool = True, inside: bool = False, by_hand: str = "", gpu: bool = True
) -> RunBuilder:
    b = RunBuilder(gpu="NVIDIA H100 80GB HBM3" if gpu else None)
    for _ in b.steps(4):
        b.loader(5)
        if compiled:
            with b.region(0):
                b.compute(1000, "triton_poi_fused_0")
                if inside:
                    b.run_op("aten::cross_entropy_loss", loss_us, "triton_red_fused_1")
        else:
            b.run_op("aten::mm", 1000)
        if by_hand:
            _by_hand(b, loss_us, by_hand)
        elif not inside:
            with b.op("aten::cross_entropy_loss"), b.op("aten::_log_softmax"):
                b.compute(loss_us / 2, "cunn_SoftMaxForward")
            with b.op("autograd::engine::evaluate_function: LogSoftmaxBackward0"):
                b.compute(loss_us / 2, "cunn_SoftMaxBackward")
        if gpu:
            b.sync()
    return b


def _by_hand(b: RunBuilder, us: float, last: str) -> None:
    """A loss of three operators, and its backward before the compiled one."""
    for name in ("aten::exp", "aten::sum", last):
        with b.op(name):
            b.compute(
                us / 4, "ampere_sgemm_128x64" if name == "aten::mm" else "vectorized_elementwise_kernel"
            )
    with b.op("autograd::engine::evaluate_function: ExpBackward0"), b.op("aten::mul"):
        b.compute(us / 4)
    with b.op("autograd::engine::evaluate_function: CompiledFunctionBackward"), b.region(0):
        b.compute(1000, "triton_poi_fused_2")


_SCRIPT = """import torch
model = torch.compile(model)
loss_fn = torch.nn.CrossEntropyLoss()
for x, y in loader:
    loss = loss_fn(model(x), y)
    loss.backward()
"""
_PATCHED = _SCRIPT.replace("torch.nn.CrossEntropyLoss()", "torch.compile(torch.nn.CrossEntropyLoss())")


class LossOutsideGraph(Rule):
    """The model is compiled, but its loss runs eager.

    What it does
    Finds loss kernels outside compiled graphs in steps that run compiled graphs.

    Why is this bad
    With a large vocabulary the loss reads and writes the logits, the largest tensor of the step, several times: upcast,
    log-softmax and their gradients. Compiled, this takes one or two passes.

    Evidence
    Kernels launched by `aten::cross_entropy_loss`, `aten::log_softmax` and other losses or their backward, outside
    `Torch-Compiled Region`s, as a share of the steady steps. A loss in user code is what runs between the compiled
    forward and the compiled backward, without a matmul; in a CPU-only capture the time of these operators. Losses of
    torch.nn.functional on a CPU do not count: compiled, they are slower.

    How the saving is estimated
    A model: fusion saves passes over the logits, 40% of that time.

    Fix
    Compile the loss too, or one function that calls model and loss.

    Fix safety
    Unsafe: results are not bitwise identical.

    When to ignore
    When the loss already is a fused kernel of a library.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.compile.html
    https://github.com/linkedin/Liger-Kernel
    """

    code = "TD504"
    name = "loss-outside-graph"
    title = "Loss runs outside the compiled graph"
    of_training = True
    needs = (EagerLoss, Steps)
    to_pass = (IdleCauses, OperatorsOfWork)

    min_share: float = threshold(
        0.05,
        "time of the loss outside compiled graphs, as a share of the step",
        unit="share",
        source="a healthy compiled training spends 3 to 4% there, of which fusion would save one or two",
    )
    fused_away: float = threshold(
        0.4,
        "share of that time that fusion saves",
        unit="share",
        source="log-softmax and its backward pass over the logits five times, fused three times; written out on a CPU, torch 2.13: 33 to 56%",
    )

    VALID = [
        Valid("compiled with the model", lambda: _training(200, inside=True)),
        Valid("a small loss", lambda: _training(10)),
        Valid("a part of the model follows", lambda: _training(200, by_hand="aten::mm")),
        Valid("cross entropy on a CPU", lambda: _training(200, gpu=False)),
        Valid("nothing is compiled", lambda: _training(200, compiled=False), skipped="no compiled graph"),
    ]
    INVALID = [
        Invalid(
            "cross entropy beside a compiled model",
            lambda: _training(200),
            saving_us=80,
            message="The loss runs outside the compiled graph: 200 µs per step",
            codemod="compile-loss",
            before=_SCRIPT,
            after=_PATCHED,
        ),
        Invalid(
            "by hand",
            lambda: _training(200, by_hand="aten::log"),
            saving_us=80,
            severity="info",
            confidence="low",
        ),
        Invalid(
            "by hand on a CPU",
            lambda: _training(200, by_hand="aten::log", gpu=False),
            saving_us=80,
            severity="info",
        ),
    ]

    def check(self, ctx: Context) -> Iterator[Claim]:
        loss, steps = ctx[EagerLoss], ctx[Steps]
        us = loss.ns / loss.steps / 1e3
        share = us * 1e3 / steps.step_ns if steps.step_ns else 0.0
        if share < self.min_share:
            return
        yield Claim(
            message=(
                f"The loss {'' if loss.by_name else 'likely '}runs outside the compiled graph: {three_figures(us)} per step "
                f"({share:.0%} of the step), mostly in "
                f"{loss.operators[0][0].removeprefix('autograd::engine::evaluate_function: ')}."
            ),
            confidence="medium" if loss.by_name else "low",
            severity=None if loss.by_name else "info",
            saving=Saving(
                time_us_per_step=us * self.fused_away,
                share_of_step=share * self.fused_away,
                basis="model",
                how=f"{self.fused_away:.0%} of the loss's time: the passes over the logits that fusion saves",
            ),
            evidence=[
                table(
                    "Loss operators in the steady steps",
                    {"operator": "code", "kernels" if loss.on_gpu else "calls": "count", "total time": "us"},
                    [[name, count, ns / 1e3] for name, count, ns in loss.operators],
                )
            ],
            fixes=[
                techniques.compile_loss(
                    "Record the same steps again: the loss operators are gone from the trace."
                )
            ],
            key="loss",
        )
