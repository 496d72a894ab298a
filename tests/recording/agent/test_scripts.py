"""Scripts that know nothing of being recorded."""

from __future__ import annotations

import hashlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from without_compiler import WITHOUT_COMPILER

from trace_doctor.recording.lines_tsv import lines_run

Make = Callable[..., "Made"]  # type: ignore[name-defined]  # noqa: F821  conftest's
pytestmark = pytest.mark.torch

WHOLE_TORCH = """
import os, signal, sys, time
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step(parts=1):
    optimizer.zero_grad()
    losses = [model(torch.randn(8, 16)).pow(2).mean() / parts for _ in range(parts)]
    for loss in losses:
        loss.backward()
    optimizer.step()
    return [loss.item() for loss in losses]
"""
MODEL = WITHOUT_COMPILER + WHOLE_TORCH

ACCUMULATING = (
    WHOLE_TORCH
    + """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        return model(torch.randn(1, 16)).detach()  # a worker that calls a module

def main():
    if len(sys.argv) > 1:
        print("not this time")
    for i, _ in enumerate(torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1)):
        print("step", i, *map(repr, step(parts=2)))
    print("random", torch.rand(1).item(), [p.sum().item() for p in model.parameters()])

main()
sys.exit(3)
"""
)


@pytest.fixture(scope="module")
def accumulating(make: Make):  # type: ignore[no-untyped-def]
    return make(ACCUMULATING, let_it_run=True, lines=True)


def test_a_script_computes_what_it_computes_without_us(accumulating, tmp_path) -> None:  # type: ignore[no-untyped-def]
    script = tmp_path / "script.py"
    script.write_text(ACCUMULATING)
    alone = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert alone.returncode == accumulating.recorded.exit_code == 3
    assert accumulating.output == alone.stdout
    assert not accumulating.recorded.stopped_by_us


def test_losses_are_those_of_the_script_bit_by_bit(accumulating) -> None:  # type: ignore[no-untyped-def]
    printed = {
        int(n): repr(float(a) + float(b))
        for n, a, b in re.findall(r"step (\d+) (\S+) (\S+)", accumulating.output)
    }
    plain = [r for r in accumulating.rows() if r["phase"] in ("warmup", "timing")]
    assert len(plain) > 8
    assert {int(r["step"]): r["loss"] for r in plain} == {
        int(r["step"]): printed[int(r["step"])] for r in plain
    }
    assert not any(r["loss"] for r in accumulating.rows() if r["phase"] in ("light", "detailed"))


def test_lines_that_ran_are_told_those_of_workers_too(accumulating) -> None:  # type: ignore[no-untyped-def]
    [((file, digest), ran)] = lines_run(accumulating.folder).items()
    text = Path(file).read_text()
    assert digest == hashlib.sha256(text.encode()).hexdigest()
    by_line = {line.strip(): number in ran for number, line in enumerate(text.split("\n"), 1)}
    in_worker, before_torch = by_line["return 60"], by_line["import os, signal, sys, time"]
    assert in_worker and before_torch and by_line["optimizer.step()"] and by_line["if len(sys.argv) > 1:"]
    assert by_line["return model(torch.randn(1, 16)).detach()  # a worker that calls a module"]
    assert not by_line['print("not this time")']


def test_phases_follow_one_another_without_a_gap(accumulating) -> None:  # type: ignore[no-untyped-def]
    phases = accumulating.phases()
    assert [name for name, _, _ in phases][:4] == ["warmup", "timing", "light", "detailed"]
    assert phases[0][1] == 0
    assert all(b[1] == a[2] + 1 for a, b in pairwise(phases))
    rows = {int(r["step"]): r["phase"] for r in accumulating.rows()}
    assert rows == {n: name for name, first, last in phases for n in range(first, last + 1)}
    assert all(float(r["milliseconds"]) > 0 for r in accumulating.rows())


def test_traces_mark_the_steps_of_their_phase_but_the_first(accumulating) -> None:  # type: ignore[no-untyped-def]
    for name, first, last in accumulating.phases():
        if name in ("light", "detailed"):
            assert accumulating.marks(name) == list(range(first + 1, last + 1))


