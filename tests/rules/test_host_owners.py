"""One fault of the host, one owner."""

from __future__ import annotations

import pytest

from trace_doctor.capture import Capture
from trace_doctor.config import defaults
from trace_doctor.engine import diagnose
from trace_doctor.registry import resolve
from trace_doctor.testing import RunBuilder, captures_of, claims_of
from trace_doctor_rules.host.launch_bound import LaunchBound
from trace_doctor_rules.kernels.many_small_gemms import ManySmallGemms


def random_numbers_on_the_host(us: int) -> RunBuilder:
    b = RunBuilder(stacks=True, shapes=True)
    for _ in range(4):
        with b.step(), b.python("train.py", 4, "train"):
            with b.annotation("noise"), b.op("aten::randn", us=5), b.op("aten::normal_", dims=[[1024, 256]]):
                b.wait(us)
            with b.op("aten::to", dims=[[1024, 256]]), b.op("aten::_to_copy"), b.op("aten::copy_"):
                b.copy(90, "HtoD (Pageable -> Device)", bytes=1 << 20)
                b.sync()
            for _ in range(20):
                with b.op("aten::mm", us=20):
                    b.launch(100)
    return b


@pytest.mark.parametrize("us", [3000, 9000])
def test_a_tensor_made_on_the_host_is_not_also_a_slow_host(us: int) -> None:
    (capture,) = captures_of(random_numbers_on_the_host(us))
    assert isinstance(capture, Capture)
    alone = diagnose([capture], resolve("TD203"), defaults())
    both = diagnose([capture], [*resolve("TD203"), *resolve("TD104")], defaults())
    assert [f.code for f in alone.findings] == ["TD203"]
    assert [f.code for f in both.findings] == ["TD104"]


def test_a_loop_over_experts_is_owned_in_every_step_and_not_only_where_it_was_measured() -> None:
    case = next(c for c in ManySmallGemms.INVALID if c.name == "many experts")
    (claim,) = claims_of(ManySmallGemms(), case.build())
    assert len({start // 1_000_000 for start, _ in claim.owned}) == 4


def test_what_the_host_did_not_do_is_no_row_of_its_activity() -> None:
    """An inference engine runs no optimizer."""
    case = next(c for c in LaunchBound.INVALID if c.name == "in an inference engine")
    (claim,) = claims_of(LaunchBound(), case.build())
    assert [row[0] for row in claim.evidence[0].rows] == [
        "operators and launch calls",
        "Python or unrecorded",
    ]
