"""Stretches of compiling: which there are, what they make, and why the code was compiled again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.compile.compile_events import CompileEvents
from trace_doctor.loaders.torch_trace import (
    CompileLog,
    LogFrame,
    LoggedCompile,
    LoggedLimit,
    LoggedRecompile,
)
from trace_doctor.model import TorchVersion
from trace_doctor.run import Run
from trace_doctor.testing import RunBuilder
from trace_doctor.user_frames import Frame


def events(run: Run, *logs: CompileLog) -> CompileEvents:
    return Facts(Capture(0, run, torch_logs=logs))[CompileEvents]


def _recompiling(shapes: bool = False, ids: bool = True) -> Run:
    b = RunBuilder(gpu=None, stacks=True, shapes=shapes)
    for n in range(3):
        with b.step():
            if n:
                if ids:
                    with b.annotation(f"dynamo_data: compile_id=0/{n}"):
                        b.wait(3)
                with b.event("_compile.compile_inner (dynamo_timed)"):
                    b.wait(100)
                    with b.event("compile_attempt_0 (dynamo_timed)"):
                        b.wait(900)
            graph = b.op("CompiledFunction", dims=[[32, 32], [8 + n, 32]], types=["float", "float"])
            with b.region(0, n), b.python("train.py", 5, "forward"), graph:
                b.wait(50)
    return b.run()


@pytest.mark.parametrize(("least", "missed"), [("1.12", 0), ("2.1", 0), ("2.2", 5)])
def test_a_lookup_is_in_vain_only_where_torch_marks_all_compiled_code(least: str, missed: int) -> None:
    b = RunBuilder()
    for _ in range(5):
        with b.step():
            with b.event("TorchDynamo Cache Lookup"):
                b.wait(50)
            with b.op("aten::mm", us=10):
                b.launch(200)
            b.sync()
    run = replace(b.run(), torch_version=TorchVersion(min=least))
    uncompiled = Facts(Capture(0, run))[CompileEvents].uncompiled
    assert sum(len(calls.misses) for calls in uncompiled) == missed


def test_the_versions_of_a_function_are_its_own() -> None:
    b = RunBuilder(gpu=None, stacks=True)
    for n in range(4):
        with b.step():
            for frame, name in enumerate(("forward", "loss")):
                if not n:
                    with b.event("_compile.compile_inner (dynamo_timed)"):
                        b.wait(1000)
                else:
                    with b.event("TorchDynamo Cache Lookup"):
                        b.wait(5)
                if n and name == "loss":
                    with b.python("train.py", 9, name), b.op("aten::mm", us=50):
                        continue
                with b.region(frame), b.python("train.py", 5 + 4 * frame, name), b.op("CompiledFunction"):
                    b.wait(50)
    (calls,) = events(b.run()).uncompiled
    assert calls.frame == Frame("train.py", 9, "loss")
    assert (len(calls.misses), calls.versions) == (3, 1)


@pytest.mark.parametrize("stacks", [True, False])
@pytest.mark.parametrize("called", [5, 0])
def test_the_log_says_that_a_limit_is_reached(stacks: bool, called: int) -> None:
    """Of a function that the trace calls, by its own name or as the only one, and of one that it does not call."""
    b = RunBuilder(gpu=None, stacks=stacks)
    for n in range(5):
        with b.step():
            if n < called:
                with b.event("TorchDynamo Cache Lookup"):
                    b.wait(5)
            with b.python("train.py", 5, "forward"), b.op("aten::mm", us=50):
                pass
    log = CompileLog(
        "trace.log",
        None,
        None,
        breaks=(),
        compiles=(LoggedCompile("0/0", LogFrame("/home/me/train.py", 5, "forward"), None),),
        recompiles=(LoggedRecompile("0/1", ("scale == 1.0",)),),
        records=4,
        limits=(LoggedLimit("0/1", "recompile_limit", 1),),
    )
    run = replace(b.run(), path="trace.json", torch_version=TorchVersion(min="2.13"))
    (calls,) = events(run, log).uncompiled
    assert calls.frame is not None
    assert calls.frame.function == "forward"
    assert len(calls.misses) == called
    assert calls.limit == LoggedLimit("0/1", "recompile_limit", 1)
    assert calls.changed == ("scale == 1.0",)


@pytest.mark.parametrize("ids", [True, False], ids=["annotated", "from the code that runs next"])
def test_compilations_are_outermost_and_know_what_they_make(ids: bool) -> None:
    found = events(_recompiling(ids=ids)).compilations
    assert [c.compile_id for c in found] == ["0/1", "0/2"]
    assert [c.recompile_id for c in found] == [1, 2]
    assert [c.ns for c in found] == [1_000_000, 1_000_000]
    assert {c.frame for c in found} == {Frame("train.py", 5, "forward")}


def test_recorded_shapes_say_what_changed() -> None:
    assert [c.changed for c in events(_recompiling(shapes=True)).compilations] == [
        ("input of shape [8, 32] became [9, 32]",),
        ("input of shape [9, 32] became [10, 32]",),
    ]
    assert [c.changed for c in events(_recompiling()).compilations] == [(), ()]


def test_the_log_says_it_better() -> None:
    log = CompileLog(
        "trace.log",
        None,
        None,
        breaks=(),
        compiles=tuple(LoggedCompile(f"0/{n}", LogFrame("train.py", 5, "forward"), None) for n in range(3)),
        recompiles=(LoggedRecompile("0/1", ("scale == 1.0",)),),
        records=4,
    )
    first, second = events(_recompiling(shapes=True), log).compilations
    assert first.changed == ("scale == 1.0",)
    assert second.changed == ("input of shape [9, 32] became [10, 32]",)
