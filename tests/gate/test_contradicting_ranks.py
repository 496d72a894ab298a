"""Files that contradict each other about whose they are: one recording is not two ranks, and a manifest is of its own rank."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_captures import healthy

from trace_doctor.testing import RunBuilder
from trace_doctor_rules.comms import _flight_cases as dumps

Run = Callable[..., Any]


def long(rank: int) -> RunBuilder:
    """More events than are alike by chance."""
    return healthy(rank, 2, steps=100)


@pytest.mark.parametrize("apart_us", [0.0, 7.25])
def test_the_same_recording_under_two_ranks_is_one(repository: Path, run: Run, apart_us: float) -> None:
    """Each event of one rank takes as long as the same of the other."""
    logs = repository / "logs"
    logs.mkdir()
    trace = json.loads(long(1).write(logs / "rank0.json").read_text())
    long(0).write(logs / "rank0.json")
    for event in trace["traceEvents"]:
        event["ts"] += apart_us
    trace["traceEvents"][5]["dur"] += 1
    (logs / "rank1.json").write_text(json.dumps(trace))
    assert run("check", "logs").code == 0, "not all alike"
    trace["traceEvents"][5]["dur"] -= 1
    (logs / "rank1.json").write_text(json.dumps(trace))
    done = run("check", "logs", "-o", "json")
    assert done.code == 3
    assert "rank1.json and rank0.json every event takes as long" in done.result.gate.verdict
    assert run("check", "logs", "--rank", 1).code == 3


def manifests(logs: Path, **of_rank1: Any) -> None:
    """A recording of two ranks, of which the second says this of itself."""
    logs.mkdir(exist_ok=True)
    for rank in (0, 1):
        trace = json.loads(healthy(rank, 2).write(logs / "t.json").read_text())
        pid = next(e["pid"] for e in trace["traceEvents"] if e.get("cat") == "cpu_op")
        (logs / f"rank{rank}.light.json.gz").write_bytes(gzip.compress((logs / "t.json").read_bytes()))
        own = {"rank": rank, "pid": pid, "world_size": 2, "files": {"light": f"rank{rank}.light.json.gz"}}
        (logs / f"rank{rank}.recording.json").write_text(json.dumps(own | (of_rank1 if rank else {})))
    (logs / "t.json").unlink()
    (logs / "recording.json").write_text(json.dumps({"ranks": [0, 1]}))


@pytest.mark.parametrize(
    ("of_rank1", "why"),
    [
        ({"rank": 0}, "rank1.recording.json was not read: no manifest of its rank"),
        ({"files": {"light": "rank0.light.json.gz"}}, "rank1.recording.json was not read: no manifest of its rank"),
        ({"files": {"light": "rank1.detailed.json.gz"}}, "rank1.recording.json was not read: no manifest of its rank"),
        ({"pid": 1}, "rank1.recording.json is of process 1, and the traces of its rank are of "),
        ({"world_size": 8}, "recording.json says that its job has 2 ranks, others that it has 8"),
    ],
    ids=["rank", "files of another rank", "a file of another role", "process", "size of the job"],
)  # fmt: skip
def test_a_manifest_that_is_not_of_its_rank(
    repository: Path, run: Run, of_rank1: dict[str, Any], why: str
) -> None:
    manifests(repository / "logs")
    assert run("check", "logs").code == 0
    manifests(repository / "logs", **of_rank1)
    done = run("check", "logs", "-o", "json")
    assert (done.code, why in done.result.gate.verdict) == (3, True), done.result.gate.verdict
    assert run("check", "logs", "--allow-partial").code == 0


@pytest.mark.parametrize(
    ("field", "value"), [("rank", 1.5), ("rank", []), ("rank", True), ("world_size", 0), ("world_size", "2")]
)
def test_a_rank_that_is_none_is_named(repository: Path, run: Run, field: str, value: Any) -> None:
    logs = repository / "logs"
    logs.mkdir()
    for rank in (0, 1):
        healthy(rank, 2).write(logs / f"rank{rank}.json")
    assert "distributedInfo" not in run("check", "logs").out
    trace = json.loads((logs / "rank1.json").read_text())
    trace["distributedInfo"][field] = value
    (logs / "rank1.json").write_text(json.dumps(trace))
    done = run("check", "logs")
    assert f"rank1.json: the {field} in its distributedInfo is no" in " ".join(done.out.split())


def test_step_times_of_another_recording_are_not_used(repository: Path, run: Run) -> None:
    samples = Path(__file__).parents[2] / "sample_traces" / "dataloader_starvation" / "cpu"
    shutil.copytree(samples / "healthy", repository / "logs")
    shutil.copy(samples / "fault" / "steps.csv", repository / "logs")
    said = " ".join(run("analyze", "logs").out.split())
    assert "the times of its steps in the recording are not used" in said


@pytest.mark.parametrize(
    ("name", "ranks", "why"),
    [
        ("comm_lib_trace_rank_1", "[0]", "is of rank 1 by its name, and its process groups have rank 0 only"),
        ("comm_lib_trace_rank_2", "[0, 1]", "is of rank 2 by its name, and its process groups have ranks 0 and 1 only"),
        ("comm_lib_trace_rank_1", "[0, 1, 2, 3]", "has other ranks in process group default_pg than comm_lib_trace_rank_0"),
    ],
)  # fmt: skip
def test_a_dump_of_another_rank_or_job(tmp_path: Path, run: Run, name: str, ranks: str, why: str) -> None:
    for b in dumps.job(2):
        b.write(tmp_path / f"comm_lib_trace_rank_{b.rank}")
    assert run("check", tmp_path).code == 0
    dump = pickle.loads((tmp_path / "comm_lib_trace_rank_1").read_bytes())
    (tmp_path / "comm_lib_trace_rank_1").unlink()
    for group in dump["pg_config"].values():
        group["ranks"] = ranks
    (tmp_path / name).write_bytes(pickle.dumps(dump))
    done = run("check", tmp_path)
    assert done.code == 3, done.out
    assert f"{name} {why}" in " ".join(done.out.split())


def test_groups_of_one_name_with_other_ranks_are_no_contradiction(tmp_path: Path, run: Run) -> None:
    """In each of its ranks a pair has a group of the same name."""
    for b in dumps.same_name_other_ranks():
        b.write(tmp_path / f"comm_lib_trace_rank_{b.rank}")
    assert "of another job" not in run("check", tmp_path).out
