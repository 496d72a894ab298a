"""Captures that the cases of `unfused_attention` build."""

from __future__ import annotations

from contextlib import nullcontext

from trace_doctor.testing import RunBuilder
from trace_doctor_rules.kernels._unfused_attention_evidence import MATH, SDPA

SOFTMAX = (
    "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 10, false, false>"
)
SOFTMAX_BACKWARD = (
    "void (anonymous namespace)::softmax_warp_backward<c10::BFloat16, c10::BFloat16, float, 10, false>"
)
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn"
FLASH = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false>>"
SHAPE = (64, 512, 64)
SCORES = (64, 512, 512)


def attention(
    b: RunBuilder,
    us: float,
    training: bool,
    mask: bool,
    scores: tuple[int, ...] = SCORES,
    dropout: bool = False,
    inner: tuple[tuple[int, ...], ...] = (),
) -> None:
    """`inner`: operands of a product between the softmax and the second batched one."""
    keys = [64, 64, 512]
    b.run_op("aten::bmm", us, GEMM, host_us=2, dims=[list(SHAPE), keys], types=["c10::BFloat16"] * 2)
    for name in ("aten::mul", "aten::masked_fill") if mask else ("aten::mul",):
        b.run_op(name, us, host_us=2, dims=[list(SCORES)], types=["c10::BFloat16"])
    with b.op("aten::softmax"), b.op("aten::_softmax", us=2, dims=[list(scores)], types=["c10::BFloat16"]):
        b.compute(us, SOFTMAX)
    if dropout:
        with b.op("aten::dropout"), b.op("aten::bernoulli_", us=2):
            b.compute(us)
    product_inside(b, us, inner)
    with b.op("aten::bmm", us=2, dims=[list(SCORES), list(SHAPE)], types=["c10::BFloat16"] * 2):
        b.compute(us, GEMM)
    if not training:
        return
    for _ in range(2):
        with b.op("aten::bmm", us=2, dims=[list(SCORES), list(SHAPE)], types=["c10::BFloat16"] * 2):
            b.compute(us, GEMM)
    if inner:  # the gradients of its weight and of its input
        made = (inner[0][0], inner[1][-1])
        product_inside(b, us, (inner[0][::-1], made))
        product_inside(b, us, (made, inner[1][::-1]))
    with b.op(
        "aten::_softmax_backward_data", us=2, dims=[list(scores), list(scores)], types=["c10::BFloat16"] * 2
    ):
        b.compute(us, SOFTMAX_BACKWARD)
    for _ in range(2):
        with b.op("aten::bmm", us=2, dims=[list(SCORES), list(SHAPE)], types=["c10::BFloat16"] * 2):
            b.compute(us, GEMM)


def product_inside(b: RunBuilder, us: float, operands: tuple[tuple[int, ...], ...]) -> None:
    if operands:
        convolution = len(operands[0]) == 4
        name = "aten::cudnn_convolution" if convolution else "aten::mm"
        b.run_op(name, us, GEMM, host_us=2, dims=[list(o) for o in operands], types=["c10::BFloat16"] * 2)


def training(
    kind: str = "written out",
    *,
    us: float = 50.0,
    other: float = 400.0,
    training: bool = False,
    mask: bool = True,
    shapes: bool = True,
    stacks: bool = False,
    dtype: str = "c10::BFloat16",
    query: tuple[int, ...] = (4, 16, 512, 64),
    dropout: bool = False,
    gpu: bool = True,
    inner: tuple[tuple[int, ...], ...] = (),
) -> RunBuilder:
    """Four layers a step: attention, and a linear layer of `other` us."""
    b = RunBuilder(gpu="NVIDIA H100 80GB HBM3" if gpu else None, shapes=shapes, stacks=stacks)
    for _ in range(5):
        with b.step(), b.python("model.py", 40, "forward"):
            for _ in range(4):
                if kind == "written out":
                    attention(b, us, training, mask, dropout=dropout, inner=inner)
                elif kind in ("softmax by hand", "exponentials"):
                    by_hand(b, us, divided=kind == "softmax by hand")
                elif kind in ("graph", "router in a graph", "graph without grids"):
                    in_a_graph(b, us, heads=64 if kind == "graph" else 1, grids=kind != "graph without grids")
                elif kind == "templates":
                    with b.region(0):
                        for name in ("tem_fused_bmm_3", "red_fused__softmax_div_4", "tem_fused_bmm_5"):
                            b.launch(us, f"triton_{name}")
                elif kind == "another softmax":
                    attention(b, us, training, mask, scores=(64, 512))
                elif kind == "module":
                    with b.op("aten::_native_multi_head_attention"):
                        attention(b, us, training, mask)
                elif kind == "without heads":
                    with b.op("aten::matmul", dims=[list(SHAPE), [64, 64, 512]], types=[dtype] * 2):
                        attention(b, us, training, mask)
                elif kind == "math":
                    dims = [list(query)] * 3 + [[512, 512]] * mask
                    with b.op(SDPA, dims=dims, types=[dtype] * 4), b.op(MATH):
                        attention(b, us, training, mask)
                elif kind == "flash":
                    with b.op(SDPA), b.op("aten::_flash_attention_forward", us=2):
                        b.compute(4 * us, FLASH)
                elif kind == "classifier":
                    linear(b, us)
                    with b.op("aten::_log_softmax", us=2):
                        b.compute(us, "softmax_warp_forward<float, float, float, 10, true, false>")
                    linear(b, us)
                linear(b, other)
    return b


