"""What is made without --unsafe-fixes: nothing that may change what a script does, whatever a result claims. The scripts are
those of hostile cases (`tests/campaigns/hostile-q.md`, A)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trace_doctor.fixes import Plan, plan
from trace_doctor.model import Finding, Fix, Result


def made(folder: Path, codemod: str, params: dict[str, Any], *, unsafe: bool) -> Plan:
    fix = Fix(title="t", kind="patch", safety="unsafe", codemod=codemod, params=params)
    finding = Finding(
        id="TD401-1", code="TD401", name="n", title="t", severity="info", confidence="high", message="m",
        fingerprint="f", fixes=[fix],
    )  # fmt: skip
    return plan(Result(findings=[finding]), folder, unsafe=unsafe, torch_version="2.1")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


# ---------------------------------------------------------------------- pinned copies, and what else is never safe

BATCHES = {
    "Q005: one pinned buffer, filled anew": """
class Buffer(torch.utils.data.IterableDataset):
    def __iter__(self):
        buffer = torch.empty(4, 4).pin_memory()
        for n in range(9):
            yield buffer.fill_(n)


for x in DataLoader(Buffer(), batch_size=None):
    x = x.to(device)
    loss = model(x)
    loss.backward()
""",
    "Q007: what the last turn left": """
loader = DataLoader(data, batch_size=4)
prev = None
for x in loader:
    if prev is not None:
        prev.zero_()
    prev = x
    loss = model(x.to(device))
    loss.backward()
""",
    "Q008: changed behind a view": """
for x in DataLoader(data, batch_size=4):
    rows = x.numpy()
    copy = x.to(device)
    rows[:] = 0
    loss = model(copy)
    loss.backward()
""",
    "Q009: changed by a callback": """
def wipe(*_):
    x.zero_()


model.register_full_backward_hook(wipe)
for x in DataLoader(data, batch_size=4):
    copy = x.to(device)
    loss = model(copy)
    loss.backward()
""",
    "Q010: the script collates": """
torch.utils.data._utils.collate.default_collate_fn_map[torch.Tensor] = mine
for x in DataLoader(data, batch_size=4):
    x = x.to(device)
    loss = model(x)
    loss.backward()
""",
    "Q011: to() is replaced": """
torch.Tensor.to = move
for x in DataLoader(data, batch_size=4):
    x = x.to(device)
    loss = model(x)
    loss.backward()
""",
    "Q015: the script checks itself": """
for x in DataLoader(data, batch_size=4):
    assert not x.is_pinned()
    x = x.to(device)
    loss = model(x)
    loss.backward()
""",
    "Q016: nothing seems to be wrong": """
for x, y in DataLoader(data, batch_size=4):
    x, y = x.to(device), y.to(device)
    loss = model(x, y)
    loss.backward()
