"""`.pftrace`: the same trace as its JSON twin, but for kinds of copies; whatever is in one, columns or one line."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from perfetto_files import as_cuspy, field, packet, perfetto, varint

import trace_doctor
from trace_doctor.errors import TraceDoctorError
from trace_doctor.loaders import forward
from trace_doctor.loaders.discover import discover
from trace_doctor.loaders.kineto import args
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.loaders.pftrace import packets
from trace_doctor.loaders.pftrace.reader import Pftrace
from trace_doctor.loaders.stream import ByteStream
from trace_doctor.model import Result
from trace_doctor.run import Run
from trace_doctor.testing import RunBuilder


def trained(*, copies: bool = True, steps: int = 6) -> dict[str, Any]:
    """Steps that wait for data, read a value of the loss and launch small kernels, as cuspy writes them."""
    b = RunBuilder(stacks=True, shapes=True)
    for _ in range(steps):
        with b.step(), b.python("train.py", 20, "train"):
            b.loader(4000)
            if copies:
                with b.op("aten::to"), b.op("aten::copy_"):
                    b.copy(400, bytes=4 << 20)
                    b.sync()
            for n in range(20):
                with b.op("aten::mm", dims=[[64, 64], [], [64, n + 1]], types=["float", "", "float"], us=20):
                    b.launch(
                        30, f"ampere_sgemm<{n}>", grid=[4, n + 1, 1], block=[128, 1, 1], stream=7 + n % 2
                    )
            b.sync("cudaDeviceSynchronize")
            b.wait(300)
    trace = as_cuspy(json.loads(b.json()))
    wait = {"cuda_sync_kind": "Context Sync", "stream": -1, "correlation": 3, "device": 0, "context": 1}
    trace["traceEvents"].append(
        {
            "ph": "X",
            "cat": "cuda_sync",
            "name": "Context Sync",
            "pid": 0,
            "tid": 1,
            "ts": 9.5,
            "dur": 2.25,
            "args": wait,
        }
    )
    return trace


def put(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def twins(tmp_path: Path, trace: dict[str, Any], **options: Any) -> tuple[Path, Path]:
    return put(tmp_path, "a.json", json.dumps(trace).encode()), put(
        tmp_path, "a.pftrace", perfetto(trace, **options)
    )


def rows(run: Run) -> list[tuple[Any, ...]]:
    columns = (run.ts, run.dur, run.cat, run.device, run.stream, run.correlation, run.external_id)
    return sorted(zip(map(run.text, range(len(run))), *(c.tolist() for c in columns), strict=True))


def without_kinds(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(("Memcpy" if e[0].startswith("Memcpy") else e[0], *e[1:]) for e in events)


@pytest.mark.parametrize("level", [None, 1])
@pytest.mark.parametrize("decoder", ["auto", "python"])
def test_the_events_are_those_of_the_json(
    tmp_path: Path, level: int | None, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE_DOCTOR_DECODER", decoder)
    chrome, native = (load_trace(p, p.name) for p in twins(tmp_path, trained(), level=level))
    assert rows(native) == without_kinds(rows(chrome))
    assert [(t.pid, t.tid) for t in native.threads if t.pid == "100"] == [("100", "100")]
    assert native.recorded.shapes and native.recorded.stacks
    assert native.device_properties == [{"id": 0, "computeMajor": 9, "computeMinor": 0}]
    assert (native.warnings, native.damage.truncated) == ([], False)
    kernels = np.flatnonzero(native.is_named(lambda n: n.startswith("ampere"))).tolist()
    assert [a["grid"] for a in native.args(kernels[:20])] == [[4, n + 1, 1] for n in range(20)]
    products = native.named(lambda n: n == "aten::mm").tolist()
    assert native.args(products[:1])[0]["Input Dims"] == [[64, 64], [], [64, 1]]


def test_arguments_of_a_file_that_is_not_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(args, "KEPT", 10)
    monkeypatch.setattr(forward, "STRETCH", 1 << 12)
    _, path = twins(tmp_path, trained())
    run = load_trace(path, path.name)
    kernels = np.flatnonzero(run.is_named(lambda n: n.startswith("ampere"))).tolist()
    assert {tuple(a["block"]) for a in run.args(kernels)} == {(128, 1, 1)}


def verdicts(result: Result) -> dict[str, tuple[str, str]]:
    return {o.code: (o.outcome, o.reason) for o in result.outcomes}


def test_the_verdicts_are_those_of_the_json(tmp_path: Path) -> None:
    """Without copies both say the same, word for word; with copies what needs their kinds is skipped."""
    trace = trained(copies=False)
    trace["deviceProperties"] = [{"id": 0, "computeMajor": 9, "computeMinor": 0}]
    del trace["record_shapes"], trace["with_stack"], trace["profile_memory"]
    chrome, native = (trace_doctor.analyze(p) for p in twins(tmp_path, trace))
    assert verdicts(native) == verdicts(chrome)
    assert [(f.code, f.message) for f in native.findings] == [(f.code, f.message) for f in chrome.findings]
    assert {"TD101"} <= {f.code for f in native.findings}
    copying = trained()
    chrome, native = (trace_doctor.analyze(p) for p in twins(tmp_path, copying))
    assert verdicts(chrome)["TD102"][0] == "fired"
    outcome, why = verdicts(native)["TD102"]
    assert outcome == "skipped" and "kinds of copies" in why


@pytest.mark.parametrize("name", ["a.pftrace", "a.pftrace.gz", "rank_3.json", "trace", "a.gz"])
def test_it_is_known_by_its_bytes(tmp_path: Path, name: str) -> None:
    put(tmp_path, name, perfetto(trained(steps=2)))
    (found,) = discover([tmp_path]).found
    assert found.kind == "trace"
    assert len(load_trace(found.path, name)) > 50


def test_a_trace_of_another_program(tmp_path: Path) -> None:
    foreign = packet(field(10, 7), field(12, field(1, field(1, 1) + field(2, "sched")))) * 3
    for data in (foreign, gzip.compress(foreign)):
        with pytest.raises(TraceDoctorError, match="a Perfetto trace of another program"):
            trace_doctor.analyze(put(tmp_path, "a.pftrace", data))


def test_counters_are_events_of_the_text(tmp_path: Path) -> None:
    trace = trained(steps=2)
    clock = {"ph": "C", "name": "SM Clock (MHz)", "pid": "GPU 0 Counters", "ts": 1100.5, "args": {"": 1980.0}}
    trace["traceEvents"].append(clock)
    (_, path) = twins(tmp_path, trace)
    text = b"".join(ByteStream(path).pieces())
    (event,) = [e for e in json.loads(text)["traceEvents"] if e["ph"] == "C"]
    base = json.loads(text)["baseTimeNanoseconds"]
    assert event | {"ts": 0} == clock | {"ts": 0}
    assert base + round(event["ts"] * 1000) == trace["baseTimeNanoseconds"] + 1_100_500


# ------------------------------------------------------------------ damage


def outcome(path: Path) -> int:
    """How many events a file gives; -1 where it is refused with one line."""
    try:
        run = load_trace(path, path.name, max_memory=400 << 20)
    except TraceDoctorError as error:
        assert "\n" not in str(error)
        return -1
    return len(run)


@pytest.mark.parametrize("level", [None, 1])
def test_cut_anywhere(tmp_path: Path, level: int | None) -> None:
    """Each cut gives a beginning of the events, and says that it is one; or one line."""
    data = perfetto(trained(steps=1), level=level)
    whole = outcome(put(tmp_path, "a.pftrace", data))
    counts = []
    for length in [*range(60), *range(60, len(data), 19 if level else 127)]:
        path = put(tmp_path, "cut.pftrace", data[:length])
        counts.append(outcome(path))
        if counts[-1] >= 0:
            assert load_trace(path, path.name).damage.truncated or counts[-1] == whole
    assert counts[0] == -1 and max(counts) <= whole
    assert counts == sorted(counts)


def test_compressed_packets_are_not_passed_over(tmp_path: Path) -> None:
    """What is in them is not read: the trace is no whole one."""
    whole = perfetto(trained(steps=1), level=None)
    path = put(tmp_path, "a.pftrace", whole + field(1, field(50, zlib.compress(whole))))
    assert load_trace(path, path.name).damage.truncated


def test_wrong_bytes(tmp_path: Path) -> None:
    chance = random.Random(5)
    data = perfetto(trained(steps=2), level=None)
    for _ in range(100):
        damaged = bytearray(data)
        for _ in range(chance.randrange(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        outcome(put(tmp_path, "damaged.pftrace", bytes(damaged)))


HEAD = perfetto({"baseTimeNanoseconds": 10**18, "traceEvents": []}, level=None)
NAMED = field(12, field(2, field(1, 5) + field(2, "x" * 4000)))


@pytest.mark.parametrize(
    "tail",
    [
        b"\x0a" + b"\xff" * 40,
        b"\x0a" + varint(1 << 63),
        b"\x0a" + varint((64 << 20) + 1) + b"x" * 100,
        packet(b"\xff" * 20),
        packet(field(11, b"\x80")),
        packet(field(11, varint(4 << 3 | 2) + varint(1 << 40))),
        packet(field(53, varint(11 << 3 | 3))),
        packet(field(11, b"\x00")),
        b"\x12\x00",
    ],
)
def test_hostile_fields_end_the_trace(tmp_path: Path, tail: bytes) -> None:
    path = put(tmp_path, "a.pftrace", HEAD + tail)
    run = load_trace(path, path.name)
    assert run.damage.truncated and "Perfetto trace" in run.warnings[0]


def test_arguments_nested_without_end(tmp_path: Path) -> None:
    deep = b""
    for _ in range(5000):
        deep = field(12, deep)
    event = field(9, 1) + field(11, 3) + field(4, deep)
    path = put(
        tmp_path, "a.pftrace", HEAD + packet(field(11, event)) + packet(field(11, field(9, 2) + field(11, 3)))
    )
    assert "nested" in load_trace(path, path.name).warnings[0]


def test_few_bytes_that_become_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long name that each of many short events has; and gzip data of the same packet again and again."""
    monkeypatch.setattr("trace_doctor.loaders.pftrace.reader.BOMB", 1 << 20)
    one = packet(field(10, 1), field(53, field(20, 5)))
    data = HEAD + packet(field(10, 1), NAMED) + one * 40_000
    for content in (data, gzip.compress(data)):
        stream = Pftrace(path := put(tmp_path, "a.pftrace", content), ByteStream(path).unpacker._inner)
        assert sum(map(len, stream.pieces())) < 40 << 20
        assert "times its size" in stream.problem


def test_events_without_an_end_and_packets_without_sense_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packets, "_MOST_OPEN", 1 << 20)
    monkeypatch.setattr(packets, "_MOST_VAIN", 1000)
    begins = packet(field(8, 5), field(10, 1), field(11, field(9, 1) + field(11, 3)))
    for tail, why in ((begins * 20_000, "do not end"), (packet() * 5000, "tell nothing")):
        path = put(tmp_path, "a.pftrace", HEAD + tail)
        assert why in load_trace(path, path.name).warnings[0]


def test_a_name_that_only_looks_like_one(tmp_path: Path) -> None:
    """JSON may begin with a line feed, which is the tag of a packet."""
    trace = trained(steps=2)
    path = put(tmp_path, "a.json", b"\n" + json.dumps(trace).encode())
    assert len(load_trace(path, path.name)) == sum(e["ph"] == "X" for e in trace["traceEvents"])
    assert msgspec.json.decode(b"".join(ByteStream(path).pieces())) == trace


def test_the_version_of_torch(tmp_path: Path) -> None:
    _, path = twins(tmp_path, trained(steps=1))
    assert load_trace(path, path.name).torch_version.min == "2.14"
