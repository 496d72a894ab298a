"""TD307 conv-bias-before-batchnorm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from trace_doctor import Claim, Context, Rule, Saving, Table, threshold
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.replay.what_if import Replay
from trace_doctor.evidence.trace.call_sites import CallSites, Site, location
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.operator_inputs import Inputs, OperatorInputs
from trace_doctor.evidence.trace.recorded_operators import OperatorsOfWork, RecordedOperators
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules._shared import advice, table
from trace_doctor_rules.kernels._shared import by_model

Rows = npt.NDArray[np.int64]
_CONVOLUTIONS = frozenset(f"aten::conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))
_NORM = "aten::batch_norm"
_HARMLESS = ("aten::add_", "aten::add")
"""BatchNorm counts its batches before it runs; and whatever else is added, the bias is still taken away."""
_ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def _training(
    *,
    bias: bool = True,
    between: str = "",
    channels: int = 64,
    shapes: bool = True,
    gpu: bool = True,
    stacks: bool = False,
    conv: str = "aten::conv2d",
    places: int = 1,
    added: bool = True,
    head: bool = False,
    layers: int = 5,
) -> RunBuilder:
    b = RunBuilder(gpu="NVIDIA H100 80GB HBM3" if gpu else None, shapes=shapes, stacks=stacks)
    image, weight = [8, 32, 56, 56], [64, 32, 3, 3]
    for _ in b.steps(4):
        for n in range(layers):
            dims = [image, weight, [64] if bias else [], [], [], [], []]
            with (
                b.python("model.py", 30 + n % places, "forward"),
                b.op(conv, dims=dims, types=["float"] * 3),
            ):
                _convolve(b, bias and added)
            if between:
                b.run_op(between, 10, "relu", host_us=5)
            with b.op(_NORM, us=5, dims=[[8, channels, 56, 56], [channels], [channels]], types=["float"] * 3):
                b.compute(30, "bn_fw_tr_1C11_kernel_NCHW")
        if head:
            with b.op(conv, dims=[image, weight, [64]], types=["float"] * 3):
                _convolve(b, True)
    return b


def _convolve(b: RunBuilder, adds: bool) -> None:
    b.run_op("aten::cudnn_convolution", 200, "sm80_xmma_fprop_implicit_gemm_tf32f32", host_us=5)
    if adds:
        b.run_op("aten::add_", 10, _ADD, host_us=5)


class ConvBiasBeforeBatchnorm(Rule):
    """A convolution adds a bias that the next batch norm cancels.

    What it does
    Finds convolutions with a bias whose next operator is a batch norm over their channels.

    Why is this bad
    Batch norm subtracts the mean of each channel, and with it the bias. The addition is one more pass over the output,
    its gradient is one more reduction, and the parameter has no effect on the model.

    Evidence
    Shapes of the operators' inputs in a typical step: `aten::conv1d`, `conv2d`, `conv3d` or a transposed one with a third
    tensor, and `aten::batch_norm` as the next operator of the same thread (additions aside), over as many channels.

    How the saving is estimated
    A model: all the time of the kernels that add the bias in forward. The cost of its gradient is not counted. Where the
    convolution's own kernel adds the bias, no saving is claimed.

    Fix
    Set `bias=False` in the convolution.

    Fix safety
    Unsafe: parameters are initialized with other random numbers from there on, and checkpoints lose a key.

    When to ignore
    When checkpoints with these biases must load unchanged.

    References
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#disable-bias-for-convolutions-directly-followed-by-a-batch-norm
    """

    code = "TD307"
    name = "conv-bias-before-batchnorm"
    title = "Batch norm cancels the convolution bias"
    of_training = True
    needs = (Steps, OperatorInputs, Nesting, Replay, Moments)
    wants = (Kernels, CallSites)
    to_pass = (RecordedOperators, OperatorsOfWork)

    min_layers: int = threshold(
        1, "such convolutions per step", source="one is one too many, and it costs little to say so"
    )

    VALID = [
        Valid("no bias", lambda: _training(bias=False)),
        Valid("an activation between", lambda: _training(between="aten::relu")),
        Valid("a norm over other channels", lambda: _training(channels=32)),
        Valid("fewer than asked for", _training, thresholds={"min_layers": 6}),
        Valid("no shapes", lambda: _training(shapes=False), skipped="shapes"),
    ]
    INVALID = [
        Invalid("one layer", lambda: _training(layers=1), message="1 convolution per step adds a bias that the next batch norm cancels."),
        Invalid("five layers", _training, message="5 convolutions per step add a bias that the next batch norm cancels.", saving_us=50, severity="info", confidence="high", thresholds={"min_layers": 5}),
        Invalid("one more before no norm", lambda: _training(head=True), message="5 convolutions", saving_us=50),
        Invalid("added by the convolution's own kernel", lambda: _training(added=False), message="cancels."),
        Invalid("the norm counts its batches", lambda: _training(between="aten::add_"), message="5 convolutions"),
        Invalid("CPU", lambda: _training(gpu=False), message="5 convolutions"),
        Invalid("transposed", lambda: _training(conv="aten::conv_transpose2d"), message="5 convolutions"),
        Invalid("with stacks", lambda: _training(stacks=True), file="model.py"),
        Invalid("in several places", lambda: _training(stacks=True, places=2), message="per step add a bias"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        inputs, nesting = ctx[OperatorInputs], ctx[Nesting]
        run = nesting.run
        pairs = _pairs(nesting, inputs)
        operands = inputs.of([row for pair in pairs for row in pair])
        cancelled = [
            (conv, of_conv)
            for (conv, _), of_conv, of_norm in zip(pairs, operands[::2], operands[1::2], strict=True)
            if _undone(of_conv, of_norm)
        ]
        if len(cancelled) < self.min_layers:
            return
        convolutions = np.array([conv for conv, _ in cancelled], dtype=np.int64)
        site = _site(ctx, convolutions)
        biased = sum(
            len(g.shape(2)) == 1
            for g in inputs.of(inputs.typical(run.named(_CONVOLUTIONS.__contains__)).tolist())
        )
        saving = _saving(ctx, len(cancelled) / max(biased, 1))
        several = "s" if len(cancelled) > 1 else ""
        yield Claim(
            message=(
                f"{len(cancelled)} convolution{several} per step{f' in {site}' if site else ''} "
                f"add{'' if several else 's'} a bias that the next batch norm cancels."
            ),
            confidence="high",
            severity="info",
            saving=saving,
            location=location(site, ts_us=ctx[Moments].ts_us(int(run.ts[convolutions[0]]))),
            evidence=[_table([operands for _, operands in cancelled])],
            spans=ctx[Moments].longest(
                zip(run.ts[convolutions].tolist(), run.end[convolutions].tolist(), strict=True),
                "convolution with a bias before batch norm",
            ),
            fixes=[_FIX],
            key="bias",
        )


def _pairs(nesting: Nesting, inputs: OperatorInputs) -> list[tuple[int, int]]:
    """Convolutions of the typical step with the batch norm that is the next operator of their thread."""
    run = nesting.run
    norms = inputs.typical(run.named(_NORM.__eq__))
    pairs = []
    for conv in inputs.typical(run.named(_CONVOLUTIONS.__contains__)).tolist():
        own_norms = norms[(run.thread[norms] == run.thread[conv]) & (run.ts[norms] >= run.end[conv])]
        if len(own_norms) and not _operator_between(nesting, conv, int(own_norms[0])):
            pairs.append((conv, int(own_norms[0])))
    return pairs


def _operator_between(nesting: Nesting, conv: int, norm: int) -> bool:
    run = nesting.run
    between = nesting.started(int(run.thread[conv]), int(run.end[conv]), int(run.ts[norm]))
    names = {run.text(int(row)) for row in between[between != norm].tolist()}
    return any(name.startswith("aten::") and name not in _HARMLESS for name in names)


def _undone(conv: Inputs, norm: Inputs) -> bool:
    """Whether there is a bias, and the norm is over the channels that it is added to."""
    bias, image = conv.shape(2), norm.shape(0)
    return bias == image[1:2] != ()


def _site(ctx: Context, convolutions: Rows) -> Site | None:
    """The function that calls them, where it is one and the same."""
    sites = ctx.get(CallSites)
    if sites is None:
        return None
    call_sites = {sites.site(int(row)) for row in convolutions.tolist()}
    return call_sites.pop() if len(call_sites) == 1 else None


def _saving(ctx: Context, part: float) -> Saving | None:
    """By the kernels that `aten::add_` launches inside convolutions; `part` of those with a bias are before a norm."""
    kernels = ctx.get(Kernels)
    if kernels is None:
        return None
    inside = np.zeros(len(kernels.run), dtype=bool)
    inside[kernels.run.named(_CONVOLUTIONS.__contains__)] = True
    adding = kernels.launched_by("aten::add_".__eq__)
    adding[adding] = ctx[Nesting].inside(kernels.operator[adding], inside)
    if not adding.any():
        return None
    return by_model(kernels, ctx[Replay], adding, part, "separate kernels add the biases before a batch norm")


def _table(convolutions: list[Inputs]) -> Table:
    counts: dict[tuple[str, str], int] = {}
    for operands in convolutions:
        key = ("x".join(map(str, operands.shape(0))), "x".join(map(str, operands.shape(1))))
        counts[key] = counts.get(key, 0) + 1
    return table(
        "Convolutions with a bias before batch norm",
        {"input": "code", "weight": "code", "count/step": "count"},
        [[image, weight, n] for (image, weight), n in counts.items()],
    )


_FIX = advice(
    title="Set bias=False",
    text="nn.Conv2d(in_channels, out_channels, kernel_size, bias=False)   # where nn.BatchNorm2d follows",
    verify="Record the same steps again: the convolutions have no bias and TD307 is gone.",
    risk="parameters are initialized with other random numbers from there on; checkpoints lose the bias",
)
