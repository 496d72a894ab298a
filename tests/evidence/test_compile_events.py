from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.compile.compile_events import CompileEvents
from trace_doctor.evidence.compile.graph_breaks import Break
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.loaders.torch_trace import (
    CompileLog,
    LogFrame,
    LoggedBreak,
    LoggedCompile,
    load_torch_trace,
)
from trace_doctor.run import Run
from trace_doctor.testing import RunBuilder
from trace_doctor.user_frames import Frame


def events(run: Run, *logs: CompileLog, options: Options | None = None) -> CompileEvents:
    return Facts(Capture(0, run, torch_logs=logs), options)[CompileEvents]


def host_ns(gaps: Sequence[tuple[int, int, int]]) -> int:
    """Length of spans of (thread, start, end) ns that do not overlap."""
    return sum(end - start for _, start, end in gaps)


def places(breaks: Sequence[Break]) -> list[tuple[str | None, int | None]]:
    return [(b.function, b.line) for b in breaks]


def _graph(b: RunBuilder, us: float = 50) -> None:
    with b.op("CompiledFunction", us=1):
        b.wait(us)


def _resumed(b: RunBuilder, frame: int, function: str, line: int, file: str = "train.py"):  # type: ignore[no-untyped-def]
    """A continuation behind a break: the region and, with stacks, its function."""
    from contextlib import ExitStack

    stack = ExitStack()
    stack.enter_context(b.region(frame))
    stack.enter_context(b.python(file, line, f"torch_dynamo_resume_in_{function}_at_{line}"))
    return stack


def _in_helper(stacks: bool, steps: int = 3) -> Run:
    """forward calls helper, which breaks at 30; forward goes on at 35 and breaks itself at 40."""
    b = RunBuilder(gpu=None, stacks=stacks)
    for _ in range(steps):
        with b.step(), b.region(0), b.python("train.py", 33, "forward"):
            _graph(b)
            b.wait(10)
            with b.region(1), b.python("train.py", 28, "helper"):
                _graph(b)
                b.wait(20)
                with _resumed(b, 2, "helper", 30):
                    _graph(b)
            b.wait(40)
            with _resumed(b, 3, "forward", 35):
                _graph(b)
                b.wait(80)
                with _resumed(b, 4, "forward", 40):
                    _graph(b)
    return b.run()


def test_a_function_that_calls_a_broken_one_is_not_to_blame() -> None:
    found = events(_in_helper(stacks=True)).breaks
    assert places(found) == [("helper", 30), ("forward", 40)]
    helper, forward = found
    assert helper.defined == 28
    assert forward.defined == 33
    assert (helper.calls, helper.pieces) == (3, 9)
    assert (forward.calls, forward.pieces) == (3, 3)


def test_the_time_between_pieces_goes_to_the_break_that_made_them() -> None:
    helper, forward = events(_in_helper(stacks=True)).breaks
    assert host_ns(helper.gaps) == 3 * (10 + 20 + 40) * 1000
    assert host_ns(forward.gaps) == 3 * 80 * 1000


def test_a_whole_function_that_is_called_on_the_broken_line_is_behind_the_break() -> None:
    b = RunBuilder(gpu=None, stacks=True)
    for _ in range(3):
        with b.step(), b.region(0), b.python("train.py", 33, "forward"):
            _graph(b)
            b.wait(20)
            with b.region(1), b.python("train.py", 28, "helper"):
                _graph(b)
            b.wait(40)
            with _resumed(b, 2, "forward", 35):
                _graph(b)
    [forward] = events(b.run()).breaks
    assert (forward.function, forward.line, forward.pieces) == ("forward", 35, 6)
    assert forward.callee == Frame("train.py", 28, "helper")
    assert host_ns(forward.gaps) == 3 * (20 + 40) * 1000


def test_without_stacks_there_is_one_break_without_a_place() -> None:
    [found] = events(_in_helper(stacks=False)).breaks
    assert (found.function, found.file, found.line) == (None, None, None)
    assert found.chain == 2
    assert host_ns(found.gaps) == 3 * 150 * 1000


def _log(path: str = "trace.log", rank: int | None = None, **more: object) -> CompileLog:
    def frame(i: int, function: str, line: int) -> LoggedCompile:
        return LoggedCompile(f"{i}/0", LogFrame("/home/me/train.py", line, function), 0.1)

    compiles = (
        frame(0, "forward", 33),
        frame(1, "helper", 28),
        frame(2, "torch_dynamo_resume_in_helper_at_30", 30),
        frame(3, "torch_dynamo_resume_in_forward_at_35", 35),
        frame(4, "torch_dynamo_resume_in_forward_at_40", 40),
    )
    fields: dict[str, object] = {"breaks": (), "compiles": compiles, "recompiles": ()} | more
    return CompileLog(path, rank, "2.13.0", records=9, **fields)  # type: ignore[arg-type]


def _said(compile_id: str, function: str, line: int, *, skips: bool = False) -> LoggedBreak:
    site = LogFrame("/home/me/train.py", line, function)
    return LoggedBreak(compile_id, "Unsupported call", "", (), "GB0001", skips, (site,))


