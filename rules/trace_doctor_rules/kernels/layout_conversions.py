"""TD306 layout-conversions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from trace_doctor import NOTE_FROM, Claim, Confidence, Context, Fix, Location, Rule, threshold
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.durations import two_figures
from trace_doctor.evidence.replay.what_if import Removal, Replay, ReplayOutcome
from trace_doctor.evidence.trace.operator_inputs import OperatorInputs
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid, without_gpu
from trace_doctor_rules import techniques
from trace_doctor_rules.kernels._shared import HARDLY, Bool, kernel_table, longest_of

_TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)2>"
_FROM_NHWC = "void cudnn::ops::nhwcToNchwKernel<__half, __half, float, true, false, (cudnnKernelDataType_t)0>"
_CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f16_f16_nhwckrsc_nhwc_tilesize128x128x32"


def _training(
    converting: float,
    *,
    to: str = _TO_NHWC,
    back: str = _FROM_NHWC,
    image: Sequence[int] = (32, 64, 56, 56),
    us: float = 3.0,
    shapes: bool = True,
    marked: bool = True,
    stall: float = 0,
    gpu: str = "NVIDIA H100 80GB HBM3",
) -> RunBuilder:
    """Steps of ten convolutions of 100 us, each between two conversions of so many us."""
    b = RunBuilder(gpu=gpu, shapes=shapes)
    for _ in range(5):
        with b.step() if marked else nullcontext():
            b.stall(stall)
            for _ in range(10):
                with b.op(
                    "aten::cudnn_convolution",
                    us=us,
                    dims=[list(image), [64, 64] + [3] * (len(image) - 2)],
                    types=["c10::Half", "c10::Half"],
                ):
                    if converting:
                        b.launch(converting, to)
                    b.launch(100, _CONVOLUTION)
                    if converting:
                        b.launch(converting, back)
    return b


_SCRIPT = """import torchvision

