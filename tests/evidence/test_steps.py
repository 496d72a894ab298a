from __future__ import annotations

from collections.abc import Callable

import pytest

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat

NOTE, OP, CALL, KERNEL = Cat.USER_ANNOTATION, Cat.CPU_OP, Cat.RUNTIME, Cat.KERNEL
Make = Callable[..., Facts]
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def work(at: float, correlation: int, gpu_at: float | None = None, gpu_us: float = 5) -> list:
    """An operator of 4 us that launches a kernel."""
    return [
        (OP, "aten::mm", at, 4, {}),
        (CALL, "cudaLaunchKernel", at + 1, 2, {"correlation": correlation}),
        (KERNEL, "gemm", at + 4 if gpu_at is None else gpu_at, gpu_us, {"correlation": correlation}),
    ]


def profiled(lengths: list[float], extra: list | None = None) -> list:
    events, at = [], 100.0
    for n, length in enumerate(lengths):
        events += [(NOTE, f"ProfilerStep#{n + 5}", at, length, {}), *work(at + 1, n + 1)]
        at += length
    return [*events, *(extra or [])]


def test_profiler_steps_tile_the_window_up_to_the_last_gpu_work_launched_in_it(facts: Make) -> None:
    steps = facts([*profiled([50, 50]), *work(190, 9, gpu_at=230, gpu_us=40)])[Steps]
    assert steps.source == "profiler_step"
    assert steps.window == (100_000, 270_000)
    assert [(s.index, s.start, s.end, s.label) for s in steps.steps] == [
        (5, 100_000, 150_000, "ProfilerStep#5"),
        (6, 150_000, 270_000, "ProfilerStep#6"),
    ]
    assert steps.outside == ()


def test_what_is_left_after_the_last_step_call_is_no_step(facts: Make) -> None:
    steps = facts([*profiled([50, 50]), (NOTE, "ProfilerStep#7", 200, 3, {})])[Steps]
    assert [s.index for s in steps.steps] == [5, 6]
    assert steps.outside == ((200_000, 203_000),)


def test_the_step_in_which_a_file_ends_is_none_nor_those_behind_it(facts: Make) -> None:
    """Marks are written before operators: the last one here has a mark and nothing in it."""
    cut = facts([*profiled([50, 50, 50]), (NOTE, "ProfilerStep#8", 250, 50, {})])
    cut.run.damage.truncated = True
    assert [s.index for s in cut[Steps].steps] == [5, 6]
    assert cut[Steps].outside == ((200_000, 300_000),)


def test_a_file_that_ends_in_its_first_step_keeps_that_one(facts: Make) -> None:
    cut = facts(profiled([50]))
    cut.run.damage.truncated = True
    assert [s.index for s in cut[Steps].steps] == [5]


def test_a_mark_with_all_work_beside_it_is_no_step(facts: Make) -> None:
    steps = facts([*work(100, 1), (NOTE, "ProfilerStep#1", 200, 3, {})])[Steps]
    assert (steps.source, steps.window) == ("none", (100_000, 203_000))
    assert facts([(KERNEL, "gemm", 100, 9, {}), (NOTE, "ProfilerStep#1", 200, 3, {})])[Steps].source != "none"


def test_numbers_that_repeat_are_replaced_by_positions(facts: Make) -> None:
    events = (
        [(NOTE, "ProfilerStep#3", t, 10, {}) for t in (0, 10, 20)] + work(1, 1) + work(11, 2) + work(21, 3)
    )
    assert [s.index for s in facts(events)[Steps].steps] == [0, 1, 2]


def series(at: float, length: float, correlation: int) -> list:
    return [
        e
        for n in range(4)
        for e in (
            (NOTE, f"ProfilerStep#{n}", at + n * length, length, {}),
            *work(at + n * length + 1, correlation + n),
        )
    ]


@pytest.mark.parametrize(
    "second", [series(1000, 50, 1), series(1000, 50, 9), series(100, 70, 9), series(125, 50, 9)]
)
def test_marks_of_several_traces_in_a_file_are_no_steps(facts: Make, second: list) -> None:
    steps = facts([*series(100, 50, 1), *second])[Steps]
    assert (steps.source, steps.steps) == ("none", ())
    assert "several traces" in steps.doubt
    assert steps.step_ns == steps.window[1] - steps.window[0]
    with pytest.raises(NotCaptured, match="several traces"):
        facts([*series(100, 50, 1), *second], Options(steps=(0, 2)))[Steps]


RECORDING = "PyTorch Profiler (0)"


