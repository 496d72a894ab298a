"""Captures that the cases of `straggler` build."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

from trace_doctor.testing import RunBuilder

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


def job(
    *late_us: float, steps: int = 5, loading: Sequence[int] = (), every: int = 1, small: int = 0
) -> tuple[RunBuilder, ...]:
    """Ranks that compute for 1 ms a step and join in an all-reduce of 0.2 ms; each is late by its own time in every
    so-many-th step, those of `loading` because of their loader. Then they join in small ones, to which rank 0 is late by 5 us."""
    ranks = tuple(RunBuilder(rank=r, world_size=len(late_us)) for r in range(len(late_us)))
    for n in range(steps):
        with ExitStack() as step:
            for r, (b, us) in enumerate(zip(ranks, late_us, strict=True)):
                step.enter_context(b.step())
                late = us if n % every == 0 else 0.0
                b.loader(10 + late if r in loading else 10)
                b.run_op("aten::mm", 1000 if r in loading else 1000 + late)
            all_reduce(ranks)
            for _ in range(small):
                for b in ranks:
                    b.launch(10 if b is not ranks[0] else 15)
                all_reduce(ranks)
            for b in ranks:
                b.sync()
    return ranks


def two_causes(compute_us: float, loading_us: float, waited: Sequence[float] = ()) -> tuple[RunBuilder, ...]:
    """Four ranks, one of which computes and loads longer than the others. `waited`: of each rank the share of its time in
    which it waited for a CPU."""
    ranks = tuple(RunBuilder(rank=r, world_size=4) for r in range(4))
    for b, share in zip(ranks, waited, strict=False):
        b.waited_for_cpu = share
    for _ in range(5):
        with ExitStack() as step:
            for r, b in enumerate(ranks):
                step.enter_context(b.step())
                b.loader(10 + loading_us * (r == 1))
                b.run_op("aten::mm", 1000 + compute_us * (r == 1))
            all_reduce(ranks)
            for b in ranks:
                b.sync()
    return ranks


def at_clocks(*mhz: float | None, other: str = "", fell: bool = False) -> tuple[RunBuilder, ...]:
    """Ten steps of ranks that compute for 1 ms, rank 1 for 1.4 ms, each with its SM clock (None: not sampled). `other`: the GPU of rank 1.
    `fell`: in the first steps it has that of rank 0, and is in time."""
    ranks = tuple(RunBuilder(rank=r, world_size=len(mhz)) for r in range(len(mhz)))
    if other:
        ranks[1].meta["deviceProperties"][0]["name"] = other
    for n in range(10):
        with ExitStack() as step:
            for b, clock in zip(ranks, mhz, strict=True):
                step.enter_context(b.step())
                b.loader(10)
                early = fell and n < 3
                for _ in range(10):
                    if clock is not None:
                        b.counter("SM Clock (MHz)", mhz[0] if early and mhz[0] else clock)
                    b.run_op("aten::mm", 140 if b is ranks[1] and not early else 100)
                    b.sync()
            all_reduce(ranks)
            for b in ranks:
                b.sync()
    return ranks


def late_in(*late_us: Sequence[float], size: int = 8) -> tuple[RunBuilder, ...]:
    """Eight steps of a job of `size` ranks, as above; the first ranks are late by so much, one step after another."""
    ranks = tuple(RunBuilder(rank=r, world_size=size) for r in range(size))
    for n in range(8):
        with ExitStack() as step:
            for r, b in enumerate(ranks):
                step.enter_context(b.step())
                b.loader(10)
                with b.annotation("preprocess") if r < len(late_us) else nullcontext():
                    b.wait(late_us[r][n % len(late_us[r])] if r < len(late_us) else 0)
                b.run_op("aten::mm", 1000)
            all_reduce(ranks)
            for b in ranks:
                b.sync()
    return ranks


def began_apart() -> tuple[RunBuilder, ...]:
    """Four ranks of a single step: the last began it 1 ms after the others, and takes 200 us less until they meet; then rank 1
    takes 500 us longer until they meet again."""
    ranks = tuple(RunBuilder(rank=r, world_size=4) for r in range(4))
    ranks[3].wait(1000)
    with ExitStack() as step:
        for r, b in enumerate(ranks):
            step.enter_context(b.step())
            b.loader(10)
            b.run_op("aten::mm", 800 if r == 3 else 1000)
        all_reduce(ranks)
        for r, b in enumerate(ranks):
            b.launch(1500 if r == 1 else 1000)
        all_reduce(ranks)
        for b in ranks:
            b.sync()
    return ranks


def truth(*late_us: Sequence[float], on_time: Sequence[int] | None = None) -> float:
    """us of a step by which that job is faster if these ranks (all that are late, unless told) are as fast as the others."""
    on_time = range(len(late_us)) if on_time is None else on_time
    by_step = [[of[n % len(of)] for of in late_us] for n in range(8)]
    left = [max([0.0, *(us for r, us in enumerate(step) if r not in on_time)]) for step in by_step]
    return sum(max(step) - rest for step, rest in zip(by_step, left, strict=True)) / len(by_step)


SEVERAL: list[tuple[str, list[tuple[float, ...]], str]] = [
    ("one of eight, for what it does on its host", [(400.0,)], "for it"),
    ("two as late", [(400.0,), (400.0,)], "for them (25%), of it nothing for one of them alone."),
    ("two, one later", [(400.0,), (300.0,)], "of it 0.100 ms for rank 0 alone"),
    ("two in turn", [(400.0, 0.0), (0.0, 400.0)], "of it 0.200 ms for rank 0 alone"),
    ("three", [(400.0,), (300.0,), (450.0,)], "of it 0.0500 ms for rank 2 alone"),
    (
        "three in turn",
        [(400.0, 0.0, 0.0, 0.0), (0.0, 600.0, 0.0, 0.0), (0.0, 0.0, 400.0, 400.0)],
        "Ranks 0-2 cause 100%",
    ),
]


def all_reduce(ranks: Sequence[RunBuilder], us: float = 200.0, **args: Any) -> None:
    """Ends on all `us` after the last has arrived."""
    meet = max(b.gpu_free for b in ranks)
    for b in ranks:
        b.launch(meet - b.gpu_free + us, ALL_REDUCE, **args)
