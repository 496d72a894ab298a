"""A recording with nothing to analyze is no success: 125 and why, where the script itself did not fail."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from warm_commands import warm
from without_compiler import WITHOUT_COMPILER

from trace_doctor.recording.options import BOOTSTRAP, RecordOptions
from trace_doctor.recording.process_log import PRESENCE_FILE, heard
from trace_doctor.recording.recording_warnings import shortcomings
from trace_doctor.recording.running import CommandOutcome

STEPS = f"""{WITHOUT_COMPILER}
import os, sys, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range({{count}}):
    model(torch.randn(2, 8)).square().mean().backward()
    optimizer.step()
"""
OTHER_TORCH = "torch/__init__.py"


def record(
    folder: Path, program: str, *options: str, python: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(program)
    command = [*warm(), "record", *options, "--", *python, sys.executable, "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, timeout=300)


def manifest(folder: Path) -> dict[str, object]:
    (said,) = folder.glob("logs/*/recording.json")
    return dict(json.loads(said.read_bytes()))


@pytest.mark.parametrize(
    ("program", "code", "why"),
    [
        ("print(1)", 125, "no process of the command imported torch"),
        ("import os; os._exit(0)", 125, "no process of the command imported torch"),
        ("import sys; sys.exit(3)", 3, "the script failed: exit code 3"),
        ("import sys; sys.exit(2)", 2, "the script failed: exit code 2"),
        ("import os; os.kill(os.getpid(), 15)", -15, "the script was ended by SIGTERM"),
        ("import torch", 125, "the recorder failed: AttributeError"),  # one that is not PyTorch
    ],
)
@pytest.mark.parametrize("quiet", [False, True])
def test_without_torch(tmp_path: Path, program: str, code: int, why: str, quiet: bool) -> None:
    if "torch" in program:
        (tmp_path / OTHER_TORCH).parent.mkdir()
        (tmp_path / OTHER_TORCH).touch()
    done = record(tmp_path, program, *["-q"] * quiet)
    assert done.returncode == code
    said = " ".join(done.stderr.split())
    assert (why in said) == (not quiet or code == 125), said
    assert manifest(tmp_path)["exit_code"] == (code if code >= 0 else 128 - code)
    if quiet and code == 125:
        assert done.stderr.startswith("trace-doctor: nothing was recorded") and done.stderr.count("\n") == 1


def test_a_process_that_has_lost_the_recorder(tmp_path: Path) -> None:
    done = record(tmp_path, "print(1)", python=("env", "-u", "PYTHONPATH"))
    assert done.returncode == 125
    assert "no Python process of the command loaded the recorder" in " ".join(done.stderr.split())


@pytest.mark.parametrize("command", ["record", "treat"])
@pytest.mark.parametrize("flag", ["-I", "-Es", "-S"])
def test_a_python_that_loads_no_recorder_is_refused_before_it_runs(
    tmp_path: Path, command: str, flag: str
) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    whole = [*warm(), command, "--", sys.executable, flag, "train.py"]
    done = subprocess.run(whole, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == (125 if command == "record" else 2)
    assert (
        f"`python {flag}` loads no recorder: leave the flag out, or record inside the script" in done.stderr
    )
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("options", [(), ("--copy",)])
def test_what_the_script_wrote_is_named_and_in_a_copy_it_is_gone(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    os.utime(tmp_path / "kept.txt", (1e9, 1e9))
    done = record(
        tmp_path, "import os; os.mkdir('out'); open('out/model.bin', 'w'); open('kept.txt', 'w')", *options
    )
    assert done.returncode == 125
    said = " ".join(done.stderr.split())
    assert ("written kept.txt, out/model.bin" in said) == (not options), said
    assert (tmp_path / "out").exists() == (not options)
    assert (tmp_path / "kept.txt").read_text() == ("mine" if options else "")
    assert manifest(tmp_path)["exit_code"] == 125


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    """What it reads of ours has nothing in it that it could not; its own `sitecustomize` runs."""
    file = BOOTSTRAP / "sitecustomize.py"
    ast.parse(file.read_text(), feature_version=(3, 4))
    (tmp_path / PRESENCE_FILE).touch()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text("print('the hidden one')")
    old = "import sys; sys.version_info = (3, 8, 18, 'final', 0); import runpy; runpy.run_path(sys.argv[1])"
    environment = {
        **os.environ,
        "TRACE_DOCTOR_RECORD": str(tmp_path / "options.json"),
        "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path / 'hidden'}",
    }
    program = f"import sys; sys.modules['sitecustomize'] = sys; {old}"
    whole = [sys.executable, "-S", "-c", program, str(file)]
    done = subprocess.run(whole, env=environment, capture_output=True, text=True)
    assert done.stdout == "the hidden one\n", done.stderr
    why = shortcomings(["python"], RecordOptions("."), CommandOutcome(0, 1.0), None, heard(tmp_path))
    assert why == ["Python 3.8 is too old: the recorder needs 3.9 or later"]


def test_a_torch_that_is_too_old_is_named(tmp_path: Path) -> None:
    (tmp_path / OTHER_TORCH).parent.mkdir()
    (tmp_path / OTHER_TORCH).write_text("__version__ = '1.8.0+cu102'")
    done = record(tmp_path, "import torch", "-q")
    assert "torch 1.8 is too old, 2.1 or later is needed" in done.stderr and done.returncode == 125


@pytest.mark.torch
class TestWithTorch:
    @pytest.fixture(autouse=True)
    def torch(self) -> None:
        pytest.importorskip("torch")

    @pytest.mark.parametrize(
        ("program", "code", "why"),
        [
            ("import torch; torch.ones(2) + 1", 125, "torch was imported, but no optimizer step ran"),
            (STEPS.format(count=1), 125, "1 step is too few for all"),
            (STEPS.format(count=3) + "os._exit(0)", 125, "3 steps are too few for all"),
            (STEPS.format(count=3) + "sys.exit(7)", 7, "the script failed: exit code 7"),
            (STEPS.format(count=8), 125, "light, detailed: not captured: 8 steps are too few for all"),
        ],
    )
    def test_too_little(self, tmp_path: Path, program: str, code: int, why: str) -> None:
        done = record(tmp_path, program)
        assert done.returncode == code, done.stderr
        assert why in " ".join(done.stderr.split())
        assert "next:" not in done.stderr

    def test_enough(self, tmp_path: Path) -> None:
        done = record(tmp_path, STEPS.format(count=40))
        assert done.returncode == 0, done.stderr
        assert "next: trace-doctor analyze" in done.stderr

    def test_one_rank_of_two(self, tmp_path: Path) -> None:
        """What one rank has recorded can be analyzed; that the other has nothing is said."""
        launcher = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, "rank.py"], env={**os.environ, "RANK": str(n), "WORLD_SIZE": "2"}) for n in (0, 1)]
sys.exit(max(rank.wait() for rank in ranks))
"""
        (tmp_path / "rank.py").write_text(STEPS.format(count="40 if os.environ['RANK'] == '0' else 0"))
        done = record(tmp_path, launcher)
        assert done.returncode == 0, done.stderr
        said = " ".join(done.stderr.split())
        assert "of 2 ranks 1 reported nothing (on other machines, or ended early): 1" in said
        assert manifest(tmp_path)["ranks"] == [0]
