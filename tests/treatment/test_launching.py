"""Runs of the command in the scratch copy: what each of several ranks shows."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from repositories import committed, git
from without_compiler import WITHOUT_COMPILER

from trace_doctor.fixes.plan import plan
from trace_doctor.model import Result
from trace_doctor.treatment.candidates import Setup
from trace_doctor.treatment.launching import CommandRunner, Steps
from trace_doctor.treatment.scratch import Scratch

RANKS = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(10_000):
    loss = model(torch.full((8, 16), 1.0 + dist.get_rank())).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SHORT = f"""{WITHOUT_COMPILER}
import torch

model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(14):
    model(torch.ones(8, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


live = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="runs scripts with PyTorch, which is not installed: pip install 'trace-doctor[torch]'",
)


@live
@pytest.mark.torch
def test_a_script_that_ends_sooner_than_its_recording_let_expect_is_timed_with_the_steps_it_has(
    tmp_path: Path,
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(SHORT)
    with Scratch(project, project, folder=tmp_path) as scratch:
        runner = CommandRunner(
            scratch, [sys.executable, "train.py"], project, recordings=None, max_steps=None
        )
        runner.steps = Steps(warmup=4, timing=396)
        run = runner.pilot(Setup(plan(Result(), project)))
    assert (runner.steps.warmup, runner.steps.timing, len(run.step_us)) == (4, 10, 10)


@live
@pytest.mark.torch
def test_a_plain_run_of_two_ranks_times_the_same_steps_of_both(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(RANKS)
    committed(project)
    with Scratch(project, project, folder=tmp_path) as scratch:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TRACE_DOCTOR")}
        runner = CommandRunner(
            scratch,
            [*TORCHRUN, "train.py"],
            project,
            recordings=tmp_path / "recordings",
            max_steps=None,
            environment={**environment, "OMP_NUM_THREADS": "1"},
        )
        runner.steps = Steps(warmup=3, timing=6)
        run = runner.time(Setup(plan(Result(), project)))
    timed = {rank: [step for r, step in run.step_us if r == rank] for rank, _ in run.step_us}
    assert set(timed) == {0, 1} and timed[0] == timed[1]
    assert len(timed[0]) == 6
    assert run.time_us() > 0
    first = min(step for _, step in run.losses)
    assert run.losses[0, first] != run.losses[1, first], "each rank has losses of its own"
    assert git(project, "status", "--porcelain") == ""
