"""The cache: never wrong data, never a crash, whatever lies in its folder."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from trace_doctor.api import analyze
from trace_doctor.config import defaults
from trace_doctor.loaders.cache import SAMPLE, Cache
from trace_doctor.loaders.discover import discover
from trace_doctor.loading import Loaded, Ways, load_inputs
from trace_doctor.model import Result
from trace_doctor.run import Run
from trace_doctor.testing import RunBuilder


def write(path: Path, steps: int = 3, name: str = "gemm") -> Path:
    b = RunBuilder()
    for _ in range(steps):
        with b.step(), b.op("aten::mm"):
            b.launch(200, name)
    return b.write(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def load(folder: Path) -> Callable[..., Loaded]:
    def one(
        path: Path, *, full: bool = False, keep: bool = True, warn: Callable[[str], None] = print
    ) -> Loaded:
        ways = Ways(cache=Cache(folder, full=full), keep=keep, warn=warn)
        [loaded] = load_inputs(discover([path]).found, ways)
        return loaded

    return one


def test_the_second_time_nothing_of_the_file_is_decoded(
    tmp_path: Path, load: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write(tmp_path / "rank3.json")
    first = load(trace)
    monkeypatch.setattr("trace_doctor.loaders.kineto.load_trace", None)
    second = load(trace)
    assert (first.cached, second.cached) == (False, True)
    assert isinstance(first.outcome, Run) and isinstance(second.outcome, Run)
    assert second.outcome.names == first.outcome.names
    assert (second.outcome.path, second.outcome.rank) == ("rank3.json", 3)


def test_what_is_there_is_used_but_nothing_written_unless_asked(
    tmp_path: Path, load: Callable[..., Loaded]
) -> None:
    trace = write(tmp_path / "t.json")
    assert not load(trace, keep=False).cached
    assert not load(trace, keep=False).cached
    load(trace)
    assert load(trace, keep=False).cached


@pytest.mark.parametrize("change", ["content", "time", "grown"])
def test_a_changed_file_is_read_again(tmp_path: Path, load: Callable[..., Loaded], change: str) -> None:
    trace = write(tmp_path / "t.json", name="gemm")
    load(trace)
    before = trace.stat()
    if change == "time":
        os.utime(trace, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    else:
        text = trace.read_bytes()
        trace.write_bytes(text.replace(b"gemm", b"mmeg") if change == "content" else text + b" ")
        os.utime(trace, ns=(before.st_atime_ns, before.st_mtime_ns))
    again = load(trace)
    assert not again.cached
    assert isinstance(again.outcome, Run)
    assert ("mmeg" in again.outcome.names) == (change == "content")
    assert load(trace).cached


def test_a_change_between_the_samples_is_seen_by_the_full_hash(
    tmp_path: Path, load: Callable[..., Loaded]
) -> None:
    trace = write(tmp_path / "t.json", steps=8)
    text = trace.read_bytes()
    trace.write_bytes(text[:-2] + b" " * (64 * SAMPLE) + text[-2:])
    load(trace, full=True)
    assert load(trace, full=True).cached
    before = trace.stat()
    with trace.open("r+b") as file:
        file.seek(40 * SAMPLE)
        file.write(b"\t")
    os.utime(trace, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load(trace, keep=False).cached, "unseen by samples; else this test shows nothing"
    assert not load(trace, full=True).cached


def test_an_entry_of_other_code_is_not_used(
    tmp_path: Path, load: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write(tmp_path / "t.json")
    load(trace)
    monkeypatch.setattr("trace_doctor.loaders.cache.code", lambda: "other")
    assert not load(trace).cached


@pytest.mark.parametrize("junk", [b"", b"junk", b"\0" * 100_000])
def test_a_damaged_entry_is_written_anew(
    tmp_path: Path, folder: Path, load: Callable[..., Loaded], junk: bytes
) -> None:
    trace = write(tmp_path / "t.json")
    load(trace)
    [entry] = folder.iterdir()
    entry.write_bytes(junk)
    assert not load(trace).cached
    assert load(trace).cached


@pytest.mark.skipif(os.name == "nt", reason="links and permissions of POSIX")
@pytest.mark.parametrize("foreign", ["link", "fifo", "folder", "writable by all"])
def test_an_entry_that_is_no_file_of_ours_is_not_used(
    tmp_path: Path, folder: Path, load: Callable[..., Loaded], foreign: str
) -> None:
    trace = write(tmp_path / "t.json")
    load(trace)
    [entry] = folder.iterdir()
    if foreign == "writable by all":
        entry.chmod(0o666)
    else:
        entry.rename(tmp_path / "moved")
        {
            "link": lambda: entry.symlink_to(tmp_path / "moved"),
            "fifo": lambda: os.mkfifo(entry),
            "folder": entry.mkdir,
        }[foreign]()
    warnings: list[str] = []
    again = load(trace, warn=warnings.append)
    assert not again.cached and isinstance(again.outcome, Run)
    if foreign == "folder":  # cannot be replaced by a file: said once, and nothing else happens
        assert len(warnings) == 1
    else:
        assert load(trace).cached


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_only_the_owner_can_look_inside(tmp_path: Path, folder: Path, load: Callable[..., Loaded]) -> None:
    load(write(tmp_path / "t.json"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [p.stat().st_mode & 0o777 for p in folder.iterdir()] == [0o600]


@pytest.mark.skipif(os.name == "nt", reason="links of POSIX")
def test_a_folder_behind_a_link_is_neither_read_nor_written(
    tmp_path: Path, folder: Path, load: Callable[..., Loaded]
) -> None:
    trace = write(tmp_path / "t.json")
    load(trace)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    warnings: list[str] = []
    assert not load(trace, warn=warnings.append).cached
    assert len(warnings) == 1


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    warnings: list[str] = []
    ways = Ways(cache=Cache(tmp_path / "file" / "cache"), keep=True, warn=warnings.append)
    traces = [write(tmp_path / f"rank{i}.json") for i in range(3)]
    loaded = load_inputs(discover(traces).found, ways)
    assert all(isinstance(one.outcome, Run) for one in loaded)
    assert len(warnings) == 1 and len(warnings[0].splitlines()) == 1


def test_arguments_are_read_from_the_file_itself(tmp_path: Path, load: Callable[..., Loaded]) -> None:
    trace = write(tmp_path / "t.json")
    zipped = tmp_path / "z.json.gz"
    zipped.write_bytes(gzip.compress(trace.read_bytes()))
    for path in (trace, zipped):
        fresh, cached = load(path).outcome, load(path).outcome
        assert isinstance(fresh, Run) and isinstance(cached, Run)
        rows = list(range(len(fresh)))
        assert cached.args(rows) == fresh.args(rows)
        assert any(cached.args(rows))


def test_what_lies_beside_the_trace_counts_as_it_is_now(tmp_path: Path, load: Callable[..., Loaded]) -> None:
    trace = write(tmp_path / "t.json")
    load(trace)
    (tmp_path / "environment.json").write_text('{"torch": "2.9.1", "cpu_count": 12}')
    again = load(trace)
    assert again.cached and isinstance(again.outcome, Run)
    assert again.outcome.torch_version.min == "2.9.1"
    assert again.outcome.meta["cpu_count"] == 12
    assert "Nesting.parent" in again.outcome.derived


def test_nothing_is_left_behind_when_writing_fails(
    tmp_path: Path, folder: Path, load: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trace_doctor.loaders.columns.write", full)
    warnings: list[str] = []
    assert isinstance(load(write(tmp_path / "t.json"), warn=warnings.append).outcome, Run)
    assert list(folder.iterdir()) == []
    assert "No space left" in warnings[0]


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path, folder: Path) -> None:
    traces = [write(tmp_path / f"{name}.json") for name in ("old", "used", "new")]

    def load(trace: Path, cache: Cache) -> bool:
        [loaded] = load_inputs(discover([trace]).found, Ways(cache=cache, keep=True))
        return loaded.cached

    for second, trace in enumerate(traces[:2]):
        load(trace, Cache(folder))
        os.utime(Cache(folder).entry(trace), (second, second))
    os.utime(Cache(folder).entry(traces[1]), (0, 0))
    assert load(traces[1], Cache(folder))  # a use counts, not when it was made
    room = sum(Cache(folder).sizes()) + 1
    assert not load(traces[2], Cache(folder, limit=room))
    assert [load(t, Cache(folder)) for t in (traces[1], traces[2], traces[0])] == [True, True, False]


def test_what_one_analysis_keeps_is_not_deleted_by_itself(tmp_path: Path, folder: Path) -> None:
    traces = [write(tmp_path / f"rank{rank}.json") for rank in range(3)]
    for expected in (False, True):
        loaded = load_inputs(discover(traces).found, Ways(cache=Cache(folder, limit=1), keep=True))
        assert [one.cached for one in loaded] == [expected] * 3


def test_what_an_analysis_made_of_a_trace_is_kept_beside_its_columns(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write(tmp_path / "t.json")

    def analyzed(cache: str) -> Result:
        chosen = defaults(cache=cache, cache_dir=str(folder))
        return replace(analyze(trace, config=chosen), config={})

    first = analyzed("write")
    [entry] = folder.glob("*.evidence.columns")
    with monkeypatch.context() as nothing_made:
        nothing_made.setattr("trace_doctor.evidence.steps.Steps.build", None)
        assert analyzed("read") == first
    whole = entry.read_bytes()
    for wrong in (whole[:-1], whole[:-40] + bytes(40), b"", whole.replace(b'"Steps"', b'"Stepz"')):
        entry.write_bytes(wrong)
        assert analyzed("read") == first
    write(trace, steps=5)
    assert [len(r.steps) for r in (first, analyzed("read"))] == [3, 5]
