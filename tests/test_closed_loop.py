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

from trace_doctor import analyze

SAMPLES = Path(__file__).resolve().parent.parent / "sample_traces"
EXPECTED = {
    file.parent.name: tomllib.loads(file.read_text(encoding="utf-8"))
    for file in sorted(SAMPLES.glob("*/expected.toml"))
}
# Other work on the machine adds waits to a recording and never takes any away, so one clear recording is proof, and a fault
# that is still there shows in each of them.
RECORDINGS = 3

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
    trace_doctor = (sys.executable, "-c", "from trace_doctor.cli import main; main()")
    captured = SAMPLES / scenario / machine / "fault"
    select = [o for code in sorted(codes) for o in ("--select", code)]
    run(
        *trace_doctor,
        "fix",
        captured,
        "--source",
        folder,
        "--patch",
        folder / "fix.patch",
        *select,
        cwd=folder,
    )
    run("git", "apply", folder / "fix.patch", cwd=folder)


def record_again(options: dict[str, Any], folder: Path, out: Path) -> None:
    command = [SAMPLES / "record.py", "fault.py", "--out", out]
    command += ["--active", str(options["active"])] if "active" in options else []
    command += ["--no-stacks"] if options.get("stacks") is False else []
    run(sys.executable, *command, cwd=folder)


@pytest.mark.alone
@pytest.mark.parametrize("scenario", [s for s in PATCHED if "cpu" in EXPECTED[s]["machines"]])
def test_the_patch_applies_and_the_next_capture_is_clear(scenario: str, tmp_path: Path) -> None:
    script = (SAMPLES / scenario / "fault.py").read_text(encoding="utf-8")
    if "torch.compile" in script and not shutil.which("c++"):
        pytest.skip("torch.compile needs a C++ compiler, and there is none")
    codes = {f["code"] for f in EXPECTED[scenario]["fault"]}
    patch_script(scenario, "cpu", codes, tmp_path)
    left: list[str] = []
    for recording in range(RECORDINGS):
        out = tmp_path / f"after{recording}"
        record_again(EXPECTED[scenario].get("capture", {}), tmp_path, out)
        after = analyze(out, source=tmp_path / "fault.py")
        left = [f.message for f in after.findings if f.code in codes]
        if not left:
            return
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        pytest.skip(f"the machine is too busy to record on: {left[0]}")
    pytest.fail(f"found again in {RECORDINGS} recordings: {left}")


@pytest.mark.parametrize("scenario", [s for s in PATCHED if "cpu" not in EXPECTED[s]["machines"]])
def test_the_patch_of_a_gpu_scenario_applies_and_the_script_runs(scenario: str, tmp_path: Path) -> None:
    """Whether the finding is gone only a GPU can show."""
    codes = {f["code"] for f in EXPECTED[scenario]["fault"]}
    patch_script(scenario, "simulated", codes, tmp_path)
    run(sys.executable, "fault.py", cwd=tmp_path)
