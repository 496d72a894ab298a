"""The what-if replay: what the captured steps would take without some of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence import replay_graph
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.data_loading import DataLoading
from trace_doctor.evidence.intervals import clip, pairs, total, union
from trace_doctor.evidence.replay import Removal, Replay, ReplayOutcome
from trace_doctor.evidence.steps import Steps
from trace_doctor.evidence.syncs import Syncs
from trace_doctor.loaders.kineto import load_trace
from trace_doctor.recording.folder import RankRecord, RecordedPhase
from trace_doctor.run import Capture, Cat, Run
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
    assert outcome.saved_us_per_step == pytest.approx(504 - 300, rel=0.03)


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
        assert outcome.saved_ns / 20 / US == pytest.approx(
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
        assert outcome.saved_ns / 20 / US == pytest.approx(saved, abs=8)
        assert (
            facts[Replay].without(Removal(gpu_rows=tuple(facts.run.gpu.tolist()))).saved_ns
            >= outcome.saved_ns
        )


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
    assert facts[Replay].without(Removal(host_spans=spans)).saved_ns == pytest.approx(5 * 300 * US, rel=0.02)


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
    assert outcome.saved_ns == 0


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


def test_the_profilers_last_synchronise_does_not_stretch_the_window() -> None:
    b = steps(loader_us=50, host_us=10, gpu_us=500)
    b.runtime("cudaDeviceSynchronize", 60_000)
    replay = facts_of(b)[Replay]
    assert replay.reproduction_error == pytest.approx(0, abs=1e-3)
    assert replay.without(Removal()).saved_ns == 0


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


# -- laws ------------------------------------------------------------------------------------------------------

Program = list[list[tuple[str, float]]]
PROGRAMS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["loader", "kernel", "side", "item", "sync", "wait", "malloc"]), st.floats(1, 800)
        ),
        min_size=1,
        max_size=8,
    ),
    min_size=1,
    max_size=5,
)
SPANS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.3)), max_size=4)
SUBSETS = st.tuples(SPANS, st.integers(0, 7), st.integers(0, 7))


def built(program: Program, shift_us: float = 0.0) -> Run:
    b = RunBuilder()
    b.now += shift_us
    for step in program:
        with b.step():
            with b.op("aten::mm"):
                b.launch(5)
            for what, us in step:
                us = round(us)
                if what == "loader":
                    b.loader(us)
                elif what == "item":
                    b.item()
                elif what == "sync":
                    b.sync("cudaDeviceSynchronize")
                elif what == "wait":
                    b.wait(us)
                elif what == "malloc":
                    b.runtime("cudaMalloc", us)
                else:
                    with b.op("aten::mm", us=10):
                        b.launch(us, stream=7 if what == "kernel" else 20)
    return b.run()


def chosen(facts: Facts, subset: tuple[list[tuple[float, float]], int, int]) -> Removal:
    """Some host time, every n-th wait and every n-th kernel of a run."""
    spans, waits, kernels = subset
    begin, end = facts[Steps].window
    length = end - begin
    host = tuple((0, begin + int(a * length), begin + int(min(a + b, 1) * length)) for a, b in spans)
    syncs, gpu = facts[Syncs].rows, facts.run.gpu
    return Removal(
        host_spans=tuple(h for h in host if h[2] > h[1]),
        make_async=tuple(syncs[::waits].tolist()) if waits else (),
        gpu_rows=tuple(gpu[::kernels].tolist()) if kernels else (),
    )


@settings(max_examples=60, deadline=None)
@given(PROGRAMS)
def test_removing_nothing_gives_the_window_back(program: Program) -> None:
    replay = facts_of(built(program))[Replay]
    outcome = replay.without(Removal())
    assert replay.reproduction_error == pytest.approx(0, abs=1e-3)
    assert outcome.saved_ns == 0
    assert outcome.window_ns == replay.window[1] - replay.window[0]


@settings(max_examples=100, deadline=None)
@given(PROGRAMS, SUBSETS, SUBSETS)
def test_removing_more_never_saves_less(program: Program, one: Any, two: Any) -> None:
    facts = facts_of(built(program))
    replay = facts[Replay]
    first, second = chosen(facts, one), chosen(facts, two)
    together = replay.without(first | second).saved_ns
    assert together >= max(replay.without(first).saved_ns, replay.without(second).saved_ns) >= 0


@settings(max_examples=60, deadline=None)
@given(PROGRAMS, SPANS)
def test_host_time_saves_at_most_itself(program: Program, spans: list[tuple[float, float]]) -> None:
    facts = facts_of(built(program))
    host = chosen(facts, (spans, 0, 0)).host_spans
    removed = total(union(pairs([s for _, s, _ in host], [e for _, _, e in host])))
    assert facts[Replay].without(Removal(host_spans=host)).saved_ns <= removed


@settings(max_examples=60, deadline=None)
@given(PROGRAMS, SUBSETS)
def test_no_step_is_shorter_than_the_gpu_work_that_stays(program: Program, subset: Any) -> None:
    facts = facts_of(built(program))
    replay, removal, run = facts[Replay], chosen(facts, subset), facts.run
    stays = np.setdiff1d(run.gpu, removal.gpu_rows)
    floor = total(union(clip(pairs(run.ts[stays], run.end[stays]), *replay.window)))
    assert replay.without(removal).window_ns >= floor


@settings(max_examples=40, deadline=None)
@given(PROGRAMS, SUBSETS, st.integers(1, 10**9))
def test_the_clock_does_not_matter(program: Program, subset: Any, shift_us: int) -> None:
    here, there = facts_of(built(program)), facts_of(built(program, float(shift_us)))
    assert [s.dur for s in here[Steps].steps] == [s.dur for s in there[Steps].steps]
    a = here[Replay].without(chosen(here, subset))
    b = there[Replay].without(chosen(there, subset))
    assert (a.saved_ns, a.window_ns, a.share_of_step) == (b.saved_ns, b.window_ns, b.share_of_step)


def test_removals_join_without_order_or_repetition() -> None:
    a = Removal(host_spans=((0, 5, 9),), make_async=(3, 1))
    b = Removal(host_spans=((0, 1, 2), (0, 5, 9)), gpu_rows=(7,))
    assert a | b == b | a == (a | b) | a
    c = Removal(gpu_shorter=((4, 10), (7, 3)), host_share=0.5)
    d = Removal(gpu_shorter=((4, 2),), host_share=0.25)
    assert c | d == d | c == Removal(gpu_shorter=((4, 10), (7, 3)), host_share=0.25)
    assert replace(a | b, gpu_rows=()) == Removal(((0, 1, 2), (0, 5, 9)), (1, 3))


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
    if replay is None or replay.reproduction_error is None:
        pytest.skip("no GPU work")
    assert replay.reproduction_error <= 0.01
    assert replay.without(Removal()).saved_ns == 0
    assert replay.usable or replay.limit


SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 2)), max_size=30)


@given(spans=SPANS, drives=st.lists(st.booleans(), min_size=30, max_size=30))
def test_a_call_follows_the_last_that_ended_before_it_even_where_calls_have_no_length(
    spans: list[tuple[int, int, int]], drives: list[bool]
) -> None:
    spans.sort()
    start = np.array([s for s, _, _ in spans], dtype=np.int64)
    end = start + np.array([d for _, d, _ in spans], dtype=np.int64)
    driving = np.flatnonzero(drives[: len(spans)])
    by_end = driving[np.argsort(end[driving], kind="stable")]
    found = [
        int(by_end[at]) if at >= 0 else -1 for at in replay_graph._last_before(end[by_end], by_end, start)
    ]
    assert found == [
        max(((end[j], j) for j in driving.tolist() if j < i and end[j] <= start[i]), default=(0, -1))[1]
        for i in range(len(spans))
    ]


@given(spans=SPANS)
def test_work_may_have_waited_for_what_ended_last_on_another_stream(
    spans: list[tuple[int, int, int]],
) -> None:
    start = np.array([s for s, _, _ in spans], dtype=np.int64) * 2000
    end = start + np.array([d for _, d, _ in spans], dtype=np.int64) * 2000
    streams = np.array([s for _, _, s in spans], dtype=np.int64)
    expected = []
    for i in range(len(spans)):
        ended = [(end[j], j) for j in range(len(spans)) if streams[j] != streams[i] and end[j] <= start[i]]
        last, j = max(ended, default=(0, -1))
        expected.append(j if start[i] - last <= replay_graph.EVENT_NS else -1)
    assert replay_graph._other_stream(streams, start, end).tolist() == expected
