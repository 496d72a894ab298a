"""Patched scripts run, and what is called safe gives the same losses bit by bit."""

from __future__ import annotations

import math
import os
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trace_doctor.fixes import plan
from trace_doctor.model import Finding, Fix, Result

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs the torch extra")

SAMPLES = Path(__file__).parents[2] / "sample_traces"
ALLOCATOR = ("allocator-setting", {"key": "expandable_segments", "value": "True"})
PIN = ("dataloader-args", {"pin_memory": True})
SAFE = [
    ("memory_growth", "detach-accumulation", {}),
    ("memory_growth", *ALLOCATOR),
    ("dataloader_starvation", *PIN),
    ("dataloader_starvation", *ALLOCATOR),
]
UNSAFE = [
    (
        "dataloader_starvation",
        "dataloader-args",
        {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 2},
    ),
    ("zero_grad_misplaced", "zero-grad", {"mode": "move"}),
    ("zero_grad_set_to_none_false", "zero-grad", {"mode": "drop-set-to-none-false"}),
    ("allocator_churn", "remove-call", {"call": "torch.cuda.empty_cache"}),
]


@cache
def losses(script: Path) -> tuple[float, ...]:
    """Losses of every step, on one thread."""
    torch.set_num_threads(1)
    return tuple(runpy.run_path(str(script))["train"]())


def patched(
    tmp_path: Path, scenario: str, codemod: str, params: dict[str, Any], expected: str
) -> tuple[Path, Path]:
    """The script as it is and as patched."""
    original = SAMPLES / scenario / "fault.py"
    fix = Fix(title="t", kind="patch", safety="safe", codemod=codemod, params=params)
    finding = Finding(
        id="TD101-1", code="TD101", name="n", title="t", severity="info", confidence="high", message="m",
        fingerprint="f", fixes=[fix],
    )  # fmt: skip
    made = plan(Result(findings=[finding]), original)
    assert [(i.status, i.safety) for i in made.items] == [("ready", expected)], made.items[0].why
    after = tmp_path / "patched.py"
    after.write_bytes(made.outputs["fault.py"][1])
    return original, after


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patched scripts set a variable of this process; it ends with the test."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.mark.parametrize(("scenario", "codemod", "params"), SAFE)
def test_safe_fix_gives_the_same_losses(
    tmp_path: Path, scenario: str, codemod: str, params: dict[str, Any]
) -> None:
    before, after = patched(tmp_path, scenario, codemod, params, "safe")
    assert losses(after) == losses(before)


@pytest.mark.parametrize(("scenario", "codemod", "params"), UNSAFE)
def test_unsafe_fix_runs_and_trains_as_well(
    tmp_path: Path, scenario: str, codemod: str, params: dict[str, Any]
) -> None:
    before, after = patched(tmp_path, scenario, codemod, params, "unsafe")
    old, new = losses(before), losses(after)
    assert len(old) == len(new)
    assert math.isclose(old[-1], new[-1], rel_tol=0.05)
