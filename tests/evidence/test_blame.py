"""Blame in jobs of several process groups: what the model says of a simulated job against what the simulation gains without the fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from simulated_jobs.columns import columns
from simulated_jobs.programs import MS, Faults, Job, experts, fsdp, hybrid

from trace_doctor.evidence.distributed.blame.model import model
from trace_doctor.evidence.distributed.blame.verdicts import Blame, blame

NOTHING = Faults()
Make = Callable[..., Job]


def _blame(make: Make, faults: Faults, shape: dict[str, Any], **read: Any) -> tuple[Blame, float]:
    """The verdict, and ns of a step that the job gains without the faults."""
    job, healthy = make(faults=faults, **shape), make(faults=NOTHING, **shape)
    return blame(model(columns(job, **read))), job.step_ns - healthy.step_ns


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (hybrid, {}),
        (hybrid, {"noise": 0.04, "seed": 3}),
        (hybrid, {"tensor": 8, "pipeline": 4, "data": 8, "seed": 1}),
        (hybrid, {"tensor": 1, "pipeline": 4, "data": 4}),
        (fsdp, {}),
        (fsdp, {"noise": 0.05, "seed": 2}),
        (experts, {}),
        (experts, {"routing": 0.3, "seed": 2}),
    ],
)
def test_of_a_healthy_job_nobody_is_to_blame(make: Make, shape: dict[str, Any]) -> None:
    verdict, _ = _blame(make, NOTHING, shape, clocks_ns=50_000_000)
    assert (verdict.roots, verdict.links, verdict.stage) == ((), (), None)


def test_a_rank_that_costs_little_is_not_named() -> None:
    verdict, cost = _blame(hybrid, Faults(slow={5: 1.05}), {})
    assert cost < 0.02 * verdict.step_ns
    assert not verdict.roots


@pytest.mark.parametrize(
    ("make", "faults", "shape", "ranks", "cause"),
    [
        (hybrid, Faults(slow={5: 1.15}), {}, [(5,)], "compute"),
        (hybrid, Faults(slow={5: 1.15}), {"noise": 0.04}, [(5,)], "compute"),
        (hybrid, Faults(slow={5: 1.15, 9: 1.12}), {}, [(5,), (9,)], "compute"),
        (
            hybrid,
            Faults(slow=dict.fromkeys(range(8, 16), 1.1)),
            {"data": 8},
            [tuple(range(8, 16))],
            "compute",
        ),
        (hybrid, Faults(loading={5: (20 * MS, (1, 3))}), {}, [(5,)], "data loading"),
        (experts, Faults(slow={5: 1.15}), {}, [(5,)], "compute"),
    ],
)
def test_who_is_slow_is_named_with_what_it_costs(
    make: Make, faults: Faults, shape: dict[str, Any], ranks: list[tuple[int, ...]], cause: str
) -> None:
    verdict, cost = _blame(make, faults, shape, hosts=8)
    assert sorted(root.ranks for root in verdict.roots) == ranks
    assert verdict.gain_ns == pytest.approx(cost, rel=0.05)
    assert {root.cause for root in verdict.roots} == {cause}


def test_late_in_two_steps_of_five() -> None:
    verdict, _ = _blame(hybrid, Faults(loading={5: (20 * MS, (1, 3))}), {})
    assert [(root.steps, verdict.steps) for root in verdict.roots] == [(2, 5)]


def test_overlapped_communication_names_the_rank_and_claims_no_more_than_it_costs() -> None:
    verdict, cost = _blame(fsdp, Faults(slow={5: 1.15}), {})
    assert [root.ranks for root in verdict.roots] == [(5,)]
    assert 0.6 * cost <= verdict.gain_ns <= 1.05 * cost


@pytest.mark.parametrize(("link", "times"), [("tp0.1", 20), ("dp1.1", 40)])
def test_a_slow_link_is_named_not_a_rank(link: str, times: float) -> None:
    faults = Faults(links={link: times})
    verdict, cost = _blame(hybrid, faults, {})
    job = hybrid(faults=faults)
    assert not verdict.roots
    assert [[job.names[group] for group in found.groups] for found in verdict.links] == [[link]]
    assert verdict.links[0].gain_ns == pytest.approx(cost, rel=0.05)


def test_a_stage_with_more_work_is_no_slow_rank() -> None:
    verdict, _ = _blame(hybrid, Faults(stages={1: 1.25}), {"pipeline": 4})
    assert not verdict.roots
    assert verdict.stage is not None
    assert verdict.stage.ranks == tuple(range(16, 32))
    assert verdict.stage.times == pytest.approx(1.25, rel=0.02)


def test_uneven_batches_are_no_slow_rank() -> None:
    verdict, _ = _blame(hybrid, Faults(sequences=0.2), {})
    assert not verdict.roots
    assert verdict.batches is not None and verdict.batches.correlation > 0.9


def test_a_rank_that_was_not_read_may_be_the_late_one() -> None:
    verdict, cost = _blame(hybrid, Faults(slow={5: 1.15}), {}, missing={5})
    assert not verdict.roots
    assert [(link.kind, link.unread) for link in verdict.links] == [("unread member", (5,))]
    assert verdict.links[0].gain_ns == pytest.approx(cost, rel=0.1)


def test_ranks_whose_profile_begins_at_other_steps() -> None:
    verdict, cost = _blame(hybrid, Faults(slow={5: 1.15}), {}, absent=dict.fromkeys(range(16, 32), (0,)))
    assert [root.ranks for root in verdict.roots] == [(5,)]
    assert (verdict.steps, verdict.roots[0].steps) == (4, 4)
    assert verdict.gain_ns == pytest.approx(cost, rel=0.05)


def test_the_model_takes_as_long_as_the_job() -> None:
    for make in (hybrid, fsdp, experts):
        job = make()
        verdict = blame(model(columns(job, clocks_ns=0)))
        assert verdict.step_ns == pytest.approx(job.step_ns, rel=0.005)
