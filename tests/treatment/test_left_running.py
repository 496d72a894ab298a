"""What a command has started and left running is ended with each run: it would go on writing. No torch is needed here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from warm_commands import FRESH

from trace_doctor.recording import processes

LINUX = sys.platform.startswith("linux")
WRITER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1], "a") as file:
    while True:
        file.write(f"{os.getpid()}\\n")
        file.flush()
        time.sleep(0.02)
"""
STARTS = {
    "a child": "subprocess.Popen(writer)",
    "a session of its own": "subprocess.Popen(writer, start_new_session=True)",
    "an orphan": "if os.fork() == 0:\n    if os.fork() == 0: os.execv(writer[0], writer)\n    os._exit(0)",
    "an orphan without the environment": (
        "if os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0: os.closerange(0, 64); os.execve(writer[0], writer, {})\n    os._exit(0)"
    ),
}
FORKS_ITSELF = """
import os, signal, sys, time
if len(sys.argv) > 1 or os.fork() == 0:
    if len(sys.argv) == 1 and {forgets}:
        os.execve(sys.executable, [sys.executable, __file__, "again"], {{}})
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with open({said!r}, "a") as file: file.write(f"{{os.getpid()}}\\n")
        time.sleep(0.02)
        if os.fork(): os._exit(0)
        os.setsid()
    os._exit(0)
while not os.path.exists({said!r}): time.sleep(0.01)
"""
SCRIPT = """
import os, subprocess, sys, time
writer = [sys.executable, {writer!r}, {said!r}]
{start}
while not os.path.exists({said!r}) or not os.path.getsize({said!r}): time.sleep(0.01)
"""
RECORDER = """
import sys
from trace_doctor.recording.launch import new_folder, record_command
from trace_doctor.recording.options import RecordOptions
options = RecordOptions(new_folder("logs"), grace_seconds=float(sys.argv.pop(1)))
print(record_command(sys.argv[1:], options, quiet_output=True, leave_nothing=True).leftover_processes)
import os
try:
    os.waitpid(-1, os.WNOHANG)
    print("somebody was not waited for")
except ChildProcessError:
    pass
"""


def script(tmp_path: Path, start: str) -> tuple[Path, Path]:
    """A script that leaves a writer behind, and the file that this writes its process id into."""
    said = tmp_path / "said"
    (tmp_path / "writer.py").write_text(WRITER)
    project = tmp_path / "project"
    project.mkdir()
    file = project / "train.py"
    file.write_text(SCRIPT.format(writer=str(tmp_path / "writer.py"), said=str(said), start=start))
    return file, said


def writes_no_more(said: Path) -> bool:
    [pid] = set(said.read_text().split())
    until = time.monotonic() + 10
    while processes.born(int(pid)) is not None and time.monotonic() < until:
        time.sleep(0.05)
    ended = processes.born(int(pid)) is None
    if not ended:
        os.kill(int(pid), signal.SIGKILL)
    return ended


@pytest.mark.skipif(not LINUX, reason="elsewhere orphans belong to init at once")
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS.keys())
def test_whatever_a_run_leaves_is_ended_with_it(tmp_path: Path, start: str) -> None:
    file, said = script(tmp_path, start)
    done = subprocess.run(
        [sys.executable, "-c", RECORDER, "0.5", sys.executable, str(file)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["1"], done.stderr
    assert writes_no_more(said)


@pytest.mark.skipif(not LINUX, reason="elsewhere orphans belong to init at once")
@pytest.mark.parametrize("forgets", [False, True], ids=["", "without the environment"])
def test_what_hands_on_to_a_child_again_and_again_is_ended(tmp_path: Path, forgets: bool) -> None:
    """Between any two looks it is another process."""
    said = tmp_path / "said"
    (tmp_path / "train.py").write_text(FORKS_ITSELF.format(said=str(said), forgets=forgets))
    done = subprocess.run(
        [sys.executable, "-c", RECORDER, "0.5", sys.executable, "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    wrote = said.read_text()
    time.sleep(1)
    assert said.read_text() == wrote
    assert done.stdout.split() == ["1"] and "could not be ended" not in done.stderr


@pytest.mark.skipif(not LINUX, reason="elsewhere orphans belong to init at once")
def test_treat_says_that_it_ended_them(tmp_path: Path) -> None:
    file, said = script(tmp_path, STARTS["an orphan without the environment"])
    (tmp_path / "temporary").mkdir()
    done = subprocess.run(
        [*FRESH, "treat", "--", sys.executable, file.name],
        cwd=file.parent, env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "no step was seen" in done.stderr
    assert done.stderr.count("the command left 1 process running, which was ended") == 1
    assert writes_no_more(said)


def test_nothing_is_said_where_nothing_was_left(tmp_path: Path) -> None:
    """Of a child that ends when it sees that its parent has, as helpers of a framework do."""
    (tmp_path / "train.py").write_text(
        "import subprocess\nsubprocess.Popen(['cat'], stdin=subprocess.PIPE)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", RECORDER, "10", sys.executable, "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["0"]


@pytest.mark.skipif(not LINUX, reason="what a shell has started is found by /proc")
def test_an_interrupt_of_ours_alone_ends_what_a_shell_waits_for(tmp_path: Path) -> None:
    """A shell obeys SIGINT when its child has ended, and then only if that was ended by it."""
    script = tmp_path / "go.sh"
    sleep = ["sleep", f"12{os.getpid()}"]
    script.write_text(f"{' '.join(sleep)}; touch over")
    process = subprocess.Popen(
        [*FRESH, "treat", "-o", "text", "--", "sh", "go.sh"], cwd=tmp_path, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path.parent)},
    )  # fmt: skip
    found: list[int] = []
    try:
        while process.poll() is None and not found:
            found = [p for p in map(int, filter(str.isdigit, os.listdir("/proc"))) if _command(p) == sleep]
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=40)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, err
    assert not any(map(processes.alive, found))


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []
