"""A host that stands still in each step, whatever it is in, is a warning that promises what was planted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trace_doctor.model import Result

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "accuracy"))
import detection  # noqa: E402
import planting  # noqa: E402

SIMULATED = ROOT / "sample_traces/unfused_attention/simulated/healthy/trace.json.gz"
RESNET = "traces/pytorch_kineto/resnet50_num_workers_4_worker0.1623212756351.pt.trace.json.gz"
"""six steps of 127 ms, with operators enough for 25 places"""
PAUSES = {
    "without a name": (detection.unnamed, 40_000),
    "inside an operator": (detection.in_an_operator, 40_000),
    "25 without a name": (detection.small, 75_000),
    "inside a compiled region": (detection.compiled, 40_000),
}


def _judge(base: detection.Base, planted: planting.Planted, folder: Path) -> tuple[Result, float]:
    """What is said of it, and the length of its steady steps in ns."""
    result = detection.judge(base, [planted], folder)
    return result, sum(row.window_ns for row in result.time_ledger if row.phase == "steady")


def _promised(result: Result) -> float:
    """All places of TD203, as a share of the step."""
    own = [f.saving for f in result.findings if f.code == "TD203"]
    return sum(saving.share_of_step or 0.0 for saving in own if saving)


@pytest.mark.parametrize(("plant", "us"), PAUSES.values(), ids=PAUSES)
@pytest.mark.parametrize("recorded", [False, True], ids=["simulated", "real"])
def test_a_pause_in_each_step_is_a_warning_with_its_share(
    recorded: bool,
    plant: Callable[..., planting.Planted],
    us: float,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    path = request.getfixturevalue("captures_dir") / RESNET if recorded else SIMULATED
    base = detection.Base(path.name, detection.read(path))
    before, healthy = _judge(base, planting.Planted(base.events, 0.0), tmp_path)
    assert not [f for f in before.findings if f.code == "TD203" and f.severity != "info"]
    once = plant is not detection.small  # to empty the queue 25 times would cost more than the pauses
    after, longer = _judge(base, plant(base, us, drains=once), tmp_path)
    share = 1 - healthy / longer
    assert share > 0.2
    assert any(f.severity != "info" for f in after.findings if f.code == "TD203")
    assert _promised(after) == pytest.approx(share, abs=0.01)
