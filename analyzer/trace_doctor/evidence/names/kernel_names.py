"""What the name of a GPU kernel says: what it computes, in which number format, and whether on tensor cores.

Sources: names in 124 real captures (cuBLAS, cuDNN, CUTLASS, MIOpen, rocBLAS/Tensile, Composable Kernel, Triton, Inductor)
and the naming schemes of CUTLASS and Tensile. What a name does not say is left open: `""` and None.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from msgspec import Struct

Kind = Literal["gemm", "gemv", "conv", "attention", "softmax", "layout", "other"]
Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", ""]


class KernelClass(Struct, frozen=True):
    """`precision` is that of the products' inputs, for gemm, gemv, conv and attention; "" where the name leaves it open."""

    kind: Kind
    precision: Precision = ""

    @property
    def plain_fp32(self) -> bool:
        """A product of fp32 numbers on the ordinary units of an NVIDIA GPU (on AMD: in fp32)."""
        return self.kind in ("gemm", "conv") and self.precision == "fp32"


_ATTENTION = re.compile(
    r"fmha|flash_(?:fwd|bwd|attn)|flash::|flashattn|FlashAttn|attn_(?:fwd|bwd)|sage_fwd|AttentionKernel|AttentionBackward"
    r"|sdpa|unified_attention|paged_attention|mha_(?:fwd|bwd|varlen)|Fmha|flash_attention|PageAttention|(?:Batch|Single)(?:Prefill|Decode)"
    r"|mla_(?:a\d|prefill|decode|fwd)"
)
_NO_ATTENTION = re.compile(r"reshape_and_cache|elementwise|triton_(?:poi|red|per)_")
# Asked of names in lower case, and written so that each alternative begins with a letter: an expression that ignores the
# case, or may begin with nothing, is tried at each letter of a name, at five times the cost.
_LAYOUT = re.compile(
    r"nchwto(?:folded)?nhwc|nhwctonchw|nchw2nhwc|nhwc2nchw|batched_transpose_\d|transpose_(?:cnhw2nchw|nchw2cnhw)"
    r"|cudnn\w*::.*converttensor_reformat"
)
_CONV = re.compile(
    r"fprop|dgrad|wgrad|implicit_gemm|convolve|scudnn|[sh]\d+cudnn|winograd|cudnn::\w+::\w+_engine|cudnn::cnn::im2col"
    r"|fft[12]d_[rc]2[rc]|igemm_(?:fwd|bwd|wrw)|miopen\w*conv|naive_conv|kernel_grouped_conv|gridwise_convolution"
    r"|conv2d_c1_k1|implicitgemmconvolution|_bwd_weight|cgemm|triton_tem_fused_\w*convolution|conv_(?:fwd|bwd)_"
)
_GEMV = re.compile(r"^(?!.*gemm).*gemv|dot_kernel(?<!\wdot_kernel)<|gemmk1_kernel|wvsplitk|llgemm")
_GEMM_BEGINS = re.compile(r"cijk_|b?mm_|(?:void )?matmul")
_GEMM = re.compile(
    r"gemm|nvjet|_matmul|triton_tem_fused_\w*mm|triton_mm|_mm_kernel|fused_moe_kernel|marlin::"
)
_NEITHER = re.compile(
    r"fbgemm|splitk?reduce|triton_(?:poi|red|per|for)_|triton__(?<!(?s:.)triton__)\d|dequant|quantize|epilogue::|scatter|offsets"
)
_POINTWISE = re.compile(r"elementwise_kernel|reduce_kernel|multi_tensor_apply|CatArray|distribution_")

