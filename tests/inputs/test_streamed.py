"""Many ranks: each is examined in a process and dropped, and the result is that of captures in memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from ending_rule import EndsTheProcess

import trace_doctor.api as api
from trace_doctor.api import analyze
from trace_doctor.config import defaults
from trace_doctor.evidence.base import Options
from trace_doctor.inputs.groups import groups_of
from trace_doctor.inputs.streamed import MANY, Streamed
from trace_doctor.loaders.discover import discover
from trace_doctor.loaders.progress import Progress
from trace_doctor.loading import LoadOptions
from trace_doctor.model import Result
from trace_doctor.testing import RunBuilder, SnapshotBuilder

ROOT = Path(__file__).resolve().parents[2]


def _streamed(path: Path, monkeypatch: pytest.MonkeyPatch, **options: object) -> Result:
    with monkeypatch.context() as patch:
        patch.setattr(api, "MANY", 1)
        return analyze(path, **options)  # type: ignore[arg-type]


def _to_the_microsecond(result: Result) -> Result:
    """Seconds of a recording are differences of larger numbers here, and of smaller ones there."""
    inputs = [
        msgspec.structs.replace(i, seconds=tuple(round(s, 6) for s in i.seconds) if i.seconds else None)
        for i in result.inputs
    ]
    return msgspec.structs.replace(result, inputs=inputs)


def _same(path: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    held, streamed = analyze(path), _streamed(path, monkeypatch)
    assert _to_the_microsecond(streamed) == _to_the_microsecond(held)
    return streamed


def test_a_job_says_the_same_as_in_memory(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = _same(job, monkeypatch)
    assert len(result.inputs) == 8 and "TD602" in {f.code for f in result.findings}


@pytest.mark.parametrize(
    "sample", ["straggler/cpu/fault", "straggler/cpu/healthy", "graph_break_item/cpu/fault"]
)
def test_a_recording_says_the_same_as_in_memory(sample: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _same(ROOT / "sample_traces" / sample, monkeypatch)


def test_fixes_are_replayed_together_after_the_findings_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _same(ROOT / "sample_traces" / "dataloader_starvation" / "cpu" / "fault", monkeypatch)
    assert any(w.fixes for w in result.what_if)
    assert any(row.findings for row in result.ownership)


def test_what_only_the_launcher_says_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "recording"
    shutil.copytree(ROOT / "sample_traces" / "straggler" / "cpu" / "fault", folder)
    manifest = folder / "recording.json"
    told = msgspec.json.decode(manifest.read_bytes())
    manifest.write_bytes(msgspec.json.encode({**told, "warnings": ["the loop was not found"]}))
    result = _same(folder, monkeypatch)
    assert "the loop was not found" in result.inputs[0].warnings


@pytest.mark.parametrize("pattern", ["facebookresearch_param", "astra-sim_astra-sim"])
def test_real_jobs_say_the_same_as_in_memory(
    captures_dir: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(_same(captures_dir / "traces" / pattern, monkeypatch).ranks.read) == 8


def test_one_rank_alone_is_that_rank_alone(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _streamed(job, monkeypatch, rank=3) == analyze(job, rank=3)


def test_a_damaged_rank_is_listed_as_in_memory(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "job"
    shutil.copytree(job, folder)
    (folder / "rank3.pt.trace.json.gz").write_bytes(b"\x1f\x8b\x08nothing")
    result = _same(folder, monkeypatch)
    assert result.incomplete and "rank3" in result.incomplete[0]


def test_the_rank_whose_process_ends_is_lost_and_no_other(job: Path) -> None:
    discovery = discover([job])
    inputs = Streamed(discovery, [job], LoadOptions(processes=2), Options(), None)
    rules = [*(rule() for rule in defaults().settings.chosen()), EndsTheProcess()]
    examinations = inputs.examine(rules, detail=False, progress=Progress())
    assert [e.rank for e in examinations] == [0, 1, 3, 4, 5, 6, 7]
    [lost] = inputs.files.scope(None).ignored
    assert lost.unread and lost.path == "rank2.pt.trace.json.gz" and "was killed" in lost.reason


def test_from_many_ranks_on_captures_are_not_kept(tmp_path: Path) -> None:
    for rank in range(MANY):
        RunBuilder(rank=rank).write(tmp_path / f"rank{rank}.json")
    loaded = api._load([tmp_path], defaults().settings, api._Part(None, None, None, None), Progress())
    assert isinstance(loaded.inputs, Streamed)
    result = analyze(tmp_path, detail=True)
    assert len(result.ranks.read) == MANY
    assert any("no zoomable panels" in line for line in result.limits)


# -- groups ---------------------------------------------------------------------------------------------------------


def _groups(folder: Path) -> list[list[str]]:
    return [[f.path.name for f in g.files] for g in groups_of(discover([folder]).found)]


def test_files_of_one_rank_of_a_recording_are_never_parted() -> None:
    assert _groups(ROOT / "sample_traces" / "straggler" / "cpu" / "fault") == [
        ["rank0.detailed.json.gz", "rank0.light.json.gz"],
        ["rank1.detailed.json.gz", "rank1.light.json.gz"],
    ]
    [[*files]] = _groups(ROOT / "sample_traces" / "graph_break_item" / "cpu" / "fault")
    assert any("torch_trace" in name for name in files) and len(files) == 3


def test_a_trace_and_a_snapshot_of_a_rank_are_together(tmp_path: Path) -> None:
    for rank in range(2):
        RunBuilder(rank=rank).write(tmp_path / f"rank{rank}.json")
        SnapshotBuilder().write(tmp_path / f"rank{rank}.pickle")
    assert _groups(tmp_path) == [["rank0.json", "rank0.pickle"], ["rank1.json", "rank1.pickle"]]


def test_where_only_the_content_tells_the_rank_the_folder_is_one_group(tmp_path: Path) -> None:
    RunBuilder().write(tmp_path / "a.json")
    RunBuilder().write(tmp_path / "b.json")
    assert _groups(tmp_path) == [["a.json"], ["b.json"]], "traces alone need no other file"
    SnapshotBuilder().write(tmp_path / "rank1.pickle")
    assert _groups(tmp_path) == [["a.json", "b.json", "rank1.pickle"]]
