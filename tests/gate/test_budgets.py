from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from trace_doctor.config.budget_table import parse_budgets
from trace_doctor.errors import UsageError
from trace_doctor.gate.baseline import Baseline
from trace_doctor.gate.decision import Terms, decide
from trace_doctor.gate.runs import runs_of
from trace_doctor.model import (
    CategoryBytes,
    Finding,
    IdleNs,
    Input,
    MemoryLedgerRow,
    Outcome,
    Pace,
    Result,
    Saving,
    Suppressed,
    TimeLedgerRow,
)
from trace_doctor.reporters.labels import budget_words

MS = 1e3


def runs(
    *step_ms: float,
    mad_ms: float = 0.5,
    idle: float = 0.1,
    cost: float | None = None,
    device: str = "H100",
    ranks: int = 1,
) -> Result:
    """One capture for each step time, in folders of their own (of `ranks` ranks in one)."""
    inputs = [
        Input(path=f"{n // ranks}/rank{n % ranks}.json", kind="trace", rank=n % ranks, device_name=device,
              pace=Pace(steps=5, median_us=t * MS, mad_us=mad_ms * MS))
        for n, t in enumerate(step_ms)
    ]  # fmt: skip
    gap = int(idle * 1000)
    ledger = [
        TimeLedgerRow(input=n, rank=i.rank, device=0, phase="steady", steps=5, window_ns=1000, compute_ns=1000 - gap,
                      exposed_comm_ns=0, exposed_copy_ns=0, idle_ns=IdleNs(sync=gap), step_us=0.0)
        for n, i in enumerate(inputs)
    ]  # fmt: skip
    findings = [
        Finding(id="TD101-1", code="TD101", name="dataloader-starvation", title="", severity="warning", confidence="high",
                message="", fingerprint="f", saving=Saving(share_of_step=cost))
    ] if cost is not None else []  # fmt: skip
    outcomes = [
        Outcome(code="TD101", name="dataloader-starvation", outcome="fired" if findings else "passed"),
        Outcome(code="TD403", name="memory-spike", outcome="skipped", reason="no snapshot"),
    ]
    return Result(inputs=inputs, time_ledger=ledger, findings=findings, outcomes=outcomes)


def judged(result: Result, table: dict[str, Any], before: Result | None = None) -> tuple[int, str]:
    baseline = Baseline.of(before) if before is not None else None
    gate = decide(result, Terms(budgets=parse_budgets(table), baseline=baseline))
    return gate.code, "\n".join([gate.verdict, *map(budget_words, gate.budgets), *gate.notes])


def test_the_median_of_several_runs_is_held_against_the_limit_and_all_values_are_said() -> None:
    code, said = judged(runs(100, 104, 180), {"step_time": "110 ms"})
    assert code == 0
    assert "step_time 104 ms, expected at most 110 ms, runs 100 ms, 104 ms, 180 ms" in said
    assert judged(runs(100, 104, 180), {"step_time": "110 ms", "aggregate": "pessimistic"})[0] == 1
    assert judged(runs(100, 120, 180), {"step_time": "110 ms", "aggregate": "optimistic"})[0] == 0
    assert judged(runs(100, 120, 180), {"step_time": "110 ms"})[0] == 1


def test_a_capture_of_the_cpu_alone_has_no_idle_share_of_a_gpu() -> None:
    of_gpu = runs(100)
    on_cpu = replace(of_gpu, time_ledger=[replace(row, device=-1) for row in of_gpu.time_ledger])
    for result, code, why in ((of_gpu, 0, "gpu_idle_share 10.0%"), (on_cpu, 1, "no GPU work was recorded")):
        told, said = judged(result, {"gpu_idle_share": 0.5})
        assert (bool(told), why in said) == (bool(code), True)


def test_a_figure_at_its_limit_is_within_it() -> None:
    assert judged(runs(110), {"step_time": "110 ms"})[0] == 0
    assert judged(runs(110.1), {"step_time": "110 ms"})[0] == 1


