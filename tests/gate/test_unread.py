"""A capture that was met and not read is no pass, in any command that decides or compares."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import socket
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_captures import healthy, job, tar

from trace_doctor.loaders.kineto import decode
from trace_doctor.reporters import FORMATS
from trace_doctor.testing import RunBuilder

Run = Callable[..., Any]


class _Code:
    def __reduce__(self) -> Any:
        return os.getcwd, ()


def _bytes(content: Callable[[Path], bytes]) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.write_bytes(content(path))

    return put


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))


def _zip(name: str, content: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README", "words")
        archive.writestr(name, content)
    return data.getvalue()


def _trace() -> bytes:
    return healthy().json().encode()


UNREADABLE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "empty": ("rank1.pt.trace.json", _bytes(lambda p: b"")),
    "NULs": ("rank1.pt.trace.json", _bytes(lambda p: bytes(4096))),
    "cut before its first event": (
        "rank1.json", _bytes(lambda p: b'{"schemaVersion": 1, "deviceProperties": [], "trac')
    ),
    "broken deflate": ("rank1.json.gz", _bytes(lambda p: b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + b"\xff" * 99)),
    "refused pickle": ("rank1.pickle", _bytes(lambda p: pickle.dumps({"segments": [], "device_traces": _Code()}))),
    "another pickle": ("rank1.pickle", _bytes(lambda p: pickle.dumps({"state": 1}))),
    "cut pickle": ("rank1.pickle", _bytes(lambda p: pickle.dumps({"segments": [], "device_traces": [[]]})[:-9])),
    "Zstandard": ("rank1.pt.trace.json.zst", _bytes(lambda p: b"\x28\xb5\x2f\xfd\x04\0" + bytes(40))),
    "the second half of a split file": ("rank1.json.gz.ab", _bytes(lambda p: gzip.compress(healthy().json().encode())[500:])),
    "… under any name": ("capture.json.gz.ab", _bytes(lambda p: gzip.compress(healthy().json().encode())[500:])),
    "… named as a part": ("a.pt.trace.json.part2", _bytes(lambda p: healthy().json().encode()[500:])),
    "xz": ("rank1.pickle.xz", _bytes(lambda p: lzma.compress(b"{}"))),
    "bzip2": ("rank1.json.bz2", _bytes(lambda p: bz2.compress(b"{}"))),
    "garbage": ("rank1.json", _bytes(lambda p: bytes(range(256)) * 9)),
    "a page of a proxy": ("rank1.json", _bytes(lambda p: b"<html>502</html>")),
    "traceEvents of nobody": ("step.json", _bytes(lambda p: b'{"traceEvents": [{"ph": "X", "name": "a"}]}')),
    "pickle without a suffix": ("dump", _bytes(lambda p: pickle.dumps(_Code()))),
    "a pointer of Git LFS": ("memory.pickle", _bytes(lambda p: b"version https://git-lfs.github.com/spec/v1\n")),
    "no pickle": ("memory.pkl", _bytes(lambda p: b'{"message": "not found"}')),
    "no pickle, packed": ("memory.pickle.gz", _bytes(lambda p: gzip.compress(b"hello"))),
    "no JSON": ("memory.json.gz", _bytes(lambda p: gzip.compress(b"hello"))),
    "JSON that is cut": ("memory.json.gz", _bytes(lambda p: gzip.compress(b'{"a": [1, 2'))),
    "packed JSON that is cut": ("memory.json.gz", _bytes(lambda p: gzip.compress(json.dumps([*range(9999)]).encode())[:-99])),
    "another pickle that is cut": ("memory.pickle", _bytes(lambda p: pickle.dumps({"state": [1, 2, 3]})[:-4])),
    "a pickle that kills its reader": ("memory.pkl", _bytes(lambda p: b"\x80\x04" + b")" * 10 + b"r\xff\xff\xff\x7f.")),
    "a tar archive": ("rank1.tar", _bytes(lambda p: tar("rank1.json", healthy().json().encode()))),
    "a packed tar archive": ("rank1.tgz", _bytes(lambda p: gzip.compress(tar("rank1.json", b"{}")))),
    "archives of all": ("traces.tar.gz", _bytes(lambda p: gzip.compress(tar("rank1.json", b"{}")))),
    "a ZIP archive": ("rank1.zip", _bytes(lambda p: b"PK\x03\x04" + bytes(40))),
    "xz without the suffix of the trace": ("rank1.xz", _bytes(lambda p: lzma.compress(b"{}"))),
    "zlib": ("rank1.json.zlib", _bytes(lambda p: zlib.compress(b"{}"))),
    "traceEvents of nobody under another name": ("step.txt", _bytes(lambda p: b'{"traceEvents": [{"ph": "X", "name": "a"}]}')),
    "a trace that is cut, under another name": (
        "step.dat", _bytes(lambda p: b'{"schemaVersion": 1, "deviceProperties": [], "trac')
    ),
    "a snapshot that is cut, under another name": (
        "memory.bin", _bytes(lambda p: pickle.dumps({"segments": [], "device_traces": [[]]})[:-3])
    ),
    "a ZIP archive under any name": ("logs.zip", _bytes(lambda p: _zip("a/step.json", healthy().json().encode()))),
    "a ZIP archive named as NumPy's": ("rank1.npz", _bytes(lambda p: _zip("t.json.gz", gzip.compress(healthy().json().encode())))),
    "a packed tar archive under any name": ("x.bin", _bytes(lambda p: gzip.compress(tar("step.json", healthy().json().encode())))),
    "a tar archive in xz": ("x.dat", _bytes(lambda p: lzma.compress(tar("step.json", healthy().json().encode())))),
    "an array of NumPy's in its archive": ("data.npz", _bytes(lambda p: _zip("arr_0.npy", b"\x93NUMPY\x01\0" + bytes(99) + _trace()))),
    "a package": ("tool.deb", _bytes(lambda p: b"!<arch>\ndata.tar.xz      " + lzma.compress(tar("step.json", _trace())))),
    "a document": ("paper.pdf", _bytes(lambda p: b"%PDF-1.7\nstream\n" + zlib.compress(_trace()) + b"\nendstream")),
    "a database": ("runs.db", _bytes(lambda p: b"SQLite format 3\0" + bytes(4080) + gzip.compress(_trace()))),
    "a mail": ("mail.eml", _bytes(lambda p: b"From: a\nTo: b\n\n" + base64.encodebytes(gzip.compress(_trace()) + bytes(1000)))),
    "a snapshot in a page": (
        "memory.html", _bytes(lambda p: b'<script>f("' + base64.b64encode(pickle.dumps({"segments": [], "device_traces": [[]], "": bytes(999)})))
    ),
    "FIFO": ("rank1.json", os.mkfifo),
    "dangling link": ("rank1.json", lambda p: p.symlink_to("nowhere")),
    "link in a circle": ("rank1.json", lambda p: p.symlink_to(p.name)),
    "device": ("rank1.json", lambda p: p.symlink_to("/dev/null")),
    "socket": ("rank1.json", _socket),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(UNREADABLE))
def test_a_capture_that_was_met_and_not_read_is_undecided(logs: Path, run: Run, kind: str) -> None:
    assert run("check", "logs").code == 0
    name, put = UNREADABLE[kind]
    put(logs / name)
    for given in (["logs"], ["logs/*"], [*sorted(map(str, logs.iterdir()))]):
        done = run("check", *given, "-o", "json")
        assert done.code == 3, (given, done.err)
        assert [(i.path, i.unread) for i in done.result.ignored] == [(name, True)]
        assert name in done.result.gate.verdict
    assert name in run("check", "logs").out
    allowed = run("check", "logs", "--allow-partial", "-o", "json")
    assert (allowed.code, allowed.result.gate.undecided) == (0, [])
    assert any(name in why for why in allowed.result.gate.partial)
    assert run("check", "logs", "--exit-zero").code == 0
    for fmt in ("text", "json", "markdown", "html"):
        analyzed = run("analyze", "logs", "-o", fmt)
        assert analyzed.code == 0
        assert name in analyzed.out, fmt
    (logs / "rank0.pt.trace.json").unlink()
    assert run("check", "logs").code == run("analyze", "logs", "-q").code == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{}"),
        ("config.json", b""),
        ("metrics.json.gz", gzip.compress(b'{"loss": 1}')),
        ("samples.json.gz", gzip.compress(b'{"text": "a"}\n\n{"text": "b"}\n')),
        ("metrics.json.1", b'{"loss": 1}'),
        ("metrics.json.gz.01", gzip.compress(b'{"loss": 1}')),
        ("long.json.gz", gzip.compress(json.dumps([*range(10**6)]).encode())),
        ("optimizer.pkl", pickle.dumps({"state": 1})),
        ("optimizer.pickle.gz", gzip.compress(pickle.dumps([1.0] * 99))),
        ("dump", pickle.dumps({"a": 1})),
        ("events.out.tfevents.1.host", b"\x18" + bytes(7) + b"abc"),
        ("train.log", b"loss 0.3"),
        ("rank1.log", b""),
        ("README", b"words"),
        ("result.json", b'{"tool": {"name": "trace-doctor"}}'),
        ("mem.raw.json.gz", gzip.compress(b"[[0, 1, 512, 2]]")),
        ("et.json", b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}'),
        ("model.pt", pickle.dumps(_Code())),
        ("data.bin", b"\x80\x04" + bytes(range(256)) * 99),
        ("model.zip", b"PK\x03\x04" + bytes(99)),
        ("model.npz", _zip("rank1/data.pkl", pickle.dumps({"state": 1}))),
        ("tables.zip", _zip("metrics.json", b'{"loss": 1}')),
        ("environment.json", b'{"PATH": "/bin"}'),
        ("trace.gz", gzip.compress(b"loss 0.3")),
        ("plot.py", b"""fake = {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1}]}"""),
        ("letters.txt", base64.b64encode(os.urandom(1) * 9_999)),
        ("paper.pdf", b"%PDF-1.7\nstream\n" + zlib.compress(b"words" * 999)),
        ("manifest.txt", b"""{"schemaVersion": 2, "layers": []}"""),
        ("nccl_0.pkl", pickle.dumps({"version": "2.1", "pg_config": {}, "entries": []})),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_other_files_are_only_listed(logs: Path, run: Run, name: str, content: bytes) -> None:
    (logs / name).write_bytes(content)
    done = run("check", "logs", "-o", "json")
    assert done.code == 0, done.err
    assert not done.result.unread


def test_one_healthy_rank_and_seven_that_cannot_be_read(logs: Path, run: Run) -> None:
    for rank, kind in enumerate(
        ("empty", "NULs", "broken deflate", "refused pickle", "Zstandard", "FIFO", "dangling link"), 1
    ):
        name, put = UNREADABLE[kind]
        put(logs / name.replace("rank1", f"rank{rank}"))
    done = run("check", "logs", "-o", "json")
    assert (done.code, len(done.result.unread), len(done.result.incomplete)) == (3, 7, 7)


def test_a_folder_in_the_place_of_a_capture(logs: Path, run: Run) -> None:
    (logs / "rank1").mkdir()
    assert run("check", "logs").code == 0
    (logs / "rank1.pt.trace.json").mkdir()
    for given in ("logs", "logs/*", "logs/rank*.json"):
        assert run("check", given).code == 3


@pytest.mark.parametrize("recorded", [False, True])
def test_a_capture_under_the_name_of_what_lies_beside_captures(logs: Path, run: Run, recorded: bool) -> None:
    if recorded:
        (logs / "recording.json").write_text("{}")
    (logs / "environment.json").write_text(healthy(rank=1).json())
    read = run("analyze", "logs", "-o", "json").result.inputs
    assert sorted(i.path for i in read) == ["environment.json", "rank0.pt.trace.json"]


def test_what_lies_below_a_path_that_is_too_long(
    logs: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(logs)
    for _ in range(20):
        os.mkdir("y" * 240)
        os.chdir("y" * 240)
    os.chdir(logs.parent)
    done = run("check", "logs", "-o", "json")
    assert (done.code, [i.unread for i in done.result.ignored]) == (3, [True])


def test_a_name_like_those_beside_it_is_a_capture_as_well(logs: Path, run: Run) -> None:
    for number in range(2):
        healthy().write(logs / f"gpu{number}.json")
    assert run("check", "logs").code == 0
    (logs / "gpu2.json").write_bytes(b"")
    assert run("check", "logs").code == 3


def test_a_finding_beats_what_was_not_read_and_both_are_said(logs: Path, run: Run) -> None:
    b = RunBuilder()
    for _ in range(8):
        with b.step():
            b.loader(4000)
            with b.op("aten::mm"):
                b.launch(300, "bf16_gemm")
            b.idle_until_done()
    b.write(logs / "rank0.pt.trace.json")
    (logs / "rank1.pt.trace.json").write_bytes(b"")
    done = run("check", "logs", "-o", "json")
    assert done.code == 1
    assert "TD101" in done.result.gate.verdict
    assert "rank1.pt.trace.json was not read: the file is empty" in done.result.gate.verdict


def test_a_file_over_the_memory_limit(logs: Path, run: Run) -> None:
    healthy(steps=600).write(logs / "rank1.pt.trace.json")
    enough_for_one = decode.BASE + 300_000
    done = run("check", "logs", "--max-memory", enough_for_one, "-o", "json")
    assert (done.code, [i.path for i in done.result.unread]) == (3, ["rank1.pt.trace.json"])
    assert "--max-memory" in done.result.gate.verdict


def test_a_mistake_in_the_command_stays_one(logs: Path, run: Run) -> None:
    (logs / "config.json").write_text("{}")
    for wrong in ("logs/config.json", "logs/nowhere.json", "elsewhere", "logs/none*.json"):
        assert run("check", "logs/rank0.pt.trace.json", wrong).code == 2, wrong
    (logs.parent / "empty").mkdir()
    for allow in ([], ["--allow-partial"]):
        done = run("check", "logs", "empty", *allow, "-o", "json")
        assert (done.code, done.result.gate.partial) == (3, [])
        assert done.result.gate.undecided == ["empty was not read: no capture below this folder"]
    (logs / "sub").mkdir()
    assert run("check", "logs/*.json", "logs/sub*", "--allow-partial").code == 0, "a pattern names no folder"
    assert run("check", "logs/*.json", "logs/sub*").code == 3


@pytest.mark.parametrize("command", ["analyze", "check", "verify", "diff", "fix"])
def test_an_empty_path_is_not_the_working_folder(
    logs: Path, run: Run, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(logs)
    source = ["--source", "."] if command == "fix" else []
    for given in (["", "rank0.pt.trace.json"], ["rank0.pt.trace.json", ""]):
        done = run(command, *given, *source)
        assert (done.code, done.out) == (2, "")
        assert done.err.splitlines()[-1].endswith("one of the paths is empty: no file and no folder is named")


def test_what_nobody_may_look_into(logs: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (logs / "sub").mkdir()
    healthy(1).write(logs / "rank1.pt.trace.json")
    entered, opened = os.scandir, os.open

    def refuse(path: Any, *args: Any, **more: Any) -> Any:  # root may read everything
        if Path(os.fsdecode(path) if not isinstance(path, int) else ".").name in refused:
            raise PermissionError(13, "Permission denied", str(path))
        return (entered if not args else opened)(path, *args, **more)

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "open", refuse)
    for name in ("sub", "rank1.pt.trace.json"):
        refused = {name}
        done = run("check", "logs", "-o", "json")
        assert (done.code, [i.path for i in done.result.unread]) == (3, [name])
        assert "Permission denied" in done.result.gate.verdict


# ---------------------------------------------------------------------- comparisons


@pytest.mark.parametrize("command", ["verify", "diff"])
def test_comparisons_keep_to_it(repository: Path, run: Run, command: str) -> None:
    for side in ("a", "b"):
        job(repository / side, range(2), 2)
    assert run(command, "a", "b").code == 0
    for side in ("a", "b"):
        (repository / side / "rank1.json").write_bytes(b"")
        done = run(command, "a", "b", "-o", "json")
        assert done.code == 3
        which = {"a": "BEFORE", "b": "AFTER"}[side]
        said = json.loads(done.out)
        assert said["code"] == 3
        other = {"a": "AFTER", "b": "BEFORE"}[side]
        assert said["undecided"] == [
            f"{which}: rank1.json was not read: the file is empty",
            f"{which}: rank 1 was not read, {other} has it",
        ]
        assert "rank1.json" in run(command, "a", "b").out
        allowed = json.loads(run(command, "a", "b", "--allow-partial", "-o", "json").out)
        assert (allowed["code"], len(allowed["partial"])) == (0, 2)
        job(repository / side, [1], 2)
    assert run(command, "a", "b", "--ranks", 3).code == 3
    for side, code in (("b", 3), ("a", 0)):
        (repository / side / "rank0.json").unlink()
        assert run(command, "a", "b").code == code, "one rank alone is a usual way to record, on both sides"
        assert run(command, "b", "a").code == code
        assert run(command, "a", "b", "--allow-partial").code == 0
        assert run(command, "a", "b", "--ranks", "all").code == 3


def test_saved_results_remember_what_was_not_read(logs: Path, run: Run) -> None:
    (logs / "rank1.json").write_bytes(b"")
    saved = logs.parent / "r.json"
    saved.write_text(run("analyze", "logs", "-o", "json").out)
    assert run("verify", "r.json", "r.json").code == run("diff", "r.json", "logs").code == 3
    assert "rank1.json was not read" in run("report", "r.json").out


def test_every_format_of_a_check_names_what_was_not_read(logs: Path, run: Run) -> None:
    (logs / "rank1.json").write_bytes(b"")
    for fmt in FORMATS:
        done = run("check", "logs", "-o", fmt)
        assert (done.code, "rank1.json" in done.out) == (3, True), fmt
    assert "<error" in run("check", "logs", "-o", "junit").out
    assert "<error" not in run("check", "logs", "-o", "junit", "--allow-partial").out


def test_fix_says_what_its_findings_are_not_of(logs: Path, run: Run) -> None:
    (logs / "rank1.json").write_bytes(b"")
    (logs.parent / "train.py").write_text("import torch\n")
    done = run("fix", "logs/rank0.pt.trace.json", "logs/rank1.json", "--source", ".")
    assert "rank1.json was not read: the file is empty" in done.err


def test_a_saved_result_that_names_an_unread_capture_is_not_whole_whatever_else_it_says(
    logs: Path, run: Run
) -> None:
    (logs / "rank1.pt.trace.json").touch()
    run("analyze", "logs", "-q", "-o", "json=a.json")
    saved = json.loads(Path("a.json").read_bytes())
    Path("a.json").write_text(json.dumps(saved | {"incomplete": []}))
    assert run("verify", "a.json", "a.json").code == 3


def test_a_link_out_of_the_folder_to_all_that_it_lies_in_is_named(repository: Path, run: Run) -> None:
    """It is not walked: `/` has no end. One to the folder itself, or to another beside it, is no matter."""
    logs = repository / "logs"
    logs.mkdir()
    healthy().write(logs / "rank0.json")
    (repository / "beside").mkdir()
    (logs / "torch_trace").symlink_to(repository / "beside")
    (logs / "again").symlink_to(".")
    assert run("check", "logs").code == 0
    for up in ("/", repository):
        (logs / "torch_trace").unlink()
        (logs / "torch_trace").symlink_to(up)
        done = run("check", "logs", "-o", "json")
        assert (done.code, "torch_trace was not read" in done.result.gate.verdict) == (3, True)
