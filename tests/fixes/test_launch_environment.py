"""Which lines of launch scripts and job descriptions are edited: what is plainly one value, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_doctor.fixes import Plan, plan
from trace_doctor.model import Finding, Fix, Result

V, OLD = "PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:1"
NEW = f"{OLD},expandable_segments:True"


def planned(root: Path, name: str, text: str) -> Plan:
    (root / "train.py").write_text("import torch\n")
    (root / name).write_text(text)
    params = {"key": "expandable_segments", "value": "True"}
    fix = Fix(title="t", kind="patch", codemod="allocator-setting", params=params)
    finding = Finding(
        id="TD401-1", code="TD401", name="a-rule", title="t", severity="info", confidence="high", message="m",
        fingerprint="f", fixes=[fix],
    )  # fmt: skip
    return plan(Result(findings=[finding]), root, torch_version="2.1")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", f"export {V}={OLD}\npython train.py\n"),
        ("run.sh", f"set -e  # it's on\nexport A=1 {V}='{OLD}'  # it's \"this\"\r\npython train.py\n"),
        ("run.sh", f'echo "a" \\\n  \'b # c\' a#b\nA=1 {V}="{OLD}" torchrun train.py\n'),
        ("run.sh", f"  env A=1 {V}={OLD} python train.py -c '\n'\ncat <<E\nE\n"),
        ("Dockerfile", f'ENV {V}="{OLD}"\nCMD ["python", "train.py"]\n'),
        ("job.yaml", f"env:\n  {V}: {OLD}  # why\nrun: python train.py\n"),
        ("job.yaml", f"env: {{{V}: '{OLD}'}}\nrun: python train.py\n"),
        ("job.yaml", f'run: python train.py\n---\nenv:\n- value: {OLD}\n  name: "{V}"\n'),
        ("job.json", f'{{"run": "python train.py", "env": {{"{V}": "{OLD}"}}}}\n'),
    ],
)
def test_one_plain_value_is_extended(tmp_path: Path, name: str, text: str) -> None:
    made = planned(tmp_path, name, text.replace("\r\n", "\n"))
    assert {n: data.decode() for n, (_, data) in made.outputs.items()} == {
        name: text.replace("\r\n", "\n").replace(OLD, NEW)
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", f'export {V}=max"_split"_size_mb:1\n'),
        ("run.sh", f"export {V}=max_split\\_size_mb:1\n"),
        ("run.sh", f'export {V}="{OLD}\n"\n'),
        ("run.sh", f"export {V}={OLD}\\\n,a:1\n"),
        ("run.sh", f"export {V}={OLD}; python train.py\n"),
        ("run.sh", f"export {V}=${{CONF:-{OLD}}}\n"),
        ("run.sh", f"{V}={OLD}\n"),
        ("run.sh", f"ENV=({V}={OLD})\n"),
        ("run.sh", f"ENV=(\n  {V}={OLD} A=1\n)\n"),
        ("run.sh", f'echo "use export {V}={OLD}"\n'),
        ("run.sh", f'echo "use this:\nexport {V}={OLD}\n"\n'),
        ("run.sh", f"echo 'use this:\nexport {V}={OLD}\n'\n"),
        ("run.sh", f"echo use \\\n  export {V}={OLD}\n"),
        ("run.sh", f"cat > notes.txt <<E\nexport {V}={OLD}\nE\n"),
        ("Makefile", f"{V} := {OLD}\n"),
        ("job.yaml", f"env:\n  {V}: >-\n    {OLD}\n"),
        ("job.yaml", f"env:\n  {V}: |\n    {OLD}\n"),
        ("job.yaml", f"env:\n  {V}: !!str {OLD}\n"),
        ("job.yaml", f"env:\n  {V}: &v {OLD}\n"),
        ("job.yaml", f"a: &v {OLD}\nenv:\n  {V}: *v\n"),
        ("job.yaml", f"env: {{{V}: {OLD}}}\n"),
        ("job.yaml", f"env:\n  {V}: max_split_size_mb:1\n    ,a:1\n"),
        ("job.yaml", f'env:\n  {V}: "max_split\\x5fsize_mb:1"\n'),
        ("job.yaml", f"run: |\n  export {V}={OLD}\n"),
        ("job.yaml", f"env:\n  - {V}={OLD}\n"),
        ("job.yaml", f"env:\n  {V}: {OLD}\nbroken: [\n"),
        ("job.json", f'{{"env": {{"{V}": ["{OLD}"]}}}}\n'),
    ],
)
def test_all_else_is_shown_and_left(tmp_path: Path, name: str, text: str) -> None:
    made = planned(tmp_path, name, text + ("" if name.endswith("json") else "# python train.py\n"))
    (item,) = made.items
    assert not made.outputs
    assert (item.status, item.why) == ("display", "add expandable_segments:True to what this line sets")
    assert [c.file for c in item.candidates] == [name]
