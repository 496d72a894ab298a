"""Patched scripts run, and edits that change no numbers give the same losses bit by bit."""

from __future__ import annotations

import math
import os
import runpy
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trace_doctor import analyze
from trace_doctor.fixes import plan
from trace_doctor.model import Finding, Fix, Result

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs the torch extra")

SAMPLES = Path(__file__).parents[2] / "sample_traces"
ALLOCATOR = ("allocator-setting", {"key": "expandable_segments", "value": "True"})
PIN = ("dataloader-args", {"pin_memory": True})
SAME = [
    ("memory_growth", "detach-accumulation", {}),
    ("memory_growth", *ALLOCATOR),
    ("dataloader_starvation", *PIN),
    ("dataloader_starvation", "pinned-copies", {}),
]
SCENARIOS = sorted(
    f.parent.name
    for f in SAMPLES.glob("*/expected.toml")
    if "\nfix = " in f.read_text(encoding="utf-8")
    and 'fix = "compile-' not in f.read_text(encoding="utf-8")
    and "torch.compile" not in (f.parent / "fault.py").read_text(encoding="utf-8")
)
"""those whose fault has a fix that edits the script; what compiles is run by test_closed_loop and measure.py"""
TOLERANCE = 0.05
"""relative difference of the last loss that a fix called unsafe may make (sample_traces/measure.py states the same)"""


@cache
def losses(script: Path) -> tuple[float, ...]:
    """Losses of every step, on one thread."""
    torch.set_num_threads(1)
    return tuple(runpy.run_path(str(script))["train"]())


def patched(tmp_path: Path, scenario: str, codemod: str, params: dict[str, Any]) -> tuple[Path, Path]:
    """The script as it is and as patched."""
    original = SAMPLES / scenario / "fault.py"
    fix = Fix(title="t", kind="patch", safety="unsafe", codemod=codemod, params=params)
    finding = Finding(
        id="TD101-1", code="TD101", name="n", title="t", severity="info", confidence="high", message="m",
        fingerprint="f", fixes=[fix],
    )  # fmt: skip
    made = plan(Result(findings=[finding]), original, torch_version="2.1")
    assert [(i.status, i.safety) for i in made.items] == [("ready", "unsafe")], made.items[0].why
    after = tmp_path / "patched.py"
    after.write_bytes(made.outputs["fault.py"][1])
    return original, after


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patched scripts set a variable of this process; it ends with the test."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.mark.parametrize(("scenario", "codemod", "params"), SAME)
def test_fix_gives_the_same_losses(
    tmp_path: Path, scenario: str, codemod: str, params: dict[str, Any]
) -> None:
    before, after = patched(tmp_path, scenario, codemod, params)
    assert losses(after) == losses(before)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_a_capture_proposes_runs_and_keeps_the_losses(tmp_path: Path, scenario: str) -> None:
    """The training ends within the tolerance."""
    original = SAMPLES / scenario / "fault.py"
    capture = next(c for c in (SAMPLES / scenario / m / "fault" for m in ("cpu", "simulated")) if c.is_dir())
    codes = [f["code"] for f in tomllib.loads((SAMPLES / scenario / "expected.toml").read_text())["fault"]]
    made = plan(analyze(capture, source=original), original, select=codes)
    assert made.of("ready")
    after = tmp_path / "all.py"
    after.write_bytes(made.outputs["fault.py"][1])
    old, new = losses(original), losses(after)
    assert len(old) == len(new)
    assert math.isclose(old[-1], new[-1], rel_tol=TOLERANCE)