def two_windows(
    apart: float, first: int, extra: list | None = None, steps: int = 4, length: float = 50
) -> list:
    """Steps 5 to 8 of 50 us, and as many as are asked for behind a gap of that many us in which nothing is."""
    early, late = profiled([length] * 4), profiled([length] * steps)
    shifted = []
    for cat, name, at, dur, more in late:
        of = (
            name.replace(name.split("#")[1], str(int(name.split("#")[1]) - 5 + first))
            if "#" in name
            else name
        )
        ids = {"correlation": more["correlation"] + 100} if more else {}
        shifted.append((cat, of, at + 4 * length + apart, dur, ids))
    return [*early, *shifted, *(extra or [])]


def recordings(apart: float, upto: float = 300) -> list:
    return [(Cat.SPAN, RECORDING, 90, upto - 90, {}), (Cat.SPAN, RECORDING, 295 + apart, 300, {})]


SECOND = 1_000_000.0


def test_a_step_cut_out_of_short_ones_parts_the_trace(facts: Make) -> None:
    """450 us are less than a profiler takes to start again: the hole is no idle time all the same."""
    events = [
        event
        for n in (5, 6, 7, 9, 10)
        for event in [(NOTE, f"ProfilerStep#{n}", 450 * n, 450, {}), *work(450 * n + 1, n, gpu_us=440)]
    ]
    steps = facts(events)[Steps]
    assert [s.index for s in steps.steps] == [5, 6, 7]
    assert "recorded apart" in steps.not_judged
    assert max(s.pace for s in steps.steps) <= 450_000


def pauses(long: float) -> list:
    """Four steps with so many us behind each in which nothing is."""
    events = []
    for n in range(4):
        at = 100 + n * (long + 50)
        events += [(NOTE, f"ProfilerStep#{n}", at, 50, {}), *work(at + 1, n + 1)]
    return events


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(two_windows(2000, 40), id="numbers that do not follow"),
        pytest.param(two_windows(2000, 8), id="a number that comes again"),
        pytest.param(
            two_windows(2000, 40, [(Cat.SPAN, RECORDING, 90, 5000, {})]),
            id="numbers that do not follow, in a recording that was switched off meanwhile",
        ),
        pytest.param(two_windows(2000, 9, recordings(2000)), id="two recordings"),
        pytest.param(two_windows(1.1 * SECOND, 9), id="nothing for longer than a program pauses"),
    ],
)
def test_where_the_profiler_did_not_run_is_no_time_of_a_step(facts: Make, events: list) -> None:
    steps = facts(events)[Steps]
    assert [s.dur for s in steps.steps] == [50_000] * 4
    assert [s.pace for s in steps.steps] == [50_000] * 4
    assert steps.window[1] - steps.window[0] == 200_000
    assert steps.steps[0].start > 2_000_000, "of two as long the later one"
    assert "recorded apart" in steps.not_judged
    assert "not captured" in steps.not_judged


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(
            two_windows(0.9 * SECOND, 9), id="less than a second between steps that follow each other"
        ),
        pytest.param(
            pauses(3 * SECOND),
            id="seconds before each step",
        ),
        pytest.param(two_windows(3 * SECOND, 9, length=SECOND), id="less than the steps take together"),
        pytest.param(
            two_windows(99 * SECOND, 9, [(Cat.SPAN, RECORDING, 90, 100 * SECOND, {})]),
            id="a minute, while the profiler ran",
        ),
        pytest.param(
            two_windows(99 * SECOND, 40, [(Cat.PYTHON, "load", 299, 99 * SECOND + 2, {})]),
            id="a Python frame over it",
        ),
        pytest.param(
            [*profiled([50, 50, 99 * SECOND, 50]), (Cat.SPAN, RECORDING, 90, 100, {})], id="inside a step"
        ),
        pytest.param(two_windows(4000, 40, length=5000), id="no room for a step that is not there"),
    ],
)
def test_a_pause_while_the_profiler_ran_is_time_of_a_step(facts: Make, events: list) -> None:
    steps = facts(events)[Steps]
    assert steps.not_judged == ""
    assert steps.window[0] == 100_000
    assert len(steps.steps) in (4, 8)
    assert steps.window[1] == sum(s.dur for s in steps.steps) + 100_000


def test_the_piece_with_most_steps_is_judged_or_the_one_that_was_asked_for(facts: Make) -> None:
    events = two_windows(2000, 40, steps=2)
    assert [s.index for s in facts(events)[Steps].steps] == [5, 6, 7, 8]
    chosen = facts(events, Options(steps=(40, 42)))[Steps]
    assert ([s.index for s in chosen.steps], chosen.not_judged) == ([40, 41], "")
    assert facts(events, Options(steps=(8, 42)))[Steps].not_judged


