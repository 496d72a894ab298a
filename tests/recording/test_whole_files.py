"""A kill in the middle of writing a file of a recording leaves no half one, and a full disk no trace of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trace_doctor.errors import NoCaptures
from trace_doctor.loaders.discover import discover
from trace_doctor.recording.agent.tracing import Tracer
from trace_doctor.recording.folder import role_of
from trace_doctor.recording.launch import record_command
from trace_doctor.recording.options import RecordOptions, rank_file, rank_steps_file
from trace_doctor.recording.whole_files import aside, write
from trace_doctor.testing import RunBuilder

resource = pytest.importorskip("resource", reason="limits of a process are POSIX")

RECORDS = """
import resource, signal, sys
from pathlib import Path
from trace_doctor.recording.launch import record_command
from trace_doctor.recording.options import RecordOptions
folder, most, end, *command = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(most), resource.RLIM_INFINITY))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL if end == "killed" else signal.SIG_IGN)
recorded = record_command(command, RecordOptions(folder))
print(*recorded.warnings)
sys.exit(recorded.exit_code)
"""
"""the kernel ends it, or makes the write fail, at the byte behind the limit"""
EXIT_3 = ["sh", "-c", "exit 3"]


def record(folder: Path, most: int, end: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RECORDS, str(folder), str(most), end, *command], capture_output=True, text=True
    )


def filled(folder: Path, warnings: int = 0, steps: int = 0) -> Path:
    """What a rank has left, so that there is much to sum up."""
    said = {"rank": 0, "ended": "script", "warnings": [f"{n} {'x' * 900}" for n in range(warnings)]}
    (folder / rank_file(0)).write_text(json.dumps(said))
    rows = "".join(f"0,{n},timing,12.25,2.5\n" for n in range(steps))
    (folder / rank_steps_file(0)).write_text("rank,step,phase,milliseconds,loss\n" + rows)
    return folder


CASES = [
    ("options.json", 100, EXIT_3, {}),
    ("command.txt", 3000, ["true", *["train"] * 1000], {}),
    ("steps.csv", 10_000, EXIT_3, {"steps": 2000}),
    ("recording.json", 10_000, EXIT_3, {"warnings": 50}),
]


@pytest.mark.parametrize(("name", "most", "command", "left"), CASES)
def test_a_kill_in_the_middle_leaves_no_half_file(
    tmp_path: Path, name: str, most: int, command: list[str], left: dict[str, int]
) -> None:
    done = record(filled(tmp_path, **left), most, "killed", command)
    assert done.returncode == -signal.SIGXFSZ, done.stderr
    assert not (tmp_path / name).exists()
    assert (tmp_path / rank_steps_file(0)).exists(), "steps that nothing has taken over"


@pytest.mark.parametrize(("name", "most", "command", "left"), CASES[2:])
def test_a_write_that_fails_leaves_nothing_and_the_scripts_code(
    tmp_path: Path, name: str, most: int, command: list[str], left: dict[str, int]
) -> None:
    done = record(filled(tmp_path, **left), most, "fails", command)
    assert done.returncode == 3, done.stderr
    assert "could not be finished" in done.stdout
    assert not [*tmp_path.glob(name), *tmp_path.glob(f".*.{name}.*")]


IN_A_SMALL_ROOM = """
mount -t tmpfs -o size=100k tmpfs "$1" || exit 99
mkdir "$1/logs"
"$2" -c "$3" "$1/logs" -1 fails sh -c 'printf "{\\"rank\\": 0, \\"ended\\": \\"script\\"}" > "$0/rank0.recording.json"
(echo rank,step,phase,milliseconds,loss; yes 0,1,timing,12.25,2.5 | head -n 2000) > "$0/rank0.steps.csv"
cat /dev/zero > "$0/../fill" 2> /dev/null; exit '$4 "$1/logs"
code=$?
ls -A "$1/logs"
exit $code
"""


@pytest.mark.skipif(sys.platform != "linux", reason="name spaces are Linux's")
@pytest.mark.parametrize("code", [0, 3])
def test_on_a_full_disk_the_scripts_code_is_kept_and_what_is_missing_is_said(
    tmp_path: Path, code: int
) -> None:
    shell = [
        "unshare",
        "-Urm",
        "sh",
        "-c",
        IN_A_SMALL_ROOM,
        "sh",
        str(tmp_path),
        sys.executable,
        RECORDS,
        str(code),
    ]
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("no mount of its own is allowed here")
    done = subprocess.run(shell, capture_output=True, text=True)
    if done.returncode == 99:
        pytest.skip("no mount of its own is allowed here")
    assert done.returncode == code, done.stderr
    assert "could not be finished: No space left on device" in done.stdout
    assert "light, detailed, memory: not captured" in done.stdout
    assert sorted(done.stdout.split("\n")[1:-1]) == [
        "command.txt", "rank0.recording.json", "rank0.steps.csv", "recording.json",
    ]  # fmt: skip


def test_a_trace_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path: Path) -> None:
    """The profiler says nothing, and leaves a part under a name of its own."""
    tracer = Tracer.__new__(Tracer)
    tracer.path, tracer.steps = tmp_path / "rank0.light.json.gz", 3
    part = SimpleNamespace(export_chrome_trace=lambda path: Path(f"{path}.tmp").write_text("{"))
    tracer.profile = cast("Any", part)
    with pytest.raises(OSError, match="No space left"):
        tracer.write(1e9)
    assert not list(tmp_path.iterdir())


DUMPS = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from trace_doctor.recording.agent.memory import MemoryHistory
def dump(path):
    with open(path, "wb", buffering=0) as file:
        file.write(b"\\x80\\x04}" + b"." * 100)
        END
memory = SimpleNamespace(_record_memory_history=None, _dump_snapshot=dump)
torch = SimpleNamespace(cuda=SimpleNamespace(memory=memory))
MemoryHistory(torch, 1).dump(Path(sys.argv[1]) / "rank0.peak.pickle")
"""
TRACES = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from trace_doctor.recording.agent.tracing import Tracer
def export(path):
    text = open(sys.argv[2]).read()
    for part in (path, path + ".tmp"):  # newer versions write beside it
        with open(part, "w") as file:
            file.write(text[: len(text) * 9 // 10])
    os.kill(os.getpid(), signal.SIGKILL)
tracer = Tracer.__new__(Tracer)
tracer.path, tracer.steps = Path(sys.argv[1]) / "rank0.light.json.gz", 3
tracer.profile = SimpleNamespace(export_chrome_trace=export)
tracer.write(1e9)
"""


def test_a_trace_that_is_cut_is_taken_for_no_capture(tmp_path: Path) -> None:
    """A cut trace reads well as far as it goes: only its name can tell."""
    b = RunBuilder(gpu=None)
    for _ in range(6):
        with b.step(), b.op("aten::mm"):
            b.wait(1000)
    b.write(tmp_path / "whole.json")
    (folder := tmp_path / "logs").mkdir()
    subprocess.run([sys.executable, "-c", TRACES, str(folder), str(tmp_path / "whole.json")])
    assert len(list(folder.iterdir())) == 2
    with pytest.raises(NoCaptures, match=r"rank0\.light\.json\.gz was not finished"):
        discover([folder])


def test_what_a_kill_has_left_is_listed_and_a_capture_among_it_counts_as_not_read(tmp_path: Path) -> None:
    b = RunBuilder(gpu=None)
    with b.step(), b.op("aten::mm"):
        b.wait(1000)
    b.write(tmp_path / "rank0.light.json.gz")
    (tmp_path / rank_file(0)).write_text('{"rank": 0}')
    for name in ("rank1.light.json.gz", "rank0.peak.pickle", "steps.csv", "recording.json"):
        aside(tmp_path / name).write_bytes((tmp_path / "rank0.light.json.gz").read_bytes())
    found = discover([tmp_path])
    assert [f.path.name for f in found.found] == ["rank0.light.json.gz"]
    assert {i.reason.partition(" was not finished")[0]: i.unread for i in found.ignored} == {
        "rank1.light.json.gz": True, "rank0.peak.pickle": True, "steps.csv": False, "recording.json": False,
    }  # fmt: skip
    assert "was not read" not in str(discover([aside(tmp_path / "rank1.light.json.gz")]).ignored), "by name"


def test_what_a_kill_has_left_is_no_recording_of_a_later_run(tmp_path: Path) -> None:
    left = aside(tmp_path / "rank0.light.json.gz")
    left.write_bytes(b"{}")
    recorded = record_command(["true"], RecordOptions(str(tmp_path)))
    assert (recorded.exit_code, recorded.empty, left.read_bytes()) == (125, True, b"{}")


@pytest.mark.parametrize(
    ("end", "there"),
    [("os.kill(os.getpid(), signal.SIGKILL)", False), ("raise OSError(28, 'full')", False), ("pass", True)],
)
def test_a_snapshot_that_is_cut_is_taken_for_no_capture(tmp_path: Path, end: str, there: bool) -> None:
    """torch writes it in place."""
    subprocess.run(
        [sys.executable, "-c", DUMPS.replace("END", end), str(tmp_path)], stderr=subprocess.DEVNULL
    )
    names = [path.name for path in tmp_path.iterdir()]
    assert [name for name in names if role_of(name)] == ["rank0.peak.pickle"] * there
    assert len(names) == (end != "raise OSError(28, 'full')"), "what a kill has left, under another name"
    with pytest.raises(NoCaptures) as error:
        discover([tmp_path])
    assert ("rank0.peak.pickle: " in str(error.value)) == there, "met, and no snapshot"
    assert ("rank0.peak.pickle was not finished" in str(error.value)) == ("kill" in end)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_what_takes_the_place_of_a_file_has_its_permissions(mode: int, tmp_path: Path) -> None:
    place = tmp_path / "log"
    place.touch()
    place.chmod(mode)
    write(place, "x")
    assert (place.read_text(), place.stat().st_mode & 0o777) == ("x", mode)