def test_what_the_recorder_says(accumulating) -> None:  # type: ignore[no-untyped-def]
    said = accumulating.said()
    assert said["found_steps_by"] == "optimizer" and said["accumulation"] == 2
    assert said["ended"] == "enough" and said["rank"] == 0 and said["world_size"] == 1
    assert said["files"] == {"light": "rank0.light.json.gz", "detailed": "rank0.detailed.json.gz"}
    overheads = {p["name"]: p["overhead"] for p in said["phases"]}
    assert overheads["timing"] is None
    assert overheads["detailed"]["per_step_us"]  # below zero where others took the core meanwhile
    assert [p.name for p in accumulating.folder.iterdir() if p.name.startswith(".")] == []


def test_a_script_is_stopped_at_a_step_and_cleans_up(make: Make) -> None:
    made = make(
        MODEL
        + """
turn = [torch.optim.Adam(model[2].parameters()) for _ in range(1)]  # a second optimizer: three steps to one
try:
    for i in range(10_000):
        for _ in range(3):
            step()
        model(torch.randn(4, 16)).mean().backward()
        turn[0].step()
        print("turn", i)
finally:
    print("cleaned up")
"""
    )
    assert made.recorded.exit_code == 0 and made.recorded.stopped_by_us
    assert made.output.endswith("cleaned up\n")
    said = made.said()
    assert said["ended"] == "enough" and said["accumulation"] is None
    assert said["backward_passes_per_step"] == 4, "the optimizer that steps least often ends a step"


IN_A_THREAD_OF_RAY = """
from threading import Thread
from types import ModuleType

sys.modules["ray.train"] = ModuleType("ray.train")
failed = []

def train():
    try:
        while True:
            step()
    except BaseException as error:  # as Ray does: whatever ends a worker but its return has failed
        failed.append(error)

worker = Thread(target=train, daemon=True)
worker.start()
try:
    while worker.is_alive():
        worker.join(0.1)
except KeyboardInterrupt:
    print("aborted")
    sys.exit(130)
sys.exit(f"failed: {failed}")
"""


def test_ray_train_is_stopped_from_outside(make: Make) -> None:
    made = make(MODEL + IN_A_THREAD_OF_RAY)
    assert "aborted" in made.output.splitlines()
    assert (made.recorded.exit_code, made.recorded.stopped_by_us) == (0, True)
    assert made.said()["ended"] == "enough" and "light" in made.said()["files"]


def test_a_recording_begins_where_it_is_asked_to(make: Make) -> None:
    """Steps and seconds count from there: those before it take all of the time that recording has."""
    slow_at_first = "\nfor i in range(10_000):\n    step()\n    time.sleep(0.2 if i < 30 else 0)\n"
    made = make(MODEL + slow_at_first, at=30, max_steps=60, max_seconds=6)
    assert made.recorded.stopped_by_us and made.said()["ended"] == "enough"
    first, *others = made.phases()
    assert first[0] == "warmup" and first[1] == 0 and first[2] >= 30
    assert {name for name, _, _ in others} == {"timing", "light", "detailed"}
    assert others[-1][2] < 90


@pytest.mark.parametrize(
    ("end", "ended", "code"),
    [
        ("raise ValueError('so')", "exception", 1),
        ("os._exit(7)", "os._exit", 7),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", "signal", -signal.SIGTERM),
    ],
)
def test_what_was_recorded_outlives_every_end(make: Make, end: str, ended: str, code: int) -> None:
    made = make(MODEL + f"\nfor _ in range(14):\n    step()\n{end}\n", timing_steps=30)
    assert made.recorded.exit_code == code
    said = made.said()
    assert said["ended"] == ended
    assert len(made.rows()) == 14
    assert said["phases"][-1]["last_step"] == 13


def test_inference_has_steps_too_and_a_failure_of_ours_is_none_of_the_script(make: Make) -> None:
    """Two things in one process: calls of the model are steps; then the recorder breaks."""
    made = make(
        MODEL.replace("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", "model.eval()")
        + """
import trace_doctor.recording.agent.recorder as ours
with torch.inference_mode():
    for i in range(40):
        if i == 12:
            ours.now = None
        model(torch.randn(8, 16))
print("went on")
sys.exit(5)
"""
    )
    assert made.recorded.exit_code == 5 and made.output == "went on\n"
    said = made.said()
    assert said["found_steps_by"] == "module calls" and said["accumulation"] is None
    assert said["ended"] == "recorder failed" and "switched itself off" in said["warnings"][-1]
    assert len(made.rows()) == 12 or "TypeError at agent" in said["warnings"][-1]


