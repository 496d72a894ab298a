"""`trace_doctor.record` in the script itself: in this process, which goes on afterwards."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trace_doctor
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.recording.agent import session
from trace_doctor.recording.api import InsideRecording

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs the torch extra")

PHASES = ("warmup", "timing", "light", "detailed")
SHORT: dict[str, Any] = {
    "phases": PHASES,
    "timing_steps": 3,
    "light_steps": 1,
    "detailed_steps": 1,
    "max_warmup_steps": 3,
}


@pytest.fixture
def train() -> Callable[[], float]:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Torch is as it was, whatever a test did."""
    watched = [
        (torch.autograd, "backward"),
        (torch.amp.GradScaler, "scale"),
        (torch.profiler.profile, "start"),
        (torch.autograd.profiler.profile, "_prepare_trace"),
    ]
    before = [getattr(owner, name) for owner, name in watched]
    yield
    assert [getattr(owner, name) for owner, name in watched] == before
    assert not torch.autograd._profiler_enabled()


def said(recording: InsideRecording) -> dict[str, Any]:
    assert recording.folder is not None
    return json.loads((recording.folder / "rank0.recording.json").read_text())


def test_two_lines_make_a_recording(
    tmp_path: Path, train: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "orig_argv", ["python", "train.py", "--epochs", "3", "--token", "s3cr3t-Xq7LmZp9"]
    )
    losses = []
    with trace_doctor.record(tmp_path / "logs", **SHORT) as recording:
        while not recording.done:
            losses.append(train())
            recording.step()
    folder = recording.folder
    assert folder is not None and folder.parent == tmp_path / "logs"
    assert said(recording)["found_steps_by"] == "step()" and said(recording)["ended"] == "enough"
    assert {p.name for p in folder.iterdir()} == {
        "command.txt", "environment.json", "recording.json", "steps.csv",
        "rank0.recording.json", "rank0.light.json.gz", "rank0.detailed.json.gz",
    }  # fmt: skip
    assert (folder / "command.txt").read_text() == "python train.py --epochs 3 --token ***\n"
    rows = [line.split(",") for line in (folder / "steps.csv").read_text().splitlines()[1:]]
    assert [r[4] for r in rows if r[2] in ("warmup", "timing")] == [
        repr(loss) for loss, r in zip(losses, rows, strict=True) if r[2] in ("warmup", "timing")
    ]


def test_a_second_recording_is_another_one(tmp_path: Path, train: Callable[[], float]) -> None:
    folders = []
    for _ in range(2):
        with trace_doctor.record(tmp_path, **{**SHORT, "phases": ("warmup", "timing")}) as recording:
            for _ in range(10):
                train()
                recording.step()
        assert said(recording)["ended"] == "enough" and said(recording)["backward_passes_per_step"] == 1
        folders.append(recording.folder)
    assert len(set(folders)) == 2


@pytest.mark.parametrize("step", [0, 5])
def test_nothing_is_written_into_a_folder_that_has_taken_the_recordings_place(
    tmp_path: Path, train: Callable[[], float], step: int
) -> None:
    """Before the recorder has written anything, and in the middle of it."""
    users = tmp_path / "users"
    users.mkdir()
    for name in ("steps.csv", "rank0.steps.csv", "rank0.light.json.gz", "environment.json"):
        (users / name).write_text("mine")
    with trace_doctor.record(tmp_path / "logs", **SHORT) as recording:
        for n in range(15):
            if n == step and (folder := recording.folder) is not None:
                folder.rename(tmp_path / "moved")
                folder.symlink_to(users)
            train()
            recording.step()
    assert {path.name: path.read_text() for path in users.iterdir()} == dict.fromkeys(
        ("steps.csv", "rank0.steps.csv", "rank0.light.json.gz", "environment.json"), "mine"
    )


def test_an_exception_goes_through_and_is_written_down(tmp_path: Path, train: Callable[[], float]) -> None:
    recording = trace_doctor.record(tmp_path, **SHORT)

    def fails() -> None:
        with recording:
            for _ in range(7):
                train()
                recording.step()
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert said(recording)["ended"] == "exception"
    assert "the script ended with KeyError" in said(recording)["warnings"]
    assert said(recording)["phases"][-1]["last_step"] == 6


def test_a_block_that_is_stopped_leaves_by_system_exit(tmp_path: Path, train: Callable[[], float]) -> None:
    recording = trace_doctor.record(tmp_path, let_it_run=False, grace_seconds=0.2, **SHORT)
    cleaned = False

    def trains() -> None:
        nonlocal cleaned
        with recording:
            try:
                for _ in range(1000):
                    train()
                    recording.step()
            finally:
                cleaned = True

    with pytest.raises(SystemExit) as left:
        trains()
    time.sleep(0.5)  # outside of the block nobody ends this process any more
    assert left.value.code == 0 and cleaned
    assert said(recording)["ended"] == "enough"


@pytest.mark.parametrize("begin", [1, 8])
def test_the_scripts_own_profiler_comes_first(tmp_path: Path, train: Callable[[], float], begin: int) -> None:
    """Whether it runs before ours would start, or starts while ours runs."""
    theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with trace_doctor.record(tmp_path, **{**SHORT, "light_steps": 9}) as recording:
        for i in range(40):
            if i == begin:
                theirs.start()
            train()
            recording.step()
            if i == 30:
                theirs.stop()
    assert any(e.key == "aten::addmm" for e in theirs.key_averages()), "it has recorded"
    assert said(recording)["ended"] == "enough"
    assert "light" not in said(recording)["files"]
    assert any("light: not captured" in w and "own" in w for w in said(recording)["warnings"])


