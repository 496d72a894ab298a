"""The what-if replay: what the captured steps would take without some of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trace_doctor.capture import Capture
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.idle.data_loading import DataLoading
from trace_doctor.evidence.idle.syncs import Syncs
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.replay.what_if import Removal, Replay, ReplayOutcome
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.recording.folder import RankRecord, RecordedPhase
from trace_doctor.run import Cat, Run
from trace_doctor.testing import RunBuilder

US = 1000


def facts_of(run: Run | RunBuilder, **options: Any) -> Facts:
    made = run.run() if isinstance(run, RunBuilder) else run
    return Facts(Capture(rank=0, run=made), Options(**options))


def loading(facts: Facts) -> Removal:
    """All time inside loaders."""
    waits = facts[DataLoading]
    spans = waits.waits([facts[Steps].window]).tolist()
    return Removal(host_spans=tuple((waits.thread, s, e) for s, e in spans))


def without_loading(b: RunBuilder, **options: Any) -> ReplayOutcome:
    facts = facts_of(b, **options)
    return facts[Replay].without(loading(facts))


def without_waits(b: RunBuilder) -> ReplayOutcome:
    facts = facts_of(b)
    return facts[Replay].without(Removal(make_async=tuple(facts[Syncs].rows.tolist())))


def steps(
    *, loader_us: float, host_us: float, gpu_us: float, item: bool = False, count: int = 5, **builder: Any
) -> RunBuilder:
    b = RunBuilder(**builder)
    for _ in range(count):
        with b.step():
            b.loader(loader_us)
            with b.op("aten::mm", us=host_us):
                b.launch(gpu_us)
            if item:
                b.item()
            b.wait(host_us)
    return b


# -- what removing a cause gives -------------------------------------------------------------------------------


def test_a_loader_that_is_the_only_cause_of_idle_time_is_saved_whole() -> None:
    outcome = without_loading(steps(loader_us=400, host_us=100, gpu_us=20))
    assert outcome.saved_us_per_step == pytest.approx(400, rel=0.01)
    assert outcome.basis == "replay"
    assert outcome.step_us + outcome.saved_us_per_step == pytest.approx(604, rel=0.02)


def test_a_loader_hidden_behind_gpu_work_saves_nothing() -> None:
    outcome = without_loading(steps(loader_us=400, host_us=100, gpu_us=5000))
    assert outcome.share_of_step < 0.02  # only the first batch was not hidden


def test_of_a_loader_that_is_hidden_in_part_only_the_rest_is_saved() -> None:
    outcome = without_loading(steps(loader_us=400, host_us=50, gpu_us=300, count=20))
    assert outcome.saved_us_per_step == pytest.approx(
        504 - 300, rel=0.05
    )  # the first wait hides behind nothing


def test_a_saving_is_of_the_mean_step_and_no_more_than_what_goes() -> None:
    """One long wait in ten steps: as a share of the median step it would be more than it takes."""
    b = RunBuilder(gpu=None)
    for n in range(10):
        with b.step():
            b.loader(1000 if n == 5 else 2)
            with b.op("aten::mm", us=600):
                pass
    outcome = without_loading(b)
    assert outcome.before_us == pytest.approx(facts_of(b)[TimeLedger].rows[0].step_us, abs=0.01)
    assert outcome.saved_us_per_step == pytest.approx(101.8, rel=0.01)


def test_without_the_wait_host_and_device_work_side_by_side() -> None:
    # a step: 100 us of host work, then 300 us of GPU work that item() waits for, then 100 us of host work
    outcome = without_waits(steps(loader_us=1, host_us=100, gpu_us=300, item=True, count=20))
    assert outcome.step_us == pytest.approx(305, rel=0.03)


def test_a_wait_on_a_host_bound_run_saves_nearly_nothing() -> None:
    outcome = without_waits(steps(loader_us=1, host_us=500, gpu_us=10, item=True))
    assert outcome.share_of_step < 0.02


def test_gpu_work_that_goes_is_saved_only_where_the_device_is_the_limit() -> None:
    for host_us, gpu_us, saved in ((2, 400, 400), (500, 10, 0)):
        b = RunBuilder()
        for _ in range(20):
            with b.step():
                for name in ("keep", "drop"):
                    with b.op("aten::mm", us=host_us):
                        b.launch(gpu_us, name)
        facts = facts_of(b)
        rows = facts.run.named(lambda n: n == "drop", Cat.KERNEL)
        outcome = facts[Replay].without(Removal(gpu_rows=tuple(rows.tolist())))
        assert outcome.saved_us_per_step == pytest.approx(
            saved, abs=max(1, 0.03 * gpu_us)
        )  # the last kernel ends the window


def test_shorter_gpu_work_saves_what_it_gets_shorter_where_the_device_is_the_limit() -> None:
    for host_us, gpu_us, saved in ((2, 400, 150), (500, 200, 0)):
        b = RunBuilder()
        for _ in range(20):
            with b.step(), b.op("aten::mm", us=host_us):
                b.launch(gpu_us)
        facts = facts_of(b)
        shorter = Removal(gpu_shorter=tuple((int(r), 150 * US) for r in facts.run.gpu))
        outcome = facts[Replay].without(shorter)
        assert outcome.saved_us_per_step == pytest.approx(saved, abs=8)
        without = facts[Replay].without(Removal(gpu_rows=tuple(facts.run.gpu.tolist())))
        assert without.window_ns <= outcome.window_ns


def test_half_the_host_work_halves_a_step_that_waits_for_the_host_and_no_other() -> None:
    for host_us, gpu_us, share in ((50, 5, 0.5), (2, 300, 0.0)):
        b = RunBuilder()
        for _ in range(10):
            with b.step():
                for _ in range(20):
                    with b.op("aten::mm", us=host_us):
                        b.launch(gpu_us)
        replay = facts_of(b)[Replay]
        assert replay.without(Removal(host_share=0.5)).share_of_step == pytest.approx(share, abs=0.02)
        assert replay.beside(Removal(host_share=0.5), Removal(host_share=0.5)) == 0


def test_a_pause_of_the_host_is_no_work_for_launching() -> None:
    b = RunBuilder()
    for _ in range(10):
        with b.step():
            with b.op("aten::mm", us=20):
                b.launch(5)
            b.wait(3000)
    assert facts_of(b)[Replay].without(Removal(host_share=0.5)).share_of_step < 0.02


def test_a_pause_filled_with_views_is_host_work_like_any_other() -> None:
    b = RunBuilder()
    for _ in range(10):
        with b.step():
            with b.op("aten::mm", us=20):
                b.launch(5)
            with b.op("aten::split_with_sizes"):
                for _ in range(60):
                    with b.op("aten::narrow", us=50):
                        pass
    assert facts_of(b)[Replay].without(Removal(host_share=0.5)).share_of_step > 0.4


def test_the_main_thread_waits_for_the_backward_thread() -> None:
    b = RunBuilder()
    for _ in range(5):
        with b.step():
            with b.op("aten::mm"):
                b.launch(1)
            begin = b.now
            with b.thread(200), b.event("autograd::engine::evaluate_function: MmBackward0"):
                b.runtime("cudaMalloc", 300)
                b.launch(1)
                end = b.now
            b.wait(end - begin)
            with b.op("aten::add"):
                b.launch(1)
    facts = facts_of(b)
    run = facts.run
    mallocs = run.named(lambda n: n == "cudaMalloc")
    spans = tuple((int(run.thread[r]), int(run.ts[r]), int(run.end[r])) for r in mallocs)
    saved_us = facts[Replay].without(Removal(host_spans=spans)).saved_us_per_step
    assert saved_us == pytest.approx(300, rel=0.02)


def test_a_thread_that_only_watches_holds_nobody() -> None:
    b = RunBuilder()
    for _ in range(20):
        with b.step():
            with b.op("aten::mm", us=100):
                b.launch(300)
            b.sync()
            with b.thread(900):
                b.now -= 1  # an event query of a watchdog, just as the wait ends
                b.runtime("cudaEventQuery", 3)
            b.wait(100)
    assert without_waits(b).step_us == pytest.approx(305, rel=0.03)


def test_work_of_another_stream_is_still_waited_for() -> None:
    b = RunBuilder()
    for _ in range(5):
        with b.step():
            with b.op("aten::mm"):
                b.launch(400, stream=7)
            b.now += 400  # so that the next launch arrives when the first stream is done
            with b.op("aten::add"):
                b.launch(100, stream=20)
            b.idle_until_done()
    facts = facts_of(b)
    run = facts.run
    pauses = [
        (0, int(run.end[a]), int(run.ts[c]))
        for a, c in zip(
            run.named(lambda n: n == "aten::mm"), run.named(lambda n: n == "aten::add"), strict=True
        )
    ]
    outcome = facts[Replay].without(Removal(host_spans=tuple(pauses)))
    assert outcome.window_ns >= 5 * 500 * US


def test_warm_up_is_not_replayed() -> None:
    b = RunBuilder()
    for n in range(5):
        with b.step():
            b.loader(5000 if n == 0 else 100)
            with b.op("aten::mm", us=100):
                b.launch(10)
    outcome = without_loading(b)
    assert outcome.saved_us_per_step == pytest.approx(100, rel=0.02)


# -- what the replay knows of itself ---------------------------------------------------------------------------


def late_start(us: float) -> RunBuilder:
    """Kernels that start long after their launch though the device is free."""
    b = RunBuilder()
    for _ in range(20):
        with b.step():
            with b.op("aten::mm", us=50):
                b.launch(10)
            b.wait(1000)
    for late in [e for e in b.events if e["cat"] == "kernel"][::2]:
        late["ts"] += us
    return b


def test_delays_that_nothing_explains_are_counted_and_make_outcomes_bounds() -> None:
    replay = facts_of(late_start(500))[Replay]
    assert replay.unexplained_share == pytest.approx(0.5 * 500 / 1055, rel=0.05)
    assert not replay.usable
    assert "unexplained" in replay.limit
    outcome = replay.without(Removal())
    assert outcome.basis == "bound"
    assert outcome.saved_us_per_step == 0


def test_a_launch_call_that_loads_a_module_explains_its_delay() -> None:
    b = RunBuilder()
    for n in range(20):
        with b.step(), b.op("aten::mm", us=50):
            b.launch(10, call_us=3000 if n % 5 == 4 else None)
            b.wait(500)
    replay = facts_of(b)[Replay]
    assert replay.usable
    assert replay.unexplained_share == 0


def test_a_pageable_copy_that_is_staged_explains_its_delay() -> None:
    b = RunBuilder()
    for _ in range(20):
        with b.step(), b.op("aten::copy_", us=50):
            b.copy(200)
            copy = next(e for e in reversed(b.events) if e["cat"] == "gpu_memcpy")
            call = next(e for e in reversed(b.events) if e["name"] == "cudaMemcpyAsync")
            copy["ts"] += 300
            call["dur"] += 300
            b.wait(800)
    assert facts_of(b)[Replay].usable


def test_a_copy_to_the_host_that_is_queued_behind_kernels_comes_sooner_with_them() -> None:
    """It begins a little later than the device's own pauses are, inside a call that waited for all before it."""
    b = RunBuilder()
    for _ in range(20):
        with b.step():
            with b.op("aten::mm", us=2):
                for _ in range(3):
                    b.launch(400)
            b.copy(1.5, "DtoH (Device -> Pageable)", bytes=4)
            copy = next(e for e in reversed(b.events) if e["cat"] == "gpu_memcpy")
            call = next(e for e in reversed(b.events) if e["name"] == "cudaMemcpyAsync")
            copy["ts"] += 5
            call["dur"] += 5
            b.wait(20)
    facts = facts_of(b)
    kernels = facts.run.gpu[facts.run.is_cat(Cat.KERNEL)[facts.run.gpu]]
    outcome = facts[Replay].without(Removal(gpu_shorter=tuple((int(r), 100 * US) for r in kernels)))
    assert outcome.saved_us_per_step == pytest.approx(300, abs=8)


