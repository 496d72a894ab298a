"""Savings of rules about inference engines, next to what the same server takes without the fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_doctor import analyze

_SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.mark.parametrize(
    ("sample", "code"), [("decode_token_copy", "TD703"), ("decode_outside_graphs", "TD701")]
)
def test_a_bound_is_no_less_than_what_is_saved(sample: str, code: str) -> None:
    """The fix saves more than the idle time that the finding describes: the host has less to do in the rest of the step as well."""
    fault, healthy = (
        analyze(_SAMPLES / sample / "simulated" / which, select=[code]) for which in ("fault", "healthy")
    )
    before, after = (result.inputs[0].pace for result in (fault, healthy))
    assert before is not None and after is not None
    [saving] = [f.saving for f in fault.findings if f.code == code]
    assert saving is not None and saving.basis == "bound" and saving.time_us_per_step is not None
    assert before.mean_us is not None and after.mean_us is not None
    saved = before.mean_us - after.mean_us
    assert saved * (1 - 1e-9) <= saving.time_us_per_step <= 1.05 * saved
