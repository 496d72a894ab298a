"""Standard streams that end early, are full, or were never open: an exit code that tells the truth, and no traceback."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import shlex
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from warm_commands import FRESH

from trace_doctor.errors import UsageError
from trace_doctor.files import replacing
from trace_doctor.testing import RunBuilder

MAIN = shlex.join(FRESH)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    b = RunBuilder()
    for _ in range(10):
        with b.step(), b.op("aten::mm"):
            b.launch(1000)
    return b.write(tmp_path_factory.mktemp("streams") / "trace.json")


def shell(line: str, trace: Path) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", "-c", line], cwd=trace.parent, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    return done.returncode, done.stderr


def test_nobody_reads_on(trace: Path) -> None:
    """Exit 1 would be the verdict of `check`."""
    line = f"{MAIN} check {trace} -o html 2>error | true; echo ${{PIPESTATUS[0]}} >&2; cat error >&2"
    code, said = shell(line, trace)
    assert code == 0
    assert said.splitlines()[0] == "141"
    assert "rror" not in said


@pytest.mark.parametrize("command", ["--help", "check --help"])
def test_nobody_reads_the_help(trace: Path, command: str) -> None:
    _, said = shell(f"{MAIN} {command} | true; echo ${{PIPESTATUS[0]}} >&2", trace)
    assert said.splitlines()[-1] == "141"


def in_pipe(readable: int) -> int:
    """Bytes that wait to be read."""
    count = array.array("i", [0])
    fcntl.ioctl(readable, termios.FIONREAD, count)
    return count[0]


def test_a_pipe_that_does_not_wait_gets_all_of_it(trace: Path) -> None:
    """As Node.js hands on its pipes."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    command = [*FRESH, "analyze", str(trace), "-o", "html=-", "-o", "json=whole.json"]
    with subprocess.Popen(command, cwd=trace.parent, stdout=writable, stderr=subprocess.PIPE) as started:
        os.close(writable)
        while started.poll() is None and in_pipe(readable) < 1 << 15:
            time.sleep(0.02)
        time.sleep(0.1)  # what does not wait is full by now
        with open(readable, "rb") as pipe:
            page = pipe.read()
    assert started.returncode == 0
    assert len(page) > 1 << 17 and page.rstrip().endswith(b"</html>")


def test_nobody_needs_a_home_folder(trace: Path) -> None:
    """A user without an entry in the list of users, as in many containers."""
    code = "import pwd; pwd.getpwuid = lambda number: {}[number]; from trace_doctor.cli import main; main()"
    for command in (["config"], ["check", str(trace)], ["rules"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *command],
            cwd=trace.parent,
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("closed", [">&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(trace: Path, closed: str) -> None:
    code, said = shell(f"{MAIN} check {trace} -o json {closed}", trace)
    assert code == 0
    assert "rror" not in said


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout here")
@pytest.mark.parametrize("place", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_an_output_that_is_a_stream_begins_its_file_no_second_time(trace: Path, place: str) -> None:
    if not Path(place).exists():
        pytest.skip(f"no {place} here")
    code, _ = shell(f"(echo first; {MAIN} analyze trace.json -q -o json={place}; echo last) > said", trace)
    said = (trace.parent / "said").read_text()
    assert code == 0
    assert said.startswith("first\n{")
    assert said.endswith("}\nlast\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "command", ["analyze trace.json -o text", "analyze trace.json -o json", "rules", "config"]
)
def test_a_full_disk(trace: Path, command: str) -> None:
    assert shell(f"{MAIN} {command} >/dev/full", trace) == (
        2,
        "trace-doctor: cannot go on: No space left on device\n",
    )


@pytest.mark.skipif(
    sys.platform != "linux", reason="a folder that is in use cannot be removed, or keeps its name"
)
@pytest.mark.parametrize(("command", "code"), [("check trace.json", 2), ("record -- true", 125)])
def test_a_working_folder_that_is_gone(trace: Path, command: str, code: int) -> None:
    said = shell(f"mkdir gone && cd gone && rmdir ../gone && {MAIN} {command}", trace)
    assert said == (code, "trace-doctor: cannot go on: the working folder is gone\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("check -vv trace.json -o json >/dev/full", 2),
        ("record -vv -- true 2>/dev/full", 125),
        ("record -- sh -c 'exit 3' 2>/dev/full", 3),  # nor does what could not be said of it
    ],
)
def test_a_traceback_that_is_wanted_does_not_change_the_code(trace: Path, command: str, code: int) -> None:
    """Exit 1 would be the verdict of `check`, and the script's own of `record`."""
    ended, said = shell(f"{MAIN} {command}", trace)
    assert (ended, "Traceback" in said) == (code, code == 2)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("where", ["2>/dev/full", "2> >(true)"])
def test_an_error_that_nobody_can_be_told(trace: Path, where: str) -> None:
    """Exit 1 would be the verdict of `check`."""
    assert shell(f"{MAIN} check nothing.json {where}", trace) == (2, "")


def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file system refuses to delete even what is not there."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(Path, "unlink", refused)
    with (
        pytest.raises(UsageError, match=r"cannot write .*: Read-only file system"),
        replacing(tmp_path / "r.html"),
    ):
        pass


IN_A_CLASS = """
import os, signal, sys
from trace_doctor import cli
from trace_doctor.cli import app
class Ends:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
def application(*names):
    def command(prog_name):
        class Imported:
            member = Ends()
    return command
app.application = application
cli.main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
@pytest.mark.parametrize(
    ("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130), ("SIGQUIT", 131)]
)
def test_a_signal_while_a_class_is_made(name: str, code: int) -> None:
    """As while modules are imported: what it raises there is wrapped by Python until 3.12."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CLASS, name],
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(getattr(signal, name), signal.SIG_DFL),  # ignored in the background
    )
    assert done.returncode == code, done.stderr
    assert "internal error" not in done.stderr


SWALLOWED = """
import os, signal, sys, time
from trace_doctor import cli
from trace_doctor.cli import app, process
process.AGAIN_AFTER = 0.2
class Ends:
    def __del__(self):
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
def application(*names):
    def command(prog_name):
        Ends()
        try:
            time.sleep(60)
        finally:
            time.sleep(0.6)  # cleaning up may take longer than what is waited before
            print("cleaned up", flush=True)
    return command
app.application = application
cli.main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
@pytest.mark.parametrize(
    ("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130), ("SIGQUIT", 131)]
)
def test_a_signal_whose_exception_foreign_code_swallows(name: str, code: int) -> None:
    """As in a `__del__`: the program ends all the same, and what cleans up is not disturbed."""
    done = subprocess.run(
        [sys.executable, "-c", SWALLOWED, name],
        capture_output=True,
        text=True,
        timeout=30,
        preexec_fn=lambda: signal.signal(getattr(signal, name), signal.SIG_DFL),
    )
    assert (done.returncode, done.stdout) == (code, "cleaned up\n"), done.stderr
    assert "Traceback" not in done.stderr and "ignored" not in done.stderr