net = torchvision.models.resnet18()
net = net.cuda()
for x, y in loader:
    x, y = x.to(device), y.to(device)
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_PATCHED = """import torchvision
import torch

net = torchvision.models.resnet18()
net = net.cuda()
net.to(memory_format=torch.channels_last)
for x, y in loader:
    x, y = x.to(device, memory_format=torch.channels_last), y.to(device)
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class LayoutConversions(Rule):
    """Convolutions convert their tensors from one memory layout to another and back.

    What it does
    Adds up the time of the kernels with which cuDNN and MIOpen turn channels-first tensors (NCHW) into channels-last ones
    (NHWC) around a convolution, and back.

    Why is this bad
    Tensor cores want the channels innermost. A model whose tensors are laid out channels first pays for a conversion
    before and after each such convolution, in forward and backward; these kernels compute nothing.

    Evidence
    Kernels named nchwToNhwc, nhwcToNchw (cuDNN) and batched_transpose, transpose_CNHW2NCHW (MIOpen), as a share of all
    kernels of the steady steps. Copies that the program asks for itself (permute, contiguous) have other kernels and do
    not count.

    How the saving is estimated
    The captured steps are re-timed without these kernels: an upper bound, for weights are still converted once and some
    layers have no channels-last kernel.

    Fix
    `memory_format=torch.channels_last` for the model once and for the images of each batch (channels_last_3d for volumes).

    Fix safety
    Unsafe: results differ in the last bits; a layer without a channels-last kernel converts back and forth; code that
    relies on strides (view) may fail.

    When to ignore
    When the convolutions are one-dimensional: there is no channels-last format for them.

    References
    https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/index.html#tensor-layout
    """

    code = "TD306"
    name = "layout-conversions"
    title = "Tensors change their layout around convolutions"
    needs = (Steps, Kernels, Replay, Moments)
    wants = (OperatorInputs,)

    min_share: float = threshold(
        0.03,
        "layout conversions, as a share of all kernels",
        unit="share",
        source="the severity `warning` begins there",
        note_from=NOTE_FROM,
    )

    VALID = [
        Valid("channels last throughout", lambda: _training(0)),
        Valid("a few conversions", lambda: _training(1)),
        Valid(
            "copies that the program makes",
            lambda: _training(
                30,
                to="void at::native::elementwise_kernel<128, 2, direct_copy>",
                back="void at::native::copy",
            ),
        ),
        Valid("no GPU", lambda: without_gpu("aten::mkldnn_convolution", 200), skipped="no GPU work"),
    ]
    INVALID = [
        Invalid(
            "cuDNN", lambda: _training(20), message="29%", saving_us=400, codemod="channels-last", confidence="high",
            before=_SCRIPT, after=_PATCHED,
        ),
        Invalid(
            "MIOpen",
            lambda: _training(20, to="batched_transpose_32x32_half", back="batched_transpose_16x64_pack_1x4_ediv_1x2_half"),
            codemod="channels-last",
        ),
        Invalid("volumes", lambda: _training(20, image=(2, 64, 16, 32, 32)), fixes=("channels_last_3d",)),
        Invalid("series", lambda: _training(20, image=(32, 64, 56)), fixes=("Conv2d with a kernel of (1, k)",)),
        Invalid("without shapes", lambda: _training(20, shapes=False), codemod="channels-last"),
        Invalid("on AMD's", lambda: _training(20, to="batched_transpose_32x32_half", back="batched_transpose_32x32_half", gpu="AMD Instinct MI300X"), fixes=("PYTORCH_MIOPEN_SUGGEST_NHWC=1",)),
        Invalid("without marks of steps", lambda: _training(20, marked=False), confidence="medium"),
        Invalid("a queue that stands still", lambda: _training(20, stall=500), confidence="low"),
        Invalid("the host is the limit", lambda: _training(10, us=500), message="hardly be shorter", severity="info"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        kernels = ctx[Kernels]
        converting = kernels.where(lambda c: c.kind == "layout")
        share = kernels.share(converting)
        if share < self.min_share:
            return
        removal = Removal(gpu_rows=tuple(kernels.rows[converting].tolist()))
        outcome = ctx[Replay].without(removal)
        worth = outcome.share_of_step >= HARDLY
        gain = (
            outcome.promise
            if worth
            else "without them a step would hardly be shorter, for the GPU waits for other things"
        )
        when = longest_of(kernels, converting)
        yield Claim(
            message=(
                f"Convolutions turn tensors from one memory layout into another for "
                f"{two_figures(kernels.us_per_step(converting))} of a step, {share:.0%} of the kernels' time: {gain}."
            ),
            confidence=_confidence(outcome, ctx[Steps]),
            severity=None if worth else "info",
            saving=outcome.saving(),
            location=Location(device=kernels.device),
            evidence=[
                kernel_table("Kernels that change the layout", kernels, converting),
                outcome.table("What if nothing had to be converted", "channels last"),
            ],
            spans=ctx[Moments].longest(when, "layout conversion", device=kernels.device),
            fixes=[_fix(_images(ctx, kernels, converting), on_amd=kernels.is_amd)],
            removal=removal,
            key="layout",
        )


def _confidence(outcome: ReplayOutcome, steps: Steps) -> Confidence:
    if outcome.basis != "replay":
        return "low"
    return "medium" if steps.source == "none" else "high"


def _images(ctx: Context, kernels: Kernels, converting: Bool) -> int | None:
    """How many dimensions the inputs of the converting operators have, for most of the time; None where unknown."""
    inputs = ctx.get(OperatorInputs)
    if inputs is None:
        return None
    operators, ns = kernels.by_operator(converting)
    time: dict[int, int] = {}
    of_time = dict(zip(operators.tolist(), ns.tolist(), strict=True))
    rows = inputs.typical(operators).tolist()
    for row, operands in zip(rows, inputs.of(rows), strict=True):
        size = max((len(shape) for shape, _ in operands.tensors()), default=0)
        time[size] = time.get(size, 0) + of_time[row]
    return max(time, key=lambda size: time[size], default=None)


_VERIFY = "record the same steps again: the conversion kernels are gone and the step is shorter"


def _fix(dimensions: int | None, *, on_amd: bool) -> Fix:
    if dimensions == 5:
        return Fix(
            title="Keep volumes and weights with the channels last",
            kind="advice",
            text="model.to(memory_format=torch.channels_last_3d)\n"
            "x = x.to(device, memory_format=torch.channels_last_3d)",
            verify=_VERIFY,
            risk="results differ in the last bits; layers without such a kernel convert back and forth",
        )
    if dimensions == 3:
        return Fix(
            title="Run one-dimensional convolutions as two-dimensional ones with the channels last",
            kind="advice",
            text="there is no channels-last format with three dimensions: use Conv2d with a kernel of (1, k) on "
            "x.unsqueeze(2).to(memory_format=torch.channels_last)",
            verify=_VERIFY,
            risk="weights of another shape in checkpoints; results differ in the last bits",
        )
    return techniques.channels_last(_VERIFY, on_amd=on_amd)
