"""What a recording tells of the lines that ran: no edit goes into a branch that did not."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from trace_doctor.fixes import plan
from trace_doctor.fixes.resolved import PlannedFix
from trace_doctor.model import Finding, Fix, Location, Result
from trace_doctor.model.captures import LinesRun

MNIST = """\
import torch
from torch.utils.data import DataLoader

train_kwargs = {"batch_size": 64}
if torch.cuda.is_available():
    cuda_kwargs = {"num_workers": 1, "pin_memory": True}
    train_kwargs.update(cuda_kwargs)
loader = DataLoader([1, 2], **train_kwargs)
for x in loader:
    loss = model(x)
    loss.backward()
    optimizer.step()
"""
CHOICE = """\
import sys
from torch.utils.data import DataLoader

if len(sys.argv) > 1:
    loader = DataLoader([1, 2], batch_size=1)
else:
    loader = DataLoader([3, 4], batch_size=2)
for x in loader:
    loss = model(x)
    loss.backward()
    optimizer.step()
"""


def planned(
    folder: Path, text: str, ran: str | None, *, code: str = "dataloader-args", since: str = "", **params: Any
) -> PlannedFix:
    """The plan of a codemod. `ran`: a sign for each line, `x` where it ran. `since`: written below the text after that."""
    (folder / "train.py").write_text(text + since)
    fix = Fix(title="t", kind="patch", safety="unsafe", codemod=code, params=params)
    finding = Finding(
        id="TD101-1", code="TD101", name="n", title="t", severity="info", confidence="high", message="m",
        fingerprint="f", location=Location(), fixes=[fix],
    )  # fmt: skip
    lines = LinesRun(
        file="/elsewhere/train.py",
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        ranges=[(n, n) for n, sign in enumerate(ran or "", 1) if sign == "x"],
    )
    result = Result(findings=[finding])
    if ran is not None:
        result = replace(result, lines_run=[lines])
    [item] = plan(result, folder).items
    return item


def added(item: PlannedFix) -> list[str]:
    lines = item.diff.decode().split("\n")
    return [line[1:].strip() for line in lines if line.startswith("+") and not line.startswith("+++")]


def test_arguments_of_a_branch_that_did_not_run_are_left_and_do_not_come_twice(tmp_path: Path) -> None:
    """Passed in the call as well they would be an error where the branch runs, in another run."""
    with_gpu, without = "xx xxxxxxxxx", "xx xx  xxxxx"
    assert added(planned(tmp_path, MNIST, with_gpu, num_workers=2)) == [
        'cuda_kwargs = {"num_workers": 2, "pin_memory": True}'
    ]
    assert added(planned(tmp_path, MNIST, without, num_workers=2)) == [
        'train_kwargs = {"batch_size": 64, "num_workers": 2}'
    ]


@pytest.mark.parametrize(("ran", "number"), [("xx xx  xxxx", 5), ("xx x  xxxxx", 7)], ids=["then", "else"])
def test_of_two_places_the_one_that_ran_is_edited(tmp_path: Path, ran: str, number: int) -> None:
    assert planned(tmp_path, CHOICE, None, num_workers=2).status == "ambiguous"
    item = planned(tmp_path, CHOICE, ran, num_workers=2)
    assert item.change is not None and item.change.line == number


def test_a_branch_that_did_not_run_is_not_edited(tmp_path: Path) -> None:
    text = (
        "import sys\nimport torch\nif sys.argv[1:]:\n    optimizer = torch.optim.SGD(p, lr=1)\n"
        "loss.backward()\noptimizer.step()\n"
    )
    sgd: dict[str, Any] = {"code": "optimizer-args", "foreach": True}
    assert planned(tmp_path, text, "xxxxxx", **sgd).status == "ready"
    item = planned(tmp_path, text, "xxx xx", **sgd)
    assert item.status == "unresolved"
    assert "train.py:4 did not run while it was recorded" in item.why
    changed = planned(tmp_path, text, "xxx xx", since="# more\n", **sgd)
    assert changed.status == "ready", "of a script that changed since nothing is known"


def test_attention_by_hand_is_fused_where_the_fused_branch_did_not_run(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\ndef attend(self, q, k, v):\n    if self.flash:\n"
        "        return torch.nn.functional.scaled_dot_product_attention(q, k, v)\n"
        "    att = (q @ k.mT * k.size(-1) ** -0.5).softmax(-1)\n    return att @ v\n"
    )
    assert "where self.flash is true" in planned(tmp_path, text, None, code="use-sdpa").why
    assert planned(tmp_path, text, "x  xxx", code="use-sdpa").status == "unresolved"
    item = planned(tmp_path, text, "x  xx xx", code="use-sdpa")
    assert item.status == "ready", item.why
