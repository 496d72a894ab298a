"""Finding captures below folders, files and globs."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_captures import tar

import trace_doctor
from trace_doctor.errors import DamagedCapture, NoCaptures, NotACapture, UsageError
from trace_doctor.loaders.discover import Discovery, discover
from trace_doctor.recording import folder as recordings

TRACE = json.dumps(
    {"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}]}
)
LEGACY = json.dumps(
    [{"name": "aten::mm", "ph": "X", "ts": 1, "dur": 1, "tid": 1, "pid": "CPU functions", "args": {}}]
)
HOROVOD = '[{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1}},'
SNAPSHOT = pickle.dumps({"segments": [], "device_traces": [[]]})
TORCH_LOG = 'V0401 12:00:00.123456 77 torch/_logging/structured.py:22] {"str": ["a.py", 0]}\n'


def put(folder: Path, name: str, content: str | bytes = TRACE) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def shown(discovery: Discovery) -> list[tuple[str, str]]:
    return [(f.display, f.kind) for f in discovery.found]


@pytest.mark.parametrize(("before", "how"), [(100, "name it to have it read"), (300_000, "extract it first")])
def test_a_trace_in_a_page_is_named_with_what_helps(tmp_path: Path, before: int, how: str) -> None:
    events = '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1},' * 20
    put(tmp_path, "rank0.json")
    page = put(tmp_path, "page.md", "x" * before + '\n{"traceEvents": [' + events[:-1] + "]}")
    [listed] = discover([tmp_path]).ignored
    assert listed.reason.endswith(how)
    if "name it" in how:
        assert [f.path for f in discover([page]).found] == [page]


@pytest.mark.parametrize(
    "magic", [b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07"]
)
@pytest.mark.parametrize("name", ["data.bin", "backup", "shard.0001"])
def test_what_nobody_can_look_into_is_listed_and_is_no_capture(
    tmp_path: Path, name: str, magic: bytes
) -> None:
    put(tmp_path, "rank0.json")
    put(tmp_path, name, magic + bytes(range(256)))
    [listed] = discover([tmp_path]).ignored
    assert (listed.display, listed.unread) == (name, False)
    assert "first" in listed.reason or "damaged" in listed.reason, (
        "how it can be looked into, or that it cannot"
    )


@pytest.mark.parametrize("call", [trace_doctor.analyze, trace_doctor.load, trace_doctor.verify])
@pytest.mark.parametrize("paths", [["a.json", "b.json"], [], None, b"a.json"])
def test_what_is_no_path_is_refused_in_a_line(call: Callable[..., Any], paths: Any) -> None:
    with pytest.raises(UsageError, match=r"^a path is text or a Path, not a \w+; several paths are several"):
        call(paths, *([paths] if call is trace_doctor.verify else []))


def test_a_folder_of_a_run(tmp_path: Path) -> None:
    """As `tensorboard_trace_handler`, `_dump_snapshot` and TORCH_TRACE leave it, with other files between."""
    put(tmp_path, "plugins/profile/host_1.1623.pt.trace.json.gz", gzip.compress(TRACE.encode()))
    put(tmp_path, "plugins/profile/host_1.1624.pt.trace.json")
    put(tmp_path, "mem/snapshot.pickle", SNAPSHOT)
    put(tmp_path, "mem/old.pkl", SNAPSHOT)
    put(tmp_path, "tt/dedicated_log_torch_trace_rank_2_ab12.log", TORCH_LOG)
    put(tmp_path, "legacy.json", LEGACY)
    put(tmp_path, "rank0.json.tmp")
    put(tmp_path, "train.py", "import torch")
    put(tmp_path, "train.log", "loss 0.3")
    put(tmp_path, "README", "words")
    put(tmp_path, ".git/HEAD", "ref: refs/heads/main")
    found = discover([tmp_path])
    assert shown(found) == [
        ("legacy.json", "trace"),
        ("rank0.json.tmp", "trace"),
        ("mem/old.pkl", "snapshot"),
        ("mem/snapshot.pickle", "snapshot"),
        ("plugins/profile/host_1.1623.pt.trace.json.gz", "trace"),
        ("plugins/profile/host_1.1624.pt.trace.json", "trace"),
        ("tt/dedicated_log_torch_trace_rank_2_ab12.log", "torch_trace"),
    ]
    assert found.ignored == ()
    assert (found.found[-1].rank, found.found[-1].rank_how) == (2, "file name")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("timeline.json", HOROVOD, "a Horovod timeline"),
        ("et.json", '{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', "a PyTorch execution trace"),
        (
            "mem.raw.json.gz",
            gzip.compress(b"[[0, 1, 512, 2], [1, 1, 512, 2]]", mtime=0),
            "the output of export_memory_timeline",
        ),
        ("optimizer.pkl", pickle.dumps({"state": 1}), "a pickle of something else"),
        ("t.json.xz", lzma.compress(b"{}"), "an xz file; decompress it first (xz -d)"),
        ("t.json.bz2", bz2.compress(b"{}"), "a bzip2 file; decompress it first (bunzip2)"),
        (
            "t.json.gz",
            gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0),
            "a gzip file inside another; decompress it once (gunzip)",
        ),
        ("t16.json", "{}".encode("utf-16"), "text in UTF-16; write it as UTF-8"),
        ("tar.json.gz", gzip.compress(tar("t.json", b"{}"), mtime=0), "a tar archive; unpack it first"),
        ("events.json", '[{"attr": {"a": 1}, "name": "x", "ph": "B"}]', "a Chrome trace of another program"),
        ("events.out.tfevents.1.host", b"\x18" + bytes(7) + b"abc", "a TensorBoard event file"),
        ("config.json", '{"hidden_size": 8}', "JSON without trace events"),
        (
            "browser.json",
            '{"traceEvents": [{"ph": "X", "name": "x", "cat": "v8", "ts": 1}]}',
            "a Chrome browser trace",
        ),
    ],
)
def test_other_files_are_named_in_a_folder_and_refused_by_name(
    tmp_path: Path, name: str, content: str | bytes, reason: str
) -> None:
    put(tmp_path, "trace.json")
    other = put(tmp_path, f"sub/{name}", content)
    found = discover([tmp_path])
    assert shown(found) == [("trace.json", "trace")]
    assert [(i.display, i.reason) for i in found.ignored] == [
        (f"sub/{name}", f"{reason}, not a PyTorch profiler trace or memory snapshot")
    ]
    with pytest.raises(NotACapture) as refusal:
        discover([tmp_path / "trace.json", other])
    assert str(refusal.value) == f"{other}: {reason}, not a PyTorch profiler trace or memory snapshot"


def test_a_file_without_bytes(tmp_path: Path) -> None:
    put(tmp_path, "trace.json")
    empty = put(tmp_path, "killed.pt.trace.json", "")
    assert [(i.display, i.reason) for i in discover([tmp_path]).ignored] == [
        ("killed.pt.trace.json", "the file is empty")
    ]
    with pytest.raises(DamagedCapture, match=r"killed\.pt\.trace\.json: the file is empty$"):
        discover([empty])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (" \n" * 50_000, "the first 64 KiB are blank: white space or zero bytes alone"),
        ("\0" * 500, "the file is blank: white space or zero bytes alone"),
    ],
)
def test_a_blank_file_is_not_called_empty(tmp_path: Path, content: str, says: str) -> None:
    """A machine that crashed leaves zero bytes, and behind many blanks there may be a trace."""
    blank = put(tmp_path, "killed.pt.trace.json", content)
    with pytest.raises(DamagedCapture, match=f": {says}$"):
        discover([blank])
    put(tmp_path, "trace.json")
    assert [(i.reason, i.unread) for i in discover([tmp_path]).ignored] == [(says, True)]


def test_a_file_by_name_needs_no_telling_name(tmp_path: Path) -> None:
    assert shown(discover([put(tmp_path, "dump.bin")])) == [("dump.bin", "trace")]


@pytest.mark.parametrize(
    "name",
    ["rank1.json~", "#rank1.json#", "rank1.json.orig", "rank1.json.bak", "rank1.json.1", "rank1.json (1)"],
)
def test_what_editors_and_copies_leave_is_read(tmp_path: Path, name: str) -> None:
    put(tmp_path, "rank0.json")
    put(tmp_path, name)
    assert sorted((f.display, f.rank) for f in discover([tmp_path]).found) == sorted(
        [("rank0.json", 0), (name, 1)]
    )
    put(tmp_path, name, "")
    assert [i.display for i in discover([tmp_path]).ignored] == [name]


def test_contents_count_more_than_names(tmp_path: Path) -> None:
    put(tmp_path, "a.pickle")
    put(tmp_path, "b.json", SNAPSHOT)
    put(tmp_path, "c.json", gzip.compress(TRACE.encode()))
    assert shown(discover([tmp_path])) == [("a.pickle", "trace"), ("b.json", "snapshot"), ("c.json", "trace")]


@pytest.mark.parametrize(
    "name", ["rank1.txt", "rank1.bin", "rank1.pt", "rank1", "rank1.dat.gz", "memory.html"]
)
@pytest.mark.parametrize("content", [TRACE, LEGACY, SNAPSHOT, TORCH_LOG, "\n" * 99 + TRACE])
def test_a_capture_under_a_name_that_says_nothing_is_read(
    tmp_path: Path, name: str, content: str | bytes
) -> None:
    packed = gzip.compress(content.encode() if isinstance(content, str) else content)
    put(tmp_path, "rank0.json")
    put(tmp_path, name, packed if name.endswith(".gz") else content)
    assert [f.display for f in discover([tmp_path]).found] == ["rank0.json", name][
        :: 1 if name > "rank0" else -1
    ]


def test_marks_of_pytorch_behind_many_other_events(tmp_path: Path) -> None:
    labels = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": i, "args": {"name": f"thread {i}"}}
        for i in range(3000)
    ]
    events = [*labels, {"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}]
    put(tmp_path, "trace.json", json.dumps({"traceEvents": events}))
    assert shown(discover([tmp_path])) == [("trace.json", "trace")]


def test_globs_and_several_inputs(tmp_path: Path) -> None:
    for rank in (10, 2):
        put(tmp_path, f"run/rank_{rank}/trace.json")
    put(tmp_path, "run/notes.json", "{}")
    found = discover([str(tmp_path / "run" / "rank_*")])
    assert [(f.display, f.rank) for f in found.found] == [
        ("rank_10/trace.json", 10),
        ("rank_2/trace.json", 2),
    ]
    assert shown(discover([tmp_path / "run/**/*.json"])) == shown(found)
    two = discover([tmp_path / "run/rank_2", tmp_path / "run/rank_10"])
    assert shown(two) == [("rank_2/trace.json", "trace"), ("rank_10/trace.json", "trace")]
    by_name = discover([tmp_path / "run/rank_2/trace.json", tmp_path / "run/rank_10/trace.json"])
    assert shown(by_name) == shown(two)


def test_displays_tell_files_of_equal_folders_apart(tmp_path: Path) -> None:
    put(tmp_path, "a/logs/trace.json")
    put(tmp_path, "b/logs/trace.json")
    found = discover([tmp_path / "a/logs", tmp_path / "b/logs"])
    assert shown(found) == [("a/logs/trace.json", "trace"), ("b/logs/trace.json", "trace")]


def test_a_file_mentioned_twice_is_read_once(tmp_path: Path) -> None:
    path = put(tmp_path, "trace.json")
    (tmp_path / "latest.json").symlink_to(path)
    assert len(discover([tmp_path, path, path, tmp_path / "*.json"]).found) == 1


def test_links_are_followed_once_and_special_files_skipped(tmp_path: Path) -> None:
    put(tmp_path, "z_run/trace.json")
    (tmp_path / "latest").symlink_to(tmp_path / "z_run", target_is_directory=True)
    (tmp_path / "z_run/loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "z_run/gone.json").symlink_to(tmp_path / "nowhere.json")
    os.mkfifo(tmp_path / "pipe.json")
    found = discover([tmp_path])
    assert shown(found) == [("z_run/trace.json", "trace")]
    with pytest.raises(NotACapture, match="not a regular file"):
        discover([tmp_path / "pipe.json"])


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank_3.json", 3),
        ("rank-34.Jul_15.json", 34),
        ("trace_rank0.json", 0),
        ("worker7_step_12.169.pt.trace.json", 7),
        ("global_rank=5/trace.json", 5),
        ("rank_9/trace.json", 9),
        ("rank_9/worker1.json", 1),
        ("trace_04.json", None),
        ("crank5.json", None),
        ("host_4780.1672931832914.pt.trace.json", None),
    ],
)
def test_ranks_in_names(tmp_path: Path, name: str, rank: int | None) -> None:
    put(tmp_path, name)
    (found,) = discover([tmp_path]).found
    assert (found.rank, found.rank_how) == ((0, "") if rank is None else (rank, "file name"))


def test_nothing_found_says_what_was_looked_for(tmp_path: Path) -> None:
    put(tmp_path, "config.json", "{}")
    with pytest.raises(NoCaptures) as nothing:
        discover([tmp_path])
    line = str(nothing.value)
    assert "1 other file was ignored" in line
    for word in (
        "*.json.gz",
        "*.pickle",
        "TORCH_TRACE",
        "tensorboard_trace_handler",
        "_dump_snapshot",
        "trace-doctor capture",
    ):
        assert word in line
    assert "\n" not in line


@pytest.mark.parametrize("path", ["nowhere", "nowhere/*.json"])
def test_a_path_that_is_not_there(tmp_path: Path, path: str) -> None:
    with pytest.raises(NoCaptures, match="nowhere"):
        discover([tmp_path / path])


@pytest.mark.captures
def test_the_folder_of_real_captures(captures_dir: Path) -> None:
    folders = [captures_dir / "snapshots", captures_dir / "traces"]
    found = discover(folders)
    kinds = [f.kind for f in found.found]
    assert (kinds.count("trace"), kinds.count("snapshot")) == (124, 40)
    assert len(found.ignored) == 10
    assert len({f.display for f in found.found}) == len(found.found)
    assert found == discover([str(folder) for folder in folders])


@pytest.mark.parametrize("name", [".rank1", "..rank1", "__pycache__", "node_modules", ".ipynb_checkpoints/a"])
def test_captures_in_folders_that_are_not_looked_into_are_listed(tmp_path: Path, name: str) -> None:
    hidden = tmp_path / name.partition("/")[0]
    put(tmp_path / name, "module.pyc", b"\0")
    with pytest.raises(NoCaptures) as nothing:
        discover([tmp_path])
    assert hidden.name not in str(nothing.value).replace(str(tmp_path), "")
    put(tmp_path / name, "today.json")
    with pytest.raises(NoCaptures, match=r"today\.json there begins as a capture does; name it"):
        discover([tmp_path])
    put(tmp_path, "trace.json")
    assert [(Path(i.display).name, i.unread) for i in discover([tmp_path]).ignored] == [(hidden.name, False)]
    both = discover([tmp_path, hidden])
    assert (len(both.found), both.ignored) == (2, ())


def test_a_large_folder_that_is_not_looked_into_is_not_walked_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "trace.json")
    for n in range(30):
        put(tmp_path, f".venv/lib/{n}/module.py", "")
    assert discover([tmp_path]).ignored == ()
    monkeypatch.setattr("trace_doctor.loaders.discover.MOST_UNENTERED", 20)
    monkeypatch.setattr("trace_doctor.loaders.places.MOST_UNENTERED", 20)
    [listed] = discover([tmp_path]).ignored
    assert "too much lies there" in listed.reason


def test_a_folder_that_cannot_be_entered_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a.json")
    (tmp_path / "sub").mkdir()
    entered = os.scandir

    def scandir(folder: str | os.PathLike[str]) -> object:  # root may enter any
        if Path(folder).name == "sub":
            raise PermissionError(13, "Permission denied", str(folder))
        return entered(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    found = discover([tmp_path])
    assert [(i.display, i.reason) for i in found.ignored] == [("sub", "cannot be read (Permission denied)")]
    with pytest.raises(DamagedCapture, match=r"sub: cannot be read \(Permission denied\)"):
        discover([tmp_path / "sub"])
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "sub")
    for pattern in ("**/*.json", "*/*.json", "*/run/*.json"):  # `glob` passes over it
        found = discover([tmp_path / "a.json", tmp_path / pattern])
        assert [(i.display, i.unread) for i in found.ignored] == [("sub", True)], pattern


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="links to what the kernel of Linux makes up")
@pytest.mark.parametrize("place", ["/proc", "/proc/self/status", "/sys", "/dev", "/dev/null"])
@pytest.mark.parametrize("pattern", ["", "*"])
def test_links_to_what_the_kernel_makes_up_are_named_and_not_followed(
    tmp_path: Path, place: str, pattern: str
) -> None:
    put(tmp_path, "rank0.json")
    (tmp_path / "rank1").symlink_to(place)
    discovery = discover([tmp_path / pattern])
    assert [f.display for f in discovery.found] == ["rank0.json"]
    assert [(i.display, i.unread) for i in discovery.ignored] == [("rank1", True)]
    assert "where no capture is" in discovery.ignored[0].reason


def test_the_folder_of_many_matches_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(recordings, "is_recording", lambda folder: asked.append(folder) or False)
    for rank in range(20):
        put(tmp_path, f"rank{rank}.trace.json")
    assert len(discover([tmp_path / "*.json"]).found) == 20
    assert asked == [tmp_path]


TEXT = json.dumps(
    {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": n, "dur": 1} for n in range(10)]}
)
INSIDE = {
    "page.html": f"<script>render({TEXT})</script>",
    "notebook.ipynb": json.dumps({"cells": [{"outputs": [{"text": [TEXT]}]}]}),
    "notes.md": f"# A trace\n```json\n{TEXT}\n```\n",
    "view.js": f"var trace = {TEXT.replace(chr(34) + 'traceEvents' + chr(34), 'traceEvents')};",
    "rows.csv": 'a,"' + TEXT.replace('"', '""') + '"\n',
    "rank1.sqlite": b"SQLite format 3\0" + bytes(4000) + TEXT.encode(),
    "disk.iso": bytes(500_000) + TEXT.encode(),
}


@pytest.mark.parametrize("name", INSIDE)
def test_a_trace_inside_a_file_of_another_kind_is_met(tmp_path: Path, name: str) -> None:
    put(tmp_path, "rank0.json")
    path = put(tmp_path, name, INSIDE[name])
    found = discover([tmp_path])
    assert [(i.display, i.unread) for i in found.ignored] == [(name, True)], "and the code of check is 3"
    put(
        tmp_path, name, INSIDE[name][: len(INSIDE[name]) - 600]
    )  # fewer events, as of a text that quotes a trace
    assert not any(i.unread for i in discover([tmp_path]).ignored)
    assert path.exists()


@pytest.mark.parametrize("name", ["rank1.sqlite", "rank1.h5", "worker_2.mbox", "logs-rank3.pdf", "rank1.txt"])
def test_whatever_is_named_after_a_rank_is_listed(tmp_path: Path, name: str) -> None:
    put(tmp_path, "rank0.json")
    put(tmp_path, name, "loss 0.3")
    assert [(i.display, i.unread) for i in discover([tmp_path]).ignored] == [(name, False)]


def test_a_folder_of_data_is_not_searched_for_traces(tmp_path: Path) -> None:
    put(tmp_path, "rank0.json")
    for n in range(1001):
        put(tmp_path, f"{n}.html", "")
    put(tmp_path, "x.html", INSIDE["page.html"])
    assert not discover([tmp_path]).ignored
