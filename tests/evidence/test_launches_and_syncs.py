from __future__ import annotations

from collections.abc import Callable

from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.idle.syncs import Syncs
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat, Run, Thread

NOTE, OP, CALL, KERNEL, COPY = Cat.USER_ANNOTATION, Cat.CPU_OP, Cat.RUNTIME, Cat.KERNEL, Cat.MEMCPY
Make = Callable[..., Facts]


def row(run: Run, name: str) -> int:
    return next(r for r in range(len(run)) if run.text(r) == name)


def c(n: int, **more: int) -> dict[str, int]:
    return {"correlation": n, **more}


def test_one_graph_launch_has_many_kernels_and_orphans_have_none(facts: Make) -> None:
    made = facts(
        [
            (CALL, "cudaGraphLaunch", 0, 2, c(4)),
            (KERNEL, "a", 5, 1, c(4)),
            (KERNEL, "b", 7, 1, c(4)),
            (KERNEL, "orphan", 9, 1, c(77)),
            (KERNEL, "zero", 11, 1, c(0)),
            (CALL, "cudaEventRecord", 3, 1, c(0)),
            (CALL, "behind all work", 20, 1, c(0)),
        ]
    )
    launches, run = made[Launches], made.run
    graph = run.gpu[launches.launch == row(run, "cudaGraphLaunch")]
    assert [run.text(r) for r in graph] == ["a", "b"]
    assert launches.launch_of(row(run, "b")) == row(run, "cudaGraphLaunch")
    assert launches.launch_of(row(run, "orphan")) == launches.launch_of(row(run, "zero")) == -1
    assert launches.launch_of(row(run, "behind all work")) == -1


def test_where_correlation_was_not_written_the_external_ids_of_calls_join_them(facts: Make) -> None:
    work = [(KERNEL, "Cijk_a", 5, 1, {"external": 81}), (KERNEL, "Cijk_b", 9, 1, {"external": 83})]
    calls = [(CALL, f"hipExtModuleLaunchKernel{n}", n - 80, 1, {"external": n}) for n in (81, 83)]
    made = facts([(OP, "aten::mm", 0, 9, {"external": 81}), *calls, *work])
    assert [made.run.text(r)[-2:] for r in made[Launches].launch] == ["81", "83"]
    of_operators = facts([*calls, (CALL, "hipGetDevice", 2, 1, {"external": 81}), *work])
    assert of_operators[Launches].launch.tolist() == [-1, -1]


def test_a_trace_without_gpu_work_has_no_launches(facts: Make) -> None:
    made = facts([(CALL, "cudaLaunchKernel", 0, 2, c(4))])
    assert made[Launches].launch.tolist() == []
    assert made[Syncs].rows.tolist() == []


def test_what_blocks(facts: Make) -> None:
    made = facts(
        [
            (CALL, "cudaLaunchKernel", 0, 2, c(1)),
            (KERNEL, "gemm", 3, 30, c(1)),
            (CALL, "cudaStreamSynchronize", 4, 30, c(2)),
            # a pageable DtoH copy blocks whatever the call is named, a pinned one does not
            (CALL, "cudaMemcpyAsync", 40, 9, c(3)),
            (COPY, "Memcpy DtoH (Device -> Pageable)", 42, 5, c(3)),
            (CALL, "cudaMemcpyAsync", 50, 2, c(4)),
            (COPY, "Memcpy DtoH (Device -> Pinned)", 53, 5, c(4)),
            (CALL, "cudaMemcpyAsync", 60, 2, c(5)),
            (COPY, "Memcpy HtoD (Pageable -> Device)", 63, 5, c(5)),
            (CALL, "hipMemcpyWithStream", 70, 9, c(6)),
            (COPY, "Memcpy HtoD (Host -> Device)", 72, 5, c(6)),
            (CALL, "cudaMemcpy", 80, 2, c(7)),
            (COPY, "Memcpy DtoD (Device -> Device)", 82, 5, c(7)),
            (CALL, "cudaDeviceSynchronize", 90, 2, c(8)),
            (CALL, "cudaLaunchKernel", 95, 2, c(9)),
            (KERNEL, "last", 98, 9, c(9)),
            (CALL, "cudaDeviceSynchronize", 100, 9, c(10)),
        ]
    )
    syncs, run = made[Syncs], made.run
    assert [(run.text(r), run.ts[r] // 1000) for r in syncs.rows] == [
        ("cudaStreamSynchronize", 4),
        ("cudaMemcpyAsync", 40),
        ("hipMemcpyWithStream", 70),
        ("cudaDeviceSynchronize", 90),
    ]


def test_the_timeline_is_the_union_over_streams_clipped_to_the_window(facts: Make) -> None:
    made = facts(
        [
            (NOTE, "ProfilerStep#1", 10, 40, {}),
            (OP, "aten::mm", 11, 5, {}),
            (CALL, "cudaLaunchKernel", 12, 2, c(1)),
            (KERNEL, "before", 0, 15, c(9)),
            (KERNEL, "gemm", 20, 10, c(1)),
            (KERNEL, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 25, 10, c(1, stream=20)),
            (COPY, "Memcpy HtoD (Pinned -> Device)", 40, 4, c(1)),
            (KERNEL, "elsewhere", 41, 4, c(1, device=1)),
        ]
    )
    gpu = made[GpuTimeline]
    assert gpu.devices == (0, 1)
    assert gpu.busy(0).tolist() == [[10_000, 15_000], [20_000, 35_000], [40_000, 44_000]]
    assert gpu.gaps(0, 10_000, 50_000).tolist() == [[15_000, 20_000], [35_000, 40_000], [44_000, 50_000]]
    assert gpu.kind.tolist() == [0, 0, 1, 2, 0]
    assert gpu.work(0, 1).tolist() == [[25_000, 35_000]]


def test_the_main_thread_is_the_one_with_the_marks_else_the_first_of_the_process(facts: Make) -> None:
    threads = [Thread("7", "8"), Thread("7", "7"), Thread("7", "9")]
    engine = (OP, "autograd::engine::evaluate_function: MmBackward0", 0, 5, {"thread": 2})
    ops = [(OP, "aten::mm", t, 1, {"thread": 0}) for t in range(9)]
    first = (OP, "aten::mm", 1, 1, {"thread": 1})
    made = facts([engine, *ops, first], threads=threads)[Threads]
    assert (made.main, made.autograd) == (1, frozenset({2}))
    marked = facts([engine, *ops, first, (NOTE, "ProfilerStep#1", 0, 9, {})], threads=threads)[Threads]
    assert marked.main == 0
    assert facts([engine, *ops], threads=threads)[Threads].main == 0
    assert facts([engine], threads=threads)[Threads].autograd == frozenset()


def test_old_traces_show_autograd_by_its_functions_alone(facts: Make) -> None:
    backward = (OP, "CudnnConvolutionBackward", 0, 5, {"thread": 1})
    assert facts([backward, (OP, "aten::mm", 0, 5, {})])[Threads].autograd == frozenset({1})
