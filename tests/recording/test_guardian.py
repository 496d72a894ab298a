"""Whoever kills the recorder ends what it has started. No torch is needed here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from warm_commands import FRESH

from trace_doctor.recording import processes
from trace_doctor.recording.guardian import guarding
from trace_doctor.recording.options import OPTIONS_VARIABLE

SECONDS = 60
"""more than what anything here takes"""
STAYS = "import signal, time\n[signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]\n"
TRAINS = """
import os, time
os.write(1, b"pid %d\\n" % os.getpid())
while True: time.sleep(0.05)
"""
LAUNCHES = """
import os, subprocess, sys
os.write(1, b"pid %d\\n" % os.getpid())
for n in (1, 2):
    subprocess.Popen([sys.executable, "rank.py"], start_new_session=True)
sys.stdin.read()
"""


SHORTLY = """
import sys
from trace_doctor.recording.launch import new_folder, record_command
from trace_doctor.recording.options import RecordOptions
record_command(sys.argv[1:], RecordOptions(new_folder("logs"), grace_seconds=0.5))
"""


def started(
    tmp_path: Path, program: str, count: int, *recorder: str
) -> tuple[subprocess.Popen[str], list[int]]:
    """The recorder, and the processes of the program: it says so of each."""
    (tmp_path / "script.py").write_text(program)
    (tmp_path / "rank.py").write_text(STAYS + TRAINS)
    process = subprocess.Popen(
        [*recorder, sys.executable, "-u", "script.py"], cwd=tmp_path, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    said = [process.stdout.readline().split() for _ in range(count)]
    return process, [int(pid) for _, pid in said]


def left(pids: list[int]) -> list[int]:
    """Those that still run once they had time to go."""
    until = time.monotonic() + SECONDS
    while (running := [pid for pid in pids if processes.born(pid) is not None]) and time.monotonic() < until:
        time.sleep(0.05)
    return running


def test_killed_it_leaves_no_training(tmp_path: Path) -> None:
    recorder, pids = started(tmp_path, TRAINS, 1, *FRESH, "record", "--")
    recorder.kill()
    recorder.wait()
    assert left(pids) == []


FORGETFUL = LAUNCHES.replace("session=True)", "session=True, env={})")


@pytest.mark.parametrize(
    ("program", "count", "kill"),
    [(STAYS + TRAINS, 1, os.kill), (LAUNCHES, 3, os.kill), (LAUNCHES, 3, os.killpg), (FORGETFUL, 3, os.kill)],
)
def test_nor_one_that_ignores_signals_in_a_session_of_its_own(
    tmp_path: Path, program: str, count: int, kill: Callable[[int, int], None]
) -> None:
    """Nor ranks that have lost the recorder's environment. The guardian is gone in the end as well."""
    recorder, pids = started(tmp_path, program, count, sys.executable, "-c", SHORTLY)
    others = set(processes.Started("", "", recorder.pid).pids()) - {recorder.pid, *pids}
    assert others
    kill(recorder.pid, signal.SIGKILL)
    recorder.wait()
    assert left([*pids, *others]) == []


def test_a_run_of_treat_ends_with_it(tmp_path: Path) -> None:
    project, aside = tmp_path / "project", tmp_path / "aside"
    project.mkdir()
    aside.mkdir()
    says = aside / "pid"
    (project / "script.py").write_text(
        f"import os\nopen({str(says)!r}, 'w').write(str(os.getpid()))\n" + TRAINS
    )
    treat = subprocess.Popen(
        [*FRESH, "treat", "--", sys.executable, "script.py"], cwd=project, env={**os.environ, "TMPDIR": str(aside)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + SECONDS
    while not (said := says.read_text() if says.exists() else ""):
        assert treat.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    treat.kill()
    treat.wait()
    assert left([int(said)]) == []


def test_what_a_command_leaves_behind_by_itself_stays(tmp_path: Path) -> None:
    """The recorder ends with its command, as if it had not been there."""
    program = "import subprocess, sys\nsubprocess.Popen([sys.executable, 'rank.py'])\n"
    recorder, (pid,) = started(tmp_path, program, 1, *FRESH, "record", "--")
    try:
        recorder.wait(SECONDS)
        time.sleep(0.5)
        assert processes.born(pid) is not None
    finally:
        os.kill(pid, signal.SIGKILL)


def test_an_exception_ends_what_was_just_started(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(STAYS + TRAINS)
    begun: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        command = [sys.executable, "rank.py"]
        with guarding("MARK", str(tmp_path), 0.1):
            begun.append(
                subprocess.Popen(command, cwd=tmp_path, env={"MARK": str(tmp_path)}, stdout=subprocess.PIPE)
            )
            assert begun[0].stdout is not None and begun[0].stdout.readline()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin()
    begun[0].communicate(timeout=SECONDS)
    assert begun[0].returncode == -signal.SIGKILL


def test_a_process_that_got_the_number_of_another_is_another() -> None:
    first, second = (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)
    )
    with first, second:
        assert processes.born(first.pid) == processes.born(first.pid)
        assert None not in (processes.born(first.pid), processes.born(second.pid))
    assert processes.born(first.pid) is None


def test_no_other_process_counts_as_the_commands() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert other.pid not in processes.Started(OPTIONS_VARIABLE, "/nowhere/options.json").pids()
        assert processes.Started(OPTIONS_VARIABLE, "/nowhere/options.json", other.pid).pids() == [other.pid]
