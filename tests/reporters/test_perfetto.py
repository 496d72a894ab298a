"""The capture again with tracks: the format, and that reading it back gives the same diagnosis."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import trace_doctor
from trace_doctor import cli
from trace_doctor.errors import UsageError
from trace_doctor.exporters.perfetto import PROCESS
from trace_doctor.model import IDLE_CAUSES, Result
from trace_doctor.reporters.labels import IDLE

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
FAULT = SAMPLES / "host_sync" / "simulated" / "fault" / "trace.json.gz"
REAL = ("luatil_torch-profile/trace_04.json.gz", "AMD-AGI_TraceLens/h100_gaunernst_bert-small-uncased__1016001.json.gz",
    "facebookresearch_param/dlrm_kineto_worker0_step_12.1694128201545.pt.trace.json", "pytorch_kineto")  # fmt: skip


def read(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.name.endswith(".gz") else data, parse_float=Decimal)


def tracks(path: Path) -> list[dict[str, Any]]:
    found = read(path)
    events = found["traceEvents"] if isinstance(found, dict) else found
    return [e for e in events if e.get("pid") == PROCESS]


def same_diagnosis(a: Result, b: Result) -> None:
    for what in ("time_ledger", "memory_ledger", "steps", "kernels", "operators", "timeline"):
        assert getattr(a, what) == getattr(b, what)
    assert [f.fingerprint for f in a.findings] == [f.fingerprint for f in b.findings]


def well_formed(events: list[dict[str, Any]]) -> None:
    """What the format asks of each phase; slices of one track lie side by side."""
    ends: dict[int, Decimal] = defaultdict(lambda: Decimal("-Infinity"))
    required = {"X": {"ts", "dur", "tid"}, "i": {"ts", "tid", "s"}, "C": {"ts"}, "M": {"tid"}}
    for event in events:
        assert required[event["ph"]] <= event.keys()
        assert isinstance(event["name"], str)
        assert isinstance(event["args"], dict)
        if event["ph"] == "C":
            assert all(isinstance(v, int) for v in event["args"].values())
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["tid"], e["ts"])):
        assert event["ts"] >= ends[event["tid"]]
        ends[event["tid"]] = event["ts"] + event["dur"]
        assert event["dur"] >= 0
    named = {e["tid"] for e in events if e["name"] == "thread_name"}
    assert {e["tid"] for e in events if e["ph"] in "Xi"} <= named


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_reading_it_back_gives_the_same_diagnosis(suffix: str, tmp_path: Path) -> None:
    out = tmp_path / f"tracks{suffix}"
    result = trace_doctor.analyze(FAULT, perfetto=out)
    same_diagnosis(result, trace_doctor.analyze(out))
    events = tracks(out)
    well_formed(events)
    original = json.loads(gzip.decompress(FAULT.read_bytes()), parse_float=Decimal)["traceEvents"]
    assert [e for e in read(out)["traceEvents"] if e.get("pid") != PROCESS] == original
    [finding] = result.findings
    [instant] = [e for e in events if e["ph"] == "i"]
    assert instant["args"]["message"] == finding.message
    assert sum(e["name"].startswith("step ") for e in events if e["ph"] == "X") == len(result.steps)


def test_idle_slices_add_up_to_the_ledger(tmp_path: Path) -> None:
    result = trace_doctor.analyze(FAULT, perfetto=tmp_path / "t.json")
    expected = {c: sum(getattr(r.idle_ns, c) for r in result.time_ledger) for c in IDLE_CAUSES}
    found: dict[str, Decimal] = defaultdict(Decimal)
    for event in tracks(tmp_path / "t.json"):
        if event["ph"] == "X" and event["tid"] == 11:
            found[event["name"]] += event["dur"]
    assert {c: int(found[IDLE[c].label] * 1000) for c in IDLE_CAUSES} == expected


@pytest.mark.captures
@pytest.mark.parametrize("name", REAL)
def test_real_captures(name: str, captures_dir: Path, tmp_path: Path) -> None:
    path = captures_dir / "traces" / name
    if path.is_dir():
        path = min((p for p in path.rglob("*.json*")), key=lambda p: p.stat().st_size)
    result = trace_doctor.analyze(path, perfetto=tmp_path / "t.json.gz")
    same_diagnosis(result, trace_doctor.analyze(tmp_path / "t.json.gz"))
    well_formed(tracks(tmp_path / "t.json.gz"))


def test_a_bare_list_of_events_with_memory_and_hostile_names(tmp_path: Path) -> None:
    hostile = '</script>\x1b[31m\u202e" }, {'
    base = 1_700_000_000_000_000
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "cpu_op", "name": hostile, "pid": 1, "tid": 1, "ts": base + i * 10 + 0.125, "dur": 4} for i in range(5)
    ]  # fmt: skip
    events += [
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": base + i * 10 + 1, "s": "t",
         "args": {"Device Type": 1, "Device Id": 0, "Addr": i, "Bytes": 64, "Total Allocated": 64 * (i + 1), "Total Reserved": 4096}}
        for i in range(5)
    ]  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(events))
    result = trace_doctor.analyze(tmp_path / "a.json", perfetto=tmp_path / "b.json")
    same_diagnosis(result, trace_doctor.analyze(tmp_path / "b.json"))
    made = tracks(tmp_path / "b.json")
    well_formed(made)
    assert [e["args"]["bytes"] for e in made if e["name"] == "allocated, GPU 0"] == [
        64 * n for n in range(1, 6)
    ]
    assert "\x1b" not in json.dumps(made, default=str, ensure_ascii=False)


def test_a_file_for_each_rank(tmp_path: Path) -> None:
    for rank in (0, 3):
        trace = json.loads(gzip.decompress(FAULT.read_bytes()))
        trace["distributedInfo"] = {"rank": rank, "world_size": 4}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    trace_doctor.analyze(tmp_path, perfetto=tmp_path / "t.json.gz")
    names = {e["args"]["name"] for e in tracks(tmp_path / "t-rank3.json.gz") if e["name"] == "process_name"}
    assert names == {"trace-doctor: rank 3"}
    assert (tmp_path / "t-rank0.json.gz").exists()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(UsageError, match=r"-rank0.json.* is there already, and was not named"):
        trace_doctor.analyze(
            tmp_path / "rank0.json", tmp_path / "rank3.json", perfetto=tmp_path / "t.json.gz"
        )
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    with pytest.raises(UsageError, match="a trace is needed"):
        trace_doctor.analyze(SAMPLES / "memory_spike" / "simulated" / "fault", perfetto=tmp_path / "no.json")
    assert not (tmp_path / "no.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["analyze", str(FAULT), "-o", "perfetto"],
        ["analyze", str(FAULT), "-o", "perfetto=-"],
        ["analyze", str(FAULT), "-o", "perfetto=/nowhere/at/all.json"],
        ["report", "saved.json", "-o", "perfetto=t.json"],
    ],
)
def test_refusals_are_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved.json").write_bytes(Result().to_json())
    monkeypatch.setattr("sys.argv", ["trace-doctor", *arguments, "-q"])
    with pytest.raises(SystemExit) as ended:
        cli.run()
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["saved.json"]
