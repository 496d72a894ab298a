"""The whole promise: a capture's patch applies, the patched script runs, and capturing it again clears the finding."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trace_doctor import analyze
from trace_doctor.cli.app import application

SAMPLES = Path(__file__).resolve().parent.parent / "sample_traces"
EXPECTED = {
    file.parent.name: tomllib.loads(file.read_text(encoding="utf-8"))
    for file in sorted(SAMPLES.glob("*/expected.toml"))
}
# Other work on the machine adds waits to a recording and never takes any away, so one clear recording is proof, and a fault
# that is still there shows in each of them.
RECORDINGS = 5

# Two workers must be able to keep up with the training, on machines that are twice as fast as the one of the captures, too.
LONGER_STEPS = {"dataloader_starvation": ("else 48", "else 72")}

PATCHED = [name for name, e in EXPECTED.items() if all("fix" in f for f in e["fault"])]

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="records with PyTorch, which is not installed: pip install 'trace-doctor[torch]'",
    ),
]


def run(*command: str | Path, cwd: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"


def patch_script(scenario: str, machine: str, codes: set[str], folder: Path) -> None:
    """Copies the faulty script into a repository and applies there what `trace-doctor fix` writes for the capture."""
    shutil.copy(SAMPLES / scenario / "fault.py", folder)
    run("git", "init", "--quiet", cwd=folder)
    select = [option for code in sorted(codes) for option in ("--select", code)]
    captured, patch = SAMPLES / scenario / machine / "fault", folder / "fix.patch"
    given = ["fix", captured, "--source", folder, "--patch", patch, *select]
    done = CliRunner().invoke(application(), [str(each) for each in given])
    assert done.exit_code == 0, done.output
    run("git", "apply", patch, cwd=folder)


def record_again(options: dict[str, Any], folder: Path, out: Path) -> None:
    command = [SAMPLES / "record.py", "fault.py", "--out", out]
    command += ["--active", str(options["active"])] if "active" in options else []
    command += ["--no-stacks"] if options.get("stacks") is False else []
    run(sys.executable, *command, cwd=folder)


@pytest.mark.parametrize(
    "scenario",
    [
        # what waits for workers needs the second core; the other faults do not depend on times
        pytest.param(s, marks=pytest.mark.alone) if s in LONGER_STEPS else s
        for s in PATCHED
        if "cpu" in EXPECTED[s]["machines"]
    ],
)
def test_the_patch_applies_and_the_next_capture_is_clear(scenario: str, tmp_path: Path) -> None:
    script = (SAMPLES / scenario / "fault.py").read_text(encoding="utf-8")
    if "torch.compile" in script and not shutil.which("c++"):
        pytest.skip("torch.compile needs a C++ compiler, and there is none")
    codes = {f["code"] for f in EXPECTED[scenario]["fault"]}
    patch_script(scenario, "cpu", codes, tmp_path)
    patched = (tmp_path / "fault.py").read_text(encoding="utf-8")
    (tmp_path / "fault.py").write_text(
        patched.replace(*LONGER_STEPS.get(scenario, ("", ""))), encoding="utf-8"
    )
    left: list[str] = []
    for recording in range(RECORDINGS):
        out = tmp_path / f"after{recording}"
        record_again(EXPECTED[scenario].get("capture", {}), tmp_path, out)
        after = analyze(out, source=tmp_path / "fault.py")
        # a note of low confidence is what is left of workers that share two cores with the training
        left = [
            f.message
            for f in after.findings
            if f.code in codes and not (f.severity == "info" and f.confidence == "low")
        ]
        if not left:
            return
    pytest.fail(f"found again in {RECORDINGS} recordings: {left}")


RUN_EACH = """
import os, runpy, sys, traceback
import torch  # seconds, so once
for folder in sys.argv[1:]:
    if not (child := os.fork()):
        os.chdir(folder)
        try:
            runpy.run_path("fault.py", run_name="__main__")
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("failed:", folder)
"""


@pytest.mark.parametrize("half", [0, 1])
def test_the_patches_of_gpu_scenarios_apply_and_the_scripts_run(half: int, tmp_path: Path) -> None:
    """Whether the finding is gone only a GPU can show. In two halves, so that two workers can share them."""
    folders = []
    for scenario in [s for s in PATCHED if "cpu" not in EXPECTED[s]["machines"]][half::2]:
        folders.append(tmp_path / scenario)
        folders[-1].mkdir()
        patch_script(scenario, "simulated", {f["code"] for f in EXPECTED[scenario]["fault"]}, folders[-1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN_EACH, *folders], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "failed:" not in done.stdout, f"{done.stdout}\n{done.stderr}"
