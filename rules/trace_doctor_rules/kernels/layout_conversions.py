"""TD306 layout-conversions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import numpy as np

from trace_doctor import NOTE_FROM, Claim, Confidence, Context, Fix, Location, Rule, Table, threshold
from trace_doctor.arrays import I64, at_rows
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.distributed.ranks import listed
from trace_doctor.evidence.idle.gaps import IdleCauses
from trace_doctor.evidence.replay.what_if import Removal, Replay, ReplayOutcome
from trace_doctor.evidence.trace.kernel_sites import KernelSites
from trace_doctor.evidence.trace.operator_inputs import OperatorInputs
from trace_doctor.evidence.trace.recorded_operators import OperatorsOfWork, RecordedOperators
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid, without_gpu
from trace_doctor_rules import techniques
from trace_doctor_rules.kernels._shared import HARDLY, ROWS, Bool, cost, kernel_table, longest_of, negligible

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


_COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>"


def _under_autocast(
    casting: float,
    *,
    training: bool = False,
    around: str = "aten::linear",
    loader_us: float = 0,
    marked: bool = True,
) -> RunBuilder:
    """Steps of ten matmuls of 100 us, each after the cast of its input."""
    b = RunBuilder()
    for _ in range(5):
        with b.step() if marked else nullcontext():
            if loader_us:
                b.loader(loader_us)
            for _ in range(10):
                with b.op(around, us=2):
                    with b.op("aten::to", us=1), b.op("aten::_to_copy", us=1), b.op("aten::copy_", us=1):
                        b.launch(casting, _COPY)
                    with b.op("aten::addmm", us=1):
                        b.launch(100, "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn")
            if training:
                with (
                    b.op("autograd::engine::evaluate_function: ToCopyBackward0"),
                    b.op("ToCopyBackward0"),
                    b.op("aten::to"),
                    b.op("aten::_to_copy"),
                    b.op("aten::copy_"),
                ):
                    b.launch(casting, _COPY)
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
_PATCHED = """import torch
import torchvision

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
    """Kernels convert tensors to another layout around convolutions, or to another dtype under autocast.

    What it does
    Adds up the time of the kernels with which cuDNN and MIOpen convert channels-first tensors (NCHW) to channels-last
    ones (NHWC) around a convolution, and back. Adds up the casts that autocast makes inside other operators as well.

    Why is this bad
    Tensor Cores need the channels innermost. A channels-first model pays for a conversion before and after each such
    convolution, in forward and backward; these kernels compute nothing. Autocast reads and writes each input again whose
    dtype is not that of its operator, for example between a norm in fp32 and a matmul in fp16.

    Evidence
    Kernels named nchwToNhwc, nhwcToNchw (cuDNN) and batched_transpose, transpose_CNHW2NCHW (MIOpen), as a share of kernel
    time in the steady steps. Copies that the program requests itself (permute, contiguous) have other kernels and do not
    count. Casts are kernels of `aten::to` called by a matmul, norm, softmax or loss, which cast nothing without autocast,
    and of the backward of such a cast. A capture does not show which of them cast weights.

    How the saving is estimated
    The captured steps are simulated without these kernels (casts: and without the host time of the cast). It is an upper
    bound: weights are still converted once, some layers have no channels-last kernel, and some casts are needed.

    Fix
    Use `memory_format=torch.channels_last` for the model once and for the images of each batch (channels_last_3d for
    volumes). Casts: convert the model to the dtype it computes in, or compile it, which casts inside fused kernels.

    Fix safety
    Unsafe: results are not bitwise identical. A layer without a channels-last kernel converts back and forth. Code that
    relies on strides (view) may fail.

    When to ignore
    When the convolutions are one-dimensional: there is no channels-last format for them.

    References
    https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/index.html#tensor-layout
    """

    code = "TD306"
    name = "layout-conversions"
    title = "Tensors are converted between layouts or dtypes"
    needs = (Steps, Kernels, Replay, Moments)
    wants = (OperatorInputs, KernelSites)
    to_pass = (RecordedOperators, OperatorsOfWork, IdleCauses)

    min_share: float = threshold(
        0.03,
        "layout conversions, as a share of kernel time",
        unit="share",
        source="the severity `warning` begins there",
        note_from=NOTE_FROM,
    )

    min_cast_share: float = threshold(
        0.10,
        "casts by autocast, as a share of kernel time",
        unit="share",
        source="public captures under autocast: 8% where only inputs are cast, 20 to 28% where norms and matmuls alternate",
        note_from=NOTE_FROM,
    )

    VALID = [
        Valid("a few casts", lambda: _under_autocast(0.5)),
        Valid("an operator that changes the type by itself", lambda: _under_autocast(30, around="aten::sum")),
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
            "cuDNN", lambda: _training(20), message="Layout conversions around convolutions take 400 µs per step, 29% of kernel time.", saving_us=400, codemod="channels-last", confidence="high",
            before=_SCRIPT, after=_PATCHED,
        ),
        Invalid(
            "MIOpen",
            lambda: _training(20, to="batched_transpose_32x32_half", back="batched_transpose_16x64_pack_1x4_ediv_1x2_half"),
            codemod="channels-last",
        ),
        Invalid("volumes", lambda: _training(20, image=(2, 64, 16, 32, 32)), fixes=("channels_last_3d",)),
        Invalid("series", lambda: _training(20, image=(32, 64, 56)), fixes=("Conv2d with kernel size (1, k)",)),
        Invalid("without shapes", lambda: _training(20, shapes=False), codemod="channels-last"),
        Invalid("on AMD's", lambda: _training(20, to="batched_transpose_32x32_half", back="batched_transpose_32x32_half", gpu="AMD Instinct MI300X"), fixes=("PYTORCH_MIOPEN_SUGGEST_NHWC=1",)),
        Invalid("without marks of steps", lambda: _training(20, marked=False), confidence="medium"),
        Invalid("a queue that stands still", lambda: _training(20, stall=500), confidence="low"),
        Invalid("casts by autocast", lambda: _under_autocast(30), message="per step, mostly inside aten::linear. The casts take 300 µs per step, 23% of kernel time.", saving_us=300, confidence="medium", fixes=("Convert the model", "torch.compile"), shown="aten::linear | 10.0"),
        Invalid("casts by autocast, in training", lambda: _under_autocast(30, training=True), message="take 330 µs", fixes=("torch.compile", "Convert the model")),
        Invalid("casts, without marks of steps", lambda: _under_autocast(30, marked=False), confidence="low", severity="info"),
        Invalid("casts, and the loader is the limit", lambda: _under_autocast(30, loader_us=40_000), message="saving is negligible", severity="info"),
        Invalid("the host is the limit", lambda: _training(10, us=500), message="saving is negligible", severity="info"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        kernels = ctx[Kernels]
        converting = kernels.where(lambda c: c.kind == "layout")
        if kernels.share(converting) >= self.min_share:
            yield self._layouts(ctx, kernels, converting)
        casts, inside, calls = _casts(kernels)
        if kernels.share(casts) >= self.min_cast_share:
            yield self._casting(ctx, kernels, casts, inside, calls)

    def _layouts(self, ctx: Context, kernels: Kernels, converting: Bool) -> Claim:
        share = kernels.share(converting)
        removal = Removal(gpu_rows=tuple(kernels.rows[converting].tolist()))
        outcome = ctx[Replay].without(removal)
        worth = outcome.share_of_step >= HARDLY
        when = longest_of(kernels, converting)
        return Claim(
            message=(
                "Layout conversions around convolutions take "
                f"{cost(kernels, kernels.us_per_step(converting), share)}.{negligible(outcome.share_of_step)}"
            ),
            confidence=_confidence(outcome, ctx[Steps]),
            severity=None if worth else "info",
            saving=outcome.saving(),
            location=Location(device=kernels.device),
            evidence=[
                kernel_table("Layout conversion kernels", kernels, converting, ctx.get(KernelSites)),
                outcome.table("Simulated: no layout conversions", "channels_last"),
            ],
            spans=ctx[Moments].longest(when, "layout conversion", device=kernels.device),
            fixes=[_fix(_images(ctx, kernels, converting), on_amd=kernels.is_amd)],
            removal=removal,
            key="layout",
        )

    def _casting(self, ctx: Context, kernels: Kernels, casts: Bool, inside: list[str], calls: I64) -> Claim:
        run = kernels.run
        host = zip(run.thread[calls].tolist(), run.ts[calls].tolist(), run.end[calls].tolist(), strict=True)
        removal = Removal(gpu_rows=tuple(kernels.rows[casts].tolist()), host_spans=tuple(host))
        outcome = ctx[Replay].without(removal)
        per_step = [
            (name, ns / kernels.steps / 1e3, count / kernels.steps)
            for name, count, ns in _by_caller(kernels, casts, inside)
        ]
        training = any(name.startswith("autograd::engine") for name in run.names)
        sure = outcome.basis == "replay" and ctx[Steps].source != "none"
        confidence: Confidence = "medium" if sure else "low"
        both = [techniques.one_type(_VERIFY_CASTS), techniques.compile_model(_VERIFY_CASTS)]
        return Claim(
            message=(
                f"Autocast casts tensors {round(int(casts.sum()) / kernels.steps)} times per step, mostly inside "
                f"{listed([name for name, *_ in per_step[:3]])}. The casts take "
                f"{cost(kernels, kernels.us_per_step(casts), kernels.share(casts))}.{negligible(outcome.share_of_step)}"
            ),
            confidence=confidence,
            severity=None if confidence != "low" and outcome.share_of_step >= HARDLY else "info",
            saving=outcome.saving(),
            location=Location(device=kernels.device),
            evidence=[
                Table.with_units(
                    "Autocast casts by operator",
                    {"operator": "code", "casts/step": "count", "time/step": "us"},
                    [[name, count, us] for name, us, count in per_step[:ROWS]],
                ),
                outcome.table("Simulated: no casts", "one dtype"),
            ],
            spans=ctx[Moments].longest(longest_of(kernels, casts), "cast", device=kernels.device),
            fixes=both[::-1] if training else both,
            removal=removal,
            key="casts",
        )


_CASTED = frozenset(
    f"aten::{name}"
    for name in (
        "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "conv1d", "conv2d", "conv3d", "conv_transpose2d",
        "scaled_dot_product_attention", "layer_norm", "group_norm", "softmax", "log_softmax", "cross_entropy_loss",
        "nll_loss", "mse_loss", "l1_loss", "binary_cross_entropy_with_logits",
    )
)  # fmt: skip
"""operators whose inputs autocast casts, and that call `aten::to` for no other reason"""


def _casts(kernels: Kernels) -> tuple[Bool, list[str], I64]:
    """Mask of the kernels that cast for another operator, its name for each of these, in order, and the rows of the
    operators that cast: without a cast the host spends no time in them either."""
    run, parent = kernels.run, kernels.nesting.parent
    copies = np.flatnonzero(kernels.launched_by(lambda name: name == "aten::copy_"))
    call = kernels.operator[copies].astype(np.int64)
    caller = parent[call].astype(np.int64)
    converts = run.is_named(lambda name: name in ("aten::to", "aten::_to_copy"))
    in_conversion = at_rows(converts, caller, False)
    while (inner := at_rows(converts, caller, False)).any():
        call[inner] = caller[inner]
        caller[inner] = parent[caller[inner]]
    forward = in_conversion & at_rows(run.is_named(_CASTED.__contains__), caller, False)
    backward = in_conversion & at_rows(run.is_named(lambda name: name == "ToCopyBackward0"), caller, False)
    chosen = forward | backward if forward.any() else forward
    mask = np.zeros(len(kernels.rows), dtype=bool)
    mask[copies[chosen]] = True
    return mask, [run.text(row) for row in caller[chosen].tolist()], np.unique(call[chosen])


def _by_caller(kernels: Kernels, casts: Bool, inside: list[str]) -> list[tuple[str, int, int]]:
    """(operator, casts, ns), the longest first."""
    counts, ns = Counter(inside), Counter[str]()
    for name, took in zip(inside, kernels.ns[casts].tolist(), strict=True):
        ns[name] += took
    return [(name, counts[name], took) for name, took in ns.most_common()]


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


_VERIFY_CASTS = (
    "Record the same steps again: there are fewer `aten::to` inside other operators and the step is shorter."
)
_VERIFY = "Record the same steps again: the conversion kernels are gone and the step is shorter."


def _fix(dimensions: int | None, *, on_amd: bool) -> Fix:
    if dimensions == 5:
        return Fix(
            title="Use channels_last_3d",
            kind="advice",
            text="model.to(memory_format=torch.channels_last_3d)\n"
            "x = x.to(device, memory_format=torch.channels_last_3d)",
            verify=_VERIFY,
            risk="results are not bitwise identical; layers without such a kernel convert back and forth",
        )
    if dimensions == 3:
        return Fix(
            title="Use Conv2d for Conv1d",
            kind="advice",
            text="There is no channels-last format with three dimensions: use Conv2d with kernel size (1, k) on "
            "x.unsqueeze(2).to(memory_format=torch.channels_last)",
            verify=_VERIFY,
            risk="weights of another shape in checkpoints; results are not bitwise identical",
        )
    return techniques.channels_last(_VERIFY, on_amd=on_amd)
