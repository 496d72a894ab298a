"""TD301 fp32-matmul."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor import NOTE_FROM, Claim, Context, Fix, Location, NotCaptured, Rule, threshold
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.replay.what_if import Replay
from trace_doctor.evidence.trace.kernel_sites import KernelSites
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid, without_gpu
from trace_doctor_rules import techniques
from trace_doctor_rules.kernels._shared import Bool, by_model, cost, kernel_table, longest_of, negligible

_PEAK_RATIO = {
    (7, 0): 8.0,
    (7, 2): 8.0,
    (7, 5): 8.0,
    (8, 0): 16.0,
    (8, 6): 2.0,
    (8, 7): 4.0,
    (8, 9): 2.0,
    (12, 0): 2.0,
}
"""Dense fp16/bf16 tensor-core peak over the plain fp32 peak, by compute capability: NVIDIA's architecture white papers
(V100 125/15.7, T4 65/8.1, A100 312/19.5, RTX 3080 59.5/29.8, RTX 4090 165/82.6 TFLOP/s). Others are above the cap."""
_WITHOUT_TENSOR_CORES = ("GTX 16", "Quadro T1000", "Quadro T2000", "T500", "T550", "T600", "T1000", "T1200")
"""Turing chips (TU116, TU117) of compute capability 7.5 that have none."""

_VERIFY = "Record the same steps again: the GEMM kernels have tf32, bf16 or fp16 in their names and the step is shorter."


def _training(
    products: str = "ampere_sgemm_128x64_tn",
    *,
    share: float = 0.8,
    cc: tuple[int, int] = (8, 0),
    gpu: str | None = "NVIDIA A100-SXM4-40GB",
) -> RunBuilder:
    """Steps of 1 ms of kernels, of which `share` are these products."""
    b = RunBuilder(gpu=gpu, compute_capability=cc)
    for _ in b.steps(5):
        for _ in range(10):
            with b.op("aten::addmm", us=2):
                b.launch(100 * share, products)
            with b.op("aten::gelu", us=2):
                b.launch(100 * (1 - share))
    return b


def _host_bound() -> RunBuilder:
    b = RunBuilder(gpu="NVIDIA A100-SXM4-40GB", compute_capability=(8, 0))
    for _ in b.steps(5):
        for _ in range(10):
            b.run_op("aten::addmm", 20, "ampere_sgemm_128x64_tn", host_us=300)
    return b


_SCRIPT = """import torch

model = torch.nn.Linear(1024, 1024).cuda()
for x, y in loader:
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
"""
_PATCHED = """import torch

