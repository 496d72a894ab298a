"""Traces of what the GPU does: its kernels, with round figures for the times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from script import STEPS, Script
from trace_doctor.testing import RunBuilder

HALF = "c10::BFloat16"
FAST_GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
PLAIN_GEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel"
SMALL_GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_nn_align8>"
CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64"
TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true, (cudnnKernelDataType_t)2>"
FROM_NHWC = "void cudnn::ops::nhwcToNchwKernel<__nv_bfloat16, __nv_bfloat16, float, true, false, (cudnnKernelDataType_t)0>"
SOFTMAX = "void (anonymous namespace)::softmax_warp_{}<float, float, float, 10, false, false>"
FLASH = "void pytorch_flash::flash_{}_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 64, 4, cutlass::bfloat16_t>>"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>"


def unfused_attention(script: Script) -> RunBuilder:
    """Eight layers of 16 heads over 8 x 1024 tokens: a pass over the scores (256 MiB in bf16) takes 250 us."""
    b = RunBuilder(shapes=True)
    heads, scores = [128, 1024, 64], [128, 1024, 1024]
    for _ in range(STEPS):
        with b.step():
            for _ in range(8):
                linear(b, (8192, 1024), (1024, 3072), 200, FAST_GEMM)
                if script.faulty:
                    product(b, "aten::bmm", heads, [128, 64, 1024], 150)
                    operator(b, "aten::div", 250, POINTWISE.format("DivFunctor"), [scores])
                    with b.op("aten::softmax"):
                        operator(b, "aten::_softmax", 250, SOFTMAX.format("forward"), [[8, 16, 1024, 1024]])
                    product(b, "aten::bmm", scores, heads, 150)
                else:
                    with b.op("aten::scaled_dot_product_attention"):
                        operator(b, "aten::_flash_attention_forward", 200, FLASH.format("fwd"))
                linear(b, (8192, 1024), (1024, 1024), 100, FAST_GEMM)
            with backward(b, "BmmBackward0"):
                for _ in range(8):
                    linear(b, (8192, 1024), (1024, 1024), 200, FAST_GEMM)
                    if script.faulty:
                        product(b, "aten::bmm", [128, 1024, 1024], heads, 150)
                        product(b, "aten::bmm", heads, [128, 64, 1024], 150)
                        operator(
                            b,
                            "aten::_softmax_backward_data",
                            375,
                            SOFTMAX.format("backward"),
                            [[8, 16, 1024, 1024]] * 2,
                        )
                        operator(b, "aten::div", 250, POINTWISE.format("DivFunctor"), [scores])
                        product(b, "aten::bmm", scores, heads, 150)
                        product(b, "aten::bmm", [128, 64, 1024], scores, 150)
                    else:
                        operator(b, "aten::_flash_attention_backward", 500, FLASH.format("bwd"))
                    linear(b, (8192, 3072), (3072, 1024), 400, FAST_GEMM)
            b.wait(100)
            fused_step(b, 60)
    return b


def single_tensor_optimizer(script: Script) -> RunBuilder:
    """162 parameters of up to 1 M numbers: seven operators for each, or one kernel for all. Recorded without stacks,
    which would stretch small operators."""
    b = RunBuilder(shapes=True)
    parts = ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "add_", "addcdiv_")
    for _ in range(STEPS):
        with b.step():
            for _ in range(40):
                linear(b, (2048, 1024), (1024, 1024), 60, FAST_GEMM)
            with backward(b, "AddmmBackward0"):
                for _ in range(80):
                    linear(b, (2048, 1024), (1024, 1024), 60, FAST_GEMM)
            b.wait(100)
            if script.faulty:
                with b.optimizer_step():
                    for _ in range(162):
                        for part in parts:
                            operator(b, f"aten::{part}", 4, POINTWISE.format("BinaryFunctor"))
            else:
                fused_step(b, 400)
    return b


def fp32_matmul(script: Script) -> RunBuilder:
    """Twelve products of 4096 x 4096 x 4096: 2.8 ms at 50 TFLOP/s in fp32, 0.25 ms in bf16."""
    b = RunBuilder(shapes=True)
    kernel, us, kind = (PLAIN_GEMM, 2800, "float") if script.faulty else (FAST_GEMM, 250, HALF)
    for _ in range(STEPS):
        with b.step():
            for _ in range(12):
                linear(b, (4096, 4096), (4096, 4096), us, kernel, kind)
                operator(b, "aten::gelu", 60 if script.faulty else 30, POINTWISE.format("GeluFunctor"))
            with backward(b, "AddmmBackward0"):
                for _ in range(24):
                    linear(b, (4096, 4096), (4096, 4096), us, kernel, kind)
            b.wait(100)
            fused_step(b, 900)
    return b


def layout_conversions(script: Script) -> RunBuilder:
    """A convolution of 64 x 128 x 56 x 56 takes 150 us, a conversion of such a tensor 40 us."""
    b = RunBuilder(shapes=True)
    images, weight = [64, 128, 56, 56], [128, 128, 3, 3]
    for _ in range(STEPS):
        with b.step():
            for _ in range(9):
                with b.op("aten::conv2d", dims=[images, weight, [128]], types=[HALF] * 3):
                    convolution(b, "aten::cudnn_convolution", images, weight, script.faulty)
                operator(
                    b,
                    "aten::cudnn_batch_norm",
                    60,
                    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<__nv_bfloat16, float>",
                )
            with backward(b, "ConvolutionBackward0"):
                for _ in range(18):
                    convolution(b, "aten::convolution_backward", images, weight, script.faulty)
            b.wait(100)
            with b.optimizer_step("SGD"):
                operator(b, "aten::_fused_sgd_", 20, POINTWISE.format("FusedSgdMathFunctor"))
    return b


def many_small_gemms(script: Script) -> RunBuilder:
    """Sixteen experts with 64 tokens each: 25 us a product alone, as its weights must be read, 130 us for all at once."""
    b = RunBuilder(shapes=True)
    for _ in range(STEPS):
        with b.step():
            for _ in range(6):
                experts(b, script.faulty, 1)
            with backward(b, "MmBackward0"):
                for _ in range(6):
                    experts(b, script.faulty, 2)
            b.wait(100)
            fused_step(b, 900)
    return b


SCENARIOS = (
    unfused_attention,
    single_tensor_optimizer,
    fp32_matmul,
    layout_conversions,
    many_small_gemms,
)


# -- operators -------------------------------------------------------------------------------------------------------


def operator(b: RunBuilder, name: str, us: float, kernel: str, dims: Iterable[object] = ()) -> None:
    shapes = list(dims)
    with b.op(name, us=8, dims=shapes, types=[HALF] * len(shapes)):
        b.launch(us, kernel, grid=[1024, 1, 1])


def product(b: RunBuilder, name: str, left: list[int], right: list[int], us: float) -> None:
    operator(b, name, us, FAST_GEMM, [left, right])


def linear(
    b: RunBuilder, left: tuple[int, int], right: tuple[int, int], us: float, kernel: str, kind: str = HALF
) -> None:
    with b.op("aten::linear", us=2), b.op("aten::mm", us=6, dims=[list(left), list(right)], types=[kind] * 2):
        b.launch(us, kernel, grid=[1024, 1, 1])


def convolution(b: RunBuilder, name: str, images: list[int], weight: list[int], converts: bool) -> None:
    with b.op(name, us=8, dims=[images, weight], types=[HALF] * 2):
        if converts:
            b.launch(40, TO_NHWC, grid=[1024, 1, 1])
        b.launch(150, CONVOLUTION, grid=[1024, 1, 1])
        if converts:
            b.launch(40, FROM_NHWC, grid=[1024, 1, 1])


def experts(b: RunBuilder, loop: bool, products: int) -> None:
    """One layer: both products of its experts, in backward twice as many."""
    tokens, inward, outward = (64, 1024), (1024, 4096), (4096, 1024)
    for _ in range(16 * products if loop else 0):
        with b.op("aten::select"):
            pass
        small(b, tokens, inward)
        operator(b, "aten::gelu", 5, POINTWISE.format("GeluFunctor"))
        small(b, (64, 4096), outward)
    if loop:
        with b.op("aten::stack", us=4, dims=[[[64, 1024]] * 16], types=["TensorList"]):
            b.launch(10, "void at::native::CatArrayBatchedCopy")
        return
    for _ in range(products):
        product(b, "aten::bmm", [16, *tokens], [16, *inward], 130)
        operator(b, "aten::gelu", 20, POINTWISE.format("GeluFunctor"))
        product(b, "aten::bmm", [16, 64, 4096], [16, *outward], 130)


def small(b: RunBuilder, left: tuple[int, int], right: tuple[int, int]) -> None:
    with b.op("aten::matmul", us=2), b.op("aten::mm", us=6, dims=[list(left), list(right)], types=[HALF] * 2):
        b.launch(25, SMALL_GEMM, grid=[64, 1, 1])


def fused_step(b: RunBuilder, us: float) -> None:
    with b.optimizer_step():
        operator(b, "aten::_fused_adamw_", us, POINTWISE.format("FusedAdamMathFunctor"))


@contextmanager
def backward(b: RunBuilder, node: str) -> Iterator[None]:
    """The autograd thread evaluates a function around the body, while the main thread waits for it."""
    with b.thread(200), b.op(f"autograd::engine::evaluate_function: {node}", us=2):
        yield
        ended = b.now
    b.now = ended
