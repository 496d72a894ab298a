"""Moments in the clock of the file, sums for each step, what the arguments of events say, and what runs in parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.distributed.parallelism import Parallelism
from trace_doctor.evidence.intervals import pairs
from trace_doctor.evidence.names.event_arguments import count, shapes
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.per_step import deviation_us, in_steps, mean_us
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.warmup import cold_starts, first_uses
from trace_doctor.run import Cat

NOTE, OP, CALL, PY, KERNEL = Cat.USER_ANNOTATION, Cat.CPU_OP, Cat.RUNTIME, Cat.PYTHON, Cat.KERNEL
Make = Callable[..., Facts]


def test_a_span_has_the_files_clock_and_the_step_that_it_begins_in(facts: Make) -> None:
    steps = facts([(NOTE, f"ProfilerStep#{n}", 100.0 * n, 100, {}) for n in (1, 2)])[Moments].steps
    made = Moments(50_000, steps)
    for start, device, step in ((99_000, -1, None), (100_000, 0, 1), (200_000, 1, 2), (300_000, None, None)):
        span = made.span(start, start + 5000, "x", device)
        known = device if device is not None and device >= 0 else None
        assert (span.ts_us, span.dur_us, span.device, span.step) == (start / 1e3 - 50, 5.0, known, step)


def test_the_longest_spans_in_order_of_time(facts: Make) -> None:
    made = facts([(NOTE, "ProfilerStep#1", 0, 100, {})])[Moments]
    spans = made.longest([(0, 1000), (2000, 5000), (6000, 8000)], "x", most=2)
    assert [(s.ts_us, s.dur_us) for s in spans] == [(2.0, 3.0), (6.0, 2.0)]


def test_sums_for_each_step() -> None:
    steps = pairs(np.array([0, 100]), np.array([100, 200]))
    raw = pairs(np.array([10, 20, 90]), np.array([30, 40, 150]))
    assert in_steps(raw, steps).tolist() == [50, 50]
    assert (mean_us(np.array([1000, 3000])), deviation_us(np.array([1000, 1000]))) == (2.0, 0.0)
    assert (mean_us(np.array([])), deviation_us(np.array([1000]))) == (None, None)


@pytest.mark.parametrize(
    ("said", "means"), [(3, 3), (0, 0), (-1, None), ("3", None), (True, None), (None, None)]
)
def test_a_count_is_a_number_of_things(said: Any, means: int | None) -> None:
    assert count({"bytes": said}, "bytes") == means


@pytest.mark.parametrize(
    ("args", "means"),
    [
        ({"Input Dims": [[2, 3], [], "x"]}, ((2, 3), (), ())),
        ({"Input dims": [[2]]}, ((2,),)),
        ({"Input Dims": [[[2, 3], [4]], [[2], 3]]}, (((2, 3), (4,)), ())),
        ({"Input Dims": "[[2]]"}, ()),
        ({}, ()),
    ],
)
def test_shapes_of_the_arguments_of_an_operator(args: dict[str, Any], means: tuple[Any, ...]) -> None:
    assert shapes(args) == means


@pytest.mark.parametrize(
    ("event", "seen"),
    [
        ((OP, "DistributedDataParallel.forward", 0, 1, {}), "ddp"),
        ((PY, "nn.Module: DistributedDataParallel_0", 0, 1, {}), "ddp"),
        ((NOTE, "FSDP::all_gather", 0, 1, {}), "fsdp"),
        ((OP, "DataParallel.forward", 0, 1, {}), "data_parallel"),
        ((OP, "my DistributedDataParallel.forward", 0, 1, {}), ""),
        ((CALL, "DistributedDataParallel.forward", 0, 1, {}), ""),
    ],
)
def test_what_wraps_the_model(facts: Make, event: tuple[Any, ...], seen: str) -> None:
    made = facts([event])[Parallelism]
    assert {n for n in ("ddp", "fsdp", "data_parallel") if getattr(made, n)} == ({seen} if seen else set())
    assert made.world_size is None


MS = 1000


@pytest.mark.parametrize(
    ("events", "first", "cold"),
    [
        ([(CALL, "cudaLaunchKernel", 0, 2 * MS, {})], [0], [0]),
        ([(CALL, "cudaLaunchKernel", 0, 0.9 * MS, {})], [], []),
        ([(CALL, "cudaLaunchKernel", 0, 5, {}), (CALL, "cudaLaunchKernel", 9, 2 * MS, {})], [], []),
        ([(CALL, "cudaStreamSynchronize", 0, 2 * MS, {})], [0], []),
        ([(CALL, "cudaLaunchKernel", 0, 2 * MS, {}), (KERNEL, "k", 0, 1.5 * MS, {})], [0], []),
        ([(CALL, "cudaLaunchKernel", 0, 2 * MS, {}), (KERNEL, "k", 0, 0.5 * MS, {})], [0], [0]),
        (
            [(CALL, "cudaLaunchKernel", 0, 5, {}), (OP, "aten::mm", 10, 3 * MS, {}), (CALL, "cudaLaunchKernel", 20, 2 * MS, {})],
            [20],
            [20],
        ),
    ],
)  # fmt: skip
def test_the_first_use_of_a_library_that_takes_long(
    facts: Make, events: list[object], first: list[int], cold: list[int]
) -> None:
    made = facts(events)
    run, launches, nesting = made.run, made[Launches], made[Nesting]

    def us(rows: Any) -> list[int]:
        return (run.ts[rows] // 1000).tolist()  # type: ignore[no-any-return]

    assert us(np.flatnonzero(first_uses(run, launches, nesting))) == first
    assert us(cold_starts(run, launches, nesting)) == cold
