"""One fault of memory, one owner: what the memory rules say together of one capture."""

from __future__ import annotations

from typing import Any

import pytest

from trace_doctor.capture import Capture
from trace_doctor.config import defaults
from trace_doctor.engine import diagnose
from trace_doctor.model import Result
from trace_doctor.registry import resolve
from trace_doctor.testing import MIB, RunBuilder, SnapshotBuilder, captures_of

CODES = ("TD401", "TD402", "TD404", "TD405", "TD406", "TD407", "TD409", "TD410", "TD411")

"""TD403 apart: the batches here are large and short-lived."""


def found(built: SnapshotBuilder | RunBuilder) -> Result:
    (capture,) = captures_of(built)
    assert isinstance(capture, Capture)
    return diagnose([capture], [rule for code in CODES for rule in resolve(code)], defaults())


def codes(result: Result) -> list[str]:
    return sorted(f.code for f in result.findings)


def churn(rounds: str) -> SnapshotBuilder:
    """`e`: a step whose end empties the cache; `p`: one for which malloc gives cached segments back."""
    b = SnapshotBuilder()
    b.held(300 * MIB)
    for i, kind in enumerate(rounds):
        with b.forward(line=40):
            b.temporary((300 + 40 * (i % 2)) * MIB)
            if kind == "p":
                b.release_cached()
        if kind == "e":
            b.empty_cache(line=21)
    return b


def test_an_emptied_cache_is_no_churn_as_well() -> None:
    result = found(churn("eeeeee"))
    assert codes(result) == ["TD409"]
    outcome = next(o for o in result.outcomes if o.code == "TD401")
    assert (outcome.outcome, outcome.refers_to) == ("passed", ["TD409-1"])


def test_churn_stays_where_memory_pressure_makes_most_of_it() -> None:
    assert codes(found(churn("pppeppeppeppp"))) == ["TD401", "TD409"]


def test_memory_pressure_alone_is_churn_alone() -> None:
    assert codes(found(churn("pppppp"))) == ["TD401"]


@pytest.mark.parametrize("totals", [False, True])
def test_an_emptied_cache_of_a_trace_is_no_churn_as_well(totals: bool) -> None:
    b = RunBuilder(stacks=True, memory=totals)
    with b.python("train.py", 12, "train"):
        for _ in range(6):
            with b.step():
                with b.op("aten::empty"):
                    b.runtime("cudaMalloc", 150)
                    if totals:
                        b.memory(MIB, reserved=1000 * MIB)
                for _ in range(5):
                    with b.op("aten::mm"):
                        b.launch(60)
                with b.python("torch/cuda/memory.py", 212, "empty_cache"):
                    b.runtime("cudaFree", 200)
                if totals:
                    b.memory(-MIB, reserved=500 * MIB)
    assert codes(found(b)) == ["TD409"]


def test_growing_batches_leave_fragments_and_nothing_else() -> None:
    b = SnapshotBuilder()
    b.held(200 * MIB)
    for size in (400, 500, 600, 700):
        with b.forward(line=44):
            b.temporary(size * MIB)
    assert codes(found(b)) == ["TD402"]


def test_segments_that_grow_leave_no_fragments() -> None:
    """The same batches with the setting that TD402 recommends."""
    b = SnapshotBuilder(expandable_segments=True)
    b.held(200 * MIB)
    for size in (400, 500, 600, 700):
        with b.forward(line=44):
            b.temporary(size * MIB)
    assert "TD402" not in codes(found(b))


def test_a_failure_on_one_device_is_not_explained_by_another_capture() -> None:
    """Two captures in one folder: the one that failed takes no fixes of the one that did not."""
    failing = SnapshotBuilder()
    failing.held(900 * MIB)
    with failing.script_line(18):
        failing.oom(500 * MIB, device_free=100 * MIB)
        failing.temporary(MIB)
        failing.temporary(MIB)
    training = SnapshotBuilder()
    training.train(3, activations=[50 * MIB] * 2, parameters=[100 * MIB] * 3)
    captures = [*captures_of(failing), *captures_of(training)]
    rules = [rule for code in CODES for rule in resolve(code)]
    result = diagnose(captures, rules, defaults())
    by_code = {f.code: f for f in result.findings}
    assert {"TD407", "TD410"} <= by_code.keys()
    assert by_code["TD410"].refers_to == []


def test_of_two_graphs_that_no_backward_uses_each_is_named_once() -> None:
    b = SnapshotBuilder(annotate=False)
    b.held(120 * MIB)
    old: list[Any] = []
    for _ in range(4):
        with b.script_line(20):
            batch = b.alloc(MIB)
        result = []
        for _ in range(12):
            for line, each in enumerate((60, 40, 20, 20, 10)):
                with b.forward("/home/me/model.py", 30 + line):
                    result.append(b.alloc(each * MIB))
        with b.script_line(21):
            b.free(*old, batch)
        old = result
    each = 12 * 150 * MIB
    by_code = {f.code: f.saving.bytes for f in found(b).findings if f.saving is not None}
    assert (
        by_code["TD411"] == 2 * each - 100 * MIB
    )  # without gradients neither is there, but for two results at a time
    assert 0 < by_code["TD406"] < each  # what the layers of the other keep


def test_kept_gradients_do_not_hide_kept_losses() -> None:
    """Two faults in one script: the lists of one grow, the gradients of the other do not."""
    b = SnapshotBuilder()
    b.held(64 * MIB)
    gradient = None
    for _ in range(6):
        with b.forward(line=31):
            b.alloc(40 * MIB)  # a loss in a list holds it
            activation = b.alloc(100 * MIB)
        with b.backward():
            if gradient is None:
                gradient = b.alloc(64 * MIB)
            else:
                b.temporary(64 * MIB)
            b.free(activation)
        with b.optimizer_step():
            b.temporary(MIB)
    assert {"TD404", "TD405"} <= set(codes(found(b)))


def test_a_peak_of_attention_is_called_that() -> None:
    from trace_doctor_rules.memory.memory_spike import MemorySpike

    cases = {case.name: case for case in MemorySpike.INVALID}
    for name, attention in (("score matrices", True), ("in backward", False)):
        result = diagnose(captures_of(cases[name].build()), [MemorySpike], defaults())
        [finding] = result.findings
        assert ("Attention" in finding.title) == attention
        assert ("grow with the square of the sequence length" in finding.message) == attention