model = torch.nn.Linear(1024, 1024).cuda()
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
"""


class Fp32Matmul(Rule):
    """fp32 matmuls and convolutions run without the GPU's Tensor Cores.

    What it does
    Adds up the time of GEMM and convolution kernels that compute in plain fp32 on a GPU with Tensor Cores.

    Why is this bad
    Tensor Cores compute in bf16, fp16 or TF32 two to sixteen times as fast as the other units compute in fp32. Narrower
    types also halve the memory traffic. By default PyTorch keeps fp32 matmuls off the Tensor Cores.

    Evidence
    Names of the kernels that ran (`sgemm`, `scudnn`, `simt`, `f32f32_f32f32`, `…<float, …>`), never flags of operators.
    Kernels whose names say `tf32`, `s1688gemm`, half types or fp64 do not count. Matrix-vector products do not count
    either: memory limits them. The compute capability is that of the recorded device, else the least that its kernels
    need. On AMD GPUs Tensile's `SB` kernels count: Matrix Cores run fp32 at a quarter of their bf16 speed or less.

    How the saving is estimated
    A model: the ratio of published peaks for the recorded compute capability, at most 3, because memory traffic and the
    rest of a GEMM do not shrink with it. It is never more than the captured steps gain without these kernels (replay).

    Fix
    Use torch.autocast with bfloat16 (compute capability 8 and newer) or float16 with a GradScaler. Or allow TF32 with
    torch.set_float32_matmul_precision("high"), which keeps fp32 in memory. TF32 is on by default for convolutions: there
    only autocast helps.

    Fix safety
    Unsafe: losses differ from fp32. Compare the loss curves of a run.

    When to ignore
    When the computation needs fp32, as in physics and for some losses and normalizations.

    References
    https://docs.pytorch.org/docs/stable/amp.html
    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
    """

    code = "TD301"
    name = "fp32-matmul"
    title = "fp32 matmuls bypass Tensor Cores"
    server_fixes = (techniques.serve_in_half("Record the same load again: TD301 is gone"),)
    needs = (Steps, Kernels, Replay, Moments)
    wants = (KernelSites,)

    min_share: float = threshold(
        0.10,
        "fp32 GEMMs and convolutions, as a share of kernel time",
        unit="share",
        source="below, even GEMMs that took no time would save less than the 3% of a warning in most captures",
        note_from=NOTE_FROM,
    )
    most_faster: float = threshold(
        3.0,
        "speedup over fp32, at most",
        source="memory traffic and the rest of a GEMM do not shrink with the peak",
    )

    VALID = [
        Valid("TF32", lambda: _training("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_cublas")),
        Valid("TF32 in CUTLASS's words", lambda: _training("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>")),
        Valid("bf16", lambda: _training("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn")),
        Valid("bf16 in a kernel that is called sgemm", lambda: _training("void precomputed_convolve_sgemm<__nv_bfloat16, 1024, 5, 5, 4>(int)")),
        Valid("fp64", lambda: _training("void cutlass::Kernel<cutlass_80_tensorop_d884gemm_32x32_16x5_tn_align1>")),
        Valid("products with a vector", lambda: _training("void gemv2T_kernel_val<int, int, float, float, float, float, 128>")),
        Valid("few products", lambda: _training(share=0.05)),
        Valid("a GPU before tensor cores", lambda: _training("maxwell_sgemm_128x64_tn", cc=(6, 0), gpu="Tesla P100-PCIE-16GB")),
        Valid("a GPU without tensor cores", lambda: _training("volta_sgemm_128x64_tn", cc=(7, 5), gpu="NVIDIA GeForce GTX 1660 Ti")),
        Valid("a model that is not known", lambda: _training("maxwell_sgemm_128x64_tn", gpu=None), skipped="compute capability"),
        Valid("no GPU", lambda: without_gpu("aten::addmm", 200), skipped="no GPU work"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "sgemm on an A100",
            _training,
            message="take 800 µs per step, 80% of kernel time.",
            saving_us=533,
            tolerance=0.1,
            confidence="low",
            fixes=("bf16", "TF32"),
            codemod="autocast",
            before=_SCRIPT,
            after=_PATCHED,
        ),
        Invalid("convolutions on an A100", lambda: _training("ampere_scudnn_128x64_relu_medium_nn_v1"), fixes=("bf16",)),
        Invalid("on a V100", lambda: _training("volta_sgemm_128x64_tn", cc=(7, 0), gpu="Tesla V100"), fixes=("scaler.scale(loss)",)),
        Invalid("where tensor cores are twice as fast", lambda: _training(cc=(8, 6), gpu="NVIDIA RTX A6000"), saving_us=400, fixes=("bf16", "TF32")),
        Invalid("where TF32 is no faster", lambda: _training(cc=(8, 6), gpu="NVIDIA GeForce RTX 3090"), fixes=("bf16",)),
        Invalid("convolutions on a V100", lambda: _training("volta_scudnn_128x64_relu_medium_nn_v1", cc=(7, 0), gpu="Tesla V100"), message="float16", codemod="autocast"),
        Invalid("the kernels say which GPU", lambda: _training(gpu=None), message="fp32", fixes=("bf16", "TF32")),
        Invalid("AMD", lambda: _training("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN", cc=(9, 4), gpu="AMD Instinct MI300X"), fixes=("bf16",)),
        Invalid("the host is the limit", _host_bound, message="saving is negligible"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        kernels = ctx[Kernels]
        plain = kernels.where(lambda c: c.plain_fp32)
        share = kernels.share(plain)
        if share < self.min_share:
            return
        faster, narrow, tf32 = self.most_faster, "bfloat16", False
        if not kernels.is_amd:
            capability = kernels.compute_capability
            if capability is None:
                raise NotCaptured(
                    "compute capability not recorded", "torch 1.8.1 and later records deviceProperties"
                )
            if capability < (7, 0) or any(chip in kernels.device_name for chip in _WITHOUT_TENSOR_CORES):
                return
            faster = min(faster, _PEAK_RATIO.get(capability, faster))
            if capability < (8, 0):
                narrow = "float16"
            else:
                tf32 = "GeForce" not in kernels.device_name
        saving = by_model(
            kernels,
            ctx[Replay],
            plain,
            1 - 1 / faster,
            f"{faster:g}× as fast in {narrow}, the ratio of published peaks, at most {self.most_faster:g}×",
        )
        yield Claim(
            message=(
                f"fp32 GEMMs and convolutions take {cost(kernels, kernels.us_per_step(plain), share)}. "
                f"{'Matrix' if kernels.is_amd else 'Tensor'} Cores run them faster in {narrow}."
                f"{negligible(saving.share_of_step)}"
            ),
            confidence="low",
            saving=saving,
            location=Location(device=kernels.device),
            evidence=[kernel_table("fp32 GEMMs and convolutions", kernels, plain, ctx.get(KernelSites))],
            spans=ctx[Moments].longest(
                longest_of(kernels, plain), "fp32 GEMM or convolution", device=kernels.device
            ),
            fixes=self._fixes(kernels, plain, narrow, tf32=tf32),
            key="fp32",
        )

    def _fixes(self, kernels: Kernels, plain: Bool, narrow: str, *, tf32: bool) -> list[Fix]:
        """TF32 is for products alone, for convolutions use it already; and not on chips where it is no faster."""
        products = plain & kernels.where(lambda c: c.kind == "gemm")
        worth = tf32 and kernels.share(products) >= self.min_share
        return [techniques.autocast(_VERIFY, narrow), *([techniques.tf32(_VERIFY)] if worth else [])]
