"""What a result shows of a job of several process groups, of simulated jobs."""

from __future__ import annotations

from typing import Any

import pytest
from simulated_jobs.columns import columns, side_by_side
from simulated_jobs.programs import MS, Faults, Job, hybrid

from trace_doctor.evidence.distributed.blame.delays import delays
from trace_doctor.evidence.distributed.blame.hosts import hosts_of
from trace_doctor.evidence.distributed.blame.model import model
from trace_doctor.evidence.distributed.blame.verdicts import blame
from trace_doctor.model import JobDelays

NOTHING = Faults()


def _delays(job: Job, copies: int = 1, **read: Any) -> JobDelays:
    made = model(side_by_side(columns(job, **read), copies))
    return delays(made, blame(made), len(made.job.ranks) + len(read.get("missing", ())))


def test_the_slow_rank_has_the_excess_and_usual_ranks_of_its_role_stand_beside() -> None:
    shown = _delays(hybrid(faults=Faults(loading={5: (20 * MS, (1, 3))})))
    assert [row.ranks for row in shown.rows] == [[rank] for rank in range(shown.world)]
    late = {
        (row.worst, shown.steps[n])
        for row in shown.rows
        for n, us in enumerate(row.excess_us)
        if (us or 0) > 15_000
    }
    assert late == {(5, 1), (5, 3)}
    assert shown.blamed == [5] and len(shown.usual) == 2 and 5 not in shown.usual
    beside = [row for row in shown.rows if row.worst in shown.usual]
    assert all(abs(us or 0) < 1_000 for row in beside for us in row.excess_us)


def test_a_step_that_a_rank_lacks_is_not_captured_and_not_in_time() -> None:
    shown = _delays(hybrid(tensor=4, pipeline=2, data=4), absent={7: (2,)})
    assert [n for n, us in enumerate(shown.rows[7].excess_us) if us is None] == [shown.steps.index(2)]
    assert all(us is not None for row in shown.rows if row.worst != 7 for us in row.excess_us)


def test_a_rank_that_is_alone_in_its_role_has_nothing_to_be_compared_with() -> None:
    shown = _delays(hybrid(tensor=1, pipeline=4, data=1))
    untold = [row.worst for row in shown.rows if set(row.excess_us) == {None}]
    assert untold == [0, 3]  # the stages between do the same


def test_ranks_that_were_not_read_are_listed_and_have_no_row() -> None:
    shown = _delays(hybrid(), missing={6})
    assert (shown.unread, shown.world - shown.read) == ([6], 1)
    assert all(row.ranks != [6] for row in shown.rows)


def test_of_more_ranks_than_rows_each_row_is_a_process_group_with_its_latest_rank() -> None:
    job = hybrid(tensor=4, pipeline=2, data=4, steps=1, faults=Faults(slow={5: 1.3}))
    shown = _delays(job, 32)
    assert len(shown.rows) == 256 and {len(row.ranks) for row in shown.rows} == {4}
    assert {row.worst for row in shown.rows if max(us or 0 for us in row.excess_us) > 1_000} == {
        32 * n + 5 for n in range(32)
    }


def test_of_more_ranks_than_rows_each_row_is_a_host_where_hosts_are_known() -> None:
    job = hybrid(tensor=4, pipeline=2, data=4, steps=1, faults=Faults(slow={5: 1.3}))
    shown = _delays(job, 32, hosts=16)
    assert [row.host for row in shown.rows[:3]] == ["node0-0", "node1-0", "node0-1"]
    assert len(shown.rows) == 64 and {len(row.ranks) for row in shown.rows} == {16}
    few = _delays(job, hosts=16)
    assert [(row.ranks, row.host) for row in few.rows[15:17]] == [([15], "node0-0"), ([16], "node1-0")]


def _file(host: str, process: int) -> str:
    return f"run/{host}_{process}.1716239022123456789.pt.trace.json.gz"


@pytest.mark.parametrize(
    ("paths", "hosts"),
    [
        ([_file("gpu_a", 4101), _file("gpu_a", 4102), _file("b", 977)], ("gpu_a", "gpu_a", "b")),
        ([_file("train", 0), _file("train", 1), _file("train", 2)], ()),  # a name that somebody chose
        ([_file("a", 4101), _file("b", 4101), "rank2.pt.trace.json"], ()),
        (["s3://bucket/a_4101.1716239022123.pt.trace.json", _file("b", 4101)], ("a", "b")),
    ],
)
def test_hosts_are_told_by_names_of_files_or_not_at_all(paths: list[str], hosts: tuple[str, ...]) -> None:
    assert hosts_of(paths) == hosts


def test_steps_beyond_those_shown_are_those_without_excess() -> None:
    shown = _delays(
        hybrid(tensor=2, pipeline=1, data=2, steps=24, faults=Faults(loading={1: (20 * MS, (23,))}))
    )
    assert (len(shown.steps), shown.of_steps) == (20, 24)
    assert 23 in shown.steps and shown.steps == sorted(shown.steps)


@pytest.mark.parametrize("clocks_ns", [0, 50_000_000])
def test_the_group_with_a_slow_link_lags_first_by_its_transfers(clocks_ns: int) -> None:
    job = hybrid(faults=Faults(links={"tp0.1": 20}))
    first = _delays(job, clocks_ns=clocks_ns).groups[0]
    assert first.ranks == list(job.groups[job.names.index("tp0.1")])
    assert first.transfer == pytest.approx(20, rel=0.1)


def test_a_group_waits_for_its_slow_rank() -> None:
    job = hybrid(faults=Faults(slow={5: 1.3}))
    mine = [g for g in _delays(job).groups if 5 in g.ranks and "all-reduce" in g.kinds and g.size < 8]
    assert mine and all(g.last == 5 and (g.wait_us or 0) > 1_000 for g in mine)


def test_of_a_group_that_was_read_in_part_no_lag_is_told() -> None:
    job = hybrid()
    partial = [g for g in _delays(job, missing={6}).groups if 6 in g.ranks]
    assert partial and {(g.wait_us, g.transfer, g.last) for g in partial} == {(None, None, None)}
