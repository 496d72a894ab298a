"""Summaries in a folder: what it holds is not read again, and shards of it are put together as one analysis."""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ending_rule import EndsTheProcess
from hypothesis import given
from hypothesis import strategies as st
from warm_commands import warm

from trace_doctor.api import analyze, analyze_shard, merge
from trace_doctor.config import defaults
from trace_doctor.errors import UsageError
from trace_doctor.evidence import packed
from trace_doctor.evidence.base import Options
from trace_doctor.evidence.packed import UnusableSummary
from trace_doctor.inputs import group_format, streamed
from trace_doctor.inputs.group_examination import Request, examine_group
from trace_doctor.inputs.groups import groups_of
from trace_doctor.inputs.reading import Reading
from trace_doctor.inputs.store import Shard, Store
from trace_doctor.inputs.streamed import Streamed
from trace_doctor.inputs.summaries import Summaries
from trace_doctor.loaders.discover import discover
from trace_doctor.loaders.progress import Progress
from trace_doctor.loading import LoadOptions

ROOT = Path(__file__).resolve().parents[2]
RULES = tuple(rule() for rule in defaults().settings.chosen())


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The groups that are read, by name: the real call, in this process."""
    names: list[str] = []

    def noted(group: Any, request: Any, real: Any = streamed._examined) -> bytes:
        names.append(group.name)
        return real(group, request)  # type: ignore[no-any-return]

    monkeypatch.setattr(streamed, "_examined", noted)
    monkeypatch.setattr(streamed.executors, "usable", lambda: False)
    return names


def _summaries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.td1"))


def test_a_second_analysis_reads_nothing_and_says_the_same(
    job: Path, tmp_path: Path, read: list[str]
) -> None:
    first = analyze(job, summaries=tmp_path / "store")
    assert len(read) == len(_summaries(tmp_path / "store")) == 8
    read.clear()
    assert analyze(job, summaries=tmp_path / "store") == first == analyze(job)
    assert read == []


def test_what_has_changed_is_read_again_and_nothing_else(job: Path, tmp_path: Path, read: list[str]) -> None:
    folder = tmp_path / "job"
    shutil.copytree(job, folder)
    analyze(folder, summaries=tmp_path / "store")
    read.clear()
    os.utime(folder / "rank3.pt.trace.json.gz", ns=(1, 1))
    analyze(folder, summaries=tmp_path / "store")
    assert read == ["rank3.pt.trace.json.gz"]


@pytest.mark.parametrize(
    "other", [{"select": ["TD6"]}, {"steps": (0, 2)}, {"rank": 3}, {"source": ROOT / "bench"}], ids=str
)
def test_what_is_asked_otherwise_is_not_answered_from_the_store(
    job: Path, tmp_path: Path, read: list[str], other: dict[str, Any]
) -> None:
    analyze(job, summaries=tmp_path / "store")
    read.clear()
    assert analyze(job, summaries=tmp_path / "store", **other) == analyze(job, **other)
    assert len(read) == 8


def test_a_summary_that_is_damaged_is_made_anew(job: Path, tmp_path: Path, read: list[str]) -> None:
    first = analyze(job, summaries=tmp_path / "store")
    damaged, cut, large = _summaries(tmp_path / "store")[:3]
    damaged.write_bytes(bytes(reversed(damaged.read_bytes())))
    cut.write_bytes(cut.read_bytes()[:-9])
    large.write_bytes(bytes(2 << 20))
    read.clear()
    assert analyze(job, summaries=tmp_path / "store") == first
    assert len(read) == 3


def test_a_summary_in_the_place_of_another_is_made_anew(job: Path, tmp_path: Path, read: list[str]) -> None:
    first = analyze(job, summaries=tmp_path / "store")
    one, other = _summaries(tmp_path / "store")[:2]
    one.write_bytes(other.read_bytes())
    read.clear()
    assert analyze(job, summaries=tmp_path / "store") == first
    assert len(read) == 1


def test_a_recording_is_kept_with_its_manifests(tmp_path: Path, read: list[str]) -> None:
    folder = tmp_path / "recording"
    shutil.copytree(ROOT / "sample_traces" / "straggler" / "cpu" / "fault", folder)
    assert analyze(folder, summaries=tmp_path / "store") == analyze(folder)
    read.clear()
    os.utime(folder / "rank1.recording.json", ns=(1, 1))
    analyze(folder, summaries=tmp_path / "store")
    assert read == ["rank1.detailed.json.gz"]


def test_a_rank_whose_process_ended_is_tried_again(job: Path, tmp_path: Path) -> None:
    rules, store = [*RULES, EndsTheProcess()], tmp_path / "store"
    for _ in range(2):
        inputs = Streamed(
            discover([job]),
            [job],
            LoadOptions(processes=2),
            Options(),
            None,
            Reading(Summaries(Store(store))),
        )
        assert len(inputs.examine(rules, detail=False, progress=Progress())) == 7
        assert len(_summaries(store)) == 7


# -- shards ----------------------------------------------------------------------------------------------------------


def _sharded(job: Path, store: Path, count: int, but: int | None = None) -> None:
    for number in range(count):
        if number != but:
            analyze_shard(job, summaries=store, shard=f"{number}/{count}")


@pytest.mark.parametrize("count", [1, 3, 20])
def test_shards_put_together_are_one_analysis(job: Path, tmp_path: Path, count: int) -> None:
    _sharded(job, tmp_path, count)
    assert merge(tmp_path) == analyze(job)


def test_each_group_is_of_one_shard() -> None:
    groups = groups_of(discover([ROOT / "sample_traces"]).found)
    shards = [Shard(n, 5) for n in range(5)]
    assert all(sum(shard.holds(group) for shard in shards) == 1 for group in groups)


def test_a_shard_that_is_missing_is_named(job: Path, tmp_path: Path) -> None:
    _sharded(job, tmp_path, 3, but=1)
    with pytest.raises(UsageError, match="1 of 3 shards not done: 1"):
        merge(tmp_path)
    partial = merge(tmp_path, allow_partial=True)
    assert 0 < len(partial.inputs) < 8
    assert any("shard 1 of 3" in line for line in partial.incomplete)


def test_a_shard_that_begins_again_is_none_until_it_is_done(job: Path, tmp_path: Path) -> None:
    _sharded(job, tmp_path, 2)
    summaries = Summaries(Store(tmp_path), Shard(1, 2))
    request = Request(RULES, None, Options())  # type: ignore[arg-type]  # of no group
    summaries.begin(request, [])
    with pytest.raises(UsageError, match="1 of 2 shards not done: 1"):
        merge(tmp_path)


def test_a_summary_that_is_gone_is_a_lost_rank(job: Path, tmp_path: Path) -> None:
    _sharded(job, tmp_path, 2)
    _summaries(tmp_path)[0].unlink()
    first = _summaries(tmp_path)[0]
    first.write_bytes(first.read_bytes()[:64] + b"TDCG" + bytes(40))  # behind its key
    result = merge(tmp_path)
    assert len(result.inputs) == 6
    reasons = sorted(i.reason for i in result.ignored)
    assert "cannot be read" in reasons[0] and "not in the store" in reasons[1]
    assert all(i.unread for i in result.ignored)


def test_captures_that_are_gone_are_merged_and_not_replayed(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    shutil.copytree(ROOT / "sample_traces" / "dataloader_starvation" / "cpu" / "fault", folder)
    analyze_shard(folder, summaries=tmp_path / "store", shard="0/1")
    whole = merge(tmp_path / "store")
    assert whole == analyze(folder) and whole.what_if
    shutil.rmtree(folder)
    result = merge(tmp_path / "store")
    assert [f.id for f in result.findings] == [f.id for f in whole.findings]
    assert not result.what_if
    assert any("could not be read again" in line for line in result.limits)


def test_shards_of_other_rules_or_numbers_are_not_mixed(job: Path, tmp_path: Path) -> None:
    _sharded(job, tmp_path, 2)
    with pytest.raises(UsageError, match="other rules or options"):
        merge(tmp_path, config=defaults(select=["TD6"]))
    analyze_shard(job, summaries=tmp_path, shard="0/3")
    with pytest.raises(UsageError, match="different numbers"):
        merge(tmp_path)


@pytest.mark.parametrize("shard", ["", "1", "2/2", "-1/2", "a/b", "0/0", "1/2/3", "0/１"])
def test_a_shard_is_a_number_of_a_number(job: Path, tmp_path: Path, shard: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        analyze_shard(job, summaries=tmp_path, shard=shard)


def test_a_list_of_a_shard_that_is_none_is_refused_in_one_line(job: Path, tmp_path: Path) -> None:
    _sharded(job, tmp_path, 1)
    done = tmp_path / "shard-0-of-1.done"
    told = msgspec.json.decode(done.read_bytes())
    for wrong in (b"", b"{", b"[" * 5000, msgspec.json.encode({**told, "version": 9})):
        done.write_bytes(wrong)
        with pytest.raises(UsageError, match=r"no list of a shard|another version"):
            merge(tmp_path)
    done.write_bytes(
        msgspec.json.encode({**told, "groups": [{**told["groups"][0], "key": "../../../etc/passwd"}]})
    )
    with pytest.raises(UsageError, match="no key of a summary"):
        merge(tmp_path)


def _run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*warm(), *words], cwd=folder, capture_output=True, text=True, timeout=300)


def test_on_the_command_line(job: Path, tmp_path: Path) -> None:
    analysis = ("analyze", str(job), "--summaries", "store")
    run = _run("analyze", str(job), "--shard", "0/2", folder=tmp_path)
    assert run.returncode == 2 and "--summaries" in run.stderr
    run = _run(*analysis, "--shard", "0/2", folder=tmp_path)
    assert run.returncode == 0 and "shard 0 of 2 is done" in run.stderr
    run = _run("merge", "store", folder=tmp_path)
    assert run.returncode == 2 and "1 of 2 shards not done: 1" in run.stderr
    assert _run("merge", "store", "--allow-partial", "-o", "text", folder=tmp_path).returncode == 0
    assert _run(*analysis, "--shard", "1/2", folder=tmp_path).returncode == 0
    run = _run("merge", "store", "-o", "text", folder=tmp_path)
    assert run.returncode == 0 and "TD602" in run.stdout


def test_no_output_takes_the_place_of_a_summary(job: Path, tmp_path: Path) -> None:
    assert _run("analyze", str(job), "--summaries", "store", "-q", folder=tmp_path).returncode == 0
    kept = _summaries(tmp_path / "store")[0]
    before = kept.read_bytes()
    run = _run("analyze", str(job), "--summaries", "store", "-o", f"json={kept}", folder=tmp_path)
    assert (run.returncode, kept.read_bytes()) == (2, before)
    assert "is not overwritten" in run.stderr


def test_a_pipe_in_the_place_of_a_capture_is_not_waited_for(job: Path, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    shutil.copytree(job, folder)
    assert _run("analyze", "job", "--summaries", "store", "--shard", "0/1", folder=tmp_path).returncode == 0
    for capture in folder.glob("rank*.json.gz"):
        capture.unlink()
        os.mkfifo(capture)
    run = subprocess.run(
        [*warm(), "merge", "store", "-o", "text"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0 and "TD602" in run.stdout


# -- the format of a group --------------------------------------------------------------------------------------------


def _group(folder: Path) -> Any:
    [group] = groups_of(discover([folder]).found)
    return examine_group(group, Request(RULES, streamed.Sizes.among(1, 1), Options()))


RECORDED = _group(ROOT / "sample_traces" / "dataloader_starvation" / "cpu" / "fault")
DATA = group_format.encode(RECORDED)


@given(st.lists(st.tuples(st.integers(0, 1 << 18), st.integers(0, 255)), min_size=1, max_size=9))
def test_damage_anywhere_is_a_group_or_one_line(changes: list[tuple[int, int]]) -> None:
    body = bytearray(zlib.decompress(DATA[packed._HEAD.size :]))
    for at, value in changes:
        body[at % len(body)] = value
    sealed = zlib.compress(bytes(body), 1)
    try:
        group_format.decode(packed._HEAD.pack(b"TDCG", 1, packed._checksum(sealed)) + sealed, RULES)
    except UnusableSummary as refused:
        assert "\n" not in str(refused)


def test_what_is_too_much_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_format, "MOST", len(DATA) - 1)
    [capture] = group_format.decode(group_format.encode(RECORDED), RULES).captures
    assert any("left out" in doubt for doubt in capture.examination.display.doubts)
    monkeypatch.setattr(group_format, "MOST", 2_000)
    lost = group_format.decode(group_format.encode(RECORDED), RULES)
    assert not lost.captures and len(lost.unread) == 2