def test_the_profilers_last_synchronise_does_not_stretch_the_window() -> None:
    b = steps(loader_us=50, host_us=10, gpu_us=500)
    b.runtime("cudaDeviceSynchronize", 60_000)
    replay = facts_of(b)[Replay]
    start, end = replay.window
    assert replay.base_ns == pytest.approx(end - start, rel=1e-3)
    assert replay.without(Removal()).saved_us_per_step == 0


# -- without a GPU ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "on_cpu", "saved"),
    [
        (None, None, 400),
        (8, None, 400),
        (2, None, 300),
        (1, None, 0),
        (2, 1.0, 300),
        (2, 0.4, 400),
        (1, 0.4, 200),
    ],
)
def test_without_a_gpu_loading_moves_to_workers_as_far_as_there_are_cores(
    cores: int | None, on_cpu: float | None, saved: float
) -> None:
    """A loader that waits, for a disk or another machine, shares the cores with nobody."""
    b = RunBuilder(gpu=None)
    for _ in range(5):
        with b.step():
            b.loader(400)
            with b.op("aten::mm", us=200):
                pass
    options = Options(extra={} if cores is None else {"cpu_count": cores})
    timed = RecordedPhase("timing", seconds=10.0, cpu_seconds=None if on_cpu is None else on_cpu * 10)
    facts = Facts(Capture(rank=0, run=b.run(), record=RankRecord(0, phases=(timed,))), options)
    outcome = facts[Replay].without(loading(facts))
    assert outcome.basis == "bound"
    assert outcome.saved_us_per_step == pytest.approx(saved, rel=0.01, abs=1)


