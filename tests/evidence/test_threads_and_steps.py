"""The thread that drives the loop, and which stretches of the window the steps cover."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trace_doctor.capture import Capture
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.trace.steps import Step, Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.evidence.trace.workload import Workload
from trace_doctor.run import Cat, Thread
from trace_doctor.testing import RunBuilder

NOTE, OP, CALL, KERNEL = Cat.USER_ANNOTATION, Cat.CPU_OP, Cat.RUNTIME, Cat.KERNEL
BACKWARD = "autograd::engine::evaluate_function: MmBackward0"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
Make = Callable[..., Facts]
OTHERS = [Thread("1", "7"), Thread("1", "8"), Thread("1", "9")]
"""none of them the process's first"""


def op(at: float, thread: int, name: str = "aten::mm", us: float = 4) -> tuple[object, ...]:
    return (OP, name, at, us, {"thread": thread})


@pytest.mark.parametrize(
    ("events", "threads", "main", "autograd"),
    [
        ([op(0, 0), op(9, 1), op(20, 1)], None, 0, set()),
        ([op(0, 0), op(9, 1), op(20, 1)], OTHERS, 1, set()),
        ([op(0, 0), op(9, 1, BACKWARD), op(20, 1)], OTHERS, 0, {1}),
        ([op(9, 1, BACKWARD), op(20, 1), op(30, 2, BACKWARD)], OTHERS, 1, {2}),
        ([op(0, 0, BACKWARD), op(9, 1), op(20, 1)], None, 0, set()),
        ([op(0, 0), (NOTE, "ProfilerStep#3", 0, 90, {"thread": 1})], None, 1, set()),
        ([op(0, 0), (NOTE, LOADER, 0, 90, {"thread": 1})], None, 1, set()),
        ([op(0, 0), (NOTE, "Optimizer.step#SGD.step", 0, 90, {"thread": 1})], None, 1, set()),
        ([op(0, 0), (Cat.PYTHON, "ProfilerStep#3", 0, 90, {"thread": 1})], None, 0, set()),
        ([op(0, 1), (Cat.OVERHEAD, "Flush", 0, 90, {"thread": 0})], None, 1, set()),
    ],
)
def test_the_thread_that_drives_the_loop(
    facts: Make, events: list[object], threads: list[Thread] | None, main: int, autograd: set[int]
) -> None:
    seen = facts(events, threads=threads)[Threads]
    assert (seen.main, set(seen.autograd)) == (main, autograd)


def test_a_loop_on_another_thread_than_the_marks_of_its_steps() -> None:
    """As where a watcher calls `prof.step()`: the loop is looked for on the thread that works."""
    b = RunBuilder()
    for _ in range(6):
        with b.step():
            with b.thread(555):
                b.loader(4000)
                for _ in range(10):
                    with b.op("aten::mm", us=10):
                        b.launch(30)
                b.sync()
            b.wait(5000)
    facts_ = Facts(Capture(0, b.run()))
    main, steps = facts_[Threads].main, facts_[Steps]
    assert facts_.run.threads[main].tid == "555"
    assert (steps.source, len(steps.steps)) == ("profiler_step", 6)


def test_overhead_alone_is_no_host_event(facts: Make) -> None:
    with pytest.raises(NotCaptured):
        facts([(Cat.OVERHEAD, "Flush", 0, 90, {})])[Threads]


def test_the_phases_of_a_window_and_of_its_device() -> None:
    steps = (
        Step(4, 100, 200, warmup=True, begun=120, done=230),
        Step(5, 200, 300, begun=230, done=330),
        Step(6, 300, 400, begun=330, done=520),
    )
    seen = Steps((50, 500), "marker", steps, ((50, 100), (400, 500)))
    assert [seen.spans(p) for p in ("warmup", "steady", "outside")] == [  # type: ignore[arg-type]
        [(100, 200)],
        [(200, 300), (300, 400)],
        [(50, 100), (400, 500)],
    ]
    assert [seen.on_device(p) for p in ("warmup", "steady", "outside")] == [  # type: ignore[arg-type]
        [(120, 230)],
        [(230, 330), (330, 500)],
        [(50, 120)],
    ]
    assert (seen.count, seen.step_ns, seen.median_ns) == (2, 145, 145)
    moments = np.array([99, 199, 200, 299, 300, 399, 400, 999])
    assert seen.steady_at(moments).tolist() == [-1, -1, 0, 0, 1, 1, -1, -1]


