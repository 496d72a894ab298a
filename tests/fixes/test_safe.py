"""What is made without --unsafe-fixes: only what is proven, whatever a result claims. The scripts are those of hostile cases
(`tests/campaigns/hostile-q.md`, A) in which an edit would change what they do, or can not be shown not to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trace_doctor.fixes import Plan, plan
from trace_doctor.model import Finding, Fix, Result

ALLOCATOR: dict[str, Any] = {"key": "expandable_segments", "value": True}


def made(folder: Path, codemod: str, params: dict[str, Any], *, unsafe: bool) -> Plan:
    fix = Fix(title="t", kind="patch", safety="safe", codemod=codemod, params=params)
    finding = Finding(
        id="TD401-1", code="TD401", name="n", title="t", severity="info", confidence="high", message="m",
        fingerprint="f", fixes=[fix],
    )  # fmt: skip
    return plan(Result(findings=[finding]), folder, unsafe=unsafe)


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

TRAIN = """

def main():
    torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()


if __name__ == "__main__":
    main()
"""
PROVEN: dict[str, dict[str, str]] = {
    "torch alone": {"train.py": "import torch\n" + TRAIN},
    "a header": {
        "train.py": '#!/usr/bin/env python\n# A licence.\n"""Trains."""\n\nfrom __future__ import annotations\n\nimport argparse\nimport os\n\n'
        "import numpy as np\nimport torch\nimport torch.nn.functional as F\nfrom torch.utils.data import DataLoader\n"
        "\nDATA = os.path.join('a', 'b')\n\n\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n" + TRAIN
    },
    "a module of the project": {
        "train.py": "import torch\nfrom model import Net\n" + TRAIN,
        "model.py": "from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n",
    },
}  # fmt: skip


@pytest.mark.parametrize("case", PROVEN)
def test_a_default_of_the_allocator_is_safe_in_a_plain_program(tmp_path: Path, case: str) -> None:
    write(tmp_path, PROVEN[case])
    [item] = made(tmp_path, "allocator-setting", ALLOCATOR, unsafe=False).items
    assert (item.status, item.safety) == ("ready", "safe"), (item.why, item.change and item.change.notes)


NOT_PROVEN: dict[str, tuple[str, str]] = {
    "Q020: torch by another module": ("import runner\nimport torch\n", "uses runner"),
    "Q020: torch under a condition": ("import sys\nif True:\n    import torch\n", "under a condition"),
    "Q020: torch by its name": ("import torch\n__import__('x')\n", "uses __import__"),
    "Q020: a text that is run": ("import torch\nexec('import x')\n", "uses exec"),
    "Q022: code above the import": ("import os\nprint(os.getcwd())\nimport torch\n", "more than import"),
    "Q022: the variable in pieces": (
        "import os\nimport torch\nos.environ.setdefault('PYTORCH_' + 'CUDA_ALLOC_CONF', 'max_split_size_mb:64')\n",
        "uses os.environ",
    ),
    "Q022: the environment in bytes": ("import os\nimport torch\nos.environb[b'A'] = b'1'\n", "uses os.environb"),
    "Q022: the environment by import": ("import torch\nfrom os import environ as e\ne['A'] = '1'\n", "uses os.environ"),
    "Q022: the environment by getattr": ("import os\nimport torch\n\n\ndef f():\n    getattr(os, 'env' + 'iron')\n", "uses getattr"),
    "Q022: os by another module": ("import torch\nimport logging\nlogging.os.environ\n", "uses os"),
    "Q022: os as a value": ("import os\nimport torch\n\n\ndef f():\n    system = os\n    system.environ\n", "uses os"),
    "Q022: a reader of files": ("import torch\nfrom dotenv import load_dotenv\nload_dotenv()\n", "uses dotenv"),
    "Q023: a queue of tensors": ("import torch\nimport torch.multiprocessing as mp\nmp.Queue()\n", "torch.multiprocessing.Queue"),
    "Q023: workers that are spawned": (
        "import torch\nfrom torch.utils.data import DataLoader\nDataLoader([1], 1, multiprocessing_context='spawn')\n",
        "uses multiprocessing_context",
    ),
    "Q023: an allocator of its own": (
        "import torch\ntorch.cuda.memory.change_current_allocator(mine)\n", "change_current_allocator"
    ),
    "Q025: started again": ("import torch\nimport subprocess\nsubprocess.run(['python'])\n", "uses subprocess"),
    "Q025: executed again": ("import os\nimport sys\nimport torch\nos.execv('python', sys.argv)\n", "uses os.execv"),
    "Q033: reads itself": ("import torch\nopen(__file__).read()\n", "uses __file__"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_PROVEN)
def test_a_default_of_the_allocator_is_unsafe_where_it_is_not_proven(tmp_path: Path, case: str) -> None:
    head, why = NOT_PROVEN[case]
    write(tmp_path, {"train.py": head + TRAIN})
    assert_not_proven(tmp_path, why)


def assert_not_proven(folder: Path, why: str) -> None:
    [item] = made(folder, "allocator-setting", ALLOCATOR, unsafe=False).items
    assert (item.status, item.safety) == ("held", "unsafe")
    assert item.change is not None and [why in n for n in item.change.notes] == [True], item.change.notes


PROGRAMS: dict[str, tuple[dict[str, str], str]] = {
    "Q022: one of two branches": (
        {
            "train.py": 'import os\n\nif small:\n    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:64"\n'
            "import torch\n" + TRAIN
        },
        "changes a setting",
    ),
    "Q022: in a module of the project": (
        {"train.py": "import torch\nimport env\n" + TRAIN, "env.py": "import os\n\nos.environ['A'] = '1'\n"},
        "env.py:3 uses os.environ",
    ),
    "Q022: os from a module of the project": (
        {"train.py": "import torch\nfrom env import *\n" + TRAIN, "env.py": "import os\n"},
        "from env import *",
    ),
    "Q020: a module of the standard library's name": (
        {"train.py": "import random\nimport torch\n" + TRAIN, "random.py": "import torch\n"},
        "random is a module of its own",
    ),
    "Q026: started as python -m": (
        {"pkg/__init__.py": "import torch\n", "pkg/train.py": "import torch\n" + TRAIN},
        "what loads pkg/train.py",
    ),
    "Q026: a package's __main__": ({"app/__main__.py": "import torch\n" + TRAIN}, "what loads app/__main__.py"),
    "Q026: imported by another": (
        {"train.py": "import torch\n" + TRAIN, "start.py": "import torch\nimport train\n\ntrain.main()\n"},
        "what loads train.py",
    ),
    "Q070: a launch script sets it": (
        {"train.py": "import torch\n" + TRAIN, "run.sh": "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64 python train.py\n"},
        "changes a setting",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PROGRAMS)
def test_a_default_of_the_allocator_is_unsafe_in_programs_like_these(tmp_path: Path, case: str) -> None:
    files, why = PROGRAMS[case]
    write(tmp_path, files)
    assert_not_proven(tmp_path, why)
