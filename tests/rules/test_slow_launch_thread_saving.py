"""What TD203 saves is host time of its own: never more than the GPU is idle, and nothing of a loader or of a blocking call."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from trace_doctor.config import defaults
from trace_doctor.engine import diagnose
from trace_doctor.testing import RunBuilder, captures_of

PARTS = st.lists(
    st.tuples(st.sampled_from(["loader", "work", "sync"]), st.integers(200, 5000)), min_size=1, max_size=4
)


@settings(max_examples=20, deadline=None)
@given(PARTS, st.integers(20, 400))
@example([("loader", 5000), ("work", 1000)], 50)
def test_a_stretch_saves_no_time_of_another_cause_inside_it(
    parts: list[tuple[str, int]], gpu_us: int
) -> None:
    b = RunBuilder()
    for _ in range(4):
        with b.step():
            with b.annotation("copy_batch_to_gpu"):
                for what, us in parts:
                    if what == "loader":
                        b.loader(us)
                    elif what == "sync":
                        b.sync()
                    else:
                        b.wait(us)
            for _ in range(10):
                with b.op("aten::mm", us=10):
                    b.launch(gpu_us)
    config = defaults()
    result = diagnose(captures_of(b), config.settings.chosen(), config)
    [row] = [row for row in result.time_ledger if row.phase == "steady"]
    most = min(row.idle_ns.total() / row.steps / 1e3, sum(us for what, us in parts if what == "work"))
    for finding in result.findings:
        if finding.code == "TD203" and finding.saving and finding.saving.time_us_per_step:
            assert finding.saving.time_us_per_step <= most + 1