def test_recordings_without_marks_of_steps_are_apart_as_well(facts: Make) -> None:
    events = [e for n in range(4) for e in work(100 + 50 * n, n + 1)]
    late = [e for n in range(3) for e in work(5000 + 50 * n, n + 9)]
    both = [(Cat.SPAN, RECORDING, 90, 200, {}), (Cat.SPAN, RECORDING, 4990, 200, {})]
    steps = facts([*events, *late, *both])[Steps]
    assert (steps.source, steps.window) == ("none", (100_000, 259_000))
    assert steps.not_judged
    assert facts([*events, *late, both[0]])[Steps].not_judged == ""


@pytest.mark.parametrize(
    ("starts", "apart"),
    [
        ([100, 2 * SECOND], True),
        ([100, 0.9 * SECOND], False),
        ([100, 2 * SECOND, 2.3 * SECOND], False),  # a pause that is no far shorter
        ([100, 2 * SECOND, 4 * SECOND, 6 * SECOND], False),
    ],
)
def test_one_hole_far_longer_than_all_is_a_border_without_any_mark(
    facts: Make, starts: list[float], apart: bool
) -> None:
    events = [e for k, at in enumerate(starts) for n in range(4) for e in work(at + 50 * n, 9 * k + n + 1)]
    assert bool(facts(events)[Steps].not_judged) == apart


def test_marks_that_overlap_by_rounding_are_steps(facts: Make) -> None:
    events = [(NOTE, f"ProfilerStep#{n}", 100 + 50 * n, 50.3, {}) for n in range(4)]
    assert len(facts([*events, *(e for n in range(4) for e in work(101 + 50 * n, n + 1))])[Steps].steps) == 4


def test_a_step_has_the_gpu_work_that_it_launched_and_a_backlog_is_outside(facts: Make) -> None:
    """The host runs ahead: 30 us are still to be done from before the capture, and each step launches 70 us."""
    marks = [(NOTE, f"ProfilerStep#{n + 5}", 100 + 50 * n, 50, {}) for n in range(3)]
    launched = [e for n in range(3) for e in work(101 + 50 * n, n + 1, gpu_at=130 + 70 * n, gpu_us=70)]
    seen = facts([*marks, *launched, (KERNEL, "gemm", 100, 30, {"correlation": 99})])
    steps = seen[Steps]
    assert steps.window == (100_000, 340_000)
    assert [s.pace for s in steps.steps] == [70_000] * 3
    assert steps.step_ns == 70_000
    assert steps.on_device("outside") == [(100_000, 130_000)]
    rows = {r.phase: r for r in seen[TimeLedger].rows}
    assert (rows["steady"].window_ns, rows["steady"].compute_ns) == (210_000, 210_000)
    assert sum(r.window_ns for r in rows.values()) == 240_000


def test_steps_that_take_no_time_are_none(facts: Make) -> None:
    """Whatever was launched later ends before the work of the first step does."""
    events = profiled([50, 50, 50, 50])
    events[3] = (KERNEL, "gemm", 105, 900, {"correlation": 1})
    steps = facts(events)[Steps]
    assert (steps.source, steps.steps) == ("none", ())
    assert steps.doubt


def test_the_gpu_copy_of_a_step_mark_is_no_step(facts: Make) -> None:
    events = [*profiled([50, 50]), (Cat.GPU_ANNOTATION, "ProfilerStep#9", 0, 900, {"device": 0})]
    assert facts(events)[Steps].window == (100_000, 200_000)


def test_loader_marks_open_steps_and_only_whole_ones_count(facts: Make) -> None:
    events = []
    for n, at in enumerate((10, 110, 210)):
        events += [(NOTE, LOADER, at, 20, {}), *work(at + 30, n + 1)]
    steps = facts([*work(0, 9), *events])[Steps]
    assert steps.source == "loader"
    assert [(s.start, s.end) for s in steps.steps] == [(10_000, 110_000), (110_000, 210_000)]
    assert steps.outside == ((0, 10_000), (210_000, 249_000))


def test_several_loaders_read_in_a_row_open_one_step(facts: Make) -> None:
    events = []
    for n, at in enumerate((0, 100, 200)):
        events += [(NOTE, LOADER, at, 20, {}), (NOTE, LOADER, at + 21, 20, {}), *work(at + 50, n + 1)]
    assert [s.start for s in facts(events)[Steps].steps] == [0, 100_000]


def test_batches_fetched_with_no_kernel_between_are_no_step(facts: Make) -> None:
    copy = [(OP, "aten::to", 35, 4, {}), (CALL, "cudaMemcpyAsync", 36, 2, {"correlation": 8})]
    waits = [(NOTE, LOADER, 10, 20, {}), (NOTE, LOADER, 50, 20, {})]
    steps = facts([*waits, *copy, *work(80, 1), *work(300, 2)])[Steps]
    assert (steps.source, steps.window, steps.steps) == ("none", (10_000, 309_000), ())


