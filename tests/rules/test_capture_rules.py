"""What the rules about captures advise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.rule import Context
from trace_doctor.testing import RunBuilder
from trace_doctor_rules.capture import no_gpu_activity
from trace_doctor_rules.capture.no_gpu_activity import NoGpuActivity


@pytest.mark.parametrize(
    ("capture", "advice"),
    [
        (no_gpu_activity._launched_but_lost, "Warm the profiler up"),
        (no_gpu_activity._outside_the_window, "Record the GPU as well"),
        (no_gpu_activity._on_the_cpu, "Record the GPU as well"),
    ],
)
def test_the_advice_follows_what_is_missing(capture: Callable[[], RunBuilder], advice: str) -> None:
    rule = NoGpuActivity()
    (claim,) = rule.check(Context(Facts(Capture(0, capture().run())), rule))
    assert [fix.title.startswith(advice) for fix in claim.fixes] == [True]
