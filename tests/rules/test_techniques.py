"""The techniques that rules recommend: each names an edit that exists and takes its parameters."""

from __future__ import annotations

import inspect

import pytest
from stand_ins import GIVEN

from trace_doctor import Fix
from trace_doctor.fixes.codemods import codemods
from trace_doctor.program.edits import NoEdit
from trace_doctor.program.place import Place
from trace_doctor.program.script import Script
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import Technique

_SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


class Data(IterableDataset):
    def __iter__(self):
        yield from self.items


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        q = k = v = x = self.conv(x)
        for block in self.blocks:
            x = block(x)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + y + ((q @ k.transpose(-2, -1)) * 0.5).softmax(-1) @ v


net = Net()
compiled = torch.compile(net)
optimizer = torch.optim.AdamW(net.parameters())
wrapped = DistributedDataParallel(net)
loader = DataLoader(TensorDataset(data, labels), batch_size=8)
total = 0.0
for x, y in loader:
    x, y = x.to(device), y.to(device)
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total += loss.item()
print(total)
"""


def made() -> list[Fix]:
    found = []
    for name, function in inspect.getmembers(techniques):
        own = inspect.isfunction(function) and function.__module__.startswith(techniques.__name__)
        if not name.startswith("_") and (own or isinstance(function, Technique)):
            wanted = inspect.signature(function).parameters.values()
            found.append(function(**{p.name: GIVEN[p.name] for p in wanted if p.name in GIVEN}))
    return found


@pytest.mark.parametrize("fix", made(), ids=lambda fix: fix.title)
def test_an_edit_takes_its_parameters(fix: Fix) -> None:
    assert fix.text
    assert fix.risk
    assert (fix.codemod is None) == (fix.kind in ("advice", "config", "env"))
    if fix.codemod is None:
        assert fix.safety == "display" or fix.kind == "env"
        return
    try:
        mod = codemods()[fix.codemod]
        change = mod.run(Place([Script(_SCRIPT.encode(), "train.py")]), mod.parameters(fix.params))
    except NoEdit as refused:
        assert refused.why
    else:
        assert change.edits


def test_attention_without_a_mask_is_not_made_causal() -> None:
    call, *more = techniques.use_sdpa().text.splitlines()
    assert "causal" not in call.partition("#")[0]
    assert any("is_causal=True" in line for line in more)