def test_a_kernel_that_is_launched_before_the_batches_makes_no_step_of_them(facts: Make) -> None:
    launch = [
        (CALL, "cudaLaunchKernel", 1, 2, {"correlation": 1}),
        (KERNEL, "gemm", 4, 5, {"correlation": 1}),
    ]
    waits = [(NOTE, LOADER, 10, 20, {}), (OP, "aten::to", 35, 4, {}), (NOTE, LOADER, 50, 20, {})]
    assert facts([*launch, *waits])[Steps].source == "none"


def test_the_optimizer_that_steps_least_often_closes_the_step(facts: Make) -> None:
    events = []
    for n in range(6):
        events += [*work(n * 100, n + 1), (NOTE, "Optimizer.step#SGD.step", n * 100 + 50, 10, {})]
        if n % 2:
            events.append((NOTE, "Optimizer.step#Adam.step", n * 100 + 70, 10, {}))
    steps = facts(events)[Steps]
    assert steps.source == "optimizer"
    assert [(s.start, s.end) for s in steps.steps] == [(180_000, 380_000), (380_000, 580_000)]


def test_without_marks_the_window_is_the_extent_of_all_work(facts: Make) -> None:
    spread = [
        (Cat.PYTHON, "f", 0, 900, {}),
        (Cat.SPAN, "Trace", 0, 900, {}),
        (Cat.OVERHEAD, "Flush", 800, 50, {}),
    ]
    steps = facts([*work(10, 1), *spread])[Steps]
    assert (steps.source, steps.window, steps.steps, steps.count) == ("none", (10_000, 19_000), (), 1)
    assert steps.spans("steady") == [(10_000, 19_000)]
    assert steps.step_ns == 9_000


@pytest.mark.parametrize(
    ("extra", "lengths"),
    [
        ([(OP, "_compile.compile_inner (dynamo_timed)", 110, 5, {})], [200.0] * 5),
        ([(CALL, "cudaMalloc", 110, 5, {})], [200.0] * 5),
        ([(CALL, "cudaFuncGetAttributes", 110, 1200, {})], [1400.0] * 5),
        ([], [900.0, *[200.0] * 4]),
    ],
    ids=["compiles", "allocates device memory", "starts libraries cold", "takes over 3 medians"],
)
def test_leading_steps_that_warm_up_are_not_steady(facts: Make, extra: list, lengths: list[float]) -> None:
    steps = facts(profiled(lengths, extra))[Steps]
    assert [s.warmup for s in steps.steps] == [True, False, False, False, False]
    assert steps.spans("warmup") == [(100_000, 100_000 + int(lengths[0] * 1000))]
    assert steps.count == 4


def test_later_steps_are_never_warm_up(facts: Make) -> None:
    steps = facts(profiled([200, 200, 900, 200], [(CALL, "cudaMalloc", 400, 5, {})]))[Steps]
    assert not any(s.warmup for s in steps.steps)


def test_churn_is_not_warm_up(facts: Make) -> None:
    """Segments taken and given back all along would otherwise make all but the last step disappear."""
    churn = [
        (CALL, n, 110 + 200 * i + k, 2, {})
        for i in range(3)
        for k, n in enumerate(("cudaMalloc", "cudaFree"))
    ]
    assert not any(s.warmup for s in facts(profiled([200] * 4, churn))[Steps].steps)


def test_when_nothing_is_steady_all_steps_count(facts: Make) -> None:
    compiles = [(OP, "_compile.compile_inner (dynamo_timed)", 110 + 200 * i, 5, {}) for i in range(3)]
    assert len(facts(profiled([200] * 3, compiles))[Steps].steady) == 3


def test_a_queue_that_is_full_is_no_cold_start(facts: Make) -> None:
    held = [(CALL, "cudaLaunchKernel", 110, 1100, {}), (KERNEL, "long", 100, 1300, {})]
    assert not any(s.warmup for s in facts(profiled([1400] * 3, held))[Steps].steps)


def test_steps_can_be_chosen(facts: Make) -> None:
    steps = facts(profiled([50] * 4), options=Options(steps=(6, 8)))[Steps]
    assert [s.index for s in steps.steps] == [6, 7]
    assert steps.window == (150_000, 250_000)
    with pytest.raises(NotCaptured, match="steps 5 to 8, not 20:21"):
        facts(profiled([50] * 4), options=Options(steps=(20, 21)))[Steps]


def test_a_trace_without_work_has_no_window(facts: Make) -> None:
    with pytest.raises(NotCaptured, match="no operator"):
        facts([(Cat.PYTHON, "f", 0, 10, {})])[Steps]
