"""Files of all versions and vendors: times, categories, places and memory marks mean the same everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from handwritten import event, load, names, sound, trace

from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.run import Cat


def test_legacy_autograd_list(tmp_path: Path) -> None:
    """`torch.autograd.profiler` without Kineto: a list, no categories, processes named CPU and CUDA functions."""
    run = load(
        tmp_path,
        json.dumps(
            [
                {
                    "name": "aten::mm",
                    "ph": "X",
                    "ts": 1.5,
                    "dur": 4,
                    "tid": 1,
                    "pid": "CPU functions",
                    "args": {},
                },
                {
                    "name": "aten::mm",
                    "ph": "s",
                    "ts": 1.5,
                    "tid": 1,
                    "pid": "CPU functions",
                    "id": 3,
                    "cat": "cpu_to_cuda",
                },
                {
                    "name": "aten::mm",
                    "ph": "f",
                    "ts": 3,
                    "tid": 1,
                    "pid": "CUDA functions",
                    "id": 3,
                    "cat": "cpu_to_cuda",
                },
                {
                    "name": "aten::mm",
                    "ph": "X",
                    "ts": 3,
                    "dur": 9,
                    "tid": 1,
                    "pid": "CUDA functions",
                    "args": {},
                },
            ]
        ),
    )
    assert [Cat(c) for c in run.cat] == [Cat.CPU_OP, Cat.KERNEL]
    assert run.device.tolist() == [-1, 1]
    assert run.ts.tolist() == [1500, 3000]


@pytest.mark.parametrize(
    ("ts", "base", "ns"),
    [
        ("1672914267773123", None, 1672914267773123000),
        ("1712345678901234.250", None, 1712345678901234250),
        ("1712345678901234.75", None, 1712345678901234750),
        ("5873915763.123", 1712275200000000000, 1712281073915763123),
        ('"1712345678.900"', None, 1712345678900),
        ("0.001", 1743465600000000000, 1743465600000000001),
        ("1e3", None, 1000000),
    ],
)
def test_times_of_all_versions_become_exact_nanoseconds(
    tmp_path: Path, ts: str, base: int | None, ns: int
) -> None:
    text = trace(json.dumps(event("op", 0)).replace('"ts": 0', f'"ts": {ts}'))
    if base is not None:
        text = text.replace('"traceEvents"', f'"baseTimeNanoseconds": {base}, "traceEvents"')
    assert load(tmp_path, text).ts.tolist() == [ns]


def test_the_base_time_counts_wherever_it_stands(tmp_path: Path) -> None:
    run = load(tmp_path, trace(*sound(1), tail='], "baseTimeNanoseconds": 7}'))
    assert run.ts.tolist() == [7]


@pytest.mark.parametrize("dur", ["-1", "-0.001", "null", '"?"', "1.8446744073709552e16", "NaN"])
def test_impossible_durations_are_clamped_and_counted(tmp_path: Path, dur: str) -> None:
    odd = json.dumps(event("odd", 15)).replace('"dur": 5', f'"dur": {dur}')
    run = load(tmp_path, trace(*sound(3), odd))
    assert run.dur.tolist() == [5000, 5000, 0, 5000]
    assert run.damage.clamped == 1
    assert "1 event has no possible duration; it counts as 0" in run.warnings


def test_a_missing_duration_is_clamped_and_counted(tmp_path: Path) -> None:
    odd = event("odd", 15)
    del odd["dur"]
    run = load(tmp_path, trace(*sound(3), json.dumps(odd)))
    assert run.dur.tolist() == [5000, 5000, 0, 5000]
    assert run.damage.clamped == 1


def test_events_without_any_time_do_not_stretch_the_trace(tmp_path: Path) -> None:
    late = [json.dumps(event(f"op{i}", 1.7e15 + i)) for i in range(3)]
    lost = json.dumps(event("lost", 0, 0))
    run = load(tmp_path, trace(lost, *late, lost))
    assert names(run) == ["op0", "op1", "op2"]
    assert run.damage.clamped == 2
    assert run.warnings == ["2 events were left out: neither start nor duration recorded"]


def test_an_event_at_zero_is_kept_where_the_trace_begins_there(tmp_path: Path) -> None:
    assert names(load(tmp_path, trace(json.dumps(event("first", 0, 0)), *sound(3)))) == [
        "op0",
        "first",
        "op1",
        "op2",
    ]


@pytest.mark.parametrize("start", ["", '"ts": null, ', '"ts": 1e300, ', '"ts": "soon", ', '"ts": [1], '])
def test_an_event_without_a_start_is_lost(tmp_path: Path, start: str) -> None:
    odd = json.dumps(event("odd", 15)).replace('"ts": 15, ', start)
    run = load(tmp_path, trace(*sound(2), odd))
    assert names(run) == ["op0", "op1"]
    assert run.damage.lost == 1


def test_overlapping_events_on_one_track_are_all_kept(tmp_path: Path) -> None:
    run = load(
        tmp_path,
        trace(json.dumps(event("a", 0, 10)), json.dumps(event("b", 5, 10)), json.dumps(event("c", 5, 10))),
    )
    assert names(run) == ["a", "b", "c"]


def test_one_launch_of_many_kernels_and_missing_correlations(tmp_path: Path) -> None:
    kernels = [
        json.dumps(event("k", 20 + i, cat="kernel", args={"device": 0, "stream": 7, "correlation": 9}))
        for i in range(3)
    ]
    orphan = json.dumps(
        event("k", 30, cat="kernel", args={"device": 0, "stream": 7, "correlation": 2**64 - 1})
    )
    run = load(
        tmp_path,
        trace(
            json.dumps(event("cudaGraphLaunch", 1, cat="cuda_runtime", args={"correlation": 9})),
            *kernels,
            orphan,
        ),
    )
    assert run.correlation.tolist() == [9, 9, 9, 9, -1]


@pytest.mark.parametrize(
    ("cat", "name", "folded"),
    [
        ("Operator", "aten::mm", Cat.CPU_OP),
        ("Operator", "ProfilerStep#3", Cat.USER_ANNOTATION),
        ("Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", Cat.USER_ANNOTATION),
        ("Operator", "Optimizer.step#Adam.step", Cat.USER_ANNOTATION),
        ("Runtime", "cudaLaunchKernel", Cat.RUNTIME),
        ("Kernel", "sgemm", Cat.KERNEL),
        ("Memcpy", "Memcpy HtoD (Pageable -> Device)", Cat.MEMCPY),
        ("Memset", "Memset (Device)", Cat.MEMSET),
        ("Python function", "train.py(3): f", Cat.PYTHON),
        ("Trace", "PyTorch Profiler (0)", Cat.SPAN),
        ("cpu_op", "aten::mm", Cat.CPU_OP),
        ("user_annotation", "forward", Cat.USER_ANNOTATION),
        ("python_function", "train.py(3): f", Cat.PYTHON),
        ("cuda_runtime", "hipMemcpyWithStream", Cat.RUNTIME),
        ("cuda_driver", "cuLaunchKernel", Cat.DRIVER),
        ("overhead", "Activity Buffer Request", Cat.OVERHEAD),
        ("gpu_user_annotation", "forward", Cat.GPU_ANNOTATION),
        ("cuda_sync", "Stream Sync", Cat.SYNC),
        ("mtia_runtime", "runFunction", Cat.RUNTIME),
        ("mtia_ccp_events", "pe_exe", Cat.KERNEL),
        ("mtia_ccp_events", "dma_request", Cat.MEMCPY),
        ("xpu_runtime", "zeCommandQueueExecuteCommandLists", Cat.RUNTIME),
        ("xpu_driver", "zeEventCreate", Cat.DRIVER),
        ("hpu_op", "launch", Cat.RUNTIME),
        ("privateuse1_runtime", "LaunchKernel", Cat.RUNTIME),
        ("a_new_category", "x", Cat.OTHER),
    ],
)
def test_categories_of_all_versions_and_vendors(tmp_path: Path, cat: str, name: str, folded: Cat) -> None:
    run = load(tmp_path, trace(json.dumps(event(name, 1, cat=cat))))
    assert [Cat(c) for c in run.cat] == [folded]


def test_a_new_category_is_said(tmp_path: Path) -> None:
    run = load(tmp_path, trace(*sound(2), json.dumps(event("x", 1, cat="a_new_category"))))
    assert run.warnings == ["1 event is of an unknown category (a_new_category) and not analyzed"]


@pytest.mark.parametrize(
    ("pid", "tid", "args", "place"),
    [
        (0, "stream 7", {"device": 0, "stream": 7}, (0, 7)),
        (3, 20, {"device": 1, "stream": 13}, (1, 13)),
        (1, "stream 9", {}, (1, 9)),
        ("1", "9", {}, (1, 9)),
        ("", "", {"device": "2", "stream": "5"}, (2, 5)),
        ("Spans", "x", {}, (0, -1)),
    ],
)
def test_device_and_stream_come_from_the_arguments_first(
    tmp_path: Path, pid: Any, tid: Any, args: dict[str, Any], place: tuple[int, int]
) -> None:
    run = load(tmp_path, trace(json.dumps(event("k", 1, cat="kernel", pid=pid, tid=tid, args=args))))
    assert (run.device[0], run.stream[0]) == place


@pytest.mark.parametrize(
    ("seen", "allocated", "call", "on", "number"),
    [
        (1, [], "hipLaunchKernel", [2], [0]),  # the only GPU that the process sees
        (8, [0], "hipLaunchKernel", [2], [0]),  # the only one that it allocates on
        (8, [], "hipLaunchKernel", [2], [2]),
        (8, [0, 1], "hipLaunchKernel", [2], [2]),
        (2, [0, 1], "hipLaunchKernel", [2, 3], [2, 3]),
        (1, [], "cudaLaunchKernel", [2], [2]),
    ],
)
def test_rocm_counts_the_gpus_of_kernels_behind_the_cpus(
    tmp_path: Path, seen: int, allocated: list[int], call: str, on: list[int], number: list[int]
) -> None:
    events = [event(call, 1, cat="cuda_runtime")]
    events += [event("k", 2 + n, cat="kernel", pid=n, args={"device": n, "stream": 0}) for n in on]
    events += [
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 5 + n,
         "args": {"Bytes": 512, "Device Type": 6, "Device Id": n}}
        for n in allocated
    ]  # fmt: skip
    path = tmp_path / "trace.json"
    properties = [{"id": n, "name": "AMD Instinct MI300X"} for n in range(seen)]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": properties, "traceEvents": events}))
    run = load_trace(path, path.name)
    assert run.device[run.device >= 0].tolist() == number
    if run.memory is not None:
        assert run.memory.device.tolist() == allocated


def test_host_rows_have_no_device(tmp_path: Path) -> None:
    """Triton writes a stream pointer into its operator's arguments; ROCm writes streams as text."""
    run = load(
        tmp_path,
        trace(
            json.dumps(event("triton_poi_fused_0", 1, args={"stream": 615352160, "External id": 4})),
            json.dumps(
                event("hipMemcpyWithStream", 2, cat="cuda_runtime", args={"stream": "0x0", "correlation": 3})
            ),
        ),
    )
    assert run.device.tolist() == [-1, -1]
    assert run.stream.tolist() == [-1, -1]
    assert run.external_id.tolist() == [4, -1]
    assert run.correlation.tolist() == [-1, 3]


