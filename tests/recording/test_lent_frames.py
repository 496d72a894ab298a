"""The frames and shapes of the detailed trace, laid into the light one: each lies where it lay, and none where it did not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from read_captures import read_captures

from trace_doctor.api import analyze
from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.recording.options import capture_file
from trace_doctor.run import Cat, Run
from trace_doctor.testing import RunBuilder

Written = Any  # conftest's
SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


def test_frames_lie_around_the_events_that_they_caused(tmp_path: Path, written: Written) -> None:
    capture = written.only(written.recording(tmp_path))
    run = capture.run
    assert run is not None
    nesting = Facts(capture)[Nesting]
    for row in run.named(lambda n: n == "aten::item").tolist():
        above = [run.text(r) for r in nesting.ancestors(row)]
        assert [n for n in above if n.startswith("train.py")] == [
            "train.py(41): log", "train.py(20): train_step", "train.py(60): main",
        ]  # fmt: skip
    for row in run.named(lambda n: n == "aten::add_").tolist():
        above = [run.text(r) for r in nesting.ancestors(row)]
        assert [n for n in above if n.startswith("train.py")] == ["train.py(60): main"]


def test_steps_that_differ_get_no_frames_that_are_not_theirs(tmp_path: Path, written: Written) -> None:
    """Every other step logs, and the detailed steps do not: the extra operators have the frames that stay open."""

    def at_times(b: RunBuilder, step: int) -> None:
        with written.frame(b, "train.py", 20, "train_step"):
            with b.op("aten::mm"):
                b.launch(400)
            with written.frame(b, "train.py", 33, "norm"), b.op("aten::norm"):
                b.launch(10)
            if 20 <= step < 25 and step % 2:
                b.item()
            with written.frame(b, "train.py", 50, "update"), b.op("aten::add_"):
                b.launch(10)

    capture = written.only(written.recording(tmp_path, at_times))
    run = capture.run
    assert run is not None
    nesting = Facts(capture)[Nesting]

    def frames(name: str) -> set[tuple[str, ...]]:
        rows = run.named(lambda n: n == name).tolist()
        return {
            tuple(t for r in nesting.ancestors(row) if (t := run.text(r)).startswith("train.py"))
            for row in rows
        }

    around = ("train.py(20): train_step", "train.py(60): main")
    assert frames("aten::item") == {around}
    assert frames("aten::norm") == {("train.py(33): norm", *around)}
    assert frames("aten::add_") == {("train.py(50): update", *around)}


def test_the_recorder_itself_is_no_part_of_the_program(tmp_path: Path, written: Written) -> None:
    """Frames of its hooks lie around the optimizer's in the detailed trace."""

    def watched(b: RunBuilder, step: int) -> None:
        with written.frame(b, "trace_doctor/recording/agent/step_detection.py", 80, "watched"):
            b.wait(3000)
            with written.frame(b, "torch/optim/adamw.py", 200, "step"), b.op("aten::add_"):
                b.launch(10)
        b.sync()

    folder = written.recording(tmp_path, watched)
    run = written.only(folder).run
    assert run is not None
    frames = {run.text(r).split("(")[0] for r in run.named(lambda n: ".py(" in n, Cat.PYTHON).tolist()}
    assert frames == {"torch/optim/adamw.py", "train.py"}
    assert not any("trace_doctor/recording" in str(f) for f in analyze(folder).findings)
    (folder / capture_file(0, "light")).unlink()
    assert not any("trace_doctor/recording" in str(f) for f in analyze(folder).findings)


@pytest.mark.parametrize("in_both", [True, False])
def test_what_only_the_machine_held_up_is_not_blamed(tmp_path: Path, in_both: bool, written: Written) -> None:
    """Three of five light steps stand still in a function; a fault of the script would show in the detailed ones too."""

    def saves(b: RunBuilder, step: int) -> None:
        written.reads_the_loss(b, step)
        with written.frame(b, "train.py", 70, "save"):
            b.wait(6000 if step % 2 == 0 or in_both else 10)
        with b.op("aten::zero_"):
            b.launch(5)

    def at_times(b: RunBuilder, step: int) -> None:
        saves(b, step if step < 25 else 1)

    folder = written.recording(tmp_path, at_times)
    assert ("TD203" in {f.code for f in analyze(folder).findings}) == in_both


def test_other_programs_lend_nothing(tmp_path: Path, written: Written) -> None:
    folder = written.recording(tmp_path)

    def other(b: RunBuilder, step: int) -> None:
        for _ in range(9):
            with b.op("aten::conv2d"):
                b.launch(20)

    written.pack(
        written.trace(other, detailed=True).write(tmp_path / "other"), folder / capture_file(0, "detailed")
    )
    capture = written.only(folder)
    assert capture.run is not None and capture.run.own.all() and not capture.frames_from


def test_a_function_open_all_through_is_one_frame(tmp_path: Path, written: Written) -> None:
    """Although some of its steps begin with operators that the detailed trace never shows."""

    def begins_otherwise(b: RunBuilder, step: int) -> None:
        if step in (21, 23):
            with b.op("aten::print"):
                b.wait(50)
        written.reads_the_loss(b, step)

    run = written.only(written.recording(tmp_path, begins_otherwise)).run
    assert run is not None
    [row] = run.named(lambda n: n == "train.py(60): main").tolist()
    marks = run.named(lambda n: n.startswith("ProfilerStep"))
    assert run.ts[row] == run.ts[marks].min() and run.end[row] >= run.end[marks].max()


@pytest.mark.parametrize("sample", ["graph_break_item/cpu/fault", "straggler/cpu/healthy"])
def test_lent_frames_of_a_real_recording_are_those_of_the_detailed_trace(sample: str) -> None:
    """Every operator of a steady step stands in frames that the same operator has in the detailed trace."""
    captures, _ = read_captures([SAMPLES / sample])
    for capture in captures:
        assert capture.frames_from and capture.run is not None
        detailed = next(r for r in capture.further if isinstance(r, Run))
        known = stacks(detailed)
        lent = stacks(capture.run)
        assert lent.keys() <= known.keys()
        told = sum(lent[name] <= known[name] for name in lent)
        assert told == len(lent), {n: lent[n] - known[n] for n in lent if not lent[n] <= known[n]}
        assert sum(len(s) for of in lent.values() for s in of) > 100


def stacks(run: Run) -> dict[str, set[tuple[str, ...]]]:
    """The frames of the program around each operator of the main thread, in steady steps."""
    facts = Facts(Capture(run.rank, run))
    nesting, steps = facts[Nesting], facts[Steps].steady
    found: dict[str, set[tuple[str, ...]]] = {}
    rows = run.named(lambda n: n.startswith("aten::"), Cat.CPU_OP)
    for row in rows[run.thread[rows] == facts[Threads].main].tolist():
        if any(s.start <= run.ts[row] < s.end for s in steps):
            above = [run.text(r) for r in nesting.ancestors(row) if run.cat[r] == Cat.PYTHON]
            found.setdefault(run.text(row), set()).add(tuple(n for n in above if "trace_doctor/" not in n))
    return found
