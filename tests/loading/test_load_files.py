"""Loading several files: in other processes the same comes out as here, and whatever happens to them, nothing hangs."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ending_rule import reads_for_ever

from trace_doctor.errors import DamagedCapture, TraceDoctorError
from trace_doctor.loaders.discover import discover
from trace_doctor.loaders.progress import Progress
from trace_doctor.loading import Loaded, LoadOptions, load_file, load_files, load_inputs
from trace_doctor.loading import executor as executors
from trace_doctor.loading.executor import ChildEnded, ChildNotStarted, Contained
from trace_doctor.run import Run
from trace_doctor.testing import RunBuilder, SnapshotBuilder

pytestmark = pytest.mark.skipif(not executors.usable(), reason="no processes for loading on this system")

RANKS = 3


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for rank in range(RANKS):
        b = RunBuilder()
        for _ in range(3 + rank):
            with b.step(), b.op("aten::mm"):
                b.launch(200, "gemm")
        b.write(folder / f"rank{rank}.json")
    b = SnapshotBuilder()
    b.train(steps=1)
    b.write(folder / "rank0.pickle")
    return folder


@pytest.fixture(autouse=True)
def small_files_are_worth_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_files, "PER_PROCESS", 1)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that were started; at the end of the test none may be left."""
    made: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(executors.subprocess, "Popen", Recorded)
    yield made
    assert all(process.returncode is not None for process in made), "ended and collected"


def load(paths: list[Path], options: LoadOptions, progress: Progress | None = None) -> list[Loaded]:
    return load_inputs(discover(paths).found, options, progress)


def columns(loaded: Loaded) -> dict[str, Any]:
    assert not isinstance(loaded.outcome, TraceDoctorError), loaded.outcome
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(loaded.outcome).items()}


def test_the_same_comes_out(logs: Path, started: list[Any]) -> None:
    here = load([logs], LoadOptions())
    assert started == []
    there = load([logs], LoadOptions(processes=2))
    assert len(started) == 2
    assert [one.found for one in there] == [one.found for one in here]
    for one, two in zip(here, there, strict=True):
        a, b = columns(one), columns(two)
        for name in a.keys() - {"read_args", "derived", "memory", "counters", "_masks", "_said"}:
            assert a[name] == b[name], name
        if isinstance(one.outcome, Run) and isinstance(two.outcome, Run):
            rows = range(len(one.outcome))
            assert two.outcome.args(rows) == one.outcome.args(rows)
            assert "Nesting.parent" in two.outcome.derived


def test_a_damaged_file_is_its_own_error(logs: Path, started: list[Any]) -> None:
    (logs / "rank1.json").write_text('{"schemaVersion": 1, "deviceProperties": [')
    outcomes = {one.found.display: one.outcome for one in load([logs], LoadOptions(processes=2))}
    assert isinstance(outcomes.pop("rank1.json"), DamagedCapture)
    assert not any(isinstance(o, TraceDoctorError) for o in outcomes.values())


@pytest.mark.parametrize(("how", "says"), [(signal.SIGKILL, "memory"), (signal.SIGSEGV, "SIGSEGV")])
def test_a_process_that_dies_is_the_error_of_its_file_and_the_others_are_read(
    logs: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals, says: str
) -> None:
    """Where the file's name says so, the process that reads it ends itself."""
    trap = logs.parent / "trap"
    trap.mkdir()
    (trap / "trapped.py").write_text(
        "import os\n"
        "from trace_doctor.loading import load_file\n"
        "def load_derived(found, *args, **kwargs):\n"
        f"    if found.display == 'rank1.json': os.kill(os.getpid(), {int(how)})\n"
        "    return load_file.load_derived(found, *args, **kwargs)\n"
    )
    monkeypatch.syspath_prepend(str(trap))
    monkeypatch.setattr(load_files.load_file, "load_derived", importlib.import_module("trapped").load_derived)
    found = [f for f in discover([logs]).found if f.kind == "trace"]
    done = {one.found.display: one.outcome for one in load_inputs(found, LoadOptions(processes=2))}
    error = done.pop("rank1.json")
    assert isinstance(error, DamagedCapture)
    assert says in str(error) and len(str(error).splitlines()) == 1
    assert len(done) == RANKS - 1
    assert all(isinstance(outcome, Run) for outcome in done.values())
    sys.modules.pop("trapped")


