"""What a command is given to read: it is not written over, not waited for, and never left out without a word."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from warm_commands import warm

import trace_doctor
from trace_doctor.testing import RunBuilder

DEEP = '{"a":' * 200_000


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    b = RunBuilder()
    with b.step(), b.op("aten::mm"):
        b.launch(1000)
    return b.write(tmp_path / "logs" / "rank0.json")


def run(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd)}
    return subprocess.run([*warm(), *args], cwd=cwd, env=env, capture_output=True, text=True, timeout=60)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "internal error" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("analyze", "{}", "-o", "json={}"),
        ("analyze", "{}", "-o", "html=link.html"),
        ("analyze", "{}", "-o", "perfetto={}"),
        ("analyze", "logs", "-o", "perfetto={}"),
        ("analyze", "logs", "-o", "html={}"),
        ("check", "{}", "--baseline", "{}", "--update-baseline"),
        ("verify", "{}", "{}", "-o", "json={}"),
        ("diff", "logs", "logs", "-o", "html={}"),
    ],
    ids=" ".join,
)
def test_no_output_takes_the_place_of_a_capture(trace: Path, args: tuple[str, ...]) -> None:
    before, folder = trace.read_bytes(), trace.parents[1]
    (folder / "link.html").symlink_to(trace)
    said = refused(run(*(a.format("logs/rank0.json") for a in args), cwd=folder))
    assert "it is not overwritten" in said
    assert trace.read_bytes() == before


def test_outputs_are_written_again(trace: Path) -> None:
    folder = trace.parents[1]
    args = ("analyze", "logs", "-o", "json=a.json", "-o", "html=a.html", "-o", "perfetto=a.json.gz")
    assert [run(*args, cwd=folder).returncode for _ in range(2)] == [0, 0]
    assert "one file" in refused(run("analyze", "logs", "-o", "json=a", "-o", "html=./a", cwd=folder))


def test_a_comparison_names_what_it_did_not_read(trace: Path) -> None:
    after = shutil.copytree(trace.parent, trace.parents[1] / "after")
    for folder in (trace.parent, after):
        (folder / "rank1.json").write_bytes(b"\x01garbage" * 40)
    for compare in (trace_doctor.verify, trace_doctor.diff):
        warnings = compare(trace.parent, after).warnings
        assert sum(w.startswith("not analyzed of ") and "rank1.json" in w for w in warnings) == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
@pytest.mark.parametrize("args", [("report", "p"), ("check", "logs", "--baseline", "p"), ("analyze", "logs")])
def test_what_nobody_writes_to_is_not_waited_for(trace: Path, args: tuple[str, ...]) -> None:
    folder = trace.parents[1]
    os.mkfifo(folder / "p")
    os.mkfifo(folder / "trace-doctor-report.html")
    refused(run(*args, cwd=folder))


@pytest.mark.parametrize(
    "args",
    [
        ("report", "d.json"),
        ("verify", "d.json", "d.json"),
        ("diff", "d.json", "d.json"),
        ("check", "logs", "--baseline", "d.json"),
    ],
    ids=" ".join,
)
def test_json_that_is_nested_without_end(trace: Path, args: tuple[str, ...]) -> None:
    (trace.parents[1] / "d.json").write_text(DEEP)
    refused(run(*args, cwd=trace.parents[1]))


def test_a_user_without_a_home(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert trace_doctor.analyze(trace).inputs


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero here")
def test_stdin_that_never_ends_is_looked_at_first(tmp_path: Path) -> None:
    with open("/dev/zero", "rb") as endless:
        done = subprocess.run(
            [*warm(), "analyze", "-"], stdin=endless, capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 2
    assert done.stderr.startswith("trace-doctor: stdin: the first 64 KiB are blank")
