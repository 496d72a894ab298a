"""`--rank-timeout`: a rank that takes longer is lost, as one whose process ends is."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from warm_commands import FRESH

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def with_the_rule(tmp_path: Path) -> dict[str, str]:
    """An environment in which the rule that never ends on rank 2 is installed."""
    installed = tmp_path / "packages" / "ending_rule-1.dist-info"
    installed.mkdir(parents=True)
    pack = "import ending_rule\nclass NeverEnds(ending_rule.NeverEnds): pass\n"
    (installed.parent / "never_ends_pack.py").write_text(pack)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: ending-rule\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[trace_doctor.rules]\nmine = never_ends_pack\n")
    return {**os.environ, "PYTHONPATH": f"{installed.parent}{os.pathsep}{TESTS}"}


def test_a_rank_that_takes_longer_is_named(job: Path, tmp_path: Path, with_the_rule: dict[str, str]) -> None:
    words = ("check", str(job), "--select", "TD5,ZZ999", "--rank-timeout", "10", "-o", "text")
    done = subprocess.run(
        [*FRESH, *words, "--summaries", str(tmp_path / "store")],
        env=with_the_rule, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    said = re.sub(r"\s+", " ", done.stdout)
    assert "rank2.pt.trace.json.gz" in said and "took longer than 10 s" in said
    kept = len(list((tmp_path / "store").rglob("*.td1")))
    assert 0 < kept < 8, "the others, and not the one that is to be tried again"
