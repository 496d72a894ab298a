"""Each filter of host gaps with what only it leaves out, and the names that decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.host import host_gap_filters as filters
from trace_doctor.evidence.host.host_gap_filters import FILTERS, GapLimits, Search
from trace_doctor.run import Cat, Run

NOTE, OP, CALL, PYTHON, KERNEL = Cat.USER_ANNOTATION, Cat.CPU_OP, Cat.RUNTIME, Cat.PYTHON, Cat.KERNEL
LIMITS = GapLimits(
    gap_ns=1_000_000,
    nameless_ns=1_000_000,
    annotated_ns=100_000,
    operator_share=0.1,
    wrapped_share=0.9,
    usual_share=0.5,
    held_up_share=0.5,
    callee_share=0.5,
)
TIDY, SAVE = "train.py(3): tidy", "train.py(9): save"
LIBRARY = "torch/utils/_contextlib.py(117): decorate_context"
Make = Callable[..., Facts]
Event = tuple[Cat, str, float, float, dict[str, int]]


def steps(count: int = 2) -> list[Event]:
    """Steps of 10 ms, each with an operator and the kernel that it launches in its first 100 us."""
    events: list[Event] = []
    for n in range(count):
        at = 10_000.0 * n
        events += [
            (NOTE, f"ProfilerStep#{n}", at, 10_000, {}),
            (OP, "aten::mm", at, 50, {}),
            (CALL, "cudaLaunchKernel", at + 10, 5, {"correlation": n + 1}),
            (KERNEL, "gemm", at + 20, 80, {"correlation": n + 1}),
        ]
    return events


def on_cpu(count: int = 2) -> list[Event]:
    return [event for event in steps(count) if event[0] in (NOTE, OP)]


@pytest.mark.parametrize(
    ("events", "name", "filter_"),
    [
        ([*steps(), (PYTHON, TIDY, 200, 5000, {})], TIDY, None),
        ([*steps(), (PYTHON, TIDY, 200, 1000, {})], TIDY, None),
        ([*steps(), (PYTHON, TIDY, 200, 999, {})], TIDY, "long_enough"),
        ([*steps(), (NOTE, "tidy", 200, 100, {})], "tidy", None),
        ([*steps(), (NOTE, "tidy", 200, 99, {})], "tidy", "long_enough"),
        ([*steps(), (NOTE, "## backward ##", 200, 5000, {})], "## backward ##", "no_part_of_a_step"),
        (
            [*steps(), (NOTE, "Optimizer.step#Adam.step", 200, 5000, {})],
            "Optimizer.step#Adam.step",
            "no_part_of_a_step",
        ),
        ([*steps(), (PYTHON, TIDY, 100, 9_899, {})], TIDY, None),
        ([*on_cpu(3), (PYTHON, TIDY, 9_900, 10_100, {})], TIDY, "within_one_step"),
        ([*steps(), (PYTHON, TIDY, 9_000, 1_100, {})], TIDY, "launches_nothing"),
        ([*on_cpu(), (PYTHON, TIDY, 200, 5000, {}), (OP, "aten::mm", 300, 500, {})], TIDY, None),
        (
            [*on_cpu(), (PYTHON, TIDY, 200, 5000, {}), (OP, "aten::mm", 300, 501, {})],
            TIDY,
            "launches_nothing",
        ),
        ([*on_cpu(), (PYTHON, SAVE, 200, 5000, {}), (OP, "aten::mm", 300, 4000, {})], SAVE, None),
        (
            [*steps(), (PYTHON, TIDY, 200, 5000, {}), (OP, "c10d::broadcast_", 300, 5, {})],
            TIDY,
            "meets_no_other_rank",
        ),
        (
            [*steps(), (PYTHON, LIBRARY, 200, 5000, {}), (PYTHON, TIDY, 210, 4500, {})],
            LIBRARY,
            "wraps_no_function",
        ),
        ([*steps(), (PYTHON, LIBRARY, 200, 5000, {}), (PYTHON, TIDY, 210, 4499, {})], LIBRARY, None),
        (
            [*steps(), (PYTHON, TIDY, 200, 5000, {}), (PYTHON, TIDY, 6000, 10, {})],
            TIDY,
            None,
        ),
        (
            [*steps(), (NOTE, "enumerate(DataLoader)#_X.__next__", 200, 5000, {})],
            "enumerate(DataLoader)#_X.__next__",
            "of_no_other_rule",
        ),
        (
            [
                *steps(),
                (PYTHON, "torch/profiler/profiler.py(1): stop", 200, 5000, {}),
                (PYTHON, TIDY, 210, 3000, {}),
            ],
            TIDY,
            "of_no_other_rule",
        ),
    ],
)
def test_each_filter_leaves_out_what_no_other_does(
    facts: Make, events: list[Event], name: str, filter_: str | None
) -> None:
    made = facts(events)
    search, rows = Search(made, 0, LIMITS), np.flatnonzero(made.run.is_cat(PYTHON, NOTE))
    if filter_ is None:
        assert name in [made.run.text(r) for r in filters.stretches(search)]
    else:
        assert name not in [made.run.text(r) for r in filters.stretches(search)]
        rest = [f for f in FILTERS if f.__name__ != filter_]
        assert len(rest) == len(FILTERS) - 1
        for counts in rest:
            rows = rows[counts(search, rows)]
        assert name in [made.run.text(r) for r in rows]


@pytest.mark.parametrize(("long", "counts"), [(1, False), (2, True)])
def test_a_name_that_is_short_in_most_cases_was_held_up(facts: Make, long: int, counts: bool) -> None:
    cases = [(PYTHON, TIDY, 1000 + 2000 * n, 1500 if n < long else 10, {}) for n in range(4)]
    made = facts([*steps(), *cases])
    rows = np.flatnonzero(made.run.is_cat(PYTHON) & (made.run.dur >= LIMITS.gap_ns))
    assert filters.usually_long_and_quiet(Search(made, 0, LIMITS), rows).tolist() == [counts] * long


@pytest.mark.parametrize(("elsewhere", "counts"), [(10, False), (1500, True)])
def test_the_cases_of_the_trace_that_lent_its_frames_count(
    make_run: Callable[..., Run], elsewhere: float, counts: bool
) -> None:
    """One of one is long here; of two others, in the detailed trace, both are or none."""
    light = make_run([*steps(), (PYTHON, TIDY, 200, 5000, {})])
    others = [(PYTHON, TIDY, 200 + 2000 * n, elsewhere, {}) for n in range(2)]
    detailed = replace(make_run([*steps(), *others]), path="detailed.json")
    made = Facts(Capture(0, light, further=(detailed,), frames_from="detailed.json"))
    rows = np.flatnonzero(light.is_cat(PYTHON))
    assert filters.usually_long_and_quiet(Search(made, 0, LIMITS), rows).tolist() == [counts]
    apart = Facts(Capture(0, light, further=(detailed,), frames_from="another.json"))
    assert filters.usually_long_and_quiet(Search(apart, 0, LIMITS), rows).tolist() == [True]


@pytest.mark.parametrize(("callees", "counts"), [(("a", "b", "c"), False), (("a", "a", "a"), True)])
def test_who_stands_still_each_time_elsewhere_was_preempted(
    facts: Make, callees: tuple[str, ...], counts: bool
) -> None:
    events = steps(3)
    for n, callee in enumerate(callees):
        at = 10_000.0 * n + 1000
        events += [(PYTHON, TIDY, at, 6000, {}), (PYTHON, f"train.py(50): {callee}", at + 500, 5000, {})]
    made = facts(events)
    rows = np.flatnonzero(made.run.is_named(lambda n: n == TIDY))
    assert filters.not_preempted(Search(made, 0, LIMITS), rows).tolist() == [counts] * 3


@pytest.mark.parametrize(
    ("name", "of_a_step", "elsewhere", "beside"),
    [
        ("forward", True, False, False),
        ("DistributedDataParallel.forward", True, False, False),
        ("## training_step 3", True, False, False),
        ("train.py(8): forward", False, False, False),
        ("tidy", False, False, False),
        ("torch/profiler/profiler.py(700): stop", False, True, False),
        ("my/profiler.py(7): dump", False, True, False),
        ("/x/trace_doctor/recording/agent/steps.py(7): mark", False, True, False),
        ("torch/utils/data/dataloader.py(7): __next__", False, True, False),
        ("<built-in method acquire of _thread.lock object at 0x7f>", False, True, False),
        ("<built-in function collect>", False, False, False),
        ("evaluate", False, False, True),
        ("run_validation 12", False, False, True),
        ("train.py(8): save_checkpoint", False, False, True),
        ("torch/serialization.py(8): save", False, False, False),
        ("log_metrics #3", False, False, True),
        ("train.py(8): _log", False, False, True),
        ("log_likelihood", False, False, False),
        ("plot_losses", False, False, True),
        ("encode", False, False, False),
    ],
)
def test_what_names_say(name: str, of_a_step: bool, elsewhere: bool, beside: bool) -> None:
    assert filters.is_step_part(name) == of_a_step
    assert filters.is_elsewhere(name) == elsewhere
    assert filters.is_beside(name) == beside
