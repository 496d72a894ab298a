"""What the reports show of real captures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trace_doctor
from trace_doctor.model import Result
from trace_doctor.reporters import render
from trace_doctor.reporters.units import columns

pytestmark = pytest.mark.captures
CASES = {
    "resnet": ["traces/pytorch_kineto/resnet50_num_workers_0_worker0.1623143089861.pt.trace.json.gz"],
    "oom": [
        "snapshots/cornell-sysphotonics_ccl-bench/7e29dbee_iteration_0_exit_rank0_memory_snapshot.pickle"
    ],
    "ranks": [f"traces/astra-sim_astra-sim/ab5d3e62_megatron-tp8_megatron_kineto_{n}.json" for n in range(8)],
}


@pytest.fixture(scope="module")
def diagnosed(captures_dir: Path) -> dict[str, Result]:
    return {name: trace_doctor.analyze(*(captures_dir / p for p in paths)) for name, paths in CASES.items()}


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_outputs_keep_their_promises(diagnosed: dict[str, Result], name: str) -> None:
    result = diagnosed[name]
    text, html = render(result, "text", show_skipped=True), render(result, "html", zoom=False)
    assert [line for line in text.splitlines() if columns(line) > 80] == []
    assert render(Result.from_json(result.to_json()), "html", zoom=False) == html
    assert str(Path.cwd()) not in html
    links = {link for link in re.findall(r'href="#([^"]+)"', html) if not link.startswith("panel=")}
    assert links <= set(re.findall(r' id="([^"]+)"', html)), "a link that leads nowhere"
    assert all(f'id="{finding.id}"' in html for finding in result.findings)
    assert len(html.encode()) < 400_000


def test_the_first_things_a_reader_sees(diagnosed: dict[str, Result]) -> None:
    assert "Steps stall on data loading: up to 33% of step time</h1>" in render(diagnosed["resnet"], "html")
    assert "out of memory" in render(diagnosed["oom"], "html").split("<h1")[1][:200]
    ranks = render(diagnosed["ranks"], "html")
    assert all(f"rank {n} · GPU {n}" in ranks for n in range(8))
