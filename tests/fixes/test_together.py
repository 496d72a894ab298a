"""Several fixes of one script: made together they give a script that parses and holds both, or both are refused."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from trace_doctor.fixes import Plan, plan
from trace_doctor.model import Finding, Fix, Result

SCRIPT = """import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

model = torch.nn.Linear(4, 2)
model = DDP(model)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(data, batch_size=8, shuffle=True)
total = 0.0
for i, (x, y) in enumerate(loader):
    x = x.to(device)
    optimizer.zero_grad(set_to_none=False)
    out = model(x)
    print(i, out.mean().item())
    loss = (out - y).square().mean()
    loss.backward()
    optimizer.step()
    total += loss.item()
print(total)
"""


def planned(folder: Path, *edits: tuple[str, dict[str, object]], script: str = SCRIPT) -> Plan:
    path = folder / "train.py"
    path.write_text(script)
    findings = [
        Finding(
            id=f"TD{n}-1",
            code=f"TD{n}",
            name="n",
            title="t",
            severity="info",
            confidence="high",
            message="m",
            fingerprint=str(n),
            fixes=[Fix(title="t", kind="patch", codemod=codemod, params=dict(params))],
        )
        for n, (codemod, params) in enumerate(edits)
    ]
    return plan(Result(findings=findings), path, torch_version="2.6")


ACCUMULATION: tuple[str, dict[str, object]] = ("gradient-accumulation", {"steps": 2})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("autocast", {}), ("every-n-guard", {})),
        (("autocast", {}), ("zero-grad", {"mode": "move"})),
        (("autocast", {"dtype": "float16"}), ACCUMULATION),
    ],
    ids=lambda e: e[0],
)
def test_edits_of_the_same_lines_are_refused_together(
    tmp_path: Path, one: tuple[str, dict[str, object]], other: tuple[str, dict[str, object]]
) -> None:
    made = planned(tmp_path, one, other)
    statuses = [item.status for item in made.items]
    if statuses == ["ready", "ready"]:  # they do not touch: then the result holds both
        ast.parse(made.outputs["train.py"][1])
    else:
        assert statuses == ["conflict", "conflict"], [(i.status, i.why) for i in made.items]
        assert not made.outputs


def test_a_guarded_line_inside_a_wrapped_block_is_a_conflict(tmp_path: Path) -> None:
    made = planned(tmp_path, ("autocast", {}), ("every-n-guard", {}))
    assert [item.status for item in made.items] == ["conflict", "conflict"]


def test_fixes_of_different_lines_go_together(tmp_path: Path) -> None:
    edits = [
        ("autocast", {}),
        ("optimizer-args", {"fused": True}),
        ("sum-on-device", {}),
        ("pinned-copies", {}),
        ("dataloader-args", {"pin_memory": True}),
        ("matmul-precision", {}),
        ("compile-model", {}),
    ]
    no_log_line = SCRIPT.replace("    print(i, out.mean().item())\n", "")
    made = planned(tmp_path, *edits, script=no_log_line)
    assert {item.status for item in made.items} == {"ready", "covered"}, [
        (i.status, i.why) for i in made.items
    ]
    text = made.outputs["train.py"][1].decode()
    ast.parse(text)
    assert text.count("pin_memory=True") == 1
    for part in ("torch.autocast(", "fused=True", "loss.detach()", "float(total)", "non_blocking=True"):
        assert part in text
