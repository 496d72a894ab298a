"""`trace-doctor fix` as a user runs it, and a saved result for it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from warm_commands import warm

from trace_doctor.model import Finding, Fix, Input, TorchVersion

SCRIPT = """\
import torch
from torch.utils.data import DataLoader

loader = DataLoader([1, 2], batch_size=1)
for x in loader:
    loss = f(x)
    loss.backward()
    optimizer.step()
"""


def run(*args: str, cwd: Path, answers: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("TRACE_DOCTOR")} | more
    return subprocess.run(
        [*warm(), *args],
        cwd=cwd,
        env=env,
        input=answers,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


OF_CAPTURE = Input(path="s.pickle", kind="snapshot", torch_version=TorchVersion(min="2.1", max="2.1"))


def finding(code: str, fix: Fix) -> Finding:
    return Finding(
        id=f"{code}-1", code=code, name=f"rule-{code}", title="t", severity="info", confidence="high",
        message="m", fingerprint="f", fixes=[fix],
    )  # fmt: skip


def script(job: Path) -> str:
    return (job / "job" / "train.py").read_text()
