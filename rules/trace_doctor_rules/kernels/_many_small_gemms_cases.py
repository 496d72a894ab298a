"""Captures that the cases of `many_small_gemms` build."""

from __future__ import annotations

from trace_doctor.testing import RunBuilder

GEMM = "ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn"


def training(
    kind: str = "experts",
    *,
    experts: int = 8,
    us: float = 12.0,
    other: float = 400.0,
    shapes: bool = True,
    stacks: bool = False,
    tokens: int = 64,
    gpu: bool = True,
    hidden: int = 512,
    depth: int = 2,
    stacked: int = 8,
    before: int = 0,
    training: bool = False,
) -> RunBuilder:
    b = (
        RunBuilder(shapes=shapes, stacks=stacks)
        if gpu
        else RunBuilder(gpu=None, shapes=shapes, stacks=stacks)
    )
    for _ in range(4):
        with b.step(), b.python("moe.py", 30, "forward"):
            for expert in range(experts):
                with b.python("moe.py", 12, "expert"):
                    iteration(b, kind, tokens + expert, us, hidden, depth)
            for n in range(before):
                product(b, 8, 512, 8 + n, us)
            if kind == "stacked":
                with b.op(
                    "aten::stack", us=2, dims=[[[tokens, 512]] * stacked, []], types=["TensorList", "Scalar"]
                ):
                    b.compute(5)
            product(b, 4096, 512, 512, other)
            if training:
                with b.op("autograd::engine::evaluate_function: MmBackward0"):
                    for expert in range(experts):
                        product(b, hidden, tokens + expert, 4 * hidden, us)
                    product(b, 512, 4096, 512, other)
    return b


def replayed() -> RunBuilder:
    """Most of the work is one launch of a graph."""
    b = training("layers")
    calls = [e["args"]["correlation"] for e in b.events if e["cat"] == "kernel"]
    for event in b.events:
        if event["args"].get("correlation") in calls:
            event["args"]["correlation"] = calls[0]
            event["name"] = event["name"].replace("cudaLaunchKernel", "cudaGraphLaunch")
    return b


def iteration(b: RunBuilder, kind: str, tokens: int, us: float, hidden: int, depth: int) -> None:
    if kind == "experts":
        small(b, "aten::index")
    if kind == "weighted":
        with b.op("aten::slice", us=2, dims=[[64, 8], [], []], types=["c10::BFloat16", "Scalar", "Scalar"]):
            pass
    if kind == "attention":
        small(b, "aten::index")
        for _ in range(2):
            product(b, tokens, hidden, hidden, us)
        small(b, "aten::_softmax")
    product(b, tokens, hidden, 4 * hidden, us)
    small(b, "aten::gelu")
    for _ in range(depth - 2):
        product(b, tokens, 4 * hidden, 4 * hidden, us)
    product(b, tokens, 4 * hidden, hidden, us)
    if kind == "experts":
        small(b, "aten::index_add_")


def product(b: RunBuilder, rows: int, inner: int, columns: int, us: float) -> None:
    dims = [[rows, inner], [inner, columns]]
    with b.op("aten::linear"), b.op("aten::mm", us=2, dims=dims, types=["c10::BFloat16"] * 2):
        b.compute(us, GEMM)


def small(b: RunBuilder, name: str) -> None:
    b.run_op(name, 3, host_us=2, dims=[[64, 512]], types=["c10::BFloat16"])
