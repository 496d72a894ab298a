"""Captures that the cases of `exposed_collectives` build."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from trace_doctor.testing import RunBuilder

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
COMBINE = "void deep_ep::internode_ll::combine<3, 10, 7168, 9>(void*, void*, int*)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


def rank(
    us: float,
    *,
    hidden: bool = False,
    rank: int = 0,
    first_us: float = 0.0,
    name: str = ALL_REDUCE,
    stall_us: float = 0.0,
    steps: int = 5,
    small: int = 0,
    small_us: float = 5.0,
    mark: str = "DistributedDataParallel.forward",
    asked: str = "",
    world_size: int = 2,
) -> RunBuilder:
    """Steps of 2 ms compute and a collective: behind it on the same stream, or hidden on another one. The GPU may
    stand still between two kernels."""
    b = RunBuilder(rank=rank, world_size=world_size)
    for n in b.steps(steps):
        b.loader(5)
        with b.annotation(mark), b.op("aten::mm"):
            b.launch(1000)
        b.stall(stall_us)
        takes = us + (first_us if n == 0 else 0.0)
        if hidden:
            b.launch(takes, name, stream=20)
        b.run_op("aten::mm", 1000)
        if not hidden:
            with b.annotation(asked) if asked else nullcontext():
                b.launch(takes, name)
        for _ in range(small):
            b.launch(small_us, name)
        b.sync("cudaDeviceSynchronize")
    return b


def split_layers(*, trains: bool = True, fused: float = 0.0, group: str = "") -> RunBuilder:
    """Four layers of a product and an all-reduce each, forward and backward; `fused`: us of one of all gradients behind it."""
    b = RunBuilder(rank=0, world_size=8)
    said: dict[str, Any] = {"Process Group Description": group, "Group size": 8} if group else {}
    for _ in b.steps(5):
        b.loader(5)
        for backward in (False, True)[: 1 + trains]:
            for _ in range(4):
                with b.op("autograd::engine::evaluate_function: MmBackward0" if backward else "aten::mm"):
                    b.launch(200, "ampere_bf16_s16816gemm_bf16_128x128")
                    b.launch(100, ALL_REDUCE, **said)
        if fused:
            b.launch(fused, ALL_REDUCE)
        b.sync("cudaDeviceSynchronize")
    return b


def gradients_by_hand() -> RunBuilder:
    """Each gradient is reduced when backward is over."""
    b = RunBuilder(world_size=2)
    for _ in b.steps(5):
        b.loader(5)
        for name in ("aten::mm", "autograd::engine::evaluate_function: MmBackward0"):
            for _ in range(4):
                b.run_op(name, 200, "ampere_bf16_s16816gemm_bf16_128x128")
        for _ in range(4):
            b.launch(200, ALL_REDUCE)
        b.sync("cudaDeviceSynchronize")
    return b


def with_backlog() -> RunBuilder:
    """The GPU still exchanges what was launched before the first step."""
    b = RunBuilder(world_size=2)
    for _ in range(4):
        b.launch(800, ALL_REDUCE)
    for _ in b.steps(5):
        b.loader(5)
        b.run_op("aten::mm", 2000)
        b.launch(600, ALL_REDUCE)
        b.sync()
    return b


def host_is_behind() -> RunBuilder:
    """The next kernels are launched late, whether data is exchanged meanwhile or not."""
    b = RunBuilder(world_size=2)
    for _ in b.steps(5):
        b.loader(5)
        b.run_op("aten::mm", 1000)
        b.launch(500, ALL_REDUCE)
        with b.op("aten::nonzero"):
            b.wait(1800)
    return b


def of_two_kinds() -> RunBuilder:
    b = rank(600, small=1, small_us=300)
    for n, event in enumerate(e for e in b.events if e["name"] == ALL_REDUCE):
        event["name"] = ALL_GATHER if n % 2 else ALL_REDUCE
    return b


def hidden_on_the_other(beside: float = 1500) -> tuple[RunBuilder, ...]:
    """Rank 1 computes beside the exchange, for so many us, and sets the pace; rank 0 could only wait for it later on."""
    first, second = RunBuilder(rank=0, world_size=2), RunBuilder(rank=1, world_size=2)
    for _ in range(5):
        for b, compute, stream in ((first, 1000, 7), (second, beside, 20)):
            with b.step():
                b.loader(5)
                b.launch(500, ALL_REDUCE, stream=stream)
                b.run_op("aten::mm", compute)
                b.sync("cudaDeviceSynchronize")
                if b is second:
                    b.run_op("aten::mm", 1500 - beside)
                    b.sync()
    return first, second


def once() -> RunBuilder:
    """One step of five has two long collectives."""
    b = RunBuilder(world_size=2)
    for n in b.steps(5):
        b.loader(5)
        b.run_op("aten::mm", 2000)
        for _ in range(2):
            b.launch(1500 if n == 3 else 50, ALL_REDUCE)
        b.sync()
    return b


def cut_down() -> RunBuilder:
    """Somebody kept the collectives alone."""
    b = rank(600)
    b.events = [e for e in b.events if e["cat"] != "kernel" or e["name"] == ALL_REDUCE]
    return b


def waiting_for_the_other(exchange: float = 20) -> tuple[RunBuilder, ...]:
    """Rank 1 computes 500 us longer; the exchange itself takes so many us."""
    first, second = RunBuilder(rank=0, world_size=2), RunBuilder(rank=1, world_size=2)
    for _ in range(5):
        for b, compute, collective in ((first, 1000, 500 + exchange), (second, 1500, exchange)):
            with b.step():
                b.loader(5)
                b.run_op("aten::mm", compute)
                b.launch(collective, ALL_REDUCE)
                b.sync()
    return first, second
