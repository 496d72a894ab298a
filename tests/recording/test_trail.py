"""`trace-doctor record --every`: recordings of one job at several steps, each in its own folder."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from warm_commands import warm
from without_compiler import WITHOUT_COMPILER

from trace_doctor.recording.options import OPTIONS_VARIABLE

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

SCRIPT = f"""{WITHOUT_COMPILER}
import torch
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(240):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
print("all steps")
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*warm(), *arguments], cwd=folder, capture_output=True, text=True, env=environment)


def test_each_window_is_a_recording_and_two_of_them_can_be_compared(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = run(
        tmp_path,
        "record",
        "--at",
        "10",
        "--every",
        "80",
        "--timing-steps",
        "6",
        "--",
        sys.executable,
        "train.py",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all steps\n", "the script is not stopped"
    assert "written" not in done.stderr, "its recordings are no files that the script has left"
    first, second, third = sorted((tmp_path / "logs").iterdir())
    assert (second.name, third.name) == (f"{first.name}-step00000090", f"{first.name}-step00000170")
    for folder, at in ((first, 0), (second, 90), (third, 170)):
        manifest = json.loads((folder / "rank0.recording.json").read_text())
        assert manifest["ended"] == "enough" and not manifest["warnings"]
        with (folder / "steps.csv").open() as file:
            rows = list(csv.DictReader(file))
        steps = [int(row["step"]) for row in rows]
        assert steps == [*range(at, steps[-1] + 1)]
        assert steps[-1] < at + 80, "between the windows nothing is recorded"
        assert all(row["loss"] for row in rows if row["phase"] == "timing")
        assert {f.name for f in folder.iterdir()} == {
            "command.txt", "environment.json", "rank0.light.json.gz", "rank0.recording.json", "recording.json", "steps.csv",
        }  # fmt: skip
    following = re.search(r"^next: trace-doctor (diff .+)$", done.stderr, re.M)
    assert following and third.name in following[1]
    compared = run(tmp_path, *shlex.split(following[1]))
    assert compared.returncode == 0, compared.stderr
    assert f"{third.name}/rank0.light.json.gz" in compared.stdout


@pytest.mark.parametrize("options", [["--every", "5"], ["--every", "100", "--copy"]])
def test_what_makes_no_trail_is_refused_before_anything_runs(tmp_path: Path, options: list[str]) -> None:
    done = run(tmp_path, "record", *options, "--", sys.executable, "-c", "open('ran', 'w')")
    assert done.returncode == 125
    assert "--every" in done.stderr
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_through_a_link_in_the_place_of_the_next_window(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.mkdir()
    (users / "steps.csv").write_text("of the user")
    link = f"""
import os
folder = os.path.dirname(os.environ["{OPTIONS_VARIABLE}"])
os.symlink({str(users)!r}, folder + "-step00000050")
"""
    (tmp_path / "train.py").write_text(link + SCRIPT.replace("240", "80"))
    done = run(tmp_path, "record", "--every", "50", "--timing-steps", "2", "--", sys.executable, "train.py")
    assert done.stdout == "all steps\n", done.stderr
    assert {path.name: path.read_text() for path in users.iterdir()} == {"steps.csv": "of the user"}


def test_a_window_without_a_step_leaves_nothing(tmp_path: Path) -> None:
    """The script ends with the step before it: `check` would find nothing there."""
    (tmp_path / "train.py").write_text(SCRIPT.replace("240", "50"))
    done = run(tmp_path, "record", "--every", "50", "--timing-steps", "2", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "logs").iterdir())) == 1
    assert "trail" not in done.stderr


def test_what_lacks_where_nothing_can_be_compared_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("240", "110"))
    command = ("--", sys.executable, "train.py")
    late = run(tmp_path, "record", "--at", "1000", *command)
    assert late.returncode == 125
    assert "the script ended after 110 steps, before --at 1000" in " ".join(late.stderr.split())
    small = run(tmp_path, "record", "--every", "50", "--timing-steps", "2", "--max-mb", "0.001", *command)
    assert "raise max_mb" in " ".join(small.stderr.split()) and "diff" not in small.stderr
