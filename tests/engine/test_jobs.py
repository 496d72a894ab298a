"""Unrelated jobs in one folder have a verdict each, and no finding is of two of them."""

from __future__ import annotations

from dataclasses import replace

from trace_doctor.capture import Capture
from trace_doctor.config import defaults
from trace_doctor.engine import diagnose
from trace_doctor.model import Result
from trace_doctor.reporters.diagnosis import verdict
from trace_doctor.testing import RunBuilder


def starved(
    kernels: int = 10, *, rank: int | None = None, world: int = 1, later_us: float = 0, batch: int = 0
) -> RunBuilder:
    b = RunBuilder(rank=rank, world_size=world, shapes=bool(batch))
    b.wait(later_us)
    for _ in range(6):
        with b.step():
            b.loader(20_000)
            for _ in range(kernels):
                with b.op("aten::mm", dims=[[batch, 64], [64, 64]], us=10):
                    b.launch(1000, "gemm")
            b.idle_until_done()
    return b


def diagnosed(*builders: tuple[str, RunBuilder]) -> Result:
    config = defaults()
    captures = []
    for path, builder in builders:
        run = replace(builder.run(), path=path)
        captures.append(Capture(rank=run.rank, run=run))
    return diagnose(captures, config.settings.chosen(), config)


def test_captures_of_other_work_are_jobs_of_their_own() -> None:
    result = diagnosed(("a.json", starved()), ("b.json", starved(kernels=40)))
    assert [i.job for i in result.inputs] == [0, 1]
    waits = [f for f in result.findings if f.code == "TD101"]
    assert {f.input for f in waits} == {0, 1}
    assert not any("also" in f.message for f in waits)
    sentences = verdict(result)
    assert len(sentences) == 2
    assert {s.split(":")[0] for s in sentences} == {"a.json", "b.json"}


def test_captures_that_share_no_shape_are_jobs_of_their_own() -> None:
    for batch, jobs in ((32, [0, 0]), (48, [0, 1])):
        result = diagnosed(("a.json", starved(batch=32)), ("b.json", starved(batch=batch, later_us=5e6)))
        assert [i.job for i in result.inputs] == jobs


def test_ranks_and_further_captures_of_one_job_share_a_verdict() -> None:
    ranks = diagnosed(*((f"rank{r}.json", starved(rank=r, world=2)) for r in range(2)))
    assert {i.job for i in ranks.inputs} == {0}
    [wait] = [f for f in ranks.findings if f.code == "TD101"]
    assert "also on" in wait.message
    again = diagnosed(("step10.json", starved()), ("step90.json", starved(later_us=5e6)))
    assert {i.job for i in again.inputs} == {0}
    assert len(verdict(again)) == 1


def test_the_same_program_recorded_into_another_folder_is_judged_apart() -> None:
    result = diagnosed(("before/trace.json", starved()), ("after/trace.json", starved()))
    assert [i.job for i in result.inputs] == [0, 1]
