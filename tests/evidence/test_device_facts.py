"""What a capture says about its device: what it is, how much memory it has, what was free there when an allocation failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.compute.matmuls import Products
from trace_doctor.evidence.memory.blocks import MemoryBlocks
from trace_doctor.evidence.memory.out_of_memory import Failure, OutOfMemory, _less
from trace_doctor.evidence.trace.capture_health import CaptureHealth
from trace_doctor.testing import GIB, MIB, RunBuilder, SnapshotBuilder, captures_of

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn"


def facts(b: RunBuilder, options: Options | None = None) -> Facts:
    return Facts(captures_of(b)[0], options)


def kernels(*names: str, properties: dict[str, Any] | None = None, **more: Any) -> Kernels:
    b = RunBuilder(**more)
    with b.step(), b.op("aten::mm"):
        for name in names:
            b.launch(10, name)
    if properties is not None:
        b.meta["deviceProperties"] = [properties]
    return facts(b)[Kernels]


@pytest.mark.parametrize(
    ("properties", "capability", "units", "memory"),
    [
        (
            {"id": 0, "computeMajor": 9, "computeMinor": 1, "numSms": 132, "totalGlobalMem": GIB},
            (9, 1),
            132,
            GIB,
        ),
        ({"computeMajor": 9}, (9, 0), None, None),
        ({"id": 0, "numSms": 0, "totalGlobalMem": 0}, (8, 0), None, None),
        ({"id": 5, "computeMajor": 9, "numSms": 132, "totalGlobalMem": GIB}, (8, 0), None, None),
    ],
)
def test_what_the_file_says_about_the_device(
    properties: dict[str, Any], capability: tuple[int, int], units: int | None, memory: int | None
) -> None:
    seen = kernels(GEMM, properties=properties)
    assert (seen.compute_capability, seen.multiprocessors, seen.memory_bytes) == (capability, units, memory)


@pytest.mark.parametrize(
    ("device", "kernel", "amd"),
    [
        ("AMD Instinct MI300X", GEMM, True),
        ("NVIDIA H100", "Cijk_Ailk_Bljk_BBS", False),
        ("", "Cijk_Ailk_Bljk_BBS", True),
        ("", "void at::hip::kernel", True),
        ("", "igemm_fwd", True),
        ("", GEMM, False),
    ],
)
def test_whose_gpu_it_is(device: str, kernel: str, amd: bool) -> None:
    assert kernels(kernel, properties={"id": 0, "name": device}).is_amd == amd


def test_shares_of_kernels_and_those_that_no_operator_launched() -> None:
    b = RunBuilder()
    for _ in range(2):
        with b.step():
            with b.op("aten::mm"):
                b.launch(30, GEMM)
            b.launch(10, "alone")
    seen = facts(b)[Kernels]
    products, alone = seen.named(GEMM.__eq__), seen.named("alone".__eq__)
    assert (seen.share(products), seen.us_per_step(products)) == (0.75, 30.0)
    assert seen.launched_by("aten::mm".__eq__).tolist() == products.tolist()
    assert seen.by_name(products | alone) == [(GEMM, 2, 60_000), ("alone", 2, 20_000)]
    assert seen.by_operator(alone)[0].tolist() == []
    assert seen.share(products & alone) == 0.0


BF16, FP32 = "c10::BFloat16", "float"


@pytest.mark.parametrize(
    ("operator", "dims", "types", "form", "half"),
    [
        ("aten::mm", [[4, 8], [8, 2]], [BF16, BF16], (4, 8, 2), True),
        ("aten::mm", [[4, 8], [8, 2]], [BF16, FP32], (4, 8, 2), False),
        ("aten::mm", [[4, 8], [8, 2]], [FP32, BF16], (4, 8, 2), False),
        ("aten::addmm", [[2], [4, 8], [8, 2]], [FP32, BF16, BF16], (4, 8, 2), True),
        ("aten::mm", [[4, 8], [4, 2]], [BF16, BF16], None, False),
        ("aten::mm", [[4, 8], [8]], [BF16, BF16], None, False),
        ("aten::mm", [[3, 4, 8], [8, 2]], [BF16, BF16], None, False),
        ("aten::bmm", [[4, 8], [8, 2]], [BF16, BF16], None, False),
    ],
)
def test_products_of_two_matrices(
    operator: str, dims: list[list[int]], types: list[str], form: tuple[int, int, int] | None, half: bool
) -> None:
    b = RunBuilder(shapes=True)
    with b.step(), b.op(operator):
        b.launch(10, GEMM)
    for event in b.events:
        if event["name"] == operator:
            event["args"] |= {"Input Dims": dims, "Input type": types}
    products = facts(b)[Products].all
    assert [(p.rows, p.inner, p.columns, p.half, p.ns, p.backward) for p in products] == (
        [(*form, half, 10_000, False)] if form else []
    )


def failed(
    requested: int = 100, device_free: int | None = 50, reserved: int | None = 400, cached: int | None = 60
) -> Failure:
    return Failure(
        SimpleNamespace(),
        0,
        requested,
        device_free,
        reserved,
        300,
        cached,
        40,
        0,
        -1,
        1,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("failure", "limited", "fits", "could_have"),
    [
        (failed(), False, True, 450),
        (failed(requested=110), False, True, 450),
        (failed(requested=111), False, False, 450),
        (failed(device_free=100), True, False, 500),
        (failed(device_free=100, cached=100), True, True, 500),
        (failed(device_free=0), False, False, 400),
        (failed(device_free=None), False, None, None),
        (failed(cached=None), False, None, 450),
        (failed(reserved=None), False, True, None),
    ],
)
def test_whether_a_request_would_have_found_room(
    failure: Failure, limited: bool, fits: bool | None, could_have: int | None
) -> None:
    assert (failure.limited, failure.fits_if_packed, failure.device_bytes) == (limited, fits, could_have)


@pytest.mark.parametrize(
    ("hole", "left"),
    [
        ((0, 10), {(10, 20), (30, 40)}),
        ((20, 30), {(10, 20), (30, 40)}),
        ((10, 20), {(30, 40)}),
        ((10, 15), {(15, 20), (30, 40)}),
        ((15, 20), {(10, 15), (30, 40)}),
        ((12, 15), {(10, 12), (15, 20), (30, 40)}),
        ((15, 35), {(10, 15), (35, 40)}),
    ],
)
def test_segments_without_what_was_taken_out(hole: tuple[int, int], left: set[tuple[int, int]]) -> None:
    assert _less({(10, 20), (30, 40)}, hole) == left


@pytest.mark.parametrize(("expandable", "given_back", "cached"), [(False, 100, 60), (True, 0, 160)])
def test_what_was_cached_and_given_back_before_a_failure(
    expandable: bool, given_back: int, cached: int
) -> None:
    b = SnapshotBuilder(expandable_segments=expandable)
    with b.forward():
        first, second = b.alloc(100 * MIB), b.alloc(60 * MIB)
        b.alloc(20 * MIB)
        b.free(first)
        b.release_cached()
        b.free(second)
        b.oom(GIB, device_free=10 * MIB)
        b.alloc(30 * MIB)
    (failure,) = Facts(Capture(0, snapshot=b.snapshot()))[OutOfMemory].failures
    assert failure.reserved is not None
    assert (failure.requested, failure.device_free, failure.live) == (GIB, 10 * MIB, 20 * MIB)
    assert (failure.retried, failure.cached, failure.count) == (given_back * MIB, cached * MIB, 1)
    assert (failure.reserved, failure.largest_gap) == ((20 + cached) * MIB, cached * MIB)


def test_without_a_failure_there_is_none() -> None:
    b = SnapshotBuilder()
    b.train(2)
    assert Facts(Capture(0, snapshot=b.snapshot()))[OutOfMemory].failures == ()


@pytest.mark.parametrize(
    ("operator", "call", "on_cpu"),
    [
        ("aten::mkldnn_convolution", None, True),
        ("aten::mm", None, False),
        ("aten::mm", "cudaDeviceSynchronize", True),
        ("aten::add", "cudaDeviceSynchronize", False),
        ("aten::mkldnn_convolution", "cudaLaunchKernel", False),
    ],
)
def test_a_model_that_was_left_on_the_cpu(operator: str, call: str | None, on_cpu: bool) -> None:
    b = RunBuilder()
    with b.step(), b.op(operator):
        b.wait(10)
        if call:
            b.runtime(call, 5)
    health = facts(b)[CaptureHealth]
    assert (health.ran_on_cpu, health.runtime, health.gpu_events) == (on_cpu, call is not None, 0)
    assert health.launch_calls == health.unanswered_calls == (call == "cudaLaunchKernel")


def test_moments_and_masks_of_blocks() -> None:
    b = SnapshotBuilder()
    b.held(MIB)
    with b.forward():
        block = b.alloc(4 * MIB)
        b.alloc(2 * MIB)
        b.free(block)
    history = Facts(Capture(0, snapshot=b.snapshot()))[MemoryBlocks].devices[0].history
    four = history.size == 4 * MIB
    alive = [int(history.size[history.alive(m)].sum()) for m in range(history.n + 1)]
    assert alive == history.live.tolist()
    assert (history.bytes_over_time(four) + history.live_without(four) == history.live).all()
    assert history.peak_without(four) == 3 * MIB
    assert history.peak_without(four, history.born[four]) == 3 * MIB
    assert history.peak_without(four, history.born[four] + 1) == 5 * MIB
    assert np.diff(history.live).any()