def test_a_window_without_steps_is_steady() -> None:
    seen = Steps((50, 500), "none", (), ())
    assert (seen.spans("steady"), seen.spans("warmup"), seen.spans("outside")) == ([(50, 500)], [], [])
    assert (seen.on_device("steady"), seen.on_device("outside")) == ([(50, 500)], [])
    assert seen.steady_at(np.array([49, 50, 499, 500])).tolist() == [-1, 0, 0, -1]


def work(at: float, number: int, name: str = "aten::mm") -> list[object]:
    return [
        (OP, name, at, 4, {}),
        (CALL, "cudaLaunchKernel", at + 1, 2, {"correlation": number}),
        (KERNEL, "gemm", at + 4, 5, {"correlation": number}),
    ]


def marked(names: list[str], every: float = 100) -> list[object]:
    events: list[object] = []
    for n, name in enumerate(names):
        events += [(NOTE, name, n * every, 90, {}), *work(n * every + 30, n + 1)]
    return events


@pytest.mark.parametrize(
    ("names", "source", "starts"),
    [
        ([f"iteration {n}" for n in range(3)], "marker", [0, 100]),
        (["train_step"] * 3, "marker", [0, 100]),
        (["train_step"], "none", []),
        (["train_step", "other", "train_step", "train_batch", "other"], "marker", [0]),
        (["train_step", "train_batch", "train_step", "train_batch", "train_batch"], "marker", [0]),
        ([LOADER, "train_step", "train_step", "train_step"], "marker", [100, 200]),
        (["other"] * 3, "none", []),
    ],
)
def test_marks_of_frameworks_open_steps(
    facts: Make, names: list[str], source: str, starts: list[int]
) -> None:
    steps = facts(marked(names))[Steps]
    assert (steps.source, [s.start // 1000 for s in steps.steps]) == (source, starts)


def test_marks_of_other_threads_open_no_step(facts: Make) -> None:
    events = marked(["other"] * 3) + [(NOTE, "train_step", at, 5, {"thread": 1}) for at in (0, 100, 200)]
    assert facts(events)[Steps].source == "none"


def test_a_mark_inside_another_opens_no_step_of_its_own(facts: Make) -> None:
    inner = [(NOTE, "train_step", n * 100 + 2, 5, {}) for n in range(3)]
    steps = facts([*marked(["train_step"] * 3), *inner])[Steps]
    assert [s.start for s in steps.steps] == [0, 100_000]


@pytest.mark.parametrize(
    ("wanted", "indices", "warm"),
    [((1, 2), [1], [False]), ((1, 3), [1, 2], [True, False]), ((0, 9), [1, 2, 3, 4], [True, *[False] * 3])],
)
def test_steps_that_were_asked_for_count_even_if_all_of_them_warm_up(
    facts: Make, wanted: tuple[int, int], indices: list[int], warm: list[bool]
) -> None:
    events = marked([f"ProfilerStep#{n + 1}" for n in range(4)])
    compiles = (OP, "_compile.compile_inner (dynamo_timed)", 50, 5, {})
    steps = facts([*events, compiles], Options(steps=wanted))[Steps]
    assert ([s.index for s in steps.steps], [s.warmup for s in steps.steps]) == (indices, warm)


def test_how_much_a_step_launches_and_runs(facts: Make) -> None:
    events = marked([f"ProfilerStep#{n}" for n in range(3)])
    events += [*work(150, 9), (Cat.MEMCPY, "Memcpy HtoD", 170, 5, {"correlation": 10})]
    events += [(KERNEL, "of_no_call", 280, 5, {"correlation": 77})]
    seen = facts(events)[Workload]
    assert (seen.kernels, seen.operators) == (2.0, 1.0)
    cpu = facts([e for e in events if e[0] in (NOTE, OP)])[Workload]  # type: ignore[index]
    assert (cpu.kernels, cpu.operators) == (None, 1.0)
