"""Captures at a URL: `memory://` is a file system as S3 is, but for the network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from warm_commands import FRESH, MAIN

from trace_doctor.api import analyze, analyze_shard, merge
from trace_doctor.errors import NoCaptures, UsageError
from trace_doctor.inputs import remote
from trace_doctor.reporters import render
from trace_doctor.testing import SnapshotBuilder

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("fsspec.implementations.memory")
URL = "memory://bucket/job"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bucket(job: Path) -> Iterator[Any]:
    """With the job of eight ranks."""
    system = fsspec.filesystem("memory")
    system.put(f"{job}/", "/bucket/job/", recursive=True)
    yield system
    system.rm("/bucket", recursive=True)


@pytest.fixture(autouse=True)
def short_beginnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that not one of these files is whole before it is read."""
    monkeypatch.setattr(remote, "_HEAD", 2048)


def test_the_result_is_that_of_the_folder(job: Path, bucket: Any, tmp_path: Path) -> None:
    assert analyze(URL) == analyze(job, summaries=tmp_path)


def test_a_recording_with_all_that_belongs_to_it(bucket: Any, tmp_path: Path) -> None:
    sample = ROOT / "sample_traces" / "dataloader_starvation" / "cpu" / "fault"
    bucket.put(f"{sample}/", "/bucket/sample/fault/", recursive=True)
    result = analyze("memory://bucket/sample/fault")
    assert result == analyze(sample, summaries=tmp_path) and result.what_if and not result.limits


def test_one_object_can_be_named(bucket: Any, job: Path, tmp_path: Path) -> None:
    one = "rank3.pt.trace.json.gz"
    assert analyze(f"{URL}/{one}") == analyze(job / one, summaries=tmp_path)


