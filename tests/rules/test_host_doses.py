"""Data and host rules claim what was planted: no more, and more for more."""

from __future__ import annotations

from itertools import pairwise

import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.rule import Claim, Context, Rule
from trace_doctor.testing import RunBuilder
from trace_doctor_rules.data.cpu_tensor_then_copy import CpuTensorThenCopy
from trace_doctor_rules.data.pageable_copies import PageableCopies
from trace_doctor_rules.data.worker_restart import WorkerRestart
from trace_doctor_rules.host.launch_bound import LaunchBound
from trace_doctor_rules.host.slow_launch_thread import SlowLaunchThread

STEPS = 8


def claim(rule: Rule, b: RunBuilder) -> Claim:
    (made,) = rule.check(Context(Facts(Capture(rank=0, run=b.run())), rule))
    return made


def saved_us(rule: Rule, b: RunBuilder) -> float:
    saving = claim(rule, b).saving
    assert saving is not None and saving.time_us_per_step is not None
    return saving.time_us_per_step


def work(b: RunBuilder, count: int = 20, gpu_us: float = 100.0) -> None:
    """The host needs 34 us for what the GPU needs 100 us for, and the step ends with both done."""
    for _ in range(count):
        with b.op("aten::mm", us=30):
            b.launch(gpu_us, "gemm")


def pause(us: float) -> RunBuilder:
    b = RunBuilder()
    for _ in range(STEPS):
        with b.step():
            work(b)
            b.idle_until_done()
            with b.annotation("write metrics"):
                b.wait(us)
    return b


def made_on_the_host(us: float) -> RunBuilder:
    b = RunBuilder()
    for _ in range(STEPS):
        with b.step():
            with b.op("aten::randn", us=us):
                pass
            with b.op("aten::to"), b.op("aten::_to_copy"), b.op("aten::copy_"):
                b.copy(50)
                b.sync()
            work(b)
            b.idle_until_done()
    return b


def pageable(us: float) -> RunBuilder:
    """On a link of 50 GB/s, 5 MB take 100 us."""
    b = RunBuilder()
    for _ in range(STEPS):
        with b.step():
            with b.op("aten::to"), b.op("aten::_to_copy"), b.op("aten::copy_"):
                b.copy(us, bytes=5_000_000)
                b.sync()
            work(b)
            b.idle_until_done()
    return b


def restarts(us: float) -> RunBuilder:
    """An epoch is two steps."""
    b = RunBuilder(stacks=True)
    for n in range(2 * STEPS):
        with b.step():
            if n % 2 == 0 and n:
                b.loader(us / 4, workers=2)
                with b.python("torch/utils/data/dataloader.py", 1101, "__init__"):
                    b.wait(us / 2)
            b.loader(us / 4 if n % 2 == 0 and n else 20, workers=2)
            work(b, 60)
            with b.optimizer_step():
                b.wait(10)
            b.idle_until_done()
    return b


@pytest.mark.parametrize(
    ("rule", "plant", "doses", "share"),
    [
        (SlowLaunchThread(), pause, (1500, 3000, 6000), 1.0),
        (CpuTensorThenCopy(), made_on_the_host, (500, 1000, 2000), 1.0),
        (PageableCopies(), pageable, (500, 1000, 2000), 1.0),
        (WorkerRestart(), restarts, (12_000, 18_000, 24_000), 7 / 16),
    ],
    ids=["pause", "made on the host", "pageable", "restart"],
)
def test_each_dose_is_claimed(rule: Rule, plant, doses: tuple[float, ...], share: float) -> None:  # type: ignore[no-untyped-def]
    """What a dose adds is claimed within 5 %."""
    claimed = [saved_us(rule, plant(dose)) for dose in doses]
    for (small, large), (less, more) in zip(pairwise(doses), pairwise(claimed), strict=True):
        assert more - less == pytest.approx(share * (large - small), rel=0.05)


def test_more_host_work_for_each_kernel_is_a_larger_claim() -> None:
    def training(host_us: float) -> RunBuilder:
        b = RunBuilder()
        for _ in range(STEPS):
            with b.step():
                for _ in range(30):
                    with b.op("aten::add", us=host_us):
                        b.launch(4)
        return b

    claimed = [saved_us(LaunchBound(), training(host_us)) for host_us in (20, 40, 80)]
    assert claimed == sorted(claimed)
    assert claimed[2] - claimed[1] == pytest.approx(30 * 40 / 2, rel=0.05)


def test_what_to_do_goes_by_the_function_and_not_by_its_folder() -> None:
    b = RunBuilder(stacks=True)
    for _ in range(STEPS):
        with b.step(), b.python("train.py", 3, "train"):
            work(b)
            b.idle_until_done()
            with b.python("transformers/trainer_callback.py", 493, "on_step_end"):
                b.wait(2000)
    fix = claim(SlowLaunchThread(), b).fixes[0]
    assert "workers" not in fix.title