def test_what_is_larger_than_allowed_is_cut_behind_a_step_or_left_out(
    tmp_path: Path, train: Callable[[], float]
) -> None:
    def light(max_mb: float) -> tuple[Path | None, dict[str, Any]]:
        options = {**SHORT, "phases": PHASES[:3], "light_steps": 8}
        with trace_doctor.record(tmp_path, **options, max_mb=max_mb) as recording:
            while not recording.done:
                train()
                recording.step()
        assert recording.folder is not None
        return next(recording.folder.glob("*.gz"), None), said(recording)

    whole, _ = light(100)
    assert whole is not None
    room = 0.6 * whole.stat().st_size
    cut, says = light(room / 1e6)
    assert cut is not None and cut.stat().st_size <= room
    steps, all_steps = (
        len(load_trace(p, p.name).named(lambda n: n.startswith("ProfilerStep"))) for p in (cut, whole)
    )
    assert 1 <= steps < all_steps == 8
    assert f"{steps} of 8 traced steps kept" in says["phases"][-1]["why_ended"]
    nothing, says = light(1e-4)
    assert nothing is None and says["files"] == {}
    assert [w for w in says["warnings"] if "max_mb" in w]


def test_steps_without_gradients_that_overflowed_are_steps(tmp_path: Path) -> None:
    """A scaler leaves the optimizer's step out; the loss is the one before scaling."""

    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:  # not yet looked at by anybody: a class of its own
            return super().step(closure)

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    options = trace_doctor.record(tmp_path, **SHORT)._with_folder()
    assert options is not None
    running = session.begin(torch, options)
    try:
        model = torch.nn.Linear(4, 1)
        optimizer = Own(model.parameters(), lr=0.1)
        losses = []
        for i in range(6):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).pow(2).mean() * (float("inf") if i == 3 else 1.0)
            losses.append(loss.item())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        running.finish("script")
    finally:
        running.close()
    rows = (Path(options.folder) / "rank0.steps.csv").read_text().splitlines()[1:]
    assert [row.split(",")[4] for row in rows] == [repr(loss) for loss in losses]


@pytest.mark.parametrize(
    "part", ["Losses.install", "OtherProfilers.install", "MemoryHistory.install", "Finder"]
)
def test_a_recorder_that_cannot_be_started_lets_the_training_run(
    tmp_path: Path,
    train: Callable[[], float],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: str,
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise AttributeError("torch has no such name")

    monkeypatch.setattr(f"trace_doctor.recording.agent.session.{part}", fails)
    with caplog.at_level("WARNING", "trace_doctor"), trace_doctor.record(tmp_path) as recording:
        losses = []
        for _ in range(3):
            losses.append(train())
            recording.step()
        assert not recording.done
    assert len(losses) == 3
    assert [r.getMessage()[:51] for r in caplog.records] == [
        "the recorder failed and nothing is recorded: Attrib"
    ]


def test_options_are_checked_where_they_are_given(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_steps is at least 1"):
        trace_doctor.record(tmp_path, max_steps=0)
    with pytest.raises(ValueError, match="max_mb is at least 0, and finite: not inf"):
        trace_doctor.record(tmp_path, max_mb=math.inf)
    with pytest.raises(ValueError, match="phases"):
        trace_doctor.record(tmp_path, phases=("light", "warmup"))
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_compiled_anew_does_not_break_the_recorder(
    tmp_path: Path, train: Callable[[], float]
) -> None:
    """`reset` forgets also whom the recorder asked to be told of compilations by."""
    from torch import _dynamo

    with trace_doctor.record(tmp_path, **SHORT) as recording:
        for _ in range(30):
            _dynamo.reset()
            train()
            recording.step()
    assert said(recording)["ended"] == "enough" and {"light", "detailed"} <= {*said(recording)["files"]}


@pytest.mark.parametrize("begin", [0, 9])
def test_a_profile_function_of_the_scripts_stays(
    tmp_path: Path, train: Callable[[], float], begin: int
) -> None:
    """There is one for all, and torch's would take its place: set before the detailed phase, or in its midst."""
    steps: list[int] = []

    def profile(frame: Any, event: str, _: object) -> None:
        if event == "call" and frame.f_code is train.__code__:
            steps.append(step)

    phases = ("warmup", "detailed")
    try:
        with trace_doctor.record(tmp_path, **{**SHORT, "phases": phases, "detailed_steps": 6}) as recording:
            for step in range(20):
                if step == begin:
                    sys.setprofile(profile)
                train()
                recording.step()
    finally:
        sys.setprofile(None)
    assert steps == [*range(begin, 20)]
    assert "sys.setprofile" in str(said(recording)["warnings"])
    assert "detailed" in said(recording)["files"]


def test_blocks_of_two_threads_are_one_recording(tmp_path: Path, train: Callable[[], float]) -> None:
    both, turn = threading.Barrier(2, timeout=60), threading.Lock()
    folders = []

    def trains() -> None:
        both.wait()
        with trace_doctor.record(tmp_path, **SHORT) as recording:
            folders.append(recording.folder)
            both.wait()
            for _ in range(20):
                with turn:  # of one model: torch itself does not stand two at once
                    train()
                recording.step()
            both.wait()

    threads = [threading.Thread(target=trains, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 2 and len(set(folders)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [folders[0].name]


def test_the_verdict_is_that_of_an_analysis(train: Callable[[], float], tmp_path: Path) -> None:
    with trace_doctor.record(tmp_path, **SHORT) as recording:
        while not recording.done:
            train()
            recording.step()
    (folder,) = tmp_path.iterdir()
    assert recording.verdict() == trace_doctor.analyze(folder).summary.verdict


def test_without_a_recording_of_its_own_there_is_no_verdict(tmp_path: Path) -> None:
    assert trace_doctor.record(tmp_path).verdict() == ""
