"""Time that is no compute has one owner: the gravest finding whose evidence covers it, or none, and that is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trace_doctor.config import defaults
from trace_doctor.engine import diagnose
from trace_doctor.model import Result
from trace_doctor.reporters import render
from trace_doctor.reporters.diagnosis import headline, unexplained, verdict
from trace_doctor.testing import MIB, RunBuilder, SnapshotBuilder, captures_of
from trace_doctor_rules.comms.straggler import Straggler


def diagnosed(builder: RunBuilder | SnapshotBuilder, **settings: Any) -> Result:
    config = defaults(**settings)
    return diagnose(captures_of(builder), config.settings.chosen(), config)


def training(
    *, gap_us: float = 0, name: str = "", loader_us: float = 0, kernel_us: float = 1000, steps: int = 6
) -> RunBuilder:
    """Steps of ten kernels, with a wait for data before them and a gap in their midst."""
    b = RunBuilder()
    for _ in range(steps):
        with b.step():
            if loader_us:
                b.loader(loader_us)
            for n in range(10):
                with b.op("aten::mm", us=10):
                    b.launch(kernel_us, "gemm")
                if n == 5 and gap_us:
                    with b.annotation(name) if name else b.op("aten::nonzero"):
                        b.wait(gap_us)
            b.sync()
    return b


BUILDERS: list[Callable[[], RunBuilder]] = [
    training,
    lambda: training(gap_us=30_000),
    lambda: training(gap_us=30_000, name="log_metrics"),
    lambda: training(loader_us=20_000),
    lambda: training(gap_us=30_000, name="log_metrics", loader_us=20_000),
    lambda: training(steps=1),
]


@pytest.mark.parametrize("build", BUILDERS)
def test_the_parts_add_up_with_the_ledger(build: Callable[[], RunBuilder]) -> None:
    result = diagnosed(build())
    for steady in (row for row in result.time_ledger if row.phase == "steady"):
        own = [row for row in result.ownership if (row.input, row.device) == (steady.input, steady.device)]
        assert sum(row.total_ns for row in own) + steady.compute_ns == steady.window_ns
        assert all(0 <= row.start_up_ns <= row.unowned_ns <= row.total_ns for row in own)
        assert all(bool(row.findings) == (row.unowned_ns < row.total_ns) for row in own)


def test_a_finding_owns_the_time_of_its_evidence_and_nothing_else() -> None:
    result = diagnosed(training(loader_us=20_000))
    by_part = {row.part: row for row in result.ownership}
    assert by_part["data_loading"].findings == ["TD101-1"]
    assert by_part["data_loading"].unowned_ns < 0.05 * by_part["data_loading"].total_ns
    assert all(
        "TD101-1" not in row.findings for part, row in by_part.items() if part in ("dispatch", "launch")
    )


def test_who_is_silenced_still_explains() -> None:
    silenced = diagnosed(training(loader_us=20_000), severity={"TD101": "info"})
    assert next(row for row in silenced.ownership if row.part == "data_loading").findings


def test_what_no_finding_owns_is_named_with_its_place() -> None:
    result = diagnosed(training(loader_us=20_000), select=["TD401"])
    [(part, block, steps), *_] = unexplained(result)
    assert part == "data loading"
    assert (block.count, steps, block.steps) == (6, 6, 6)
    assert block.longest_us == pytest.approx(20_000, rel=0.05)
    assert "gemm" in (block.before, block.behind)
    assert "no finding explains" in headline(result)
    assert "data loading 6" in headline(result)


def test_an_unexplained_wait_lies_between_the_first_kernel_and_the_next() -> None:
    b = RunBuilder()
    for n in range(2):
        with b.step():
            with b.op("aten::mm", us=10):
                b.launch(1000, f"gemm{n}")
            b.idle_until_done()
            if not n:
                with b.annotation("log_metrics"):
                    b.wait(30_000)
    [(_, block, _), *_] = unexplained(diagnosed(b, select=["TD401"]))
    assert (block.before, block.behind) == ("gemm0", "gemm1")


def test_a_rule_that_finds_nothing_in_much_unowned_time_is_undecided() -> None:
    deaf = {"TD101": {"min_share": 0.99}}
    outcomes = {o.code: o for o in diagnosed(training(loader_us=20_000), rules=deaf).outcomes}
    assert outcomes["TD101"].outcome == "undecided"
    assert "data loading" in (outcomes["TD101"].reason or "")
    assert outcomes["TD102"].outcome == "passed"
    sound = {o.code: o for o in diagnosed(training(), rules=deaf).outcomes}
    assert sound["TD101"].outcome in ("passed", "skipped")


def test_the_gravest_fault_comes_first_whatever_a_note_would_save() -> None:
    result = diagnosed(
        training(gap_us=30_000, name="log_metrics", loader_us=20_000), severity={"TD101": "info"}
    )
    assert [f.severity for f in result.findings] == sorted(
        (f.severity for f in result.findings), key=["critical", "warning", "info"].index
    )
    assert verdict(result)[0].startswith(result.findings[0].title)
    assert result.findings[0].code != "TD101"


def test_a_large_fault_that_is_only_a_note_keeps_the_verdict_from_reassuring() -> None:
    once = diagnosed(training(gap_us=9_000, name="log_metrics", steps=1))
    assert {f.severity for f in once.findings} == {"info"}
    [sentence, *_] = verdict(once)
    assert "24% of step time, which is not certain (seen in 1 step: record five or more)" in sentence
    assert "No warnings" not in sentence
    assert 'class="tile gain uncertain"' in render(once, "html", zoom=False), (
        "green would say that it is certain"
    )
    assert "gain-words uncertain" in render(once, "html", zoom=False)
    sure = diagnosed(training(gap_us=30_000, name="log_metrics"))
    assert 'class="tile gain"' in render(sure, "html", zoom=False)
    silenced = diagnosed(
        training(gap_us=9_000, name="log_metrics"), severity={"TD203": "info", "host-device-sync": "info"}
    )
    assert "No warnings" in headline(silenced)


def test_a_capture_that_is_mostly_start_up_says_so() -> None:
    b = RunBuilder()
    b.wait(100)
    with b.op("aten::empty"):
        b.wait(200_000)
    for _ in range(3):
        with b.op("aten::mm", us=10):
            b.launch(1000, "gemm")
    b.sync()
    result = diagnosed(b)
    assert result.inputs[0].start_up_share == pytest.approx(0.98, abs=0.02)
    assert headline(result).startswith("99% of the capture is start-up")


def test_a_wait_for_work_queued_before_the_recording_is_no_start_up() -> None:
    b = RunBuilder()
    b.launch(50_000, "gemm")
    b.events.clear()  # what was queued before
    for _ in range(3):
        with b.op("aten::mm", us=10):
            b.launch(1000, "gemm")
    b.sync()
    result = diagnosed(b)
    assert headline(result).startswith(
        "For 94% of the capture the GPU runs, or waits for, work that was queued before"
    )


def test_compilation_in_every_captured_step_is_no_start_up() -> None:
    b = RunBuilder()
    for _ in range(4):
        with b.step():
            with b.op("_compile.compile_inner (dynamo_timed)"):
                b.wait(50_000)
            with b.op("aten::mm", us=10):
                b.launch(1000, "gemm")
            b.sync()
    result = diagnosed(b)
    assert result.inputs[0].start_up_share == 0
    assert not any("start-up" in sentence for sentence in verdict(result))


def test_a_cost_below_the_threshold_of_its_rule_is_a_note_and_never_more() -> None:
    small = training(loader_us=300)  # 3 % of the step; TD101 speaks from 5 % on
    result = diagnosed(small)
    [note] = [f for f in result.findings if f.code == "TD101"]
    assert note.severity == "info"
    assert diagnosed(small, severity={"TD101": "critical"}).findings[0].severity != "critical"
    assert not [f for f in diagnosed(training(loader_us=50)).findings if f.code == "TD101"]


def test_a_threshold_that_was_set_is_kept() -> None:
    result = diagnosed(training(loader_us=300), rules={"TD101": {"min_share": 0.2}})
    assert not [f for f in result.findings if f.code == "TD101"]


def test_what_ranks_wait_for_a_late_one_is_owned_by_the_finding_that_names_it() -> None:
    config = defaults()
    result = diagnose(captures_of(Straggler.INVALID[0].build()), config.settings.chosen(), config)
    [late] = [f for f in result.findings if f.code == "TD602"]
    waiting = [row for row in result.ownership if row.part == "exposed_comm" and row.rank != late.rank]
    assert waiting
    assert all(late.id in row.findings and row.unowned_ns < row.total_ns / 2 for row in waiting)


def test_what_ranks_wait_for_one_another_has_an_owner_without_a_straggler() -> None:
    """Rank 1 is late in one step of two: no straggler. The wait of the others was nobody's, beside TD601's text about it."""
    [case] = [case for case in Straggler.INVALID if case.name == "late in one step of two"]
    config = defaults()
    result = diagnose(captures_of(case.build()), config.settings.chosen(), config)
    [waits] = [f for f in result.findings if f.code == "TD602"]
    for row in (row for row in result.ownership if row.part == "exposed_comm"):
        assert row.unowned_ns <= 200_000  # the transfer of one all-reduce, of 900 us of waiting nothing
        assert (waits.id in row.findings) == (row.rank != 1)


def copies(kind: str, *, staging_us: float = 0) -> RunBuilder:
    """Steps that end with a copy of 2 ms that the host waits for. It may start late in its call."""
    b = RunBuilder()
    for _ in range(6):
        with b.step():
            for _ in range(10):
                with b.op("aten::mm", us=30):
                    b.launch(30, "gemm")
            with b.op("aten::to"), b.op("aten::_to_copy"), b.op("aten::copy_"):
                b.copy(2000, kind)
                b.sync()
            b.wait(100)
    for event in b.events:
        if event.get("cat") == "gpu_memcpy":
            event.update(ts=event["ts"] + staging_us, dur=event["dur"] - staging_us)
    return b


def test_a_copy_that_the_host_waits_for_is_owned_by_the_finding_of_the_wait() -> None:
    result = diagnosed(copies("DtoH (Device -> Pageable)"))
    [row] = [row for row in result.ownership if row.part == "exposed_copy"]
    assert "TD201-1" in row.findings
    assert row.unowned_ns == 0


def test_what_the_call_of_a_pageable_copy_takes_is_of_the_finding_of_the_copy() -> None:
    result = diagnosed(copies("HtoD (Pageable -> Device)", staging_us=900))
    [row] = [row for row in result.ownership if row.part == "launch"]
    assert row.total_ns > 4_000_000
    assert row.unowned_ns < row.total_ns / 5


def waits_in(places: int) -> RunBuilder:
    """Waits of 1.2 ms in each step, each between other operators."""
    b = RunBuilder()
    for _ in range(6):
        with b.step():
            with b.op("aten::mm"):
                b.launch(60_000, "gemm")
            b.sync()
            for n in range(places):
                with b.op(f"aten::op{n}"):
                    b.launch(10, "small")
                b.wait(1200)
    return b


def test_small_gaps_in_another_number_of_places_are_the_same_finding() -> None:
    fingerprints = {
        f.fingerprint for places in (10, 9) for f in diagnosed(waits_in(places)).findings if f.code == "TD203"
    }
    assert len(fingerprints) == 1


def _inference_in_autocast() -> SnapshotBuilder:
    """Half as much again as the weights: their 16-bit copies, until the context ends."""
    b = SnapshotBuilder()
    for _ in range(8):
        b.held(20 * MIB)
    cast = ("??", 0, "at::autocast::cached_cast(c10::ScalarType, ...)")
    copies = []
    for layer in range(8):
        with b.forward(line=layer):
            copies.append(b.alloc(10 * MIB, frames=[cast, ("/home/me/model.py", layer, "forward")]))
            b.temporary(MIB)
    with b.script_line(70):
        b.free(*copies)
    return b


def test_a_part_of_the_memory_peak_that_no_finding_explains_is_in_the_verdict() -> None:
    result = diagnosed(_inference_in_autocast())
    assert headline(result) == "No finding explains 34% of the memory peak: autocast weight copies 33%"


def test_what_a_silenced_finding_says_of_the_memory_peak_is_explained() -> None:
    b = SnapshotBuilder()
    b.held(300 * MIB)
    for _ in range(20):
        with b.forward(line=10):
            b.temporary(*[MIB] * 8)
        with b.forward(line=41, op="softmax"):
            b.temporary(256 * MIB, 256 * MIB)
    (row,) = diagnosed(b, severity={"TD403": "info"}).memory_ledger
    assert row.explained == ["temporaries", "workspaces"]
    assert "No finding explains 63% of the memory peak" in headline(diagnosed(b, select=["TD402"]))
