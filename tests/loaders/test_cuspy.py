"""Files of torch 2.14 and later: what the CUPTI monitor (later cuspy) and the Python export write otherwise than Kineto."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from handwritten import event, load, names, sound, trace

from trace_doctor.capture import Capture
from trace_doctor.engine.implausible import implausible
from trace_doctor.evidence.base import Facts
from trace_doctor.run import Cat


def gpu(name: str, ts: float, cat: str = "kernel", **args: Any) -> str:
    """A row as cuspy writes it: no External id, no occupancy."""
    args = {"device": 0, "context": 1, "stream": 7, "correlation": int(ts), **args}
    return json.dumps(event(name, ts, cat=cat, pid=0, tid=args["stream"], args=args))


def copy(ts: float, kind: Any, source: Any, target: Any) -> str:
    kinds = {"bytes": 1024, "copy kind": kind, "src kind": source, "dst kind": target, "flags": 0}
    return gpu("Memcpy", ts, "gpu_memcpy", **kinds)


def test_copies_are_named_by_the_kinds_in_their_arguments(tmp_path: Path) -> None:
    """A number is a kind that torch itself does not know: such a copy keeps its bare name."""
    run = load(
        tmp_path,
        trace(
            *sound(2),
            copy(10, "HtoD", "pageable", "device"),
            copy(20, "HtoD", "pinned", "device"),
            copy(30, "DtoH", "device", 99),
            copy(40, 9, "pageable", "pageable"),
            copy(50, "DtoD", "device_static", "managed"),
            gpu("Memset", 60, "gpu_memset", **{"memory kind": 3}),
            json.dumps(event("Memcpy", 70, args={"copy kind": "HtoD"})),  # an operator of the user
        ),
    )
    assert names(run)[2:] == [
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy DtoH (Device -> Unknown)",
        "Memcpy",
        "Memcpy DtoD (Device Static -> Managed)",
        "Memset",
        "Memcpy",
    ]


def test_moved_work_is_on_its_stream_and_nodes_without_work_occupy_nothing(tmp_path: Path) -> None:
    run = load(
        tmp_path,
        trace(
            *sound(2),
            gpu("k", 100, stream=26, original_stream=7, **{"graph id": 3, "graph node id": 1}),
            gpu("k", 110, stream=26, original_stream="13"),
            gpu("k", 120, **{"graph id": 0, "graph node id": 0}),
            gpu("EventRecord", 130, "graph_event_node", **{"cuda event": "0x7f"}),
            gpu("HostNode: f", 140, "graph_host_node", **{"host fn": "f"}),
            json.dumps(
                {"ph": "s", "id": 1 << 41, "pid": 0, "tid": 7, "ts": 100, "cat": "ac2g", "name": "ac2g"}
            ),
        ),
    )
    assert run.stream[run.gpu].tolist() == [7, 13, 7]
    assert run.warnings == []


def test_a_wait_for_the_whole_device_is_on_no_stream(tmp_path: Path) -> None:
    """Its stream is -1, which cuspy gives the track 1."""
    args = {"cuda_sync_kind": "Context Sync", "stream": -1, "correlation": 4, "device": 0, "context": 1}
    wait = json.dumps(event("Context Sync", 100, cat="cuda_sync", pid=0, tid=1, args=args))
    old = json.dumps(event("Stream Sync", 110, cat="cuda_sync", pid=0, tid=9))
    run = load(tmp_path, trace(*sound(2), wait, old))
    assert run.stream[run.cat == Cat.SYNC].tolist() == [-1, 9]


@pytest.mark.parametrize("decoder", ["auto", "python"])
@pytest.mark.parametrize("ph", ["X", "i"])
def test_memory_marks_of_the_python_export(
    tmp_path: Path, ph: str, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes them as events with a duration until 2.14."""
    monkeypatch.setenv("TRACE_DOCTOR_DECODER", decoder)
    args = {"Device Type": 1, "Device Id": 0, "Bytes": 512, "Addr": 4096, "Total Allocated": 512}
    mark = event("[memory]", 15, cat="cpu_instant_event", ph=ph, dur=0, args=args)
    run = load(tmp_path, trace(*sound(2), json.dumps(mark), *sound(4, start=2)))
    assert run.memory.bytes.tolist() == [512]
    assert len(run) == 6


def test_copies_without_a_kind_are_no_sign_of_a_changed_file(tmp_path: Path) -> None:
    events = [event("ProfilerStep#1", 0, 500, cat="user_annotation")]
    events += [event("cudaMemcpyAsync", t, 5, cat="cuda_runtime", args={"correlation": t}) for t in (40, 80)]
    run = load(tmp_path, trace(*map(json.dumps, events), copy(50, 9, 1, 1), copy(90, 9, 1, 1)))
    assert implausible(Facts(Capture(0, run=run))) == ""


@pytest.mark.parametrize("decoder", ["auto", "python"])
@pytest.mark.parametrize(
    ("cat", "name", "args"),
    [
        ("hardware_counters", "sm__cycles_active.avg", {"sm__cycles_active.avg": 812.0}),
        ("hardware_counters", "SM Clock (MHz)", {"": 1980.0}),
        ("mtia_counters", "bandwidth", {"read": 3.0, "write": 4.0}),
        ("xpu_scope_profiler", "metrics", {"GpuTime": 7, "AvgGpuCoreFrequencyMHz": 1550}),
    ],
)
def test_counters_of_other_writers_are_neither_work_nor_samples(
    tmp_path: Path, cat: str, name: str, args: dict[str, Any], decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kineto, MTIA and XPU write them below the number of the device, where its kernels are."""
    monkeypatch.setenv("TRACE_DOCTOR_DECODER", decoder)
    sample = {"ph": "C", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": 25, "args": args}
    events = (*sound(2), json.dumps(sample), *sound(4, start=2))
    run, without = load(tmp_path, trace(*events)), load(tmp_path, trace(*sound(2), *sound(4, start=2)))
    assert not len(run.counters.ts) and run.warnings == []
    assert (len(run), run.gpu.tolist(), run.device_names) == (
        len(without),
        without.gpu.tolist(),
        without.device_names,
    )


@pytest.mark.parametrize("decoder", ["auto", "python"])
def test_counters_of_gpus(tmp_path: Path, decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what was measured, of GPUs, with a number: torch computes cycles from the clock, others count memory so."""
    monkeypatch.setenv("TRACE_DOCTOR_DECODER", decoder)

    def sample(
        ts: float, value: Any, name: str = "SM Clock (MHz)", pid: Any = "GPU 1 Counters", key: str = ""
    ) -> str:
        return json.dumps({"ph": "C", "name": name, "pid": pid, "ts": ts, "args": {key: value}})

    run = load(
        tmp_path,
        trace(
            *sound(2),
            sample(40, 1410.5),
            sample(20, 1980),
            sample(25, 700, "Power (W)", "GPU 0 Counters"),
            sample(30, "1980"),
            sample(31, True),
            sample(32, 7, pid=4),
            sample(33, 7, key="bytes"),
            sample(34, 99999, "Cycles (Current Kernel)"),
            *sound(4, start=2),
        ),
    )
    assert run.counters.of(1, "SM Clock (MHz)")[0].tolist() == [20_000, 40_000]
    assert run.counters.of(1, "SM Clock (MHz)")[1].tolist() == [1980, 1410.5]
    assert run.counters.of(0, "Power (W)")[1].tolist() == [700]
    assert len(run.counters.ts) == 3
    assert (len(run), run.warnings) == (6, [])
