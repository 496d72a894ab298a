"""How captures are loaded, as a user sees it: jobs, the bar, and what is left when a command is ended."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trace_doctor.loading import executor
from trace_doctor.testing import RunBuilder

MAIN = "from trace_doctor.cli import main; main()"
SMALL_JOBS = f"from trace_doctor.loading import load_files; load_files.PER_PROCESS = 1; {MAIN}"
"""Small files are worth a process, too."""
BAR_AT_ONCE = f"from trace_doctor.cli import progress; progress.PATIENCE = progress._EVERY = 0; {MAIN}"


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("TRACE_DOCTOR") and k not in ("CI", "FORCE_COLOR")
    }
    return {**kept, "XDG_CACHE_HOME": str(tmp_path / "caches"), "TERM": "xterm", **more}


def run(tmp_path: Path, *args: str, script: str = MAIN, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *args]
    return subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(tmp_path, **env),
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for rank in range(2):
        b = RunBuilder()
        for _ in range(8):
            with b.step():
                b.loader(400)
                with b.op("aten::mm"):
                    b.launch(300, "gemm")
                b.idle_until_done()
        b.write(folder / f"rank{rank}.json")
    return tmp_path


def test_the_result_is_the_same_bytes_in_however_many_processes(logs: Path) -> None:
    check = ("check", "logs", "--exit-zero", "-o", "json")
    plain = run(logs, *check).stdout
    assert run(logs, *check, "--jobs", "2", script=SMALL_JOBS).stdout == plain
    assert run(logs, "check", "logs", "--jobs", "0").returncode == 2


# -- ended from outside ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are found in /proc")
@pytest.mark.skipif(not executor.usable(), reason="no processes for loading on this system")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_ended_command_leaves_no_process_and_no_file(
    logs: Path, number: signal.Signals, code: int
) -> None:
    """Ended as soon as its processes are there, while they read."""
    temporary = logs / "tmp"
    temporary.mkdir()
    text = (logs / "logs" / "rank0.json").read_bytes()
    start, _, rest = text.partition(b'"traceEvents": [')
    body = rest[: rest.rindex(b"}", 0, rest.rindex(b"]")) + 1]
    for rank in range(2):
        (logs / "logs" / f"rank{rank}.json").write_bytes(
            start + b'"traceEvents": [' + (body + b",") * (20_000_000 // len(body)) + body + b"]}"
        )
    args = ["analyze", "logs", "--jobs", "2", "-o", "html=report.html", "-o", "json=result.json"]
    before = sorted(p.name for p in logs.iterdir())
    process = subprocess.Popen(
        [sys.executable, "-c", SMALL_JOBS, *args],
        cwd=logs, env=environment(logs, TMPDIR=str(temporary)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    children = set(_children(process))
    while len(children) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
        children |= _children(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert out == "" and "Traceback" not in err
    assert number != signal.SIGINT or err == "trace-doctor: interrupted\n"
    patience = time.monotonic() + 60  # one that was only just started finds that nobody is there
    while any(_runs(child) for child in children):
        assert time.monotonic() < patience, "still there"
        time.sleep(0.02)
    assert sorted(p.name for p in logs.iterdir()) == before
    assert list(temporary.iterdir()) == []
    hidden = list(logs.rglob(".*"))
    assert hidden == []


def _children(process: subprocess.Popen[str]) -> set[int]:
    """Of all its threads."""
    found: set[int] = set()
    for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= {int(p) for p in children.read_text().split()}
    return found


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# -- the bar -----------------------------------------------------------------------------------------------------


def on_a_terminal(logs: Path, *args: str, script: str = BAR_AT_ONCE, **env: str) -> str:
    """What stderr shows when it is a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", script, "check", "logs", "--exit-zero", "-o", "json=r.json", *args],
        cwd=logs, env=environment(logs, COLUMNS="100", **env), stdout=subprocess.DEVNULL, stderr=theirs,
    ) as process:  # fmt: skip
        os.close(theirs)
        seen = b""
        while True:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # Linux says so when the other side is closed
                piece = b""
            if not piece:
                break
            seen += piece
    os.close(ours)
    assert process.returncode == 0, seen
    return seen.decode()


def test_the_bar_shows_phase_file_bytes_and_rate(logs: Path) -> None:
    for jobs in ((), ("--jobs", "2")):
        script = BAR_AT_ONCE if not jobs else BAR_AT_ONCE.replace(MAIN, SMALL_JOBS)
        seen = on_a_terminal(logs, *jobs, script=script)
        assert "reading  rank1.json" in seen
        assert "MB/s" in seen
        assert "TD101  rank0.json" in seen


@pytest.mark.parametrize(
    ("args", "env"), [(("--no-progress",), {}), (("-q",), {}), ((), {"CI": "true"}), ((), {"TERM": "dumb"})]
)
def test_no_bar_where_nobody_looks(logs: Path, args: tuple[str, ...], env: dict[str, str]) -> None:
    assert "reading" not in on_a_terminal(logs, *args, **env)


def test_a_log_shows_phases_only_when_asked(logs: Path) -> None:
    assert "reading" not in run(logs, "check", "logs", script=BAR_AT_ONCE).stderr
    assert "reading rank0.json" in run(logs, "check", "logs", "-v").stderr.splitlines()


def test_the_bar_has_colour_only_where_it_is_wanted(logs: Path) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*(3[0-7]|38;5;\d+|9[0-7])m")
    assert colour.search(on_a_terminal(logs, script=BAR_AT_ONCE))
    plain = on_a_terminal(logs, "--color", "never", script=BAR_AT_ONCE)
    assert "reading  rank1.json" in plain
    assert not colour.search(plain)
