"""Every fix of every rule on scripts in each framework's style and on the recorded scenarios: patches apply with git, the
files parse, names resolve, nothing else is written, a second run is empty. The same checks as `bench/fixes`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trace_doctor.fixes import plan
from trace_doctor.model import Result
from trace_doctor.program.source_tree import SourceTree

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "fixes"))
import checks  # noqa: E402
import evidence  # noqa: E402

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.py"))
SCENARIOS = sorted((ROOT / "sample_traces").glob("*/fault.py"))[::4]
TORCH = "2.6"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_every_patch_is_sound(script: Path) -> None:
    tree = SourceTree(script)
    checker = checks.Checker(tree)
    wrong, patched = [], 0
    for _, _, finding in evidence.findings(tree):
        made = plan(Result(findings=[finding]), script, tree=tree, torch_version=TORCH)
        patched += bool(made.of("ready"))
        wrong += [f"{finding.id}: {c}" for c in checker.complaints(made, [finding], torch_version=TORCH)]
    assert not wrong, "\n".join(wrong)
    assert patched


@pytest.mark.parametrize("script", [*SCRIPTS, *SCENARIOS], ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_all_fixes_of_a_script_go_together_or_are_refused_together(script: Path) -> None:
    tree = SourceTree(script)
    findings = [finding for _, _, finding in evidence.findings(tree)]
    made = plan(Result(findings=findings), script, tree=tree, torch_version=TORCH)
    wrong = checks.Checker(tree).complaints(made, findings, torch_version=TORCH)
    assert not wrong, "\n".join(wrong)