def test_both_spellings_of_external_id(tmp_path: Path) -> None:
    run = load(
        tmp_path,
        trace(
            json.dumps(event("a", 1, args={"external id": 4})),
            json.dumps(event("b", 2, args={"External id": 5})),
        ),
    )
    assert run.external_id.tolist() == [4, 5]


def test_one_track_written_as_number_and_as_text(tmp_path: Path) -> None:
    label = json.dumps(
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "ts": 0, "args": {"name": "thread 2 (python)"}}
    )
    run = load(
        tmp_path, trace(label, json.dumps(event("a", 1, tid=2)), json.dumps(event("b", 2, tid="2", pid="1")))
    )
    assert run.thread.tolist() == [0, 0]
    assert [(t.pid, t.tid, t.label) for t in run.threads] == [("1", "2", "thread 2 (python)")]


def test_memory_marks_of_old_and_new_versions(tmp_path: Path) -> None:
    def mark(ts: int, **args: Any) -> str:
        return json.dumps(
            {"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "ts": ts, "s": "t", "args": args}
        )

    run = load(
        tmp_path,
        trace(
            *sound(1),
            mark(9, **{"Device Type": 0, "Device Id": -1, "Bytes": -64}),
            mark(
                3,
                **{
                    "Device Type": 1,
                    "Device Id": 2,
                    "Bytes": 512,
                    "Addr": 2**63 + 8,
                    "Total Allocated": 600,
                    "Total Reserved": 2048,
                },
            ),
        ),
    )
    memory = run.memory
    assert len(run) == 1
    assert run.recorded.memory is True
    assert memory.ts.tolist() == [3000, 9000]
    assert memory.device.tolist() == [2, -1]
    assert memory.bytes.tolist() == [512, -64]
    assert memory.addr.tolist() == [8 - 2**63, -1]
    assert memory.total_allocated.tolist() == [600, -1]
    assert memory.total_reserved.tolist() == [2048, -1]