def test_a_log_names_what_a_trace_without_stacks_cannot() -> None:
    found = events(_in_helper(stacks=False), _log(breaks=(_said("1/0", "helper", 30),))).breaks
    assert places(found) == [("helper", 30), ("forward", 40)]
    assert [b.reason for b in found[0].logged] == ["Unsupported call"]


def test_names_of_the_trace_are_kept_and_a_log_only_adds_reasons() -> None:
    found = events(_in_helper(stacks=True), _log(breaks=(_said("1/0", "helper", 30),))).breaks
    assert found[0].file == "train.py"
    assert [b.gb for b in found[0].logged] == ["GB0001"]


def test_a_log_of_other_code_is_not_used() -> None:
    foreign = _log(compiles=(LoggedCompile("0/0", LogFrame("other.py", 1, "main"), None),))
    [found] = events(_in_helper(stacks=False), foreign).breaks
    assert found.line is None
    [found] = events(_in_helper(stacks=False), _log(compiles=_log().compiles[:-1])).breaks  # type: ignore[arg-type]
    assert found.line is None


def test_of_two_logs_that_fit_neither_is_used_unless_one_is_nearer() -> None:
    run = _in_helper(stacks=False)
    assert events(run, _log("a.log"), _log("b.log")).breaks[0].line is None
    assert events(run, _log("a.log"), _log("elsewhere/b.log", rank=1)).breaks[0].line == 30


def test_a_break_with_nothing_compiled_behind_it_comes_from_the_log() -> None:
    found = events(_in_helper(stacks=True), _log(breaks=(_said("4/0", "forward", 50),))).breaks
    assert ("forward", 50) in places(found)
    assert next(b for b in found if b.line == 50).gaps == ()


def test_separate_functions_and_regional_blocks_are_no_breaks() -> None:
    b = RunBuilder(gpu=None, stacks=True)
    for _ in range(3):
        with b.step():
            for block in range(4):
                with b.region(0, min(block, 1)), b.python("torch/nn/modules/container.py", 240, "forward"):
                    _graph(b)
                b.wait(20)
            with b.region(1), b.python("train.py", 76, "loss"):
                _graph(b)
    found = events(b.run())
    assert found.breaks == ()
    assert len(found.regions.roots) == 15


@pytest.mark.parametrize("stacks", [True, False])
def test_without_ids_only_names_tell_a_break(stacks: bool) -> None:
    b = RunBuilder(gpu=None, stacks=stacks)
    for _ in range(3):
        with b.step(), b.event("Torch-Compiled Region"), b.python("train.py", 5, "forward"):
            _graph(b)
            b.wait(30)
            resumed = b.python("train.py", 8, "torch_dynamo_resume_in_forward_at_8")
            with b.event("Torch-Compiled Region"), resumed:
                _graph(b)
    found = events(b.run())
    assert not found.has_ids
    assert places(found.breaks) == ([("forward", 8)] if stacks else [])


def test_a_continuation_that_runs_eagerly_still_names_the_line() -> None:
    """Past the recompile limit what follows a break is plain Python: only its frame is left of it."""
    b = RunBuilder(gpu=None, stacks=True)
    for _ in range(3):
        with b.step(), b.region(0), b.python("train.py", 19, "forward"):
            _graph(b)
            with b.region(1), b.python("train.py", 8, "metric"):
                _graph(b)
            with b.python("train.py", 22, "torch_dynamo_resume_in_forward_at_22"), b.op("aten::add", us=20):
                pass
    (found,) = events(b.run()).breaks
    assert (found.function, found.line, found.calls) == ("forward", 22, 3)
    assert found.callee == Frame("train.py", 8, "metric")


def test_compiled_callables_of_which_nothing_is_compiled_are_counted() -> None:
    b = RunBuilder(gpu=None, stacks=True)
    for _ in range(3):
        wrapper = b.python("torch/_dynamo/eval_frame.py", 1076, "compile_wrapper")
        with b.step(), wrapper, b.python("train.py", 12, "forward"), b.op("aten::mm", us=20):
            pass
    found = events(b.run())
    assert found.wrappers_run == 3
    assert not found.regions.all
    assert not found.graphs_run


def test_a_region_on_another_thread_is_not_inside() -> None:
    b = RunBuilder(gpu=None)
    for _ in range(3):
        with b.step(), b.region(0):
            _graph(b)
            with b.thread(200), b.region(1):
                _graph(b)
            b.wait(100)
    assert events(b.run()).breaks == ()


def test_compiling_and_waiting_are_not_what_a_break_costs() -> None:
    b = RunBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.region(0), b.python("train.py", 5, "forward"):
            with b.op("CompiledFunction", us=1):
                b.launch(300)
            b.wait(10)
            b.sync()
            with b.event("_compile.compile_inner (dynamo_timed)"):
                b.wait(5000)
            b.wait(10)
            with _resumed(b, 1, "forward", 8):
                _graph(b)
    [found] = events(b.run()).breaks
    assert host_ns(found.gaps) == pytest.approx(3 * 20_000, rel=0.01)