def test_whole_files_are_there_only_while_they_are_read(
    bucket: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    most, real = [0], remote.Remote.fetch

    def counted(self: Any, group: Any) -> None:
        real(self, group)
        most.append(len([p for p in self._objects if self._used[p] and p in self._begins]))

    monkeypatch.setattr(remote.Remote, "fetch", counted)
    analyze(URL, max_memory="4GB", select=["TD6"])
    assert 0 < max(most) <= 4, "two for each of the processes"
    assert not list(tmp_path.iterdir())


def test_an_object_that_changes_meanwhile_is_not_read(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = remote.Remote.fetch

    def changing(self: Any, group: Any) -> None:
        if "rank5" in group.name:
            other = bucket.cat("/bucket/job/rank4.pt.trace.json.gz")
            bucket.pipe("/bucket/job/rank5.pt.trace.json.gz", other)
        real(self, group)

    monkeypatch.setattr(remote.Remote, "fetch", changing)
    result = analyze(URL)
    [lost] = [i for i in result.ignored if i.unread]
    assert lost.path == "rank5.pt.trace.json.gz" and "has changed" in lost.reason
    assert result.incomplete and len(result.ranks.read) == 7


def test_an_object_that_fails_costs_its_rank(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = type(bucket).get_file

    def failing(self: Any, key: str, *rest: Any, **options: Any) -> Any:
        if "rank5" in key:
            raise ConnectionResetError("the connection was reset")
        return real(self, key, *rest, **options)

    monkeypatch.setattr(type(bucket), "get_file", failing)
    [lost] = [i for i in analyze(URL).ignored if i.unread]
    assert lost.path == "rank5.pt.trace.json.gz" and "connection was reset" in lost.reason


def test_what_a_folder_of_summaries_holds_is_not_read_again(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert analyze(URL, summaries=tmp_path) == analyze(URL, summaries=tmp_path)
    first = analyze(URL, summaries=tmp_path, select=["TD5"])
    read: list[str] = []
    real = remote.Remote.fetch

    def noted(self: Any, group: Any) -> None:
        read.append(group.name)
        real(self, group)

    monkeypatch.setattr(remote.Remote, "fetch", noted)
    assert analyze(URL, summaries=tmp_path, select=["TD5"]) == first and not read
    bucket.pipe("/bucket/job/rank2.pt.trace.json.gz", bucket.cat("/bucket/job/rank2.pt.trace.json.gz"))
    assert analyze(URL, summaries=tmp_path, select=["TD5"]) == first and read == ["rank2.pt.trace.json.gz"]


def test_shards_of_a_url_put_together_are_one_analysis(bucket: Any, tmp_path: Path) -> None:
    for number in range(2):
        analyze_shard(URL, summaries=tmp_path / "store", shard=f"{number}/2")
    whole = analyze(URL)
    assert whole.ownership and merge(tmp_path / "store", urls=[URL]) == whole
    bucket.pipe("/bucket/job/rank5.pt.trace.json.gz", bucket.cat("/bucket/job/rank5.pt.trace.json.gz"))
    changed = merge(tmp_path / "store", urls=[URL])
    assert any("could not be read again" in limit for limit in changed.limits)
    bucket.rm("/bucket/job", recursive=True)
    gone = merge(tmp_path / "store", urls=[URL])
    assert [f.message for f in gone.findings] == [f.message for f in whole.findings]
    assert any("could not be read again" in limit for limit in gone.limits)


def test_a_folder_of_summaries_opens_no_connection(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may have written it, and the URL in it."""
    for number in range(2):
        analyze_shard(URL, summaries=tmp_path / "store", shard=f"{number}/2")
    whole = analyze(URL)
    monkeypatch.setattr("trace_doctor.inputs.remote._listed", lambda url: pytest.fail(f"connects to {url}"))
    alone = merge(tmp_path / "store")
    assert [f.message for f in alone.findings] == [f.message for f in whole.findings]
    assert any("could not be read again" in limit for limit in alone.limits)


def test_copies_are_told_from_equal_beginnings(bucket: Any, tmp_path: Path) -> None:
    """Also where a summary from an earlier place is used again."""
    folder = tmp_path / "snapshots"
    folder.mkdir()
    b = SnapshotBuilder()
    for _ in range(40):
        b.alloc(4096)
    b.write(folder / "rank0.pickle")
    data = (folder / "rank0.pickle").read_bytes()
    (folder / "rank1.pickle").write_bytes(data)
    at = data.rindex(b"version") if b"version" in data[2048:] else data.rindex(b"device")
    (folder / "rank2.pickle").write_bytes(data[:at] + data[at : at + 1].upper() + data[at + 1 :])
    bucket.put(f"{folder}/", "/bucket/snapshots/", recursive=True)
    here = analyze(folder, summaries=tmp_path / "here")
    said = str(msgspec.to_builtins(here))
    assert "rank1.pickle is a copy of rank0.pickle" in said and "rank2.pickle is a copy" not in said
    for _ in range(2):
        assert analyze("memory://bucket/snapshots", summaries=tmp_path / "there") == here


def test_names_that_lead_elsewhere_are_named_and_not_written(bucket: Any, tmp_path: Path) -> None:
    system = type(bucket)
    name = "/bucket/job/../../../evil.json.gz"
    system.store[name] = system.store["/bucket/job/rank1.pt.trace.json.gz"]
    try:
        result = analyze(URL, select=["TD5"])
    finally:
        del system.store[name]
    assert any(i.unread and "no name of a file" in i.reason for i in result.ignored)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"perfetto": "p.json"}, "a URL: perfetto and critical_path"),
        ({"executor": "dask:127.0.0.1:9"}, "read by this machine"),
        ({"summaries": "memory://bucket/store"}, "one of this machine"),
    ],
)
def test_what_cannot_be_is_said(bucket: Any, options: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        analyze(URL, **options)  # type: ignore[arg-type]


def test_nothing_there_is_said_with_its_url(bucket: Any, tmp_path: Path) -> None:
    with pytest.raises(NoCaptures, match="memory://bucket/nothing: nothing is there"):
        analyze("memory://bucket/nothing")
    bucket.pipe("/bucket/other/notes.txt", b"words")
    with pytest.raises(NoCaptures, match="memory://bucket/other") as error:
        analyze("memory://bucket/other")
    assert "trace-doctor-" not in str(error.value)
    with pytest.raises(UsageError, match="nosuch"):
        analyze("nosuch://bucket/job")


class Signed(fsspec.implementations.memory.MemoryFileSystem):  # type: ignore[misc]
    """Objects behind an address that holds a password and a signature, as those of HTTP do."""

    protocol = "signed"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(
            "memory://" + path.partition("?")[0].rpartition("@")[2].removeprefix("signed://")
        )

    def unstrip_protocol(self, name: str) -> str:
        return f"signed://me:hunter2@{name.lstrip('/')}?X-Signature=0123abcd"


def test_no_password_and_no_signature_of_a_url_is_shown(
    bucket: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fsspec.register_implementation("signed", Signed, clobber=True)
    bucket.pipe("/bucket/job/rank9.json", b"{")
    result = analyze("signed://me:hunter2@bucket/job?X-Signature=0123abcd")
    written = render(result, "html") + render(result, "json") + caplog.text
    for url in (
        "signed://me:hunter2@bucket/none?X-Signature=0123abcd",
        "s4://me:hunter2@b/c?X-Signature=0123abcd",
    ):
        with pytest.raises((NoCaptures, UsageError)) as error:
            analyze(url)
        written += str(error.value)
    assert "signed://bucket/none?***" in written
    assert "hunter2" not in written and "0123abcd" not in written


def test_without_fsspec_the_extra_is_named(tmp_path: Path) -> None:
    without = (sys.executable, "-c", f"import sys; sys.modules['fsspec'] = None; {MAIN}")
    done = subprocess.run(
        [*without, "analyze", URL], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "pip install 'trace-doctor[remote]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_command_reads_an_url(job: Path, tmp_path: Path) -> None:
    url = (tmp_path / "job").as_uri()
    shutil.copytree(job, tmp_path / "job")
    done = subprocess.run(
        [*FRESH, "check", url, "-o", "json=there.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and (tmp_path / "there.json").stat().st_size, done.stderr
    assert "trace-doctor-" not in (tmp_path / "there.json").read_text()
