"""What keeps blame from an innocent rank, each with a job in which it would fall on one."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from simulated_jobs.columns import columns
from simulated_jobs.programs import MS, Faults, Job, hybrid, interleaved

from trace_doctor.evidence.distributed.blame.columns import KINDS, JobColumns, Rows, rows_of, with_ends
from trace_doctor.evidence.distributed.blame.gates import Gates, gates
from trace_doctor.evidence.distributed.blame.model import model
from trace_doctor.evidence.distributed.blame.nodes import nodes
from trace_doctor.evidence.distributed.blame.roles import roles, usual_transfer
from trace_doctor.evidence.distributed.blame.verdicts import blame

REDUCE, GATHER, SEND, RECEIVE = (KINDS.index(k) for k in ("all-reduce", "all-gather", "send", "receive"))
US = 1_000


def _rows(*rows: tuple[int, ...]) -> Rows:
    """(rank, group, kind, seq, start us, end us, own time before us, during us, computes at the end)."""
    table = [(r, g, k, n, a * US, b * US, 1, before * US, during * US, busy) for r, g, k, n, a, b, before, during, busy in rows]  # fmt: skip
    return rows_of(np.array(table, dtype=np.int64))


def _gates(rows: Rows, *sizes: int) -> Gates:
    clocks = np.zeros(int(rows.rank.max()) + 1, dtype=np.int64)
    return gates(rows, nodes(rows, clocks, np.array(sizes, dtype=np.int64)))


def _roles(job: Job) -> int:
    read = columns(job)
    return len(set(roles(with_ends(read.steps[0]), read.groups, read.ranks).tolist()))


def test_all_members_of_a_collective_come_from_the_same_place() -> None:
    """An overlapped all-gather ends just before the all-reduce begins on two ranks, and just after on the third."""
    rows = _rows(
        *(
            row
            for rank in range(3)
            for row in (
                (rank, 0, REDUCE, 0, 100, 200, 100, 0, 0),
                (rank, 1, GATHER, 0, 250, 1000 if rank < 2 else 1080, 150, 750, 1),
                (rank, 0, REDUCE, 1, 1010 if rank < 2 else 1050, 1200, 900, 0, 0),
            )
        )
    )
    found = _gates(rows, 3, 3)
    assert rows.kind[found.gate[[2, 5, 8]]].tolist() == [GATHER] * 3


def test_a_send_beside_compute_holds_nobody_up() -> None:
    rows = _rows(
        (0, 0, REDUCE, 0, 100, 200, 100, 0, 0),
        (0, 1, SEND, 0, 200, 900, 100, 700, 1),
        (0, 0, REDUCE, 1, 1000, 1100, 900, 0, 0),
    )
    found = _gates(rows, 1, 2)
    assert found.gate[2] == 0
    blocked = replace(rows, busy=np.zeros(3, dtype=bool))
    assert _gates(blocked, 1, 2).gate[2] == 1


def test_a_batched_send_and_receive_are_two_gates() -> None:
    rows = _rows(
        (0, 0, RECEIVE, 0, 100, 500, 100, 0, 0),
        (0, 1, SEND, 0, 100, 500, 100, 0, 0),
        (0, 2, REDUCE, 0, 700, 800, 300, 0, 0),
    )
    found = _gates(rows, 2, 2, 1)
    assert {int(found.gate[2]), int(found.second[2])} == {0, 1}


def test_time_in_a_collective_that_was_not_recorded_is_nobodys_own() -> None:
    """All ranks but one sit in it for 20 ms: it would not end sooner if they counted as busy."""
    job, healthy = hybrid(hidden=5), hybrid(hidden=-1)
    verdict = blame(model(columns(job, hidden="hidden")))
    assert [root.ranks for root in verdict.roots] == [(5,)]
    assert verdict.gain_ns == pytest.approx(job.step_ns - healthy.step_ns, rel=0.05)


@pytest.mark.parametrize(
    "job",
    [
        hybrid(2, 4, 2),  # the two inner stages begin alike, and meet point to point
        hybrid(2, 4, 2, everyone=4),  # all begin alike, with all ranks
        hybrid(2, 4, 2, embedding=True),  # the first and the last stage share the embedding
    ],
)
def test_each_stage_is_a_role(job: Job) -> None:
    assert _roles(job) == 4


def test_what_was_read_in_part_shows_no_usual_transfer() -> None:
    """Of three of five all-reduces the last rank was not read: the others wait for it, which is no transfer."""
    rows = _rows(
        *((rank, 0, REDUCE, n, 1000 * n, 1000 * n + 60, 0, 0, 0) for rank in range(2) for n in range(2)),
        *((2, 1, REDUCE, n, 1000 * n, 1000 * n + 700, 0, 0, 0) for n in range(3)),
    )
    sizes = np.array([2, 2])
    found = nodes(rows, np.zeros(3, dtype=np.int64), sizes)
    assert usual_transfer(found, sizes).tolist() == [60 * US] * 5


def test_a_healthy_job_has_no_uneven_batches() -> None:
    assert blame(model(columns(hybrid(noise=0.1)))).batches is None


@pytest.mark.parametrize("seed", [2, 3, 9, 10])
def test_ranks_that_got_the_long_batches_are_not_slow(seed: int) -> None:
    """All ranks of a replica are late together, more often than others by chance."""
    shape = {"noise": 0.03, "seed": seed}
    assert not blame(model(columns(hybrid(**shape, faults=Faults(sequences=0.25))))).roots


@pytest.mark.parametrize(
    ("seed", "slow", "named"),
    [(3, {}, []), (16, {}, []), (20, {}, []), (1, {5: 1.15}, []), (2, {5: 1.15}, [(5,)])],
)
def test_with_one_rank_per_batch_and_stage_none_is_slow_for_its_batch(
    seed: int, slow: dict[int, float], named: list[tuple[int, ...]]
) -> None:
    """Where ranks share a batch with one of another stage only: what a rank gains without its long batches is no fault of it, and a
    slow rank makes no other look slow (with seed 1 it costs nothing, for others have longer batches)."""
    shape = {"tensor": 1, "pipeline": 2, "data": 4, "micro": 2, "noise": 0.02, "seed": seed}
    verdict = blame(model(columns(hybrid(**shape, faults=Faults(sequences=0.25, slow=slow)))))
    assert verdict.batches is not None
    assert [root.ranks for root in verdict.roots] == named


def test_once_is_no_slow_rank() -> None:
    job = hybrid(faults=Faults(loading={5: (20 * MS, (1,))}))
    assert not blame(model(columns(job))).roots


def test_what_clocks_cannot_tell_is_not_reported() -> None:
    found = model(columns(hybrid(faults=Faults(slow={5: 1.15}))))
    gain = blame(found).gain_ns
    for residual, named in ((0.3, True), (0.4, False)):
        clocks = replace(found.clocks, residual=round(residual * gain))
        assert bool(blame(replace(found, clocks=clocks)).roots) == named


def test_stages_that_hold_several_chunks() -> None:
    """Two hosts whose clocks differ, and all stages of a host on one clock: only sends and receives lead from one to the other."""
    assert not blame(model(columns(interleaved()))).roots
    job = interleaved(faults=Faults(slow={5: 1.15}))
    verdict = blame(model(columns(job)))
    assert [root.ranks for root in verdict.roots] == [(5,)]
    assert verdict.gain_ns == pytest.approx(
        job.step_ns - interleaved().step_ns, rel=0.2
    )  # roles of four ranks


def _restarted(job: JobColumns) -> JobColumns:
    """The processes begin again after two steps: new groups, and collectives numbered from the start."""
    count = len(job.groups)
    steps = [
        replace(step, rows=replace(step.rows, group=step.rows.group + count * (n > 1), seq=_renumbered(step.rows) if n > 1 else step.rows.seq))
        for n, step in enumerate(job.steps)
    ]  # fmt: skip
    return replace(job, steps=steps, groups=job.groups * 2)


def _renumbered(rows: Rows) -> np.ndarray:
    first = np.full(int(rows.group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, rows.group, rows.seq)
    return np.asarray(rows.seq - first[rows.group])


def test_a_job_that_was_restarted_in_the_capture() -> None:
    job = hybrid(faults=Faults(slow={5: 1.15}))
    verdict = blame(model(_restarted(columns(job))))
    assert [root.ranks for root in verdict.roots] == [(5,)]
    assert verdict.gain_ns == pytest.approx(job.step_ns - hybrid().step_ns, rel=0.05)


def test_collectives_without_numbers_are_counted_from_the_end_of_the_step() -> None:
    job = hybrid(faults=Faults(slow={5: 1.15}))
    read = columns(job)
    bare = [
        replace(step, rows=replace(step.rows, seq=np.full_like(step.rows.seq, -1))) for step in read.steps
    ]
    assert blame(model(replace(read, steps=bare))).gain_ns == blame(model(read)).gain_ns