def test_without_a_gpu_there_is_nothing_to_measure_the_replay_by() -> None:
    b = RunBuilder(gpu=None)
    with b.step(), b.op("aten::mm", us=200):
        pass
    replay = facts_of(b)[Replay]
    assert replay.base_error is None
    assert replay.unexplained_share is None
    assert not replay.usable


def test_an_empty_trace_has_no_replay() -> None:
    with pytest.raises(NotCaptured):
        facts_of(RunBuilder())[Replay]


# -- real captures ---------------------------------------------------------------------------------------------


def replay_of(path: Path) -> tuple[Facts, Replay]:
    facts = facts_of(load_trace(path, path.name))
    return facts, facts[Replay]


@pytest.mark.captures
@pytest.mark.parametrize(
    ("file", "steps_in_file", "before_ms", "after_ms"),
    [
        ("pytorch_kineto/resnet50_num_workers_0_worker0.1623143089861.pt.trace.json.gz", 6, 177.6, 118.6),
        ("AMD-AGI_TraceLens/h100_google_owlv2-large-patch14-ensemble__1016001.json.gz", 1, 1211.2, 592.1),
    ],
)
def test_figures_of_known_loaders(
    captures_dir: Path, file: str, steps_in_file: int, before_ms: float, after_ms: float
) -> None:
    facts, replay = replay_of(captures_dir / "traces" / file)
    outcome = replay.without(loading(facts))
    before = (replay.window[1] - replay.window[0]) / steps_in_file / 1e6
    assert before == pytest.approx(before_ms, rel=0.002)
    assert outcome.window_ns / steps_in_file / 1e6 == pytest.approx(after_ms, rel=0.002)
    assert outcome.step_us / 1e3 == pytest.approx(after_ms, rel=0.01)
    assert outcome.basis == "replay"


