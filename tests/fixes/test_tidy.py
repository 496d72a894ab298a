"""What an edit leaves behind goes with it, as far as the rest of the program lets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_doctor.fixes import plan
from trace_doctor.model import Finding, Fix, Result

CLEARS = """\
import torch


def train():
    for x in range(3):
        step(x)
        torch.cuda.empty_cache()
"""
LOADS = """\
from torch.utils.data import DataLoader

train_loader = DataLoader(dataset, batch_size=32, shuffle=True)
"""


def patched(folder: Path, codemod: str, **params: object) -> str:
    fix = Fix(title="t", kind="patch", safety="unsafe", codemod=codemod, params=params)  # type: ignore[arg-type]
    finding = Finding(
        id="TD101-1", code="TD101", name="a", title="t", severity="info", confidence="high", message="m",
        fingerprint="f", fixes=[fix],
    )  # fmt: skip
    outputs = plan(Result(findings=[finding]), folder).outputs
    return outputs["train.py"][1].decode()


@pytest.mark.parametrize(
    ("other", "kept"),
    [
        ("from train import train\n", False),
        ("from train import *\n", True),
        ("from train import (\n    torch,\n    train,\n)\n", True),
        ("import torch\n", False),
    ],
)
def test_an_import_that_another_file_takes_from_the_script_stays(
    tmp_path: Path, other: str, kept: bool
) -> None:
    (tmp_path / "train.py").write_text(CLEARS)
    (tmp_path / "other.py").write_text(other)
    text = patched(tmp_path, "remove-call", call="torch.cuda.empty_cache")
    assert "empty_cache" not in text
    assert ("import torch\n" in text) is kept


@pytest.mark.parametrize(
    ("name", "text", "one_line"),
    [
        ("pyproject.toml", "[tool.black]\nline-length = 120\n", True),
        ("setup.cfg", "[flake8]\nmax-line-length = 79\n", False),
        (".flake8", "[flake8]\nmax-line-length=119\n", True),
        ("README.md", "line-length = 120\n", False),
    ],
)
def test_lines_are_as_long_as_the_project_lets_them_be(
    tmp_path: Path, name: str, text: str, one_line: bool
) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "train.py").write_text(LOADS)
    call = patched(tmp_path, "dataloader-args", num_workers=4, pin_memory=True).split("train_loader = ")[1]
    assert call == (
        "DataLoader(dataset, batch_size=32, shuffle=True, num_workers=4, pin_memory=True)\n"
        if one_line
        else "DataLoader(\n    dataset, batch_size=32, shuffle=True, num_workers=4, pin_memory=True\n)\n"
    )
