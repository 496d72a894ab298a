"""Dumps that the cases of `collective-hang` and `collective-mismatch` build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trace_doctor.testing import FlightBuilder, RunBuilder
from trace_doctor_rules.comms._straggler_cases import ALL_REDUCE

SITE = ("train.py", 41, "step")


def job(size: int = 4, done: int = 3, **options: Any) -> tuple[FlightBuilder, ...]:
    """Ranks that completed so many all_reduces."""
    ranks = tuple(FlightBuilder(rank, size, **options) for rank in range(size))
    for b in ranks:
        for _ in range(done):
            b.call("all_reduce", at=SITE)
    return ranks


def hang(
    *without: int,
    size: int = 4,
    kind: str = "all_reduce",
    state: str = "started",
    waited_s: float = 700.0,
    gave_up: bool = False,
    **options: Any,
) -> tuple[FlightBuilder, ...]:
    """The same; then all but some ranks call one that does not end, and all dumps are written after so long."""
    ranks = job(size, **options)
    for b in ranks:
        if b.rank not in without:
            b.call(kind, at=SITE, state=state, retired=gave_up)
        else:
            b.wait(0.01)
        b.wait(waited_s)
    return ranks


def no_dump_of(rank: int) -> tuple[FlightBuilder, ...]:
    """All ranks wait, and one of them has no dump."""
    return tuple(b for b in hang() if b.rank != rank)


def chain() -> tuple[FlightBuilder, ...]:
    """Rank 3 does not come to an all_gather of group tp, in which rank 2 waits; ranks 0 and 1 wait for both in the default group."""
    ranks = job(groups={"tp": [2, 3]})
    for b in ranks:
        if b.rank == 2:
            b.call("all_gather", group="tp", at=("model.py", 7, "forward"), state="started")
        elif b.rank < 2:
            b.wait(1)
            b.call("all_reduce", at=SITE, state="started")
        b.wait(700)
    return ranks


def circle() -> tuple[FlightBuilder, ...]:
    """Ranks 0 and 1 share two groups, and call the first collective of each in another order."""
    ranks = job(2, groups={"a": [0, 1], "b": [0, 1]})
    for b, group in zip(ranks, "ab", strict=True):
        b.call("all_reduce", group=group, at=SITE, state="started")
        b.wait(700)
    return ranks


def pipeline(*, answered: bool = False) -> tuple[FlightBuilder, ...]:
    """Rank 1 waits to receive what rank 0 does not send."""
    ranks = job(2)
    ranks[1].call("recv 1<-0", at=SITE, state="started")
    if answered:
        ranks[0].call("send 0->1", at=SITE, state="started")
    for b in ranks:
        b.wait(700)
    return ranks


def stale() -> tuple[FlightBuilder, ...]:
    """The dump of rank 3 was written before the others called what does not end."""
    ranks = job(groups={})
    ranks[3].wait(0.001)
    for b in ranks[:3]:
        b.wait(60)
        b.call("all_reduce", at=SITE, state="started")
        b.wait(700)
    return ranks


def ring(**options: Any) -> tuple[FlightBuilder, ...]:
    """Rank 3 has only calls of another group in its ring, which has overwritten older ones."""
    ranks = list(hang(3, **options))
    other = FlightBuilder(3, 4, groups={"own": [3]}, first_record=5000)
    other.call("barrier", group="own")
    other.wait(800)
    return (*ranks[:3], other)


def two_backends() -> tuple[FlightBuilder, ...]:
    """NCCL follows its work; gloo, in the same dump, never says that it was completed."""
    ranks = job(2, groups={"cpu": [0, 1]})
    for b in ranks:
        b.call("barrier", group="cpu", state="scheduled", retired=True, backend="gloo")
        b.wait(700)
    return ranks


def differ(
    odd: Sequence[int], usual: tuple[str, Any], other: tuple[str, Any], size: int = 4, **of_odd: Any
) -> tuple[FlightBuilder, ...]:
    """Ranks of which some call something else: (kind, elements)."""
    ranks = job(size)
    for b in ranks:
        kind, elements = other if b.rank in odd else usual
        more = of_odd if b.rank in odd else {}
        at = ("train.py", 52, "log") if b.rank in odd else SITE
        b.call(kind, elements, at=at, state="started", **more)
        b.wait(700)
    return ranks


def sequences(*calls: Sequence[str]) -> tuple[FlightBuilder, ...]:
    """What each rank calls, one after another; the last call does not end."""
    ranks = job(len(calls))
    for b, kinds in zip(ranks, calls, strict=True):
        for n, kind in enumerate(kinds):
            b.call(kind, at=(f"{kind}.py", 1, "f"), state="started" if n == len(kinds) - 1 else "completed")
        b.wait(700)
    return ranks


def same_name_other_ranks() -> tuple[FlightBuilder, ...]:
    """Each pair of ranks has a group tp of its own, and calls other things in it."""
    ranks = tuple(FlightBuilder(r, 4, groups={"tp": [0, 1] if r < 2 else [2, 3]}) for r in range(4))
    for b in ranks:
        b.call("all_reduce" if b.rank < 2 else "all_gather", group="tp")
        b.wait(700)
    return ranks


def rings_begin_apart() -> tuple[FlightBuilder, ...]:
    """The ring of rank 1 begins in the midst of a coalesced call, of which rank 0 has two parts more."""
    ranks = FlightBuilder(0, 2), FlightBuilder(1, 2, first_record=900)
    for kind in ("all_gather", "all_reduce", "all_reduce"):
        ranks[0].call(kind, same_number=kind != "all_gather")
    ranks[1].call("all_reduce")
    for b in ranks:
        b.call("barrier", 0)
    return ranks


def traced() -> tuple[FlightBuilder | RunBuilder, ...]:
    """Rank 3 does not come to the fourth all_reduce; a trace of rank 0 has the three before it, and others of another group."""
    b = RunBuilder(rank=0, world_size=4)
    for number in (1, 2, 3):
        with b.step():
            b.run_op("aten::mm", 1000)
            for group in ("0", "7"):
                args: dict[str, Any] = {
                    "Process Group Name": group,
                    "Process Group Ranks": "[0, 1, 2, 3]",
                    "Seq": number,
                }
                b.launch(100, ALL_REDUCE, **args)
            b.sync()
    return (b, *hang(3))


def unnamed_members() -> tuple[FlightBuilder, ...]:
    """gloo: rank 0 waits in a group of which no dump says who is in it."""
    ranks = job(2, gloo=True, members=False, groups={"a": [0, 1]})
    ranks[0].call("all_reduce", group="a", state="scheduled", at=SITE)
    for b in ranks:
        b.wait(700)
    return ranks


def in_the_midst() -> tuple[FlightBuilder, ...]:
    """Two coalesced calls, of which rank 1 had made one when it was dumped."""
    ranks = job(2)
    for b in ranks:
        b.call("all_gather", (10, 20))
    ranks[0].call("all_reduce", same_number=True)
    return ranks


def coalesced() -> tuple[FlightBuilder, ...]:
    """Both ranks call two of different sizes under one number, again and again."""
    ranks = job(2)
    for b in ranks:
        for _ in range(3):
            b.call("all_gather", (10, 20))
            b.call("all_gather", (30, 60), same_number=True)
    return ranks


def long_ago(later: int) -> tuple[FlightBuilder, ...]:
    """Ranks that call different collectives, and then so many that are alike: a ring that was set larger holds them all."""
    ranks = job(2)
    for b in ranks:
        b.call("broadcast" if b.rank else "all_reduce", at=SITE)
        for _ in range(later):
            b.call("all_reduce", at=SITE)
    return ranks