def in_two_functions() -> RunBuilder:
    """An encoder's attention and a decoder's, of which the second takes twice as long."""
    b = RunBuilder(shapes=True, stacks=True)
    for _ in b.steps(5):
        for name, us in (("encode", 50), ("decode", 100)):
            with b.python(f"{name}r.py", 40, name):
                attention(b, us, False, True)
            linear(b, 400)
    return b


def in_math_form(layers: int) -> RunBuilder:
    """So many layers of four that are scaled_dot_product_attention, the others are written out."""
    b = RunBuilder(shapes=True)
    for _ in b.steps(5):
        for n in range(4):
            with b.op(SDPA) if n < layers else nullcontext(), b.op(MATH) if n < layers else nullcontext():
                attention(b, 50, False, True)
            linear(b, 400)
    return b


def in_module(name: str) -> RunBuilder:
    """What looks like attention, by a softmax layer of this module."""
    b = RunBuilder(shapes=True, stacks=True)
    for _ in range(5):
        with b.step(), b.event(f"nn.Module: {name}_0", "python_function"):
            attention(b, 50, False, True)
    return b


def by_hand(b: RunBuilder, us: float, *, divided: bool) -> None:
    """`exp(x - max) / sum`; other things use exponentials and sums, too."""
    b.run_op("aten::bmm", us, GEMM, host_us=2, dims=[list(SHAPE), [64, 64, 512]], types=["float"] * 2)
    for name in ("amax", "sub", "exp", "sum", "div" if divided else "mul"):
        b.run_op(f"aten::{name}", us, host_us=2, dims=[list(SCORES)], types=["float"])
    b.run_op("aten::bmm", us, GEMM, host_us=2, dims=[list(SCORES), list(SHAPE)], types=["float"] * 2)


def in_a_graph(b: RunBuilder, us: float, *, heads: int, grids: bool = True) -> None:
    """Kernels of one launch, with no operators of their own."""
    with b.region(0):
        b.launch(us, GEMM, call="cudaGraphLaunch", grid=[4, 4, heads] if grids else None)
        b.launch(us, SOFTMAX, call="cudaGraphLaunch")
        b.launch(us, GEMM, call="cudaGraphLaunch", grid=[4, 1, heads] if grids else None)


def without_any_operator() -> RunBuilder:
    """What the host does is one launch."""
    b = training("graph")
    b.events = [e for e in b.events if e["cat"] != "cpu_op"]
    return b


def ends_in_a_softmax() -> RunBuilder:
    """Attention in CUDA graphs, the last of them with a softmax of its output behind it."""
    b = RunBuilder()
    for n in b.steps(5):
        in_a_graph(b, 50, heads=64)
        if n == 4:
            b.launch(50, SOFTMAX, call="cudaGraphLaunch")
    return b


def linear(b: RunBuilder, us: float) -> None:
    b.run_op("aten::addmm", us, GEMM, host_us=2)


def without_operators() -> RunBuilder:
    b = training()
    b.events = [e for e in b.events if e["cat"] not in ("cpu_op", "cuda_runtime")]
    return b


VALUES = ((2048, 512), (512, 1024))
"""operands of the product that makes the values"""
POINTWISE = ((4, 1024, 16, 32), (1024, 1024, 1, 1))
"""of one that makes them as a convolution, of pictures"""
OF_HEADS = ((64 * 512 * 512 // 16, 16), (16, 16))
"""of one that mixes the scores of heads"""
SCRIPT = """import math

import torch
from torch import nn


class Attention(nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        weights = scores.softmax(dim=-1)
        return weights @ v
"""
PATCHED = """import torch
from torch import nn


class Attention(nn.Module):
    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v)
"""
PATCHED_WITHOUT_HEADS = """import torch
from torch import nn


class Attention(nn.Module):
    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(
            q.unsqueeze(-3), k.unsqueeze(-3), v.unsqueeze(-3)
        ).squeeze(-3)
"""
