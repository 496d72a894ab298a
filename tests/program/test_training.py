"""A model that another file defines: the step that trains it is known all the same, and each edit stays in its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trace_doctor.fixes.codemods import codemods
from trace_doctor.fixes.resolved import new_bytes
from trace_doctor.program.edits import Change, NoEdit
from trace_doctor.program.place import Place
from trace_doctor.program.project import Project
from trace_doctor.program.source_tree import SourceTree
from trace_doctor.program.versions import TorchBounds

NET = """import torch
from torch import nn


class Block(nn.Module):
    def forward(self, x):
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Criterion(nn.Module):
    def forward(self, x):
        return x.mean()
"""
TRAIN = """import torch

from net import Criterion, Net

model = Net().cuda()
criterion = Criterion()
optimizer = torch.optim.AdamW(model.parameters())
for x in loader:
    loss = criterion(model(x))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def change(folder: Path, codemod: str, torch: tuple[int, int] | None = None, **params: Any) -> Change:
    (folder / "net.py").write_text(NET)
    (folder / "train.py").write_text(TRAIN)
    tree = SourceTree(folder)
    scripts = [s for name in ("net.py", "train.py") if (s := tree.script(name)) is not None]
    mod = codemods()[codemod]
    wanted = [s for s in scripts if not mod.words or any(w in s.text for w in mod.words)]
    place = Place(wanted, torch=TorchBounds(torch, torch), project=Project(scripts, tree, tree.files))
    return mod.run(place, mod.parameters(params))


@pytest.mark.parametrize(
    ("codemod", "torch", "file", "line"),
    [
        ("compile-model", (2, 4), "train.py", "model.compile()"),
        ("compile-model", None, "train.py", "model = torch.compile(model)"),
        ("autocast", None, "train.py", '    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):'),
        ("checkpoint-blocks", None, "net.py", "            x = checkpoint(block, x, use_reentrant=False)"),
    ],
)
def test_the_edit_is_made_where_it_belongs(
    tmp_path: Path, codemod: str, torch: tuple[int, int] | None, file: str, line: str
) -> None:
    made = change(tmp_path, codemod, torch)
    assert made.script.name == file
    assert line in new_bytes(made.script, made.edits).decode().split("\n")


def test_a_file_without_the_model_says_so(tmp_path: Path) -> None:
    """Nor whether it is a module at all, as nothing asks it for its parameters."""
    unasked = TRAIN.replace("optimizer = torch.optim.AdamW(model.parameters())\n", "")
    (tmp_path / "alone.py").write_text(unasked.replace("net", "elsewhere"))
    tree = SourceTree(tmp_path)
    scripts = [s for name in tree.files if (s := tree.script(name)) is not None]
    mod = codemods()["compile-model"]
    with pytest.raises(NoEdit, match="not in these scripts"):
        mod.run(Place(scripts, project=Project(scripts, tree, tree.files)), mod.parameters({}))
