"""`trace-doctor record` on a training script, from start to the command that it names next."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from warm_commands import warm

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

SCRIPT = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(1000000):
    loss = model(torch.randn(16, 64)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(i, loss.item(), flush=True)
    if i == int(sys.argv[1]):
        raise RuntimeError("as planned")
"""


def record(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    command = [*warm(), "record", "--max-steps", "30", "--", sys.executable, "train.py", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A script that would train for hours."""
    folder = tmp_path_factory.mktemp("stopped")
    return folder, record(folder, "-1", "--api-key=s3cr3t")


def test_the_script_is_stopped_and_the_next_command_works(
    stopped: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = stopped
    assert done.returncode == 0, done.stderr
    assert "detected by optimizer" in done.stderr
    assert (
        "not captured: the allocator keeps a history on CUDA only" in done.stderr or "memory" in done.stderr
    )
    following = re.search(r"^next: trace-doctor (.+)$", done.stderr, re.M)
    assert following
    analyzed = subprocess.run(
        [*warm(), *shlex.split(following[1]), "-o", "json=-"], cwd=folder, capture_output=True, text=True
    )
    assert analyzed.returncode == 0, analyzed.stderr
    assert json.loads(analyzed.stdout)["summary"]["step_us"] > 0


def test_output_is_the_scripts_own(stopped: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Each of its lines, and none of ours; the losses in `steps.csv` are those it printed."""
    folder, done = stopped
    printed = dict(line.split() for line in done.stdout.splitlines())
    assert list(printed) == [str(i) for i in range(len(printed))]
    (table,) = folder.glob("logs/*/steps.csv")
    losses = {row[1]: row[4] for row in (line.split(",") for line in table.read_text().splitlines()[1:])}
    seen = {step: loss for step, loss in losses.items() if loss and step in printed}
    assert len(seen) > 3
    assert all(float(loss) == pytest.approx(float(printed[step]), rel=1e-6) for step, loss in seen.items())


def test_nothing_secret_lies_in_the_folder(stopped: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    (folder,) = stopped[0].glob("logs/*")
    assert "--api-key=***" in (folder / "command.txt").read_text()
    said = json.loads((folder / "environment.json").read_bytes())
    assert said["torch"] and said["torch_threads"] == 1
    assert str(Path.home()) not in json.dumps(said)
    assert not {"options.json", "plan.json", "processes.jsonl"} & {p.name for p in folder.iterdir()}


def test_a_script_that_fails_keeps_its_exit_code_and_its_steps(tmp_path: Path) -> None:
    done = record(tmp_path, "8")
    assert done.returncode == 1
    assert "RuntimeError: as planned" in done.stderr
    assert "the script failed: exit code 1" in done.stderr
    (table,) = tmp_path.glob("logs/*/steps.csv")
    assert len(table.read_text().splitlines()) == 1 + 9