_FORMATS: tuple[tuple[Precision, re.Pattern[str]], ...] = (
    ("fp8", re.compile(r"e4m3|e5m2|fp8|_F8|mxfp[48]|MxE\d|E2m1", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32|_xf32|_S_MX_|(?:tensorop|xmma)_s1688(?!\w*(?:f16|bf16))", re.IGNORECASE)),
    ("fp64", re.compile(r"dgemm|d884|_f64f64|double|_DB_|dgrad\w*<double", re.IGNORECASE)),
    ("bf16", re.compile(r"bf16|[Bb]float|_BBS?_|_B_?BS_|_BSS_|BF16")),
    (
        "fp16",
        re.compile(
            r"f16|[Ff]p16|_half|half[ _>,:]|half_t|Half|hgemm|h(?:884|1688|16816)|_HHS?_|_HSS_|_HB_|s(?:884|161616|16816)"
        ),
    ),
    ("int8", re.compile(r"int8|i8i8|_i8|i(?:8816|16832)", re.IGNORECASE)),
    (
        "fp32",
        re.compile(
            r"sgemm|scudnn|f32f32_f32f32|_f32_|_SB_|_S_B|<float|<int, (?:int, )?float|cgemm|fp32|f32_aligned|\(float(?: const)?\*"
            r"|fft[12]d|dtype_Float\b",
            re.IGNORECASE,
        ),
    ),
)
_TRTLLM_GEN = re.compile(r"(?:b?mm|[Gg]emm)_[A-Z][A-Za-z0-9]+_([A-Z][A-Za-z0-9]+)_[A-Z][A-Za-z0-9]+_t\d+x")
"""Generated products of TensorRT-LLM (FlashInfer, SGLang, vLLM): output, both inputs, accumulator, tile. The accumulator is fp32
whatever the inputs are."""
_NEITHER_TRANSPOSED = re.compile(r"gemm.*_nn(?:_|$)|nvjet.*_NN[NT]|^Cijk_Ailk_Bljk_")


@lru_cache(maxsize=65536)
def kernel_class(name: str) -> KernelClass:
    """What a kernel of this name does."""
    kind = _kind(name)
    if kind in ("softmax", "layout", "other"):
        return KernelClass(kind)
    inputs = _TRTLLM_GEN.match(name)
    said = inputs.group(1) if inputs is not None else name
    return KernelClass(kind, next((p for p, form in _FORMATS if form.search(said)), ""))


_ON_TENSOR_CORES = re.compile(
    r"[sdhi](?:884|1688|8816|16816|16832|161616)|tensorop|[_a-z]tensor\d+x\d+x\d+|hmma|imma|gmma|nvjet|warpgroupsize|cutlass3x_sm(?:90|1\d\d)"
    r"|flash_(?:fwd|bwd)_\w*kernel|fmha_cutlass[fb]_(?:b?f16)_\w*sm[89]\d|cudnn_generated_fort_native_sdpa"
)
_ON_ORDINARY_UNITS = re.compile(
    r"simt|scudnn|_ffma|(?:^|[_ ])(?:volta|maxwell|ampere|turing|sm\d\d)?_?sgemm|implicit_convolve_sgemm|fft[12]d_|gemmk1_kernel"
)
_GEMV_OF_NVIDIA = re.compile(r"gemv(?:2|n)|dot_kernel|gemmk1_kernel")
_MATRIX_INSTRUCTION = re.compile(r"_MI\d+x\d+x\d+")


def on_tensor_cores(name: str) -> bool | None:
    """Whether a kernel of this name multiplies on Tensor Cores (AMD: Matrix Cores). None where the name does not say:
    most kernels of Triton and of other people."""
    kind, text = _kind(name), name.lower()
    if kind in ("softmax", "layout") or _POINTWISE.search(name):
        return False
    if kind == "gemv":
        return False if _GEMV_OF_NVIDIA.search(text) else None
    if kind == "other":  # of PyTorch's own kernels those that multiply have it in their name
        return False if name.startswith("void at::native::") else None
    if text.startswith("cijk_"):
        return True if _MATRIX_INSTRUCTION.search(name) else None
    if _ON_ORDINARY_UNITS.search(text) and not _ON_TENSOR_CORES.search(text):
        return False
    return True if _ON_TENSOR_CORES.search(text) else None


def neither_transposed(name: str) -> bool:
    """Whether the name of a product's kernel says that it reads both factors as they lie (cuBLAS `nn`, Tensile
    `Ailk_Bljk`), which it does not where a matrix is multiplied with its own transpose."""
    return _NEITHER_TRANSPOSED.search(name) is not None


def _kind(name: str) -> Kind:
    text = name.lower()
    softmax = "softmax" in text
    if _LAYOUT.search(text):
        return "layout"
    if _ATTENTION.search(name) and not _NO_ATTENTION.search(name):
        return "attention"
    if _POINTWISE.search(name) or _NEITHER.search(text):
        return "softmax" if softmax and "triton" not in name else "other"
    if softmax:
        return "softmax"
    if _CONV.search(text):
        return "conv"
    if _GEMV.search(text):
        return "gemv"
    return "gemm" if _GEMM_BEGINS.match(text) or _GEMM.search(text) else "other"


def is_log_softmax(name: str) -> bool:
    """Of a classifier's loss, not of attention: `softmax_warp_forward<…, is_log_softmax = true, …>` and SoftMax kernels
    with a LogSoftMax epilogue."""
    warp = re.search(r"softmax_warp_(?:forward|backward)<[^>]*?, (\d+), (true|false)", name)
    return (warp is not None and warp.group(2) == "true") or "LogSoft" in name


def architecture(names: list[str]) -> tuple[int, int] | None:
    """The least compute capability that kernels of these names run on; None where no name tells."""
    capabilities = [cc for pattern, cc in _ARCHITECTURES if any(pattern.search(n) for n in names)]
    return max(capabilities, default=None)


_ARCHITECTURES = (
    (re.compile(r"^volta_|cutlass_70_|sm70_"), (7, 0)),
    (re.compile(r"^turing_|cutlass_75_|sm75_"), (7, 5)),
    (re.compile(r"^ampere_|cutlass_80_|sm80_|cudnn_ampere|_sm80"), (8, 0)),
    (re.compile(r"sm86_"), (8, 6)),
    (re.compile(r"sm90_|cutlass_90_"), (9, 0)),
    (re.compile(r"sm100|cutlass3x_sm100"), (10, 0)),
)
