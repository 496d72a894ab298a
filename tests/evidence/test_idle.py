"""Each test is one small gap (or two) whose owner is plain."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.idle.gaps import IdleCauses, IdleLedger
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.model import IDLE_CAUSES
from trace_doctor.run import Cat, Thread

NOTE, OP, CALL, KERNEL, COPY, PY = (
    Cat.USER_ANNOTATION,
    Cat.CPU_OP,
    Cat.RUNTIME,
    Cat.KERNEL,
    Cat.MEMCPY,
    Cat.PYTHON,
)
Make = Callable[..., Facts]
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def launched(
    n: int, call: float, gpu: float, us: float, call_us: float = 2, kernel: str = "gemm", **more: int
) -> list:
    """A kernel and its launch call."""
    return [
        (CALL, "cudaLaunchKernel", call, call_us, {"correlation": n, **more}),
        (KERNEL, kernel, gpu, us, {"correlation": n}),
    ]


def step(us: float) -> tuple:
    return (NOTE, "ProfilerStep#1", 0, us, {})


def idle(facts: Facts) -> dict[str, float]:
    """Idle us by cause, all devices together; only what is there."""
    ledger = facts[IdleLedger]
    found: dict[str, float] = {}
    for cause, start, end in zip(
        ledger.cause.tolist(), ledger.start.tolist(), ledger.end.tolist(), strict=True
    ):
        found[IDLE_CAUSES[cause]] = found.get(IDLE_CAUSES[cause], 0) + (end - start) / 1000
    return found


def around(*busy_host: tuple) -> list:
    """A step of 100 us: the GPU works 0-10 and 90-100; the second launch is called at 86 and returns at 88."""
    return [step(100), *launched(1, 0, 0, 10), *busy_host, *launched(2, 86, 90, 10)]


REST = {"python": 76.0, "launch": 4.0}


def test_nothing_but_a_step_mark_open_is_python(facts: Make) -> None:
    assert idle(facts(around())) == REST


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        ((NOTE, LOADER), "data_loading"),
        ((OP, "_compile.compile_inner (dynamo_timed)"), "compile"),
        ((CALL, "cudaMalloc"), "allocator"),
        ((CALL, "hipFree"), "allocator"),
        ((Cat.DRIVER, "cuMemMap"), "allocator"),
        ((CALL, "cudaStreamSynchronize"), "sync"),
        ((NOTE, "Optimizer.step#Adam.step"), "optimizer"),
        ((NOTE, "save checkpoint"), "annotation"),
        ((OP, "aten::mm"), "dispatch"),
        ((CALL, "cudaEventRecord"), "dispatch"),
        ((Cat.OVERHEAD, "Buffer Flush"), "profiler"),
        ((Cat.OVERHEAD, "Lazy Function Loading"), "cold_start"),
        ((Cat.OVERHEAD, "Runtime Triggered Module Loading"), "cold_start"),
        ((Cat.OVERHEAD, "Command Buffer Full"), "python"),
        ((PY, "train.py(3): f"), "python"),
    ],
)
def test_what_is_open_on_the_launching_thread_owns_the_moment(facts: Make, event: tuple, cause: str) -> None:
    where = {"thread": 2} if event[0] == Cat.OVERHEAD else {}
    found = idle(facts(around((*event, 20, 30, where))))
    assert found == ({**REST, "python": 46.0, cause: 30.0} if cause != "python" else REST)


def test_the_more_specific_cause_wins(facts: Make) -> None:
    nested = [(OP, "aten::empty", 20, 40, {}), (CALL, "cudaMalloc", 30, 10, {}), (NOTE, LOADER, 15, 50, {})]
    assert idle(facts(around(*nested)))["data_loading"] == 50
    found = idle(facts(around(*nested[:2])))
    assert (found["allocator"], found["dispatch"]) == (10, 30)


def test_an_annotation_around_launches_is_only_a_label(facts: Make) -> None:
    assert idle(facts(around((NOTE, "train", 5, 95, {})))) == REST


def test_a_long_ordinary_call_is_a_cold_start(facts: Make) -> None:
    events = [
        step(5000),
        *launched(1, 0, 0, 10),
        (CALL, "cudaFuncGetAttributes", 20, 3000, {}),
        *launched(2, 4900, 4905, 95),
    ]
    found = idle(facts(events))
    assert found["cold_start"] == 3000
    # ... and so is a launch call that long, if it is the first of its kernel
    slow = [step(5000), *launched(1, 0, 0, 10, kernel="gemm0"), *launched(2, 1000, 4000, 1000, call_us=2990)]
    assert idle(facts(slow)) == {"python": 990, "cold_start": 2990, "launch": 10}
    # ... or if its operator never ran before: libraries start at any of their calls
    many = [(CALL, "cudaEventCreateWithFlags", 15 + 5 * i, 2, {}) for i in range(5)]
    late = [(OP, "aten::convolution", 14, 3000, {}), *many, (CALL, "cudaEventCreateWithFlags", 50, 2000, {})]
    assert (
        idle(facts([step(5000), *launched(1, 0, 0, 10), *late, *launched(2, 4900, 4905, 95)]))["cold_start"]
        == 2000
    )


def test_only_the_first_use_is_cold(facts: Make) -> None:
    """The same kernel was launched before: this call was held by something else."""
    slow = [step(5000), *launched(1, 0, 0, 10), *launched(2, 1000, 4000, 1000, call_us=2990)]
    assert idle(facts(slow)) == {"python": 990, "launch": 3000}


def test_a_pageable_upload_is_no_cold_start(facts: Make) -> None:
    upload = [
        (CALL, "cudaMemcpyAsync", 20, 2000, {"correlation": 5}),
        (COPY, "Memcpy HtoD (Pageable -> Device)", 1500, 500, {"correlation": 5}),
    ]
    found = idle(facts([step(2020), *launched(1, 0, 0, 20), *upload]))
    assert found == {"launch": 1480, "dispatch": 20}


def test_a_launch_that_returned_long_ago_waits_for_something_not_captured(facts: Make) -> None:
    found = idle(facts([step(500), *launched(1, 0, 0, 10), *launched(2, 12, 400, 100)]))
    assert found == {"python": 2, "launch": 2 + 100, "unattributed": 286}


def test_work_whose_launch_was_not_captured(facts: Make) -> None:
    orphans = [(KERNEL, "a", 0, 10, {}), (KERNEL, "b", 18, 10, {}), (KERNEL, "c", 60, 40, {})]
    assert idle(facts([step(100), *orphans])) == {"launch": 8, "unattributed": 32}


def test_another_threads_gap_goes_by_that_thread_and_then_by_the_main_one(facts: Make) -> None:
    """Backward launches from the autograd thread; between its operators the main thread is loading data."""
    events = [
        step(100),
        (OP, "autograd::engine::evaluate_function: MmBackward0", 60, 35, {"thread": 1}),
        (NOTE, LOADER, 20, 60, {}),
        *launched(1, 0, 0, 10),
        *launched(2, 86, 90, 10, thread=1),
    ]
    assert idle(facts(events)) == {"python": 10, "data_loading": 40, "dispatch": 26, "launch": 4}


def test_without_marks_time_before_the_main_threads_first_event_is_unattributed(facts: Make) -> None:
    events = [(KERNEL, "early", 0, 10, {}), (OP, "aten::mm", 50, 40, {}), *launched(2, 86, 90, 10)]
    assert idle(facts(events)) == {"unattributed": 40, "dispatch": 36, "launch": 4}


def test_a_tail_goes_by_the_main_thread(facts: Make) -> None:
    assert idle(facts([step(100), *launched(1, 0, 0, 10), (NOTE, LOADER, 30, 70, {})])) == {
        "python": 20,
        "data_loading": 70,
    }


def test_a_wait_while_the_gpu_is_busy_owns_as_much_later_host_time(facts: Make) -> None:
    """The host waited 30 us beside a busy GPU; without that, 30 us of the 46 before the next launch were hidden."""
    events = [
        step(200),
        *launched(1, 0, 5, 45),
        (CALL, "cudaStreamSynchronize", 20, 34, {}),
        *launched(2, 100, 104, 96),
    ]
    made = facts(events)
    assert idle(made) == {"launch": 2 + 3 + 4, "sync": 4 + 30, "python": 16}
    ledger, run = made[IdleLedger], made.run
    charged = {run.text(r) for r in ledger.sync_row[ledger.sync_row >= 0].tolist()}
    assert charged == {"cudaStreamSynchronize"}


def test_specific_causes_keep_their_time_but_use_up_the_lead(facts: Make) -> None:
    events = [
        step(300),
        *launched(1, 0, 2, 48),
        (CALL, "cudaStreamSynchronize", 10, 40, {}),
        (NOTE, LOADER, 50, 30, {}),
        *launched(2, 100, 102, 198),
    ]
    found = idle(facts(events))
    assert found["data_loading"] == 30
    assert found["sync"] == 10  # 40 us of lead, 30 of them behind the loader
    assert found["python"] == 10


def test_a_pause_without_operators_is_not_the_fault_of_a_wait(facts: Make) -> None:
    events = [
        step(9000),
        *launched(1, 0, 2, 3998),
        (CALL, "cudaStreamSynchronize", 10, 3990, {}),
        *launched(2, 6000, 6002, 2998),
    ]
    found = idle(facts(events))
    assert "sync" not in found
    assert found["python"] == 2000


def test_launches_use_up_the_lead(facts: Make) -> None:
    """A lead hides them as well, so that no more idle time is charged to a wait than it cost."""
    events = [
        step(300),
        *launched(1, 0, 2, 48),
        (CALL, "cudaStreamSynchronize", 30, 20, {}),
        *launched(2, 60, 75, 1),
        *launched(3, 90, 92, 208),
    ]
    found = idle(facts(events))
    assert found["sync"] == 10  # before the launch, whose 15 us leave nothing of 20
    assert found["python"] == 14


def test_the_newest_wait_is_charged_first(facts: Make) -> None:
    events = [
        step(300),
        *launched(1, 0, 2, 48),
        (CALL, "cudaStreamSynchronize", 10, 10, {}),
        (CALL, "cudaDeviceSynchronize", 30, 20, {}),
        *launched(2, 75, 77, 223),
    ]
    made = facts(events)
    ledger, run = made[IdleLedger], made.run
    charged = [
        (run.text(r), (e - s) // 1000)
        for r, s, e in zip(ledger.sync_row, ledger.start, ledger.end, strict=True)
        if r >= 0
    ]
    assert charged == [("cudaDeviceSynchronize", 20), ("cudaStreamSynchronize", 5)]


def test_the_last_device_synchronise_is_never_the_users(facts: Make) -> None:
    events = [*launched(1, 0, 2, 48), (CALL, "cudaDeviceSynchronize", 3, 60, {})]
    assert idle(facts(events)) == {"launch": 2, "profiler": 13}


def test_own_loaders_can_be_named(facts: Make) -> None:
    frame, note = (PY, "dali.py(3): read", 20, 30, {}), (NOTE, "fetch", 55, 10, {})
    options = Options(loader_frames=("dali.py",), loader_annotations=("fetch",))
    assert idle(facts(around(frame, note), options=options))["data_loading"] == 40


def test_owned_measures_within_spans_on_the_device_where_it_is_most(facts: Make) -> None:
    second = [
        (CALL, "cudaLaunchKernel", 84, 2, {"correlation": 9}),
        (KERNEL, "k", 95, 5, {"correlation": 9, "device": 1}),
    ]
    ledger = facts([*around((NOTE, LOADER, 20, 30, {})), *second])[IdleLedger]
    assert ledger.devices == (0, 1)
    assert ledger.owned("data_loading") == 30_000
    assert ledger.owned("data_loading", [(0, 25_000), (40_000, 45_000)]) == 10_000
    assert ledger.pieces("data_loading", 1).tolist() == [[20_000, 50_000]]


# -- captures of the CPU alone -------------------------------------------------------------------------------------


def test_on_the_cpu_the_main_thread_is_the_resource(facts: Make) -> None:
    threads = [Thread("1", "1"), Thread("1", "2"), Thread("1", "3")]
    events = [
        step(200),
        (NOTE, LOADER, 0, 50, {}),
        (OP, "aten::stack", 10, 20, {}),  # in the loader: loading
        (OP, "aten::linear", 60, 40, {}),
        (OP, "aten::addmm", 65, 30, {}),
        (OP, "autograd::engine::evaluate_function: X", 110, 20, {"thread": 1}),
        (OP, "aten::mm", 110, 20, {"thread": 2}),  # neither main nor autograd
        (NOTE, "gloo:all_reduce", 125, 25, {}),
        (NOTE, "Optimizer.step#SGD.step", 160, 20, {}),
        (OP, "aten::add_", 165, 5, {}),
    ]
    made = facts(events, threads=threads)
    (row,) = made[TimeLedger].rows
    assert (row.device, row.window_ns, row.steps) == (-1, 200_000, 1)
    assert (row.compute_ns, row.exposed_comm_ns, row.exposed_copy_ns) == (65_000, 20_000, 0)
    assert (row.idle_ns.data_loading, row.idle_ns.optimizer) == (50_000, 15_000)
    assert row.idle_ns.total() == 115_000
    assert row.idle_ns.python == 50_000


def graph_launch(n: int, call: float, gpu: float) -> list:
    """A CUDA graph: many kernels of one call."""
    work = [(KERNEL, f"k{i}", gpu + 2 * i, 1, {"correlation": n}) for i in range(4)]
    return [(CALL, "cudaGraphLaunch", call, 2, {"correlation": n}), *work]


@pytest.mark.parametrize(
    ("work", "known"),
    [
        ([*launched(1, 1, 10, 20), *launched(2, 40, 50, 20)], True),
        ([*launched(1, 1, 10, 20), (KERNEL, "orphan", 50, 20, {})], True),
        ([*launched(1, 1, 10, 20), (KERNEL, "orphan", 50, 20, {}), (KERNEL, "other", 80, 9, {})], False),
        ([*graph_launch(1, 1, 10), (KERNEL, "orphan", 50, 20, {})], True),
        ([(OP, "aten::mm", 1, 9, {}), (KERNEL, "orphan", 10, 20, {"correlation": 7})], False),
        ([(OP, "aten::mm", 1, 9, {})], True),  # the CPU alone is its own host
    ],
)
def test_causes_of_idle_time_are_known_where_most_launches_are(facts: Make, work: list, known: bool) -> None:
    """The ledger of idle time is there all the same: only what the host did to it is not."""
    made = facts([step(100), *work])
    assert made[IdleLedger].devices
    if known:
        assert made[IdleCauses].ledger is made[IdleLedger]
    else:
        with pytest.raises(NotCaptured, match="launches of"):
            made[IdleCauses]


def replay(n: int, call: float, *nodes: tuple[float, float], call_us: float = 2) -> list:
    """A launch of a CUDA graph, and its recorded nodes as (start, duration)."""
    return [
        (CALL, "cudaGraphLaunch", call, call_us, {"correlation": n}),
        *((KERNEL, f"node {i}", start, us, {"correlation": n}) for i, (start, us) in enumerate(nodes)),
    ]


def test_between_nodes_of_a_replay_the_graph_waits_for_itself_whatever_the_host_does(facts: Make) -> None:
    """A wait of 4 us is less than any unrecorded node would leave; the host blocks, and loses no run-ahead by that."""
    blocked = (CALL, "cudaStreamSynchronize", 12, 88, {"correlation": 9})
    events = [step(100), *launched(1, 0, 0, 10), *replay(2, 6, (10, 40), (54, 40), (98, 2)), blocked]
    assert idle(facts(events)) == {"graph": 8}


def test_a_replay_whose_launch_was_before_the_recording_is_one_as_well(facts: Make) -> None:
    nodes = replay(2, 0, (0, 40), (44, 56))[1:]
    assert idle(facts([step(100), *nodes])) == {"graph": 4}


def test_a_long_wait_between_nodes_is_unknown_and_not_the_hosts(facts: Make) -> None:
    assert idle(facts([step(100), *replay(1, 0, (0, 20), (60, 40))])) == {"unattributed": 40}


def test_of_a_launch_without_nodes_it_is_unknown_when_they_ran_until_the_host_has_waited_for_them(
    facts: Make,
) -> None:
    """The GPU seems idle from 10 on; from the end of the wait at 60 it is."""
    waited = (CALL, "cudaStreamSynchronize", 20, 40, {"correlation": 9})
    lost = (CALL, "cudaGraphLaunch", 12, 2, {"correlation": 5})
    assert idle(facts(around(lost, waited))) == {"python": 2 + 26, "unattributed": 48, "launch": 4}
    assert idle(facts(around(lost))) == {"python": 2, "unattributed": 78}


def test_no_cause_of_idle_time_is_ruled_out_where_most_launches_of_graphs_show_no_work(facts: Make) -> None:
    lost = (CALL, "cudaGraphLaunch", 12, 2, {"correlation": 5})
    with pytest.raises(NotCaptured, match=r"1 of 1 launches of CUDA graphs .*78% of the window"):
        facts(around(lost))[IdleCauses]
    sound = facts(around(lost, *replay(3, 8, (10, 1))))
    assert sound[IdleCauses].ledger is sound[IdleLedger]
