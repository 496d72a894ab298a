"""What rules about inference engines promise, beside what the fixed server takes less."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_doctor import analyze

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


@pytest.mark.parametrize(
    ("code", "sample"), [("TD701", "decode_outside_graphs"), ("TD703", "decode_token_copy")]
)
def test_a_host_that_is_late_no_more_saves_no_more_than_the_bound(code: str, sample: str) -> None:
    fault, healthy = (
        analyze(SAMPLES / sample / "simulated" / twin, select=[code]) for twin in ("fault", "healthy")
    )
    before, after = fault.summary.step_us, healthy.summary.step_us
    assert before is not None and after is not None
    (finding,) = fault.findings
    assert finding.saving is not None and finding.saving.known == "up_to"
    saved = finding.saving.time_us_per_step or 0.0
    assert before - after - 0.01 * before <= saved <= 2 * (before - after)
