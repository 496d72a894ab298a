"""What a light base install promises: nothing heavy is imported, nothing talks to the network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "hta", "plotly", "pandas", "libcst")


def imported(code: str) -> set[str]:
    probe = f"import sys\n{code}\nprint(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import trace_doctor",
        "import trace_doctor; trace_doctor.Rule, trace_doctor.Result",
        "from typer.testing import CliRunner\nfrom trace_doctor.cli.app import application\n"
        "assert CliRunner().invoke(application(), ['--help']).exit_code == 0\n"
        "assert CliRunner().invoke(application(), ['rules']).exit_code == 0",
    ],
    ids=["import", "names", "cli"],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    assert imported(code).isdisjoint(HEAVY)


def test_an_analysis_needs_no_torch_and_opens_no_socket(tmp_path: Path) -> None:
    from trace_doctor.testing import RunBuilder

    b = RunBuilder()
    for _ in range(3):
        with b.step(), b.op("aten::mm"):
            b.launch(50)
    b.write(tmp_path / "trace.json")
    code = f"""
import socket
def refuse(*a, **k): raise AssertionError("network")
socket.socket.connect = refuse; socket.create_connection = refuse; socket.getaddrinfo = refuse
import trace_doctor
result = trace_doctor.analyze({str(tmp_path)!r})
assert result.inputs[0].events
from trace_doctor.reporters import render
assert render(result, "html")
"""
    assert imported(code).isdisjoint({"torch", "hta", "plotly"})


POSIX_ONLY = {
    "os": "O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_PATH chown chroot fchmod fchown fork forkpty getegid geteuid getgid getloadavg "
    "getpgid getuid killpg mkfifo mknod nice openpty posix_spawn pread preadv register_at_fork sched_getaffinity set_blocking "
    "setpgid setsid statvfs sysconf wait4 waitid WNOHANG",
    "signal": "ITIMER_REAL SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGKILL SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGXCPU "
    "alarm pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigtimedwait sigwait",
}
WITHOUT_POSIX = f"""
import os, signal, sys
import asyncio, multiprocessing, pathlib, selectors, shutil, socket, subprocess, tempfile  # the standard library has its own ways
for name in "fcntl grp pty pwd resource termios".split():
    sys.modules[name] = None
for module, names in {POSIX_ONLY!r}.items():
    for name in names.split():
        delattr(sys.modules[module], name) if hasattr(sys.modules[module], name) else None
from trace_doctor.cli import main
main()
"""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["analyze", "{fault}", "--source", "fault.py", "-o", "text", "-o", "html=report.html"],
            "num_workers=2",
        ),
        (["check", "{healthy}"], "check passed"),
        (["fix", "{fault}", "--source", "fault.py", "--unsafe-fixes", "--allow-dirty", "--apply"], "applied"),
        (["diff", "{fault}", "{healthy}"], "TD101"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_captures_are_read_without_what_windows_lacks(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    sample = Path(__file__).resolve().parent.parent / "sample_traces" / "dataloader_starvation"
    script = tmp_path / "fault.py"
    script.write_text((sample / "fault.py").read_text("utf-8"), "utf-8")
    names = {"fault": sample / "cpu" / "fault", "healthy": sample / "cpu" / "healthy"}
    command = [word.format(**names) for word in arguments]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX, *command], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stdout + done.stderr
    assert ("num_workers=2" in script.read_text("utf-8")) is ("--apply" in command)
