"""Whatever fails or ends in whatever thread: no profiler of ours is left on, which would end the process by SIGSEGV."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from without_compiler import WITHOUT_COMPILER

Make = Callable[..., "Made"]  # type: ignore[name-defined]  # noqa: F821  conftest's
pytestmark = pytest.mark.torch

TRAINS = """
import os, sys, threading, warnings
from collections import Counter
import torch
import trace_doctor
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
FEW = dict(phases=("warmup", "light", "detailed"), max_warmup_steps=2, light_steps=2, detailed_steps=2)
"""
IN_TURN = (
    TRAINS
    + """
from trace_doctor.recording import machine, plan, whole_files
from trace_doctor.recording.agent import losses, memory, patches, recorder, status, timing, tracing
from torch.profiler.profiler import _KinetoProfile
import torch._dynamo.callback

OURS = (recorder.Recorder, tracing.Tracer, tracing.OtherProfilers, timing.Compilations, timing.Moment, losses.Losses,
        memory.MemoryHistory, status.Status, status.StepTable, plan.Plan, patches.Patches)
GUARDS = {"_observe"}  # it catches what fails in it
PIECES = [(o, n) for o in OURS for n, f in vars(o).items() if n not in GUARDS and (callable(f) or isinstance(f, property))]
PIECES += [(_KinetoProfile, n) for n in ("prepare_trace", "start_trace", "add_metadata_json", "export_chrome_trace")]
PIECES += [(recorder, "now"), (recorder, "total"), (machine, "write"), (whole_files, "check"), (tracing.gzip, "open"),
           (torch._dynamo.callback.callback_handler.__class__, "remove_start_callback")]
STOPS = {"let_go", "_stop_tracer", "stop", "end_steps", "__init__", "__eq__", "__repr__"}

def records(breaks):
    with trace_doctor.record(sys.argv[1], **FEW) as recording:
        breaks()
        for _ in range(14):
            step()
            recording.step()

def failing(owner, name, at):
    calls = Counter()
    before = vars(owner)[name]
    function = before.fget if isinstance(before, property) else before
    def fails(*args, **kwargs):
        calls["all"] += 1
        if calls["all"] == at or at == 0:
            calls["failed"] += 1
            raise RuntimeError("fails")
        return function(*args, **kwargs)
    broken = property(fails) if isinstance(before, property) else fails
    try:
        records(lambda: setattr(owner, name, broken))
    finally:
        setattr(owner, name, before)
    return calls

records(lambda: None)
left, failed = [], 0
for owner, name in PIECES:
    for at in (1, 3, 0):
        if at == 0 and name in STOPS:
            continue
        try:
            failed += failing(owner, name, at)["failed"] > 0
        except BaseException as error:
            left.append((owner.__name__, name, at, repr(error)))
        if torch.autograd._profiler_enabled() or sys.getprofile():
            left.append((owner.__name__, name, at, "profiler on"))
            torch.autograd._disable_profiler()
            sys.setprofile(None)
print(left, failed)
sys.exit(6 if not left and failed > 60 else 1)
"""
)
OF_MANY = (
    WITHOUT_COMPILER
    + TRAINS
    + """
for _ in range(40):
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
sys.exit(4)
"""
)
OF_ONE_THAT_ENDS = (
    WITHOUT_COMPILER
    + TRAINS
    + """
def trains(steps):
    for _ in range(steps):
        step()
        recording.step()
for steps in range(3, 12):
    with trace_doctor.record(sys.argv[1], **FEW) as recording:
        thread = threading.Thread(target=trains, args=(steps,))
        thread.start()
        thread.join()
        step()
sys.exit(4)
"""
)


@pytest.mark.parametrize(("program", "code"), [(IN_TURN, 6), (OF_ONE_THAT_ENDS, 4)], ids=["pieces", "ends"])
def test_no_profiler_is_left_on(tmp_path: Path, program: str, code: int) -> None:
    (tmp_path / "script.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "script.py", "logs"], cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]


def test_steps_of_several_threads_are_timed_and_not_traced(make: Make) -> None:
    made = make(OF_MANY, let_it_run=True)
    assert made.recorded.exit_code == 4, made.output
    assert "light: not captured: left out: steps come from several threads" in made.said()["warnings"]
    assert made.said()["ended"] == "enough" and made.rows() and not made.said()["files"]
