"""A typo in a command is told before anything is made for it; what cannot be known is left to the command."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from warm_commands import warm

from trace_doctor.errors import UsageError
from trace_doctor.recording.startable import missing_script, several_machines
from trace_doctor.treatment import treat

TYPOS = (
    "trian.py", "./trian.py", "python trian.py", "/usr/bin/python3.11 -u trian.py --lr 1", "python -W ignore -Xdev trian.py",
    "python -- trian.py", "torchrun --nproc-per-node 2 trian.py out.py", "accelerate launch --config_file a.yaml trian.py",
    "deepspeed --num_gpus=2 trian.py --deepspeed",
)  # fmt: skip
LEFT_ALONE = (
    "python train.py", "python train.py --save new.py", "python -u package", "python -m trian.py", "python -um trian",
    "python -c pass trian.py", "python -", "python", "torchrun -m trian out.py", "accelerate test trian.py",
    "torchrun --no-python trian.sh a.py", "deepspeed train.py", "bash -c trian.py", "ssh host python trian.py", "true",
)  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").touch()
    (tmp_path / "package").mkdir()
    return tmp_path


@pytest.mark.parametrize("command", TYPOS)
def test_a_script_that_is_not_there_is_named(project: Path, command: str) -> None:
    assert str(missing_script(shlex.split(command), project)).endswith("trian.py")


@pytest.mark.parametrize("command", LEFT_ALONE)
def test_what_is_there_or_lies_elsewhere_is_left_to_the_command(project: Path, command: str) -> None:
    assert missing_script(shlex.split(command), project) is None


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [("python trian.py", 2, "trian.py: no such file"), ("train.py", 125, "python train.py runs it")],
)
def test_nothing_is_made_for_what_cannot_run(project: Path, command: str, code: int, said: str) -> None:
    done = subprocess.run(
        [*warm(), "record", *command.split()],
        cwd=project,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert sorted(p.name for p in project.iterdir()) == ["package", "train.py"]


def test_treat_refuses_it_too(project: Path) -> None:
    with pytest.raises(UsageError, match=r"trian\.py: no such file"):
        treat(["python", "trian.py"], project, cwd=project)


@pytest.mark.parametrize(
    ("command", "variables", "told"),
    [
        ("torchrun --nnodes 2 --nproc-per-node 8 train.py", {}, "--nnodes 2"),
        ("torchrun --nnodes=1:4 train.py", {}, "--nnodes=1:4"),
        ("srun --nodes=4 python train.py", {}, "--nodes=4"),
        ("accelerate launch --num_machines 2 train.py", {}, "--num_machines 2"),
        ("deepspeed --num_nodes 2 train.py", {}, "--num_nodes 2"),
        ("torchrun train.py", {"PET_NNODES": "2"}, "PET_NNODES=2"),
        ("torchrun --nnodes 1 --nproc-per-node 8 train.py", {"PET_NNODES": "1"}, ""),
        ("torchrun --nnodes=1:1 train.py", {}, ""),
        ("python train.py --nodes-file 2 --num_nodes_max 4", {"PET_NNODES": "x"}, ""),
        ("python train.py", {"PET_NNODES": "²"}, ""),
    ],
)
def test_a_job_of_several_machines_is_not_treated_on_one(
    command: str, variables: dict[str, str], told: str
) -> None:
    why = several_machines(command.split(), variables)
    assert (why is None) == (not told)
    assert why is None or why.startswith(f"{told}: the job runs on several machines")