def test_a_function_given_up_whole_runs_eagerly_inside_a_region() -> None:
    b = RunBuilder(gpu=None, stacks=True)
    for _ in range(3):
        forward, blocks = b.python("train.py", 5, "forward"), b.python("train.py", 38, "run_blocks")
        with b.step(), b.region(0), forward:
            with b.event("<built-in method len>", "python_function"):
                b.wait(1)
            with blocks, b.op("aten::linear"):
                b.wait(20)
    run = b.run()
    [found] = events(run).breaks
    assert (found.function, found.line, found.defined, found.whole) == ("run_blocks", None, 38, True)
    log = _log(breaks=(_said("1/0", "run_blocks", 41, skips=True),))
    [found] = events(run, log).breaks
    assert (found.line, found.whole) == (41, True)


def test_operators_of_a_debug_backend_are_not_eager_code() -> None:
    b = RunBuilder(gpu=None, stacks=True)
    for _ in range(3):
        with b.step(), b.region(0), b.python("train.py", 5, "forward"):
            with b.event("Pregraph bytecode"):
                b.wait(2)
            with b.python("hooks.py", 3, "hook"), b.op("aten::linear"):
                b.wait(20)
    assert events(b.run()).breaks == ()


def test_a_run_in_which_no_step_can_be_selected_still_shows_what_was_compiled() -> None:
    b = RunBuilder(gpu=None)
    with b.region(0):
        _graph(b)
    found = events(b.run(), options=Options(steps=(1, 3)))
    assert (len(found.regions.roots), found.uncompiled) == (1, ())


def test_only_breaks_in_steady_steps_are_told() -> None:
    b = RunBuilder(gpu=None, stacks=True)

    def broken() -> None:
        with b.region(0), b.python("train.py", 5, "forward"):
            _graph(b)
            b.wait(10)
            with _resumed(b, 1, "forward", 8):
                _graph(b)

    broken()
    for _ in range(3):
        with b.step():
            broken()
    [found] = events(b.run()).breaks
    assert found.calls == 3


def test_a_run_without_compile_has_nothing() -> None:
    b = RunBuilder()
    with b.op("aten::mm"):
        b.launch(100)
    found = events(b.run())
    assert (found.regions.all, found.breaks, found.compilations, found.graphs_run) == ((), (), (), 0)


SCRIPT = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile

torch.set_num_threads(1)


def helper(x):
    x = x * 2
    print("helper", file=sys.stderr)
    return x + 1


@torch.compile(backend="aot_eager")
def calls_helper(x):
    x = x.sin()
    x = helper(x)
    x = helper(x)
    x = x.cos()
    torch._dynamo.graph_break()
    return x * 3


@torch.compile(backend="aot_eager")
def reads_a_value(x):
    y = x.exp()
    if y.sum() > 0:
        y = y + 1
    scale = float(y.sum())
    return y * scale


@torch.compile(backend="aot_eager")
def sound(x):
    return x.relu() * 2


block = torch.compile(lambda x: x.tanh() + 1, backend="aot_eager")


def step(x):
    for _ in range(3):
        x = block(x)
    return sound(calls_helper(x)) + reads_a_value(x)


x = torch.linspace(0, 1, 16)
for _ in range(3):
    step(x)
for kind in ("stacks", "plain"):
    with profile(activities=[ProfilerActivity.CPU], with_stack=kind == "stacks") as prof:
        for _ in range(3):
            step(x)
            prof.step()
    prof.export_chrome_trace(f"{sys.argv[1]}/{kind}.json")
"""


@pytest.mark.torch
def test_every_break_of_a_real_script_once(tmp_path: Path) -> None:
    """The trace alone names the breaks that PyTorch's own log names; the log names them where stacks are missing."""
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "TORCH_TRACE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(tmp_path)]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
    log = load_torch_trace(next(tmp_path.glob("*.log")), "train.log")
    told = {(b.site.function, b.site.line) for b in log.breaks if b.site}
    assert len(told) == 4
    alone = events(load_trace(tmp_path / "stacks.json", "stacks.json")).breaks
    assert sorted(places(alone)) == sorted(told)
    assert {b.file for b in alone} == {"train.py"}
    plain = load_trace(tmp_path / "plain.json", "plain.json")
    assert all(b.line is None for b in events(plain).breaks)
    assert {b.outermost for b in events(plain).breaks} == {b.outermost for b in alone}
    assert sorted(places(events(plain, log).breaks)) == sorted(told)


@pytest.mark.captures
def test_no_real_capture_is_said_to_break(trace_facts: Facts) -> None:
    """None of them nests regions: compiled models, regional blocks, piecewise graphs of servers, graph capture."""
    found = trace_facts.get(CompileEvents)
    if found is None:
        pytest.skip("nothing is compiled")
    assert found.breaks == ()
    assert found.compilations == ()


def test_without_steps_nothing_is_said_of_code_that_missed_its_cache() -> None:
    b = RunBuilder()
    for _ in range(3):
        with b.python("train.py", 3, "f"), b.region(0):
            _graph(b)
    made = events(b.run())
    assert (made.uncompiled, len(made.regions.all)) == ((), 3)