def test_why_a_limit_could_not_be_held() -> None:
    """A figure that the baseline lacks, no baseline, a device without a name, a rule that nobody asked for."""
    five = {"step_time": {"max_regression": "5%"}}
    for before, now, why in (
        (None, runs(100), "there is no baseline"),
        (
            replace(runs(100), inputs=[Input(path="a", kind="trace", device_name="H100")]),
            runs(100),
            "no such figure",
        ),
        (runs(100, device=""), runs(100), "the baseline is of another device (no GPU; now H100)"),
    ):
        code, said = judged(now, five, before)
        assert (code, why in said) == (3, True), said
    failed, blind = (Outcome(code="TD101", name="x", outcome=kind) for kind in ("error", "skipped"))
    rule = {"TD101": {"max_regression": "5%"}}
    for before, now, table, why in (
        (None, replace(runs(100), outcomes=[]), {"TD101": "5%"}, "the rule was not selected"),
        (None, replace(runs(100), outcomes=[failed]), {"TD101": "5%"}, "error"),
        (replace(runs(100), outcomes=[blind]), runs(100), rule, "the baseline's captures could not tell"),
    ):
        code, said = judged(now, table, before)
        assert (code, why in said) == (3, True), said


def test_a_step_of_few_repeats_shows_no_noise() -> None:
    """Two steps do not tell how much a step varies."""
    few = runs(106, mad_ms=30)
    few = replace(few, inputs=[replace(i, pace=replace(i.pace, steps=2)) for i in few.inputs if i.pace])
    assert judged(few, {"step_time": {"max_regression": "5%"}}, runs(100))[0] == 1


def test_of_the_ranks_of_one_run_the_slowest_counts() -> None:
    assert judged(runs(100, 130, 101, 131, ranks=2), {"step_time": "110 ms"})[0] == 1
    assert "runs" not in judged(runs(100, 90, ranks=2), {"step_time": "110 ms"})[1]


def test_a_regression_is_more_than_the_largest_of_absolute_relative_and_noise() -> None:
    five = {"step_time": {"max_regression": "5%"}}
    assert judged(runs(104), five, runs(100))[0] == 0
    assert judged(runs(106), five, runs(100))[0] == 1
    assert judged(runs(106), {"step_time": {"max_regression": ["5%", "8 ms"]}}, runs(100))[0] == 0
    code, said = judged(runs(106), five, runs(100, mad_ms=3))
    assert code == 0, "3 x MAD of the baseline's steps is 9 ms"
    assert "noise ±9.00 ms" in said
    assert "within noise" in said
    assert judged(runs(106, mad_ms=3), five, runs(100))[0] == 0, "the steps of this run vary as well"
    assert judged(runs(106, mad_ms=3), {**five, "noise": 1}, runs(100))[0] == 1


def test_no_deviation_excuses_a_step_twice_as_long() -> None:
    for before, mad_ms in ((runs(100, mad_ms=99), 0), (runs(100), 150), (runs(1, 100, 199), 0)):
        assert judged(runs(190, mad_ms=mad_ms), {}, before)[0] == 0
        assert judged(runs(210, mad_ms=mad_ms), {}, before)[0] == 1
        assert judged(runs(210, mad_ms=mad_ms), {"noise": 20}, before)[0] == 1
    assert judged(runs(100, mad_ms=90, cost=0.7), {}, runs(100, cost=0.05))[0] == 1, (
        "nor a finding of most of it"
    )


def test_the_files_of_a_recording_are_one_run() -> None:
    files = [
        Input(path=f"{folder}/rank0.{role}.json.gz", kind="trace", role=role)
        for folder in ("a", "b")
        for role in ("light", "detailed")
    ]
    assert len(set(runs_of(Result(inputs=files)).values())) == 2
    assert len(set(runs_of(Result(inputs=[replace(f, role=None) for f in files])).values())) == 4


def test_runs_that_differ_widen_the_band_though_the_steps_of_each_do_not() -> None:
    before = runs(94, 100, 106, mad_ms=0.1)
    assert judged(runs(112), {"step_time": {"max_regression": "5%"}}, before)[0] == 0


