"""The whole promise: a capture's patch applies, the patched script runs, and capturing it again clears the finding."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from trace_doctor import analyze

SAMPLES = Path(__file__).resolve().parent.parent / "sample_traces"


def _scenarios() -> list[str]:
    found = []
    for file in sorted(SAMPLES.glob("*/expected.toml")):
        expected = tomllib.loads(file.read_text(encoding="utf-8"))
        if "cpu" in expected["machines"] and all("fix" in f for f in expected["fault"]):
            found.append(file.parent.name)
    return found


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


@pytest.mark.parametrize("scenario", _scenarios())
def test_the_patch_applies_and_the_next_capture_is_clear(scenario: str, tmp_path: Path) -> None:
    if "torch.compile" in (SAMPLES / scenario / "fault.py").read_text(encoding="utf-8") and not shutil.which(
        "c++"
    ):
        pytest.skip("torch.compile needs a C++ compiler, and there is none")
    expected = tomllib.loads((SAMPLES / scenario / "expected.toml").read_text(encoding="utf-8"))
    codes = {f["code"] for f in expected["fault"]}
    shutil.copy(SAMPLES / scenario / "fault.py", tmp_path)
    run("git", "init", "--quiet", cwd=tmp_path)

    patch = tmp_path / "fix.patch"
    trace_doctor = (sys.executable, "-c", "from trace_doctor.cli import main; main()")
    captured = SAMPLES / scenario / "cpu" / "fault"
    select = [o for code in sorted(codes) for o in ("--select", code)]
    run(*trace_doctor, "fix", captured, "--source", tmp_path, "--patch", patch, *select, cwd=tmp_path)
    run("git", "apply", patch, cwd=tmp_path)

    options = expected.get("capture", {})
    recorder = [SAMPLES / "record.py", "fault.py", "--out", "after"]
    recorder += ["--active", str(options["active"])] if "active" in options else []
    recorder += ["--no-stacks"] if options.get("stacks") is False else []
    run(sys.executable, *recorder, cwd=tmp_path)
    after = analyze(tmp_path / "after", source=tmp_path / "fault.py")
    left = [f.message for f in after.findings if f.code in codes]
    if left and os.getloadavg()[0] > (os.cpu_count() or 1):
        pytest.skip(f"the machine is too busy to record on: {left[0]}")
    assert not left