""",
}


@pytest.mark.parametrize("script", BATCHES)
@pytest.mark.parametrize(
    ("codemod", "params"), [("pinned-copies", {}), ("dataloader-args", {"pin_memory": True})]
)
def test_pinning_is_offered_and_never_safe(
    tmp_path: Path, script: str, codemod: str, params: dict[str, Any]
) -> None:
    head = 'import torch\nfrom torch.utils.data import DataLoader\n\ndevice = "cuda"\n'
    write(tmp_path, {"train.py": head + BATCHES[script]})
    assert [(i.status, i.safety) for i in made(tmp_path, codemod, params, unsafe=False).items] == [
        ("held", "unsafe")
    ]
    assert made(tmp_path, codemod, params, unsafe=True).outputs


# ---------------------------------------------------------------------- the allocator's setting

ALLOCATOR: dict[str, Any] = {"key": "expandable_segments", "value": True}
VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.parametrize(
    "files",
    [
        {"train.py": "import torch\n"},
        {"train.py": "import os\nimport torch\n\nos.environ['PYTORCH_' + 'CUDA_ALLOC_CONF'] = 'max_split_size_mb:64'\n"},
        {"train.py": "import torch\n", "run.sh": f"{VARIABLE}=max_split_size_mb:64 python train.py\n"},
    ],
    ids=["torch alone", "Q022: the variable in pieces", "Q070: a launch script sets it"],
)  # fmt: skip
def test_a_setting_of_the_allocator_is_never_safe(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, files)
    [item] = made(tmp_path, "allocator-setting", ALLOCATOR, unsafe=False).items
    assert (item.status, item.safety) == ("held", "unsafe")


OTHERS = {
    ".env": f"{VARIABLE}=max_split_size_mb:64\n",
    "units/job.service": f"[Service]\nEnvironment={VARIABLE}=max_split_size_mb:64\n",
    ".github/workflows/train.yml": f"env:\n  A: 1\n  {VARIABLE}: max_split_size_mb:64\n",
    "run.fish": f"set -x {VARIABLE} max_split_size_mb:64\npython train.py\n",
    "run.sh": f"# caf\xe9 \x00\nexport {VARIABLE}=max_split_size_mb:64\n",
}
"""files of kinds that are not checked, or that cannot be"""


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("script", ["import torch\n", f"import os\n\nos.environ['{VARIABLE}'] = 'expandable_segments:True'\nimport torch\n"])  # fmt: skip
def test_a_file_that_may_undo_the_setting_and_is_not_checked_is_named(
    tmp_path: Path, name: str, script: str
) -> None:
    write(tmp_path, {"train.py": script, "README.md": f"Set {VARIABLE}.\n"})
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(OTHERS[name].encode("latin-1"))
    [item] = made(tmp_path, "allocator-setting", ALLOCATOR, unsafe=True).items
    line = OTHERS[name][: OTHERS[name].index(VARIABLE)].count("\n") + 1
    assert item.status == ("already" if "environ" in script else "ready")
    said = item.change.elsewhere if item.change is not None else item.why
    assert f"also set in {name}:{line}, not checked" in said
    assert "README" not in said


def test_a_launch_script_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "import torch\n", "run.sh": "#" * 1_000_001})
    [item] = made(tmp_path, "allocator-setting", ALLOCATOR, unsafe=True).items
    assert item.change is not None and item.change.elsewhere == "run.sh cannot be read"


def test_beside_a_script_alone_no_file_is_searched_and_that_is_said(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "import torch\n", ".env": f"{VARIABLE}=max_split_size_mb:64\n"})
    [item] = made(tmp_path / "train.py", "allocator-setting", ALLOCATOR, unsafe=True).items
    assert item.change is not None and item.change.elsewhere == "no other file was searched (--script)"


LAUNCHED = {
    "train.py": """from accelerate import Accelerator


def main():
    accelerator = Accelerator()
    for x in accelerator.prepare(loader):
        accelerator.backward(model(x))


if __name__ == "__main__":
    main()
""",
    "run.sh": "accelerate launch --config_file conf.yaml train.py\n",
    "conf.yaml": "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 1\n",
    ".env": "ACCELERATE_DEEPSPEED_ZERO_STAGE=0\n",
}  # fmt: skip


def test_a_file_that_may_undo_a_setting_of_a_launcher_is_named(tmp_path: Path) -> None:
    write(tmp_path, LAUNCHED)
    [item] = made(tmp_path, "deepspeed-zero", {"stage": 2}, unsafe=True).items
    assert item.change is not None and item.change.elsewhere == "also set in .env:1, not checked"
    files = {
        "conf.yaml": "distributed_type: FSDP\nmixed_precision: 'no'\n",
        ".env": "ACCELERATE_MIXED_PRECISION=no\n",
    }
    write(tmp_path, files)
    [item] = made(tmp_path, "autocast", {"dtype": "bfloat16"}, unsafe=True).items
    assert item.change is not None and item.change.elsewhere == "also set in .env:1, not checked"


def test_the_search_for_such_files_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trace_doctor.program.source_tree._MAX_OTHERS", 3)
    write(tmp_path, {"train.py": "import torch\n", **{f"data/{n}": "x" for n in range(4)}, ".env": VARIABLE})
    [item] = made(tmp_path, "allocator-setting", ALLOCATOR, unsafe=True).items
    assert item.change is not None
    assert item.change.elsewhere == "also set in .env:1, not checked; not all other files were searched"
