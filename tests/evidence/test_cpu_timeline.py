"""What steps are computed on, and in captures of the CPU alone when it computes and when it waits for others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trace_doctor.capture import Capture
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.idle.cpu_timeline import CpuTimeline, Processor
from trace_doctor.run import Cat
from trace_doctor.testing import RunBuilder

NOTE, OP, CALL, KERNEL = Cat.USER_ANNOTATION, Cat.CPU_OP, Cat.RUNTIME, Cat.KERNEL
STEP = (NOTE, "ProfilerStep#1", 0, 1000, {})
MM = (OP, "aten::mm", 100, 200, {})
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
Make = Callable[..., Facts]


def us(spans: object) -> list[list[int]]:
    return [[start // 1000, end // 1000] for start, end in spans.tolist()]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("more", "compute"),
    [
        ([], [[100, 300]]),
        ([(OP, "aten::add", 400, 50, {})], [[100, 300], [400, 450]]),
        ([(OP, "aten::add", 400, 50, {"thread": 2})], [[100, 300]]),
        ([(OP, "autograd::engine::evaluate_function: MmBackward0", 400, 50, {"thread": 1})], [[100, 300], [400, 450]]),
        ([(NOTE, LOADER, 400, 100, {}), (OP, "aten::stack", 420, 50, {})], [[100, 300]]),
        ([(NOTE, "Optimizer.step#SGD.step", 400, 100, {}), (OP, "aten::add_", 420, 50, {})], [[100, 300], [420, 470]]),
        ([(OP, "aten::add", 950, 100, {})], [[100, 300], [950, 1000]]),
    ],
)  # fmt: skip
def test_the_cpu_computes_in_operators_of_the_training_threads(
    facts: Make, more: list[object], compute: list[list[int]]
) -> None:
    assert us(facts([STEP, MM, *more])[CpuTimeline].compute) == compute


def test_a_collective_counts_where_no_operator_runs_beside_it(facts: Make) -> None:
    timeline = facts([STEP, MM, (OP, "gloo:all_reduce", 250, 200, {"thread": 2})])[CpuTimeline]
    assert (us(timeline.compute), us(timeline.comm)) == ([[100, 300]], [[300, 450]])


@pytest.mark.parametrize(
    ("start", "us_long", "device", "why"),
    [
        (400, 50, None, "the GPU did work"),
        (400, 0, None, ""),
        (1000, 50, None, ""),
        (-100, 100, None, ""),
        (400, 50, 1, "device 1 did no work"),
    ],
)
def test_work_of_a_gpu_in_the_window_makes_that_the_resource(
    facts: Make, start: float, us_long: float, device: int | None, why: str
) -> None:
    made = facts([STEP, MM, (KERNEL, "gemm", start, us_long, {})], options=Options(device=device))
    if not why:
        assert us(made[CpuTimeline].compute) == [[100, 300]]
        return
    with pytest.raises(NotCaptured, match=why):
        made[CpuTimeline]


def test_what_steps_are_computed_on(facts: Make) -> None:
    assert not facts([STEP, MM])[Processor].gpu
    assert facts([STEP, MM, (KERNEL, "gemm", 400, 50, {})])[Processor].gpu
    with pytest.raises(NotCaptured, match="the GPU was not recorded"):
        facts([STEP, MM, (CALL, "cudaLaunchKernel", 110, 5, {})])[Processor]


def test_steps_behind_all_gpu_work_are_computed_on_the_cpu() -> None:
    b = RunBuilder()
    b.launch(50)
    b.idle_until_done()
    for _ in range(3):
        with b.step(), b.op("aten::mm", us=500):
            pass
    assert not Facts(Capture(0, b.run()))[Processor].gpu
