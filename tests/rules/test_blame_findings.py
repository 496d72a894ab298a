"""TD602 and TD606 over the traces of jobs of several process groups."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from simulated_jobs.programs import MS, Faults, Job, fsdp, hybrid
from simulated_jobs.traces import traces

import trace_doctor
from trace_doctor.model import Finding
from trace_doctor.reporters import render

SMALL = {"tensor": 2, "pipeline": 2, "data": 3}


def _findings(job: Job, folder: Path, *, ranks: int | None = None) -> list[Finding]:
    for rank, b in enumerate(traces(job)[:ranks]):
        b.write(folder / f"rank{rank}.json")
    result = trace_doctor.analyze(folder, select=["TD602", "TD606"])
    assert not [outcome for outcome in result.outcomes if outcome.outcome == "error"]
    return result.findings


def test_the_rank_that_delays_the_job_is_named_with_what_it_costs(tmp_path: Path) -> None:
    job, healthy = hybrid(**SMALL, faults=Faults(slow={3: 1.2})), hybrid(**SMALL)
    [found] = _findings(job, tmp_path)
    assert (found.code, found.severity, found.location.ranks) == ("TD602", "warning", [3])
    assert found.message.startswith("Rank 3 delays all 12 ranks by ")
    assert (
        "in 5 of 5 steps. It runs as many kernels as ranks with the same role, and computes 1.2"
        in found.message
    )
    assert found.fixes[0].title.startswith("Compare clocks of rank 3 and rank ")
    assert "nvidia-smi -q -d CLOCK" in found.fixes[0].text
    assert found.saving is not None and found.saving.time_us_per_step is not None
    assert found.saving.time_us_per_step == pytest.approx((job.step_ns - healthy.step_ns) / 1e3, rel=0.1)


def test_the_result_holds_the_excess_of_each_rank_and_its_verdict_names_the_root(tmp_path: Path) -> None:
    for rank, b in enumerate(traces(hybrid(**SMALL, faults=Faults(slow={3: 1.2})))):
        b.write(tmp_path / f"rank{rank}.json")
    result = trace_doctor.analyze(tmp_path, select=["TD602"])
    [job] = result.jobs or []
    assert (job.blamed, [root.cause for root in job.roots]) == ([3], ["compute"])
    assert max(job.rows, key=lambda row: sum(us or 0 for us in row.excess_us)).ranks == [3]
    assert result.summary.verdict.startswith(result.findings[0].message.rstrip("."))
    assert not trace_doctor.analyze(tmp_path, select=["TD101"]).jobs


def test_a_rank_whose_clock_is_lower_is_told_so(tmp_path: Path) -> None:
    for rank, b in enumerate(traces(hybrid(**SMALL, faults=Faults(slow={3: 1.2})))):
        mhz = 1650 if rank == 3 else 1980
        b.events += [
            {
                "ph": "C",
                "name": "SM Clock (MHz)",
                "pid": f"GPU {e['pid']} Counters",
                "ts": e["ts"],
                "args": {"": mhz},
            }
            for e in b.events
            if "gemm" in e["name"]
        ]
        b.write(tmp_path / f"rank{rank}.json")
    [found] = trace_doctor.analyze(tmp_path, select=["TD602"]).findings
    assert found.message.endswith("times as long: its SM clock is 1,650 MHz, theirs 1,980 MHz.")
    assert found.fixes[0].title == "Check the GPU cooling and power limit of rank 3"


def test_a_rank_that_runs_more_kernels_is_not_called_slow(tmp_path: Path) -> None:
    for rank, b in enumerate(traces(hybrid(**SMALL, faults=Faults(slow={3: 1.2})))):
        if rank == 3:  # half of each product is a kernel of its own
            halves = [dict(e, dur=e["dur"] / 2) for e in b.events if "gemm" in e["name"]]
            for event in (e for e in b.events if "gemm" in e["name"]):
                event["dur"] /= 2
                event["ts"] += event["dur"]
            b.events += halves
        b.write(tmp_path / f"rank{rank}.json")
    [found] = trace_doctor.analyze(tmp_path, select=["TD602"]).findings
    assert found.message.endswith("in 5 of 5 steps: excess time in compute.")
    assert found.fixes[0].title == "Investigate rank 3"


def test_a_wait_that_another_group_hands_on_is_owned_by_the_rank_that_delays_the_job(tmp_path: Path) -> None:
    """Rank 5 delays its tensor-parallel group, whose other ranks then come late to their data-parallel groups."""
    job = hybrid(4, 1, 4, micro=1, layers=4, faults=Faults(slow={5: 1.2}))
    for rank, b in enumerate(traces(job)):
        b.write(tmp_path / f"rank{rank}.json")
    result = trace_doctor.analyze(tmp_path, select=["TD602"])
    [late] = result.findings
    assert late.saving is not None and late.saving.time_us_per_step is not None
    owned = {
        row.rank: (row.total_ns - row.unowned_ns) / 5e3
        for row in result.ownership
        if row.part == "exposed_comm" and late.id in row.findings
    }
    assert sorted(owned) == [rank for rank in range(16) if rank != 5]
    assert all(us > 0.9 * late.saving.time_us_per_step for us in owned.values()), owned


def test_the_table_of_captures_says_of_each_rank_that_it_waits_for_the_slow_one(tmp_path: Path) -> None:
    """A short wait for data loading, which each rank has of its own, stood there alone."""
    for rank, b in enumerate(traces(hybrid(2, 1, 3, micro=1, faults=Faults(slow={3: 1.2})))):
        b.write(tmp_path / f"rank{rank}.json")
    result = trace_doctor.analyze(tmp_path)
    page = render(result, "html", zoom=False)
    groups = page[page.index("Kind of collective") :].partition("</table>")[0]
    assert re.search(r"rank 2, \d+ of 10, with no excess time", groups), "it hands on to ranks 0 and 4"
    assert re.search(r"rank 3, \d+ of 20<", groups)
    shown = page[page.index("The most severe finding of each capture") :].partition("</table>")[0]
    assert shown.count("Straggler delays all ranks") == 6
    assert [f.title for f in result.findings if f.code == "TD101"] == ["Short waits for data loading"]


def test_the_timeline_keeps_the_rank_that_delays_the_job_and_usual_ones(tmp_path: Path) -> None:
    for rank, b in enumerate(traces(hybrid(2, 2, 5, faults=Faults(slow={19: 1.3})))):
        b.write(tmp_path / f"rank{rank}.json")
    result = trace_doctor.analyze(tmp_path, select=["TD602"])
    [job] = result.jobs or []
    assert [lane.rank for lane in result.timeline][:4] == [19, *job.usual, 0]
    assert result.steps[0].rank == 19


def test_slow_in_some_steps(tmp_path: Path) -> None:
    job = hybrid(**SMALL, steps=6, faults=Faults(loading={3: (20 * MS, (2, 4))}))
    [found] = _findings(job, tmp_path)
    assert found.message.startswith("Rank 3 delays all 12 ranks by ")
    assert found.message.endswith("in 2 of 6 steps: excess time in data loading.")


def test_of_one_step_it_is_an_info_finding(tmp_path: Path) -> None:
    [found] = _findings(hybrid(**SMALL, steps=1, faults=Faults(slow={3: 1.4})), tmp_path)
    assert (found.severity, found.confidence) == ("info", "low")
    assert "Only 1 step was observed." in found.message
    verdict = trace_doctor.analyze(tmp_path, select=["TD602"]).summary.verdict
    assert (
        "per step of 40.2 ms (17.8%), which is not certain (seen in 1 step: record five or more)" in verdict
    )


def test_where_nobody_is_slow_no_rank_is_said_to_cause_the_waiting(tmp_path: Path) -> None:
    """Ranks of a pipeline wait for one another: who comes last hands on what the schedule does."""
    [found] = _findings(hybrid(**SMALL), tmp_path)
    assert found.severity == "info"
    assert "causes" not in found.message


def test_a_link_that_is_slow(tmp_path: Path) -> None:
    [found] = _findings(hybrid(**SMALL, faults=Faults(links={"tp0.1": 20})), tmp_path)
    assert (found.code, found.severity, found.location.ranks) == ("TD602", "warning", [2, 3])
    assert "slow transfers between ranks 2 and 3" in found.message


def test_a_rank_that_was_not_read(tmp_path: Path) -> None:
    [found] = _findings(hybrid(**SMALL, faults=Faults(slow={11: 1.3})), tmp_path, ranks=11)
    assert (found.severity, found.confidence) == ("info", "low")
    assert found.message.startswith("Rank 11 was not read and may delay the others")
    assert "Only 11 of 12 ranks were read." in found.message


def test_a_stage_with_more_work(tmp_path: Path) -> None:
    job = hybrid(2, 3, 2, faults=Faults(stages={1: 1.4}))
    [found] = [f for f in _findings(job, tmp_path) if f.code == "TD606"]
    assert found.location.ranks == [4, 5, 6, 7]
    assert "1.39 times the work" in found.message or "1.40 times the work" in found.message


def test_uneven_batches(tmp_path: Path) -> None:
    [found] = [
        f for f in _findings(hybrid(**SMALL, faults=Faults(sequences=0.3)), tmp_path) if f.code == "TD606"
    ]
    assert "alike on ranks that share a batch" in found.message


def test_overlapped_communication(tmp_path: Path) -> None:
    [found] = _findings(fsdp(8, 2, faults=Faults(slow={5: 1.2})), tmp_path)
    assert (found.code, found.location.ranks) == ("TD602", [5])


def test_exposed_communication_is_told_by_process_group_and_apart_from_waiting(tmp_path: Path) -> None:
    """Waiting for rank 5 makes the all-reduces of its tensor-parallel group look longer than the reduce-scatters."""
    for rank, b in enumerate(traces(hybrid(4, 1, 4, micro=1, faults=Faults(slow={5: 1.3})))):
        b.write(tmp_path / f"rank{rank}.json")
    [found] = trace_doctor.analyze(tmp_path, select=["TD601"]).findings
    assert (
        "(reduce-scatter of data-parallel replicas and all-reduce of tensor-parallel layers)" in found.message
    )
    assert "is waiting for rank 5 (TD602), 0.800 ms reduce-scatter of" in found.message
    assert "0.240 ms all-reduce of tensor-parallel layers." in found.message
    assert "also on ranks 1-15" in found.message
    assert [fix.title for fix in found.fixes] == [
        "Start the collective asynchronously",
        "Reduce the tensor-parallel degree, or its collectives",
    ]