def test_a_baseline_guards_every_figure_without_being_asked() -> None:
    assert judged(runs(105), {}, runs(100))[0] == 0
    code, said = judged(runs(120), {}, runs(100))
    assert code == 1
    assert "1 limit exceeded (step_time)" in said
    assert judged(runs(100, idle=0.3), {}, runs(100))[0] == 1
    assert judged(runs(100, idle=0.12), {}, runs(100))[0] == 0
    assert judged(runs(80, idle=0.0), {}, runs(100))[0] == 0


def test_times_of_another_device_are_not_compared() -> None:
    code, said = judged(runs(200, device="A100"), {}, runs(100))
    assert code == 0
    assert (
        "step_time not compared with the baseline: the baseline is of another device (H100; now A100)" in said
    )
    assert judged(runs(200, device="A100"), {"step_time": {"max_regression": "5%"}}, runs(100))[0] == 3


@pytest.mark.parametrize(("waited", "alone", "asked"), [(0.83, 0, 3), (0.2, 1, 1), (0.0, 1, 1), (None, 1, 1)])
def test_a_busy_machine_is_no_regression(waited: float | None, alone: int, asked: int) -> None:
    """Three times the step: what the wait for a CPU may explain stays undecided, what it cannot fails."""
    slow = runs(300)
    slow = replace(slow, inputs=[replace(i, waited_for_cpu=waited) for i in slow.inputs])
    code, said = judged(slow, {}, runs(100))
    assert code == alone
    assert ("step_time not compared with the baseline: training waited 83%" in said) == (alone == 0)
    assert judged(slow, {"step_time": {"max_regression": "10%"}}, runs(100))[0] == asked


@pytest.mark.parametrize(("waited", "code"), [(0.05, 1), (0.15, 0)])
def test_a_wait_that_is_usual_excuses_nothing(waited: float, code: int) -> None:
    slow = runs(113)
    slow = replace(slow, inputs=[replace(i, waited_for_cpu=waited) for i in slow.inputs])
    assert judged(slow, {}, runs(100))[0] == code


def test_a_rule_with_a_budget_is_judged_by_it_alone() -> None:
    assert judged(runs(100, cost=0.08), {})[0] == 1
    assert judged(runs(100, cost=0.08), {"TD101": "10%"})[0] == 0
    assert judged(runs(100, cost=0.12), {"dataloader-starvation": 0.1})[0] == 1
    assert judged(runs(100), {"TD101": "10%"})[0] == 0
    assert judged(runs(100, cost=0.2), {"TD101": {"max": "10%", "level": "warning"}})[0] == 0
    code, said = judged(runs(100), {"TD403": "10%"})
    assert code == 3
    assert "no snapshot" in said


def test_a_budget_of_a_rule_that_is_undecided_is_not_kept() -> None:
    open_question = Outcome(
        code="TD101", name="dataloader-starvation", outcome="undecided", reason="21% has no owner"
    )
    code, said = judged(replace(runs(100), outcomes=[open_question]), {"TD101": "1%"})
    assert code == 3 and "21% has no owner" in said


def test_a_budget_is_undecided_where_what_its_rule_found_is_left_out() -> None:
    fault = runs(100, cost=0.5)
    code, said = judged(replace(fault, findings=[]), {"TD101": "10%"})
    assert code == 3 and "below min-confidence or min-saving" in said
    silenced = [Suppressed(finding=f, kind="config", where="TD101", reason="wanted") for f in fault.findings]
    hidden = replace(fault, findings=[], suppressed=silenced)
    code, said = judged(hidden, {"TD101": "10%"})
    assert (code, "TD101 50.0%" in said) == (1, True), "suppressed, and it costs what it costs"
    assert judged(hidden, {"TD101": "60%"})[0] == 0
    compared = judged(hidden, {"TD101": {"max_regression": "5%"}}, hidden)
    assert (compared[0], "suppressed" in compared[1]) == (3, True), "no baseline holds it"