# -- the executor --------------------------------------------------------------------------------------------------


def test_calls_give_values_exceptions_and_deaths(started: list[subprocess.Popen[bytes]]) -> None:
    with Contained(2) as executor:
        values = [executor.submit(divmod, n, 3) for n in range(20)]
        wrong = executor.submit(divmod, 1, 0)
        dies = [executor.submit(os.kill, 0, signal.SIGKILL), executor.submit(os._exit, 7)]
        after = [executor.submit(divmod, n, 5) for n in range(20)]
        assert [v.result() for v in values] == [divmod(n, 3) for n in range(20)]
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            wrong.result()
        with pytest.raises(ChildEnded, match="was killed"):
            dies[0].result()
        with pytest.raises(ChildEnded, match="exit code 7"):
            dies[1].result()
        assert [v.result() for v in after] == [divmod(n, 5) for n in range(20)]


def test_a_large_array_is_mapped_and_cannot_be_changed(started: list[Any]) -> None:
    with Contained(1) as executor:
        array = executor.submit(np.arange, 1_000_000).result()
    assert np.array_equal(array, np.arange(1_000_000))
    assert not array.flags.writeable
    assert not array.flags.owndata


def test_a_call_that_never_ends_does_with_the_executor(started: list[Any]) -> None:
    with Contained(2) as executor:
        call = executor.submit(time.sleep, 600)
        executor.submit(divmod, 1, 1).result()
        executor.shutdown()
    with pytest.raises((ChildEnded, ChildNotStarted)):
        call.result(timeout=60)


def test_a_call_that_takes_too_long_is_ended_and_no_other(started: list[Any]) -> None:
    with Contained(1, timeout_s=0.5) as executor:
        with pytest.raises(ChildEnded, match=r"longer than 0\.5 s"):
            executor.submit(time.sleep, 600).result(timeout=60)
        assert executor.submit(divmod, 7, 3).result(timeout=60) == (2, 1)


def test_a_call_that_goes_on_reading_for_ever_is_ended_too(started: list[Any]) -> None:
    with Contained(1) as executor, pytest.raises(ChildEnded, match="longer than 1 s"):
        executor.submit_within(1, reads_for_ever).result(timeout=60)


def test_without_an_interpreter_the_call_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for interpreter in ("/nonexistent", "/bin/false"):
        monkeypatch.setattr(sys, "executable", interpreter)
        with Contained(1) as executor, pytest.raises(ChildNotStarted):
            executor.submit(divmod, 1, 1).result()