def test_the_compiler_sees_nothing_of_us(make: Make) -> None:
    """A compiled optimizer step has graph breaks of its own, behind which torch.compile looks at all that is called."""
    made = make(
        WHOLE_TORCH
        + """
from torch._dynamo.utils import counters
model = torch.compile(model, backend="eager")
compiled = torch.compile(optimizer.step, backend="eager")
for i in range(60):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).pow(2).mean().backward()
    compiled()
print(dict(counters["graph_break"]), dict(counters["frames"]))
from torch._inductor import config
print("lines of kernels:", config.trace.provenance_tracking_level)
""",
        let_it_run=True,
        lines=True,
        kernel_lines=True,
    )
    assert "trace_doctor" not in made.output
    assert "lines of kernels: 2" in made.output
    said = made.said()
    assert said["ended"] == "enough"
    assert set(said["compile_steps"]) <= {0, 1}, "only the script's own functions are compiled"
    assert said["compile_steps"]
    assert [*(made.folder / "torch_trace").glob("dedicated_log_torch_trace_*.log")]


def test_ranks_change_phase_at_the_same_step(make: Make) -> None:
    made = make(
        WHOLE_TORCH
        + """
import torch.distributed as dist
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
try:
    for i in range(10_000):
        step()
finally:
    print("rank", dist.get_rank(), "stopped behind", i, flush=True)
""",
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
    )
    assert made.recorded.exit_code == 0 and made.recorded.stopped_by_us
    assert made.phases(0) == made.phases(1)
    assert made.said(1)["world_size"] == 2 and made.said(1)["ended"] == "enough"
    assert made.marks("light", 0) == made.marks("light", 1)
    assert len({*re.findall(r"stopped behind (\d+)", made.output)}) == 1
    assert len(made.rows(0)) == len(made.rows(1))


BY_HAND = """
import time
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
loss_of = nn.MSELoss()
def evaluate():
    model.eval()
    with torch.no_grad():
        for _ in range(50):
            loss_of(model(torch.randn(8, 16)), torch.zeros(8, 1))
            time.sleep(0.01)

for epoch in range(20):
    model.train()
    for batch in range(10):
        loss = loss_of(model(torch.randn(8, 16)), torch.zeros(8, 1))
        loss.backward()
        if batch % 2 == 1:
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.1)
            model.zero_grad()
        print("batch", loss.item())
        time.sleep(0.01)
    evaluate()
"""


def test_evaluation_is_no_step_of_a_training_without_an_optimizer(make: Make) -> None:
    """Two batches make a step; between epochs the model is called a hundred times as often as it trains."""
    made = make(BY_HAND)
    said = made.said()
    assert said["found_steps_by"] == "backward passes" and said["accumulation"] == 2
    losses = [float(n) for n in re.findall(r"batch (\S+)", made.output)]
    rows = [row for row in made.rows() if row["loss"]]
    assert len(rows) > 8
    for row in rows:
        at = 2 * int(row["step"])
        assert float(row["loss"]) == losses[at] + losses[at + 1]
    work = said["periodic"]
    assert work["places"][0]["calls"] == "evaluate" and work["share"] > 0.5
    assert len(work["steps"]) > 1 and all(step % 5 == 0 for step in work["steps"]), "the first of each epoch"


SIDE_BY_SIDE = f"""{WITHOUT_COMPILER}
import torch
import torch.multiprocessing as mp
from torch import nn

def train(rank, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for i in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).pow(2).mean().backward()
        optimizer.step()
    print("process", rank, "took", i + 1, "steps", flush=True)

model = nn.Linear(16, 1)
model.share_memory()
context = mp.get_context("fork")
processes = [context.Process(target=train, args=(rank, model)) for rank in range(2)]
for process in processes:
    process.start()
for process in processes:
    process.join()
model.eval()
with torch.no_grad():
    for _ in range(40):
        model(torch.randn(8, 16))
"""


def test_of_processes_that_train_without_a_process_group_the_first_is_recorded(make: Make) -> None:
    """They are forked and leave by os._exit; that their parent evaluates the model is no third training."""
    made = make(SIDE_BY_SIDE, timing_steps=30)
    assert made.output.count("took 20 steps") == 2
    said = made.said()
    assert said["found_steps_by"] == "optimizer" and said["ended"] == "os._exit"
    assert [int(row["step"]) for row in made.rows()] == [*range(20)]
    assert "1 more process trained: only the first one is recorded" in made.recorded.warnings