@pytest.mark.captures
def test_nothing_removed_reproduces_the_window_of_every_capture(trace_facts: Facts) -> None:
    replay = trace_facts.get(Replay)
    if replay is None or replay.graph is None:
        pytest.skip("no GPU work")
    start, end = replay.window
    assert replay.base_ns == pytest.approx(end - start, rel=0.01)
    assert replay.without(Removal()).saved_us_per_step == 0
    assert replay.usable or replay.limit


def test_a_wait_that_is_left_out_wholly_waits_no_more() -> None:
    """100 us of host work on either side of 400 us on the device: without the wait the device alone is the step."""
    facts = facts_of(steps(loader_us=1, host_us=100, gpu_us=400, item=True, count=20))
    run, rows = facts.run, facts[Syncs].rows
    spans = zip(run.thread[rows].tolist(), run.ts[rows].tolist(), run.end[rows].tolist(), strict=True)
    outcome = facts[Replay].without(Removal(host_spans=tuple(spans)))
    assert outcome.step_us == pytest.approx(400, rel=0.05)


def test_a_launch_within_another_call_is_that_call() -> None:
    """The runtime's call around the driver's: work that the inner one launches waits for the outer one."""
    b = RunBuilder()
    for _ in range(5):
        with b.step(), b.event("cudaGraphLaunch", cat="cuda_runtime"):
            b.wait(200)
            b.launch(20)
            with b.op("aten::mm"):
                b.launch(20)
            b.wait(50)
    facts = facts_of(b)
    graph = facts[Replay].graph
    launched = graph.ops.call
    assert (launched >= 0).all()
    assert {facts.run.text(int(graph.calls.row[c])) for c in launched.tolist()} == {"cudaGraphLaunch"}


def limited_by_its_loader(workers: int) -> RunBuilder:
    """Each step waits 5 ms for its batch, and then 3 ms for the copy of it."""
    b = RunBuilder()
    for _ in range(6):
        with b.step():
            b.loader(5000, workers=workers)
            with b.annotation("copy"):
                b.wait(3000)
            with b.op("aten::mm", us=10):
                b.launch(1000)
            b.sync()
    return b


def without_the_copies(b: RunBuilder) -> ReplayOutcome:
    facts = facts_of(b)
    rows = facts.run.named(lambda name: name == "copy", Cat.USER_ANNOTATION).tolist()
    spans = tuple((int(facts.run.thread[r]), int(facts.run.ts[r]), int(facts.run.end[r])) for r in rows)
    return facts[Replay].without(Removal(host_spans=spans))


def test_a_batch_that_workers_make_comes_no_sooner_when_other_work_gets_shorter() -> None:
    assert without_the_copies(limited_by_its_loader(workers=4)).saved_us_per_step < 3000 / 5
    own_process = without_the_copies(limited_by_its_loader(workers=0)).saved_us_per_step
    assert own_process == pytest.approx(3000, rel=0.01)


def test_what_a_faster_loader_gives_is_not_held_by_the_batches_of_the_slow_one() -> None:
    b = limited_by_its_loader(workers=4)
    assert without_loading(b).saved_us_per_step == pytest.approx(5000, rel=0.05)
