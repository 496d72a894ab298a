"""Ranks that a recording, the baseline, the job or --ranks expects and that are not there."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_captures import healthy, job

from trace_doctor.testing import SnapshotBuilder

Run = Callable[..., Any]
SAMPLES = Path(__file__).parents[2] / "sample_traces"


def test_one_rank_alone_passes_and_says_so_first(repository: Path, run: Run) -> None:
    job(repository / "logs", [3], 8)
    said = "1 of 8 ranks; rules over several ranks did not run"
    done = run("check", "logs")
    assert (done.code, said in done.out.splitlines()[0], said in done.err + done.out) == (0, True, True)
    done = run("check", "logs", "-o", "json")
    assert (done.result.ranks.read, done.result.ranks.world, done.result.ranks.note) == ([3], 8, said)
    assert said in done.err
    assert run("check", "logs", "--ranks", "all").code == 3
    assert run("check", "logs", "--ranks", "all", "--allow-partial").code == 0
    assert [run("check", "logs", "--ranks", n).code for n in (1, 2)] == [0, 3]
    assert said in run("analyze", "logs", "-o", "text").out.splitlines()[0]


@pytest.mark.parametrize("layout", ["a", "a/rank{}"])
def test_several_ranks_but_not_all(repository: Path, run: Run, layout: str) -> None:
    for rank in range(4):
        job(repository / "logs" / layout.format(rank), [rank], 4)
    assert run("check", "logs", "--ranks", "all").code == 0
    assert run("check", "logs", "--ranks", 4).code == 0
    next((repository / "logs").rglob("rank2.json")).unlink()
    done = run("check", "logs", "-o", "json")
    assert done.code == 3
    assert "3 of 4 ranks were read" in done.result.gate.verdict
    assert "rank 2" in done.result.gate.verdict
    assert run("check", "logs", "--allow-partial").code == 0
    assert run("check", "logs", "--rank", 1).code == 0, "one that was asked for"


def test_a_folder_for_each_machine(repository: Path, run: Run) -> None:
    for machine in range(2):
        job(repository / "logs" / f"node{machine}", range(2 * machine, 2 * machine + 2), 4)
    assert run("check", "logs", "--ranks", "all").code == 0
    (repository / "logs" / "node1" / "rank3.json").unlink()
    done = run("check", "logs")
    assert done.code == 3
    assert "1 of 4 ranks was read in node1" in " ".join((done.err + done.out).split())


def test_a_snapshot_of_a_rank_is_not_its_trace(repository: Path, run: Run) -> None:
    job(repository / "logs", [0], 2)
    b = SnapshotBuilder()
    b.train()
    b.write(repository / "logs" / "rank1.snapshot.pickle")
    assert [run("check", "logs", "--ranks", n).code for n in (1, 2, "all")] == [0, 3, 3]


def test_a_run_that_lacks_ranks_beside_a_whole_one(repository: Path, run: Run) -> None:
    job(repository / "logs" / "1", range(3), 3)
    for there in ([0, 1], [0]):
        job(repository / "logs" / "2", there, 3)
        assert run("check", "logs").code == 3
        for file in (repository / "logs" / "2").iterdir():
            file.unlink()
    job(repository / "logs" / "2", range(3), 3)
    assert run("check", "logs").code == 0


def test_ranks_beyond_the_job_stand_for_none_of_it(repository: Path, run: Run) -> None:
    job(repository / "logs", [0, 5], 2)
    done = run("check", "logs", "-o", "json")
    assert (done.code, "1 of 2 ranks was read: nothing of rank 1" in done.result.gate.verdict) == (3, True)


def test_jobs_of_any_size_are_counted_without_counting(repository: Path, run: Run) -> None:
    job(repository / "logs", [0, 1], 2**50)
    assert run("check", "logs").code == 3


def test_rank_zero_of_two_jobs_is_one_rank_alone(repository: Path, run: Run) -> None:
    for name in ("a", "b"):
        job(repository / "logs" / name, [0], 8)
    assert run("check", "logs").code == 0


@pytest.mark.parametrize("ranks", ["0", "-1", "some", "1e9", "99999999", "1.5", ""])
def test_a_number_of_ranks_that_is_none(repository: Path, run: Run, ranks: str) -> None:
    job(repository / "logs", [0], 1)
    done = run("check", "logs", f"--ranks={ranks}")
    assert (done.code, len(done.err.splitlines())) == (2, 1)


def test_all_ranks_of_a_job_whose_size_nobody_knows(logs: Path, run: Run) -> None:
    healthy(None).write(logs / "rank0.pt.trace.json")
    done = run("check", "logs", "--ranks", "all")
    assert (done.code, "give --ranks N" in done.err + done.out) == (3, True)


def recording(folder: Path, ranks: list[int], listed: Any) -> None:
    folder.mkdir(parents=True)
    for rank in ranks:
        made = healthy(rank, len(listed) if isinstance(listed, list) else 1).write(folder / "t.json")
        (folder / f"rank{rank}.light.json.gz").write_bytes(gzip.compress(made.read_bytes()))
        (folder / f"rank{rank}.recording.json").write_text(json.dumps({"rank": rank}))
        made.unlink()
    (folder / "recording.json").write_text(
        listed if isinstance(listed, str) else json.dumps({"ranks": listed})
    )


def test_a_recording_that_lists_more_ranks_than_were_read(repository: Path, run: Run) -> None:
    recording(repository / "logs", [0, 1], [0, 1])
    assert run("check", "logs").code == run("check", "logs/*").code == 0
    (repository / "logs" / "rank1.light.json.gz").unlink()
    for given in ("logs", "logs/*.gz", "logs/rank0.light.json.gz"):
        done = run("check", given, "-o", "json")
        assert (done.code, "nothing was read of rank 1" in done.result.gate.verdict) == (3, True)
    assert done.result.ranks.recorded == [0, 1]
    assert run("check", "logs", "--rank", 0).code == run("check", "logs", "--allow-partial").code == 0


def test_a_capture_that_the_manifest_names_and_that_is_gone(repository: Path, run: Run) -> None:
    logs = repository / "logs"
    recording(logs, [0, 1], [0, 1])
    detailed = logs / "rank1.detailed.json"
    healthy(1, 2, steps=5).write(detailed)
    files = {
        "light": "rank1.light.json.gz",
        "detailed": "rank1.detailed.json.gz",
        "later": "../rank1.later.pickle",
    }
    (logs / "rank1.recording.json").write_text(json.dumps({"files": files}))
    assert run("check", "logs").code == 0, "unpacked since"
    for name in ("rank1.light.json.gz", "rank1.detailed.json"):
        kept = (logs / name).read_bytes()
        (logs / name).unlink()
        done = run("check", "logs", "-o", "json")
        stem = name.removesuffix(".gz")
        assert (done.code, f"{stem}.gz was recorded and is not there" in done.result.gate.verdict) == (
            3,
            True,
        )
        assert run("check", "logs", "--allow-partial").code == run("check", "logs", "--rank", 0).code == 0
        (logs / name).write_bytes(kept)
    (logs / "recording.json").write_text(json.dumps({"ranks": [0, 1]}))
    (logs / "rank1.recording.json").unlink()
    done = run("check", "logs", "-o", "json")
    assert (done.code, "rank1.recording.json was recorded and is not there" in done.result.gate.verdict) == (
        3,
        True,
    )


def test_a_file_of_a_recording_that_is_of_another_rank(repository: Path, run: Run) -> None:
    logs = repository / "logs"
    recording(logs, [0, 1], [0, 1])
    shutil.copy(logs / "rank1.light.json.gz", logs / "rank0.light.json.gz")
    done = run("check", "logs", "-o", "json")
    assert done.code == 3
    assert "rank0.light.json.gz is of rank 0 by its name, and holds rank 1" in done.result.gate.verdict


@pytest.mark.parametrize("name", ["rank{}.json", "rank_{}/trace.json", "worker{}.pt.trace.json"])
def test_ranks_by_name_that_are_one_by_content(repository: Path, run: Run, name: str) -> None:
    """Whatever their content is otherwise: no one can tell which ranks were recorded."""
    for rank in range(4):
        (repository / "logs" / name.format(rank)).parent.mkdir(parents=True, exist_ok=True)
        healthy(0, 4, steps=6 + rank).write(repository / "logs" / name.format(rank))
    done = run("check", "logs", "-o", "json")
    assert (
        done.code,
        "are of 4 ranks by their names, and each holds rank 0" in done.result.gate.verdict,
    ) == (
        3,
        True,
    )
    assert run("check", "logs", "--allow-partial").code == 0


def test_names_that_number_something_else(repository: Path, run: Run) -> None:
    """Ranks of each machine, and of a factorisation, beside those of the job."""
    for folder in ("logs", "sweep"):
        (repository / folder).mkdir(exist_ok=True)
    for rank in range(4):
        healthy(rank, 4).write(repository / "logs" / f"node{rank // 2}_local_rank{rank % 2}.json")
    assert run("check", "logs", "--ranks", "all").code == 0
    for number in (8, 16):
        healthy(0, 4, steps=number).write(repository / "sweep" / f"lora_rank{number}.json")
    assert run("check", "sweep").code == 0


def test_a_copy_is_no_other_rank(repository: Path, run: Run) -> None:
    """Where only the names say ranks."""
    logs = repository / "logs"
    logs.mkdir(exist_ok=True)
    for rank in range(2):
        healthy(None, steps=6 + rank).write(logs / f"rank{rank}.json")
    assert run("check", "logs", "--ranks", 2).code == 0
    shutil.copy(logs / "rank0.json", logs / "rank1.json")
    done = run("check", "logs", "--ranks", 2, "-o", "json")
    assert (done.code, "rank1.json is a copy of rank0.json" in done.result.gate.verdict) == (3, True)


@pytest.mark.parametrize("name", ["rank{}.json", "rank{}/trace.json"])
def test_a_link_to_a_rank_is_no_other_rank(repository: Path, run: Run, name: str) -> None:
    logs = repository / "logs"
    (logs / name.format(0)).parent.mkdir(parents=True, exist_ok=True)
    healthy(0, 2).write(logs / name.format(0))
    (logs / "latest").symlink_to(name.format(0).split("/")[0])
    assert run("check", "logs").code == 0
    (logs / name.format(1).split("/")[0]).symlink_to(name.format(0).split("/")[0])
    done = run("check", "logs", "-o", "json")
    assert (done.code, [i.path for i in done.result.unread]) == (3, [name.format(1)])


@pytest.mark.parametrize("manifest", ["", "\0" * 64, "[0, 1]", '{"ranks": [0, 1', "{}" * 2])
def test_a_manifest_that_cannot_be_read(repository: Path, run: Run, manifest: str) -> None:
    recording(repository / "logs", [0], manifest)
    done = run("check", "logs", "-o", "json")
    assert (done.code, "recording.json was not read" in done.result.gate.verdict) == (3, True)


@pytest.mark.parametrize(
    "ranks", [[0, -1], [True], ["0"], [None], [0.0], [10**12], "2", None, {}, {"0": 1}, 1e9, 2, []]
)
def test_a_manifest_whose_ranks_are_none_cannot_be_read(repository: Path, run: Run, ranks: Any) -> None:
    recording(repository / "logs", [0], json.dumps({"ranks": ranks, "exit_code": 0}))
    done = run("check", "logs", "-o", "json")
    assert (done.code, "recording.json was not read" in done.result.gate.verdict) == (3, True)
    assert run("check", "logs", "--allow-partial").code == 0


@pytest.mark.parametrize(
    "files", [{"light": "../../../../etc/passwd"}, {"peak": "/etc/shadow"}, {"light": None}, []]
)
def test_a_manifest_whose_captures_are_no_files_of_a_recording(
    repository: Path, run: Run, files: Any
) -> None:
    recording(repository / "logs", [0, 1], [0, 1])
    (repository / "logs" / "rank1.recording.json").write_text(json.dumps({"pid": 1, "files": files}))
    done = run("check", "logs")
    said = done.out + done.err
    assert (done.code, "rank1.recording.json was not read" in said) == (3, True)
    assert "passwd" not in said and "shadow" not in said


def test_a_manifest_without_ranks_expects_none(repository: Path, run: Run) -> None:
    recording(repository / "logs", [0], json.dumps({"exit_code": 0}))
    assert run("check", "logs").code == 0


def test_a_recording_without_any_capture_beside_a_whole_one(repository: Path, run: Run) -> None:
    recording(repository / "logs" / "1", [0], [0])
    recording(repository / "logs" / "2", [], [0])
    done = run("check", "logs", "-o", "json")
    assert (done.code, "the recording logs/2 has rank 0" in done.result.gate.verdict) == (3, True)


def test_a_baseline_of_more_ranks(repository: Path, run: Run) -> None:
    job(repository / "logs", range(2), 2)
    assert run("check", "logs", "--baseline", "b.json", "--update-baseline").code == 0
    (repository / "logs" / "rank1.json").unlink()
    done = run("check", "logs", "--baseline", "b.json", "-o", "json")
    assert (done.code, "the baseline has 2" in done.result.gate.verdict) == (3, True)
    assert run("check", "logs", "--baseline", "b.json", "--allow-partial").code == 0


def test_what_was_seen_in_part_is_no_baseline(repository: Path, run: Run) -> None:
    job(repository / "logs", range(2), 2)
    (repository / "logs" / "rank1.json").write_bytes(b"")
    on_main = ("check", "logs", "--baseline", "b.json", "--update-baseline")
    for more in ((), ("--exit-zero",)):
        done = run(*on_main, *more)
        assert (done.code, "baseline not written: rank1.json" in done.err) == (0 if more else 3, True)
        assert not (repository / "b.json").exists()
    assert run(*on_main, "--allow-partial").code == 0
    assert (repository / "b.json").exists()


def test_accepting_what_is_found_in_part_is_undecided_though_something_is_found(
    repository: Path, run: Run
) -> None:
    job(repository / "logs", range(2), 3)
    done = run(
        "check", "logs", "--fail-on", "info", "--baseline", "b.json", "--update-baseline", "--select", "ALL"
    )
    assert (done.code, (repository / "b.json").exists()) == (3, False)


def test_a_rule_that_could_not_look_at_one_of_the_ranks(repository: Path, run: Run) -> None:
    """It passed on the other; required, it did not pass, and the output names the capture."""
    job(repository / "logs", [0, 1], 2)
    b = SnapshotBuilder()
    b.train()
    b.write(repository / "logs" / "rank0.snapshot.pickle")
    chosen = ("check", "logs", "--select", "TD406", "--fail-on", "never", "--show-skipped")
    done = run(*chosen)
    said = " ".join(done.out.split())
    assert (done.code, "TD406 on rank1.json: no memory snapshot" in said) == (0, True), said
    done = run(*chosen, "--require", "TD406")
    said = " ".join((done.out + done.err).split())
    assert (done.code, "TD406 (skipped on rank1.json: no memory snapshot" in said) == (3, True), said


def test_a_detailed_trace_of_another_process_is_not_passed_over(repository: Path, run: Run) -> None:
    """Findings come from the light trace, which is healthy."""
    sample = SAMPLES / "dataloader_starvation" / "cpu"
    shutil.copytree(sample / "healthy", repository / "recorded")
    assert run("check", "recorded").code == 0
    shutil.copy(sample / "fault" / "rank0.detailed.json.gz", repository / "recorded")
    done = run("check", "recorded")
    assert (done.code, "are of different processes" in done.out) == (3, True), done.out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda trace: trace["distributedInfo"].update(backend="gloo"), "backend gloo, and nccl"),
        (lambda trace: trace["distributedInfo"].update(nccl_version="2.19.3"), ""),
        (lambda trace: trace.update(baseTimeNanoseconds=trace["baseTimeNanoseconds"] + 600 * 10**9), "10 min apart"),
        (lambda trace: trace.update(baseTimeNanoseconds=trace["baseTimeNanoseconds"] + 60 * 10**9), ""),
        (lambda trace: trace.update(baseTimeNanoseconds=0), ""),
        (lambda trace: trace["distributedInfo"].update(world_size=1), "is of rank 1, and says that its job has 1 rank"),
        (lambda trace: trace["distributedInfo"].update(world_size=8), "rank0.json says that its job has 2 ranks, rank1.json that it has 8"),
        (lambda trace: _renumber(trace, 100), "has none of the steps of"),
        (lambda trace: _renumber(trace, 1), ""),
    ],
)  # fmt: skip
def test_ranks_of_two_jobs_in_one_folder(
    repository: Path, run: Run, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    job(repository / "logs", [0, 1], 2)
    rank_1 = repository / "logs" / "rank1.json"
    trace = json.loads(rank_1.read_bytes())
    change(trace)
    rank_1.write_text(json.dumps(trace))
    done = run("check", "logs", "--ranks", 2)
    assert (done.code, says in done.err + done.out) == (3 if says else 0, True), done.err
    assert run("check", "logs", "--rank", 0).code == 0
    assert run("check", "logs", "--allow-partial").code == 0


def _renumber(trace: dict[str, Any], by: int) -> None:
    for event in trace["traceEvents"]:
        if event["name"].startswith("ProfilerStep#"):
            event["name"] = f"ProfilerStep#{int(event['name'].partition('#')[2]) + by}"


def test_a_rank_that_the_recording_does_not_list(repository: Path, run: Run) -> None:
    logs = repository / "logs"
    recording(logs, [0, 1, 2], [0, 1])
    done = run("check", "logs")
    assert (done.code, "recording.json does not list rank 2" in done.err + done.out) == (3, True)
    assert run("check", "logs", "--rank", 0).code == run("check", "logs", "--allow-partial").code == 0
