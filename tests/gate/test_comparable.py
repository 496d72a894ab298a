"""What is a doubt that two results can be compared, and what looks like one and is none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trace_doctor import model as m
from trace_doctor.gate.comparable import another_clock, comparable, side
from trace_doctor.gate.diff import difference
from trace_doctor.gate.verify import verify


def result(ledger: int | None = None, steps: int = 0, ignored: int = 0, **source: Any) -> m.Result:
    """Of one trace. `ledger`: the device of its row, `steps`: how many rows of steps, `ignored`: files that were not read."""
    rows = [] if ledger is None else [
        m.TimeLedgerRow(input=0, rank=0, device=ledger, phase="steady", steps=1, window_ns=1, compute_ns=1,
                        exposed_comm_ns=0, exposed_copy_ns=0, idle_ns=m.IdleNs(), step_us=0.0)
    ]  # fmt: skip
    return m.Result(
        inputs=[m.Input(path="a.json", kind="trace", rank=0, **source)],
        time_ledger=rows,
        steps=[m.StepRow(input=0, rank=0, index=n, start_us=0.0, dur_us=1.0) for n in range(steps)],
        ignored=[m.Ignored(path=f"x{n}", reason="why") for n in range(ignored)],
    )


def version(low: str | None, high: str | None) -> m.Result:
    return result(torch_version=m.TorchVersion(min=low, max=high))


def work(**known: Any) -> m.Result:
    return result(work=m.Work(**known))


A, B = "mm [8, 8]", "mm [9, 9]"


@pytest.mark.parametrize(
    ("before", "after", "doubt"),
    [
        (result(device_name="A"), result(device_name="B"), "another device: A before, B after"),
        (result(device_name="A"), result(), ""),
        (result(device_name="A"), result(device_name="A"), ""),
        (result(ledger=0), result(ledger=-1), "GPU work only before"),
        (result(ledger=-1), result(ledger=0), "GPU work only after"),
        (result(ledger=0), result(steps=1), ""),
        (version("2.5", "2.5"), version("2.6", "2.6"), "another torch version: 2.5 before, 2.6 after"),
        (version("2.5", "2.5"), version("2.5", "2.5"), ""),
        (version("2.5", "2.5"), version("2.4", "2.6"), ""),
        (version("2.5", "2.5"), version(None, None), ""),
        (work(shapes=[A]), work(shapes=[B]), f"different model or batch size: {A} before, {B} after"),
        (work(shapes=[A]), work(shapes=[A, B]), ""),
        (work(shapes=[A]), work(shapes=["add [9, 9]"]), ""),
        (work(shapes=[A]), work(), ""),
        (work(kernels=100.0), work(kernels=900.0), "100 kernels per step before, 900 after"),
        (work(kernels=100.0), work(kernels=101.0), ""),
        (work(kernels=100.0), work(), ""),
        (work(operators=100.0), work(operators=9000.0), "100 operators per step before, 9,000 after"),
        (result(step_source="loader"), result(step_source="optimizer"), "steps are marked by the loader before"),
        (result(step_source="loader"), result(), ""),
        (result(), result(ignored=1), "not analyzed of AFTER: x0 (why)"),
        (result(ignored=2), result(), "not analyzed of BEFORE: x0 (why) and another file"),
        (result(ignored=3), result(), "not analyzed of BEFORE: x0 (why) and 2 other files"),
        (result(steps=2), result(steps=2), "the same recording"),
        (result(ledger=0), result(ledger=0), "the same recording"),
        (result(steps=2), result(steps=3), ""),
        (result(ledger=0, steps=2), result(ledger=1, steps=2), ""),
        (result(), result(), ""),
    ],
)  # fmt: skip
def test_doubts(before: m.Result, after: m.Result, doubt: str) -> None:
    found = comparable(before, after)
    assert bool(found) == bool(doubt) and all(doubt in said for said in found), found


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        ("2.5", "2.5", ["2.5"]),
        ("2.5", "2.6", ["2.5 to 2.6"]),
        ("2.5", None, ["2.5 or newer"]),
        (None, "2.6", ["2.6 or older"]),
        (None, None, []),
    ],
)
def test_a_version_as_far_as_it_is_known(low: str | None, high: str | None, said: list[str]) -> None:
    assert side(version(low, high)).torch_version == said


def timed(*means: float) -> m.Result:
    """Kernels that take so many us, and an operator before each that takes a tenth of it."""
    return m.Result(
        inputs=[m.Input(path="a.json", kind="trace", rank=0)],
        outcomes=[m.Outcome(code="TD101", name="starvation", outcome="passed")],
        kernels=[
            m.KernelRow(
                rank=0,
                device=0,
                name=f"k{n}",
                kind="compute",
                count=2,
                total_us=2 * us,
                mean_us=us,
                share=0.1,
            )
            for n, us in enumerate(means)
        ],
        operators=[
            m.OperatorRow(rank=0, name=f"o{n}", kind="operator", count=4, self_us=0.4 * us, share=0.1)
            for n, us in enumerate(means)
        ],
    )


@pytest.mark.parametrize(
    ("means", "alarm"),
    [
        ((1e3, 2e3, 3e3), "5 of 6 kernels and operators take 1,000 times as long in AFTER"),
        ((1e-3, 2e-3, 3e-3), "5 of 6 kernels and operators take 1,000 times as long in BEFORE"),
        ((15.0, 30.0, 45.0), ""),  # a slower machine
        ((40.0, 2.0, 3.0), ""),  # some of it alone
        ((40.0, 1000.0, 30.0), ""),  # each by a factor of its own
    ],
)
def test_times_in_another_unit_decide_nothing(means: tuple[float, ...], alarm: str) -> None:
    after = timed(*means)
    if alarm:  # one whose time a fix has changed
        after.operators[0] = msgspec.structs.replace(after.operators[0], self_us=0.4)
    sides = timed(1.0, 2.0, 3.0), after
    found = another_clock(*sides)
    assert [alarm in why for why in found] == [True] * bool(alarm)
    assert verify(*sides).code == difference(*sides).code == (3 if alarm else 0)
    assert verify(*sides).step_time.how == found[0] if alarm else True