def test_an_interruption_ends_all_processes(logs: Path, started: list[subprocess.Popen[bytes]]) -> None:
    class Interrupted(Progress):
        def __call__(self, phase: str, what: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load([logs], LoadOptions(processes=2), Interrupted())
    assert len(started) == 2


def test_where_no_process_can_be_started_files_are_read_here(
    logs: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for interpreter in ("/nonexistent", "/bin/false"):
        monkeypatch.setattr(sys, "executable", interpreter)
        assert all(isinstance(columns(one), dict) for one in load([logs], LoadOptions(processes=2)))


def test_without_room_for_temporary_files_they_are_read_here(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    assert all(isinstance(columns(one), dict) for one in load([logs], LoadOptions(processes=2)))


def test_nothing_of_the_working_folder_is_imported(logs: Path, tmp_path: Path, started: list[Any]) -> None:
    """A pull request may bring a `numpy.py`: only the calling program's own path counts."""
    trap = tmp_path / "trap"
    trap.mkdir()
    for name in ("numpy", "msgspec", "json", "trace_doctor", "sitecustomize"):
        (trap / f"{name}.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    before = Path.cwd()
    os.chdir(trap)
    try:
        load([logs], LoadOptions(processes=2))
    finally:
        os.chdir(before)
    assert started
    assert not (tmp_path / "sprung").exists()


def test_processes_end_with_whoever_started_them(logs: Path, tmp_path: Path) -> None:
    script = """
import os, signal, sys
from trace_doctor.loaders.discover import discover
from trace_doctor.loaders.progress import Progress
from trace_doctor.loading import LoadOptions, executor, load_files, load_inputs

load_files.PER_PROCESS = 1
pids = []
start = executor.subprocess.Popen.__init__
def noted(self, *args, **kwargs):
    start(self, *args, **kwargs)
    pids.append(self.pid)
executor.subprocess.Popen.__init__ = noted
class Killed(Progress):
    def read(self, count):
        if len(pids) == 2:
            print(*pids, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
load_inputs(discover(sys.argv[1:]).found, LoadOptions(processes=2), Killed())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(logs)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(p) for p in done.stdout.split()]
    assert len(pids) == 2
    patience = time.monotonic() + 60
    while any(_runs(p) for p in pids):
        assert time.monotonic() < patience, "still there"
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="the system ends a child with its parent on Linux only")
@pytest.mark.parametrize("work", ["time.sleep(600)", "b'x' * (1 << 24)"], ids=["works", "answers"])
def test_a_child_that_reads_a_snapshot_ends_with_whoever_started_it(work: str) -> None:
    script = f"""
import os, signal, sys, time
from trace_doctor import isolation
fork = os.fork
def noted():
    if pid := fork():
        print(pid, flush=True)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return pid
os.fork = noted
isolation.isolated(lambda: {work}, memory=1 << 30, seconds=60)
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL
    patience = time.monotonic() + 60
    while _runs(int(done.stdout)):
        assert time.monotonic() < patience, "still there"
        time.sleep(0.02)


@pytest.mark.parametrize("jobs", [1, 3])
def test_several_traces_share_the_memory(
    logs: Path, tmp_path: Path, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not so much for each: what is made of their columns stays to the end of the analysis."""
    for number in range(14):
        shutil.copy(logs / "rank0.json", tmp_path / f"copy{number:02}.json")
    found = discover([tmp_path / f"copy{n:02}.json" for n in range(14)]).found
    file = load_files._File(found[0], 0, load_inputs(found[:1])[0].outcome)
    # they are read in so many processes, each with its part of the memory
    monkeypatch.setattr(load_files, "BASE", 0)
    options = LoadOptions(processes=jobs, memory=load_files.decode.BASE * jobs + 4 * file.need)
    monkeypatch.setattr(load_files.decode, "BASE", load_files.decode.BASE * jobs)
    outcomes = [f.outcome for f in load_inputs(found, options)]
    assert [isinstance(o, Run) for o in outcomes] == [True] * 12 + [False] * 2
    said = r"^copy13\.json: with the files before it, analyzing it needs more than \d+ MB of memory \(--max-memory\)$"
    assert re.match(said, str(outcomes[13]))


def test_what_is_put_away_is_what_was_read(logs: Path) -> None:
    found = discover([logs]).found[0]
    read = load_file.load(found)
    file = load_files._File(found, 0, read)
    load_files._put_away([file])
    away = file.outcome
    assert isinstance(read, Run) and isinstance(away, Run) and away is not read
    assert read.ts.flags.writeable and not away.ts.flags.writeable  # mapped
    for column in ("ts", "dur", "name", "cat", "thread", "correlation", "offset"):
        assert np.array_equal(getattr(read, column), getattr(away, column))
    assert away.args(range(3)) == read.args(range(3))


def _runs(pid: int) -> bool:
    """A process that has ended may wait for long to be collected, where nobody collects orphans."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.parametrize(
    ("weights", "jobs", "memory", "count"),
    [
        ([1 << 30] * 8, 4, None, 4),
        ([1 << 30] * 8, 16, None, 8),
        ([1 << 30] * 8, 4, 2 << 30, 2),
        ([1 << 30] * 8, 4, 1 << 20, 1),
        ([1 << 20] * 8, 4, None, 1),
        ([1 << 20] * 256, 4, None, 4),
        ([10 << 30], 4, None, 1),
        ([], 4, None, 1),
    ],
)
def test_how_many_processes_pay_and_fit(
    monkeypatch: pytest.MonkeyPatch, weights: list[int], jobs: int, memory: int | None, count: int
) -> None:
    monkeypatch.setattr(load_files, "PER_PROCESS", 48 << 20)
    assert load_files.processes(weights, LoadOptions(jobs, memory)) == count