def test_a_figure_that_one_capture_lacks_is_undecided_unless_the_others_exceed_the_limit() -> None:
    """The rank, or the run, that nobody could measure may be the slowest."""
    for ranks in (1, 2):
        whole = runs(100, 100, ranks=ranks)
        part = replace(whole, inputs=[whole.inputs[0], replace(whole.inputs[1], pace=None)])
        for aggregate in ("median", "optimistic", "pessimistic"):
            limits = {"step_time": "110 ms", "aggregate": aggregate}
            assert judged(whole, limits)[0] == 0
            code, said = judged(part, limits)
            assert (code, f"{part.inputs[1].path}: no steps were recorded" in said) == (3, True), said
            assert judged(part, {**limits, "step_time": "90 ms"})[0] == 1
        assert judged(part, {"gpu_idle_share": 0.5})[0] == 0
    code, said = judged(part, {}, whole)
    assert (code, "step_time not compared with the baseline" in said) == (0, True)


def test_of_a_rank_without_a_snapshot_there_is_no_peak() -> None:
    def peaks(*files: tuple[str, int, str], reserved: int | None = 1, of: str = "peak_reserved") -> int:
        inputs = [
            Input(path=f"{n}", kind=kind, rank=rank, rank_how=how)
            for n, (kind, rank, how) in enumerate(files)
        ]
        rows = [
            MemoryLedgerRow(
                input=n,
                rank=i.rank,
                device=0,
                peak_bytes=1,
                by_category=CategoryBytes(inputs=1),
                max_reserved_bytes=reserved,
                max_live_bytes=1,
                how="",
            )
            for n, i in enumerate(inputs)
            if i.kind == "snapshot"
        ]
        code, said = judged(Result(inputs=inputs, memory_ledger=rows), {of: "1 GiB"})
        assert ("the peak of what was recorded" in said) == (code == 0)
        assert ("not recorded in 1 of 2 runs" in said) == (files.count(("trace", 0, "name")) == 2)
        return code

    trace, snapshot = ("trace", 0, "name"), ("snapshot", 0, "name")
    assert peaks(trace, trace, snapshot) == 0, "two traces of a rank, one snapshot"
    assert peaks(trace, snapshot, ("trace", 1, "name")) == 3
    assert peaks(("snapshot", 0, ""), ("trace", 1, "name")) == 0, "nobody says which rank it is of"
    assert peaks(snapshot, of="peak_allocated") == 0
    assert peaks(snapshot, reserved=None, of="peak_allocated") == 3, "its segments hold less than its history"


def test_a_known_finding_fails_when_it_costs_clearly_more() -> None:
    quiet = {"step_time": "1 s", "gpu_idle_share": 1.0}
    assert judged(runs(100, cost=0.10), quiet, runs(100, cost=0.09))[0] == 0
    assert judged(runs(100, cost=0.54), quiet, runs(100, cost=0.50))[0] == 0, "a tenth of what it did"
    assert judged(runs(100, cost=0.56), quiet, runs(100, cost=0.50))[0] == 1
    code, said = judged(runs(100, cost=0.30), quiet, runs(100, cost=0.09))
    assert code == 1
    assert "a known finding that costs more than it did" in said


def test_more_of_one_fault_than_the_baseline_had_is_new() -> None:
    import msgspec

    one = runs(100, cost=0.09)
    two = msgspec.structs.replace(
        one, findings=[*one.findings, msgspec.structs.replace(one.findings[0], id="TD101-2")]
    )
    assert judged(two, {}, two)[0] == 0
    assert judged(two, {}, one)[0] == 1


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"gpu_idle": 0.1}, "did you mean 'gpu_idle_share'"),
        ({"step_time": 180}, '"180 ms"'),
        ({"step_time": "fast"}, '"180 ms"'),
        ({"gpu_idle_share": "12 ms"}, '"15%"'),
        ({"peak_reserved": {"at_most": 1}}, "unknown key 'at_most'"),
        ({"peak_reserved": {"level": "error"}}, "sets no limit"),
        ({"peak_reserved": {"max": 1, "level": "fatal"}}, "error or warning"),
        ({"TD4": "5%"}, "unknown figure 'TD4'"),
        ({"aggregate": "mean"}, "median, optimistic, pessimistic"),
        ({"noise": True}, "k x MAD"),
        ({"step_time": {"max_regression": ["5%", "2 GiB"]}}, '"180 ms"'),
    ],
)
def test_mistakes_name_what_would_be_right(table: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match="budgets") as refused:
        parse_budgets(table)
    assert says in str(refused.value)
