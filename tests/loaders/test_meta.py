"""What a trace says about itself: rank, what was recorded, bounds of the torch version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import trace_doctor
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.model import Recorded
from trace_doctor.run import Run
from trace_doctor.testing import RunBuilder


def load(tmp_path: Path, *events: dict[str, Any], name: str = "trace.json", **head: Any) -> Run:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 1, **head, "traceEvents": list(events)}))
    return load_trace(path, name)


def op(name: str = "aten::mm", ts: float = 1.5, **fields: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": 1.5,
        "args": {},
    } | fields


MEMORY = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 2.5, "s": "t", "args": {"Bytes": 4}}


@pytest.mark.parametrize(
    ("events", "head", "recorded"),
    [
        # The profiler writes each option that is on; one that is missing beside others was off.
        (
            [op(args={"Input Dims": []})],
            {"record_shapes": 1},
            Recorded(shapes=True, stacks=False, memory=False, flops=False, modules=False),
        ),
        # … and what somebody took out of the events is not there.
        (
            [op()],
            {"record_shapes": 1},
            Recorded(shapes=False, stacks=False, memory=False, flops=False, modules=False),
        ),
        (
            [op()],
            {"with_stack": 1, "profile_memory": 1, "record_shapes": 0},
            Recorded(shapes=False, stacks=True, memory=True, flops=False, modules=False),
        ),
        # Older files have no options: the events tell.
        ([op()], {}, Recorded(shapes=False, stacks=False, memory=False)),
        ([op(args={"Input Dims": []})], {}, Recorded(shapes=True, stacks=False, memory=False)),
        ([op(args={"Call stack": "a.py(1): f"})], {}, Recorded(shapes=False, stacks=True, memory=False)),
        (
            [op(), op("a.py(1): f", cat="python_function")],
            {},
            Recorded(shapes=False, stacks=True, memory=False),
        ),
        ([op(), MEMORY], {}, Recorded(shapes=False, stacks=False, memory=True)),
        # Without any operator nothing can be said.
        ([op("sgemm", cat="kernel")], {}, Recorded()),
        ([], {}, Recorded()),
    ],
)
def test_recorded(
    tmp_path: Path, events: list[dict[str, Any]], head: dict[str, Any], recorded: Recorded
) -> None:
    assert load(tmp_path, *events, **head).recorded == recorded


@pytest.mark.parametrize(
    ("events", "head", "low", "high"),
    [
        ([op(cat="Operator", ts=1, dur=1)], {}, "1.8", "1.11"),
        ([op(ts=1, dur=1)], {}, "1.12", "2.3"),
        ([op(ts=1, dur=1)], {"with_stack": 1}, "1.13", "2.3"),
        ([op()], {}, "1.12", None),
        ([op()], {"baseTimeNanoseconds": 1}, "2.4", None),
        ([op("Torch-Compiled Region", ts=1, dur=1)], {}, "2.2", "2.3"),
        ([op("Torch-Compiled Region: 0/1")], {"baseTimeNanoseconds": 1}, "2.5", None),
        ([op("Torch-Compiled Region: !0/1")], {"baseTimeNanoseconds": 1}, "2.5", None),
        ([op("AOTDispatcher Runtime Wrapper Prologue")], {"baseTimeNanoseconds": 1}, "2.8", None),
        ([op("_compile.compile_inner (dynamo_timed)", ts=1, dur=1)], {}, "2.1", "2.3"),
        ([op("dynamo_data: compile_id=1/2")], {"baseTimeNanoseconds": 1}, "2.11", None),
        ([], {}, None, None),
    ],
)
def test_torch_version(
    tmp_path: Path, events: list[dict[str, Any]], head: dict[str, Any], low: str | None, high: str | None
) -> None:
    version = load(tmp_path, *events, **head).torch_version
    assert (version.min, version.max) == (low, high)
    assert (version.how is None) == (low is None)


@pytest.mark.parametrize(
    ("name", "head", "rank", "how"),
    [
        ("rank_7.json", {"distributedInfo": {"rank": 3}}, 3, "distributedInfo"),
        ("rank_7.json", {"distributedInfo": {"backend": "nccl"}}, 7, "file name"),
        ("rank_7.json", {"distributedInfo": {"rank": "?"}}, 7, "file name"),
        ("rank_7.json", {"distributedInfo": {"rank": -1}}, 7, "file name"),
        ("run/worker12/trace.json", {}, 12, "file name"),
        ("trace.json", {}, 0, "assumed, the file names no rank"),
    ],
)
def test_rank(tmp_path: Path, name: str, head: dict[str, Any], rank: int, how: str) -> None:
    run = load(tmp_path, op(), name=name, **head)
    assert (run.rank, run.rank_how) == (rank, how)


def test_a_rank_given_from_outside_counts_after_the_files_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [op()]}))
    run = load_trace(path, "trace.json", rank=5, rank_how="folder")
    assert (run.rank, run.rank_how) == (5, "folder")


def test_what_the_builder_writes_comes_back(tmp_path: Path) -> None:
    """The whole way of a rule author's case: launch and kernel share a correlation, on the builder's device."""
    made = RunBuilder(rank=2, world_size=4, shapes=True)
    with made.step(), made.op("aten::mm", dims=[[2, 2]], types=["float"]):
        made.launch(100, "sgemm", stream=9)
    run = made.run()
    (kernel,) = run.gpu.tolist()
    assert (run.text(kernel), run.dur[kernel], run.device[kernel], run.stream[kernel]) == (
        "sgemm",
        100_000,
        0,
        9,
    )
    (launch,) = run.named(lambda n: n == "cudaLaunchKernel").tolist()
    assert run.correlation[launch] == run.correlation[kernel] != -1
    (multiply,) = run.named(lambda n: n == "aten::mm").tolist()
    assert run.args([multiply]) == [{"External id": 1, "Input Dims": [[2, 2]], "Input type": ["float"]}]
    assert run.rank == 2
    assert run.device_names == {0: "NVIDIA H100 80GB HBM3"}


ODD: list[Any] = [None, True, -1, 2**63, 10**30, 1.5, "", "x", [], [None], [[]], {}, {"a": 1}, "9" * 400]
PLACES = [
    ("baseTimeNanoseconds",),
    ("deviceProperties",),
    ("deviceProperties", 0),
    *(("deviceProperties", 0, key) for key in ("id", "name", "computeMajor", "numSms", "totalGlobalMem")),
    ("distributedInfo",),
    *(("distributedInfo", key) for key in ("rank", "world_size", "nccl_version")),
    ("cuda_runtime_version",),
    ("allocator_settings",),
    ("cpu_count",),
    *(("traceEvents", "args", key) for key in ("bytes", "grid", "Input Dims", "Input type", "Seq", "stream", "blocks per SM")),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_anything_may_stand_where_a_number_should(tmp_path: Path, place: tuple[Any, ...]) -> None:
    """In a damaged file, or one that another program wrote: no rule fails, and all events are there."""
    made = RunBuilder(rank=1, world_size=2, shapes=True)
    for _ in range(4):
        with made.step():
            made.copy(100)
            with made.op("aten::mm", dims=[[64, 64], [64, 64]], types=["float", "float"]):
                made.launch(300, "sgemm")
            made.item()
    whole, events = json.loads(made.json()), len(made.run())
    for odd in ODD:
        data = json.loads(json.dumps(whole))
        inner = [e for e in data["traceEvents"] if "args" in e] if place[0] == "traceEvents" else [data]
        for target in inner:
            *way, last = place[1:] if place[0] == "traceEvents" else place
            for key in way:
                target = target[key]
            target[last] = odd
        (tmp_path / "trace.json").write_text(json.dumps(data))
        result = trace_doctor.analyze(tmp_path / "trace.json")
        assert [o for o in result.outcomes if o.outcome == "error"] == [], odd
        assert result.inputs[0].events == events
