"""What the engine makes of rules: outcomes, severity, owners, merging, order. Rules here are small stand-ins."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from made_captures import healthy

from trace_doctor.capture import Capture
from trace_doctor.config import Settings, defaults
from trace_doctor.engine import diagnose
from trace_doctor.engine.findings import file_claim, merge, on_a_busy_machine, severity
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.replay.what_if import Removal
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model import Basis, Fix, Location, Result, Saving, known_together
from trace_doctor.recording.folder import RankRecord
from trace_doctor.registry import all_rules
from trace_doctor.rule import Claim, Context, Rule, threshold
from trace_doctor.testing import Invalid, RunBuilder, run_case


class Missing(Evidence, frozen=True):
    @classmethod
    def build(cls, facts: Facts) -> Missing:
        raise NotCaptured("no such recording", "record it")


def rule(code: str, *claims: Claim, raises: BaseException | None = None, **attributes: Any) -> type[Rule]:
    """A rule class that makes these claims."""

    @dataclass(frozen=True)
    class Made(Rule):
        """Stand-in."""

        needs: ClassVar[tuple[type[Evidence], ...]] = (Steps,)
        limit: int = threshold(1, "a number", source="none")

        def check(self, ctx: Context) -> Iterator[Claim]:
            if raises:
                raise raises
            yield from claims

    Made.code, Made.name, Made.title = code, code.lower(), code
    for key, value in attributes.items():
        setattr(Made, key, value)
    return Made


def claim(share: float | None = 0.2, message: str = "Something costs.", **fields: Any) -> Claim:
    saving = (
        None if share is None else Saving(time_us_per_step=share * 1000, share_of_step=share, basis="replay")
    )
    return Claim(**{"message": message, "confidence": "high", "saving": saving, **fields})


def steps(rank: int = 0) -> RunBuilder:
    b = RunBuilder(rank=rank)
    for _ in range(3):
        with b.step(), b.op("aten::mm"):
            b.launch(25)
            b.launch(25)  # fewer operators, calls and kernels are not judged
    return b


def capture(rank: int = 0, path: str = "logs/trace.json") -> Capture:
    return Capture(rank=rank, run=replace(steps(rank).run(), path=path))


def diagnosed(*rules: type[Rule], captures: list[Capture] | None = None, **settings: Any) -> Result:
    return diagnose(captures or [capture()], rules, defaults(**settings))


def outcomes(result: Result) -> dict[str, str]:
    return {o.code: o.outcome for o in result.outcomes}


def test_four_outcomes_and_one_rules_exception_ends_nothing() -> None:
    result = diagnosed(
        rule("TD901", claim()),
        rule("TD902"),
        rule("TD903", needs=(Missing,)),
        rule("TD904", raises=ZeroDivisionError("boom")),
        rule("TD905", claim()),
    )
    assert outcomes(result) == {
        "TD901": "fired",
        "TD902": "passed",
        "TD903": "skipped",
        "TD904": "error",
        "TD905": "fired",
    }
    skipped = result.outcomes[2]
    assert (skipped.reason, skipped.capture) == ("no such recording", "record it")
    assert "boom" in (result.outcomes[3].reason or "")


@pytest.mark.parametrize("raised", [BaseException("q"), GeneratorExit()])
def test_nothing_that_a_rule_raises_ends_the_program(raised: BaseException) -> None:
    assert outcomes(diagnosed(rule("TD901", raises=raised))) == {"TD901": "error"}
    with pytest.raises(KeyboardInterrupt):
        diagnosed(rule("TD901", raises=KeyboardInterrupt()))


def test_claims_without_an_end_are_an_error_of_the_rule() -> None:
    class Endless(rule("TD901")):  # type: ignore[misc]
        def check(self, ctx: Context) -> Iterator[Claim]:
            yield from itertools.repeat(claim())

    result = diagnosed(Endless, rule("TD902"))
    assert outcomes(result) == {"TD901": "error", "TD902": "passed"}
    assert "more than 10,000 claims" in (result.outcomes[0].reason or "")


@pytest.mark.parametrize("field", ["time_us_per_step", "share_of_step", "share_of_peak"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_saving_that_is_no_number_is_an_error_of_the_rule(field: str, value: float) -> None:
    """Below every limit it would pass."""
    result = diagnosed(rule("TD901", claim(saving=Saving(**{field: value}))), rule("TD902"))
    assert outcomes(result) == {"TD901": "error", "TD902": "passed"}
    assert f"the {field} of a saving is {value}" in (result.outcomes[0].reason or "")


@pytest.mark.parametrize("code", [0, None, 1, "done"])
def test_a_rule_does_not_end_the_program(code: object) -> None:
    """With 0 its faults would pass; a signal ends it all the same."""
    assert outcomes(diagnosed(rule("TD901", raises=SystemExit(code)), rule("TD902"))) == {
        "TD901": "error",
        "TD902": "passed",
    }
    with pytest.raises(SystemExit):
        diagnosed(rule("TD901", raises=SystemExit(143)))


def test_reading_undeclared_evidence_is_an_error_of_the_rule() -> None:
    class Nosy(rule("TD901")):  # type: ignore[misc]
        def check(self, ctx: Context) -> Iterator[Claim]:
            ctx.get(Missing)
            yield from ()

    result = diagnosed(Nosy)
    assert outcomes(result) == {"TD901": "error"}
    assert "without declaring" in (result.outcomes[0].reason or "")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (claim(0.10), "critical"),
        (claim(0.0999), "warning"),
        (claim(0.03), "warning"),
        (claim(0.0299), "info"),
        (claim(0.5, confidence="medium"), "warning"),
        (claim(0.5, confidence="low"), "info"),
        (claim(0.5, severity="info"), "info"),
        (claim(0.01, severity="critical"), "info"),
        (claim(None, severity="critical"), "critical"),
        (claim(None), "info"),
        (claim(saving=Saving(share_of_peak=0.4, bytes=9, basis="bound")), "critical"),
        (claim(saving=Saving(share_of_step=0.4, basis="model")), "info"),
    ],
)
def test_severity(given: Claim, expected: str) -> None:
    assert severity(rule("TD901")(), given, Settings()) == expected


def test_severity_can_be_set_by_rule() -> None:
    assert diagnosed(rule("TD101", claim(0.5)), severity={"TD101": "info"}).findings[0].severity == "info"


def test_one_fault_has_one_owner() -> None:
    owner = rule("TD901", claim(owned=((0, 100),)))
    same = rule("TD902", claim(owned=((40, 100),)), yields_to=("TD901",))
    other = rule("TD903", claim(owned=((90, 200),)), yields_to=("TD901",))
    result = diagnosed(owner, same, other)
    assert outcomes(result) == {"TD901": "fired", "TD902": "passed", "TD903": "fired"}
    assert [f.code for f in result.findings] == ["TD901", "TD903"]
    assert result.outcomes[1].refers_to == ["TD901-1"]


def test_time_that_the_owner_has_not_claimed_goes_with_a_claim_that_is_given_up() -> None:
    """Gradients filled with zeros: one rule knows the memory, the other the time; the finding has both."""
    owner = rule(
        "TD901", claim(None, saving=Saving(bytes=100, share_of_peak=0.05, basis="bound", how="a peak"))
    )
    other = rule("TD902", claim(0.2), yields_to=("TD901",))
    result = diagnose([capture()], [owner, other], defaults())
    (found,) = result.findings
    assert found.code == "TD901"
    assert found.saving is not None
    assert (found.saving.bytes, found.saving.share_of_step) == (100, 0.2)
    assert "a peak" in found.saving.how
    assert result.outcomes[1].outcome == "passed"


def test_the_same_fault_on_several_ranks_is_one_finding() -> None:
    made = rule("TD901", claim(message="The GPU waits."))
    result = diagnosed(made, captures=[capture(r, f"logs/rank{r}.json") for r in (0, 1, 2, 5)])
    assert len(result.findings) == 1
    assert result.findings[0].message == "The GPU waits (also on ranks 1-2, 5)."
    assert len(result.findings[0].evidence[-1].rows) == 3


@pytest.mark.parametrize(
    ("files", "faults"),
    [
        (("/job/a/train.py", "/job/b/train.py"), 2),
        (("a/train.py", "b/train.py"), 2),
        (("C:\\job\\a\\train.py", "C:/job/a/train.py"), 1),
        (("/here/job/train.py", "/there/job/train.py"), 1),
        (("train.py", "/job/a/train.py"), 1),
        (("train.py", "/job/a/train.py", "/job/b/train.py"), 2),
    ],
)
def test_two_files_of_one_name_are_two_faults(files: tuple[str, ...], faults: int) -> None:
    """A project may lie in another folder on another machine; folders within it are not the same."""
    made = rule("TD901")()
    filings = [
        file_claim(made, claim(location=Location(file=file)), rank, rank, f"logs/rank{rank}.json", Settings())
        for rank, file in enumerate(files)
    ]
    assert len(merge(filings, Settings()).findings) == faults


def test_a_fault_of_thousands_of_ranks_takes_memory_for_each_of_them_once() -> None:
    made = rule("TD901")()
    filings = [
        file_claim(made, claim(), rank, rank, f"logs/rank{rank}.json", Settings()) for rank in range(1500)
    ]
    tracemalloc.start()
    try:
        merged = merge(filings, Settings())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(merged.findings) == 1
    assert peak < 20 << 20, "a set of all ranks for each of them takes 100 MB"


def test_captures_of_different_folders_are_not_merged() -> None:
    made = rule("TD901", claim())
    result = diagnosed(made, captures=[capture(0, "a/trace.json"), capture(0, "b/trace.json")])
    assert [f.id for f in result.findings] == ["TD901-1", "TD901-2"]


def test_the_saving_of_several_captures_is_that_of_the_largest_share() -> None:
    small, large = claim(0.3), claim(0.2)
    large = replace(large, saving=Saving(time_us_per_step=5000.0, share_of_step=0.2, basis="bound"))
    fixes = [Fix(title="Do it", kind="advice", safety="unsafe")]
    made = rule("TD901", replace(small, fixes=fixes, key="a"), replace(large, fixes=fixes, key="b"))
    result = diagnosed(made, captures=[Capture(rank=0, run=healthy().run())])
    up_to = result.summary.saving_up_to
    assert (up_to.share_of_step, up_to.time_us_per_step) == (0.3, 300.0)
    assert result.findings[0].saving.share_of_step == up_to.share_of_step  # type: ignore[union-attr]


def test_order_is_by_share_and_confidence_then_code() -> None:
    result = diagnosed(
        rule("TD901", claim(0.2, confidence="low")),
        rule("TD902", claim(0.1)),
        rule("TD903", claim(0.1)),
        rule("TD904", claim(None, severity="critical")),
    )
    assert [f.code for f in result.findings] == ["TD904", "TD902", "TD903", "TD901"]


def test_filters() -> None:
    rules = (
        rule("TD901", claim(0.2, confidence="low")),
        rule("TD902", claim(0.01)),
        rule("TD903", claim(0.2)),
    )
    assert [f.code for f in diagnosed(*rules, min_confidence="medium").findings] == ["TD903", "TD902"]
    assert [f.code for f in diagnosed(*rules, min_saving=0.02).findings] == ["TD903", "TD901"]


def test_the_fingerprint_ignores_times_lines_and_ranks() -> None:
    def fingerprint(line: int, ts: float, rank: int) -> str:
        where = Location(file="train.py", line=line, function="main", ts_us=ts)
        made = rule("TD901", claim(location=where, key="aten::item"))
        return diagnosed(made, captures=[capture(rank)]).findings[0].fingerprint

    assert fingerprint(10, 5.0, 0) == fingerprint(99, 7.0, 3)


def test_a_saving_is_never_negative() -> None:
    made = rule("TD901", claim(saving=Saving(time_us_per_step=-5.0, share_of_step=-0.1, bytes=-3)))
    saving = diagnosed(made).findings[0].saving
    assert saving is not None
    assert (saving.time_us_per_step, saving.share_of_step, saving.bytes) == (0.0, 0.0, 0)


def test_a_fix_that_its_codemod_does_not_take_is_shown_and_the_result_read_back() -> None:
    """Parameters come from captures, which may say anything."""
    wrong = Fix(title="t", kind="patch", codemod="optimizer-args", params={"class": "x y"}, text="shown")
    right = Fix(title="u", kind="patch", codemod="optimizer-args", params={"class": "AdamW"})
    result = diagnosed(rule("TD901", claim(fixes=(wrong, right))))
    shown, kept = result.findings[0].fixes
    assert (shown.codemod, shown.params, shown.safety, shown.text) == (None, {}, "display", "shown")
    assert "No edit, as optimizer-args does not take its parameters: " in shown.risk
    assert (kept.codemod, kept.params) == ("optimizer-args", {"class": "AdamW"})
    assert Result.from_json(result.to_json()) == result


def test_a_case_of_a_rule_fails_where_its_codemod_does_not_take_the_parameters() -> None:
    wrong = Fix(title="t", kind="patch", codemod="batch-size", params={"size": "many"})
    with pytest.raises(AssertionError, match="batch-size takes no such parameters: size"):
        run_case(rule("TD901", claim(fixes=(wrong,))), Invalid("any", steps))


def test_long_tables_are_cut_and_say_so() -> None:
    from trace_doctor.model import Column, Table

    table = Table(title="t", columns=[Column("n", "count")], rows=[[i] for i in range(1000)])
    shown = diagnosed(rule("TD901", claim(evidence=[table]))).findings[0].evidence[0]
    assert len(shown.rows) < 1000
    assert shown.of == 1000
    whole = Table(title="t", columns=table.columns, rows=shown.rows)
    assert diagnosed(rule("TD901", claim(evidence=[whole]))).findings[0].evidence[0].of is None


def test_an_input_says_what_marks_its_steps_and_which_steps_of_a_recorded_run_they_are() -> None:
    unmarked = RunBuilder()
    with unmarked.op("aten::mm"):
        unmarked.launch(50)
    recorded = replace(capture(), record=RankRecord(rank=0))
    captures = [capture(), recorded, Capture(0, run=unmarked.run(), record=recorded.record)]
    of_input = [diagnosed(rule("TD901"), captures=[one]).inputs[0] for one in captures]
    assert [(i.step_source, i.run_steps) for i in of_input] == [
        ("profiler_step", None), ("profiler_step", (0, 2)), (None, None),
    ]  # fmt: skip


def test_thresholds_in_force_are_in_the_finding() -> None:
    assert diagnosed(rule("TD901", claim())).findings[0].thresholds == {"limit": 1}


def test_display_fixes_do_not_count_for_the_headline() -> None:
    shown_only = claim(0.4, fixes=(Fix(title="x", kind="advice", safety="display"),))
    assert diagnosed(rule("TD901", shown_only)).summary.saving_up_to.time_us_per_step is None


def test_the_summary_says_how_busy_the_gpus_are() -> None:
    def busy_and_idle(b: RunBuilder) -> tuple[float | None, float | None]:
        for _ in range(3):
            with b.step(), b.op("aten::mm", us=43):
                if b.meta["deviceProperties"]:
                    b.launch(50)
                    b.sync()
        summary = diagnosed(rule("TD901"), captures=[Capture(rank=0, run=b.run())]).summary
        return summary.gpu_busy_share, summary.gpu_idle_share

    assert busy_and_idle(RunBuilder(launch_us=4, latency_us=1)) == pytest.approx((0.5, 0.5))
    assert busy_and_idle(RunBuilder(gpu=None)) == (None, None)


@pytest.mark.parametrize(
    ("world", "collective", "missing"), [(None, False, False), (8, False, True), (None, True, True)]
)
def test_other_ranks_are_missing_only_where_there_are_some(
    world: int | None, collective: bool, missing: bool
) -> None:
    b = RunBuilder()
    if world:
        b.meta["distributedInfo"] = {"rank": 0, "world_size": world}
    for _ in range(3):
        with b.step(), b.op("aten::mm", us=43):
            b.launch(50, "ncclDevKernel_AllReduce_Sum_f32_RING_LL" if collective else "gemm")
    rules = [rule for rule in all_rules() if rule.code in ("TD005", "TD602", "TD606")]
    outcomes = diagnosed(*rules, captures=[Capture(rank=0, run=b.run())]).outcomes
    assert [(o.outcome, bool(o.capture)) for o in outcomes] == [("skipped", missing)] * 3


def test_events_of_other_programs_are_none() -> None:
    """A file of another program in the same format: nothing in it could be looked at, so nothing may pass for healthy."""
    b = RunBuilder(gpu=None)
    for line in range(3):
        with b.event(f"Line {line}", cat=f"Line {line}"):
            b.wait(5)
    other = diagnose([Capture(rank=0, run=b.run())], [], defaults())
    assert other.inputs[0].events == 0
    with b.op("aten::mm"):
        b.wait(5)
    assert diagnose([Capture(rank=0, run=b.run())], [], defaults()).inputs[0].events == 4


@pytest.mark.parametrize(
    ("share", "waited", "confidence"),
    [
        (0.05, 0.10, "medium"),
        (0.05, 0.099, "high"),  # so much any machine is busy
        (0.40, 0.20, "medium"),
        (0.40, 0.199, "high"),  # less than half of what it costs
        (0.40, None, "high"),
    ],
)
def test_what_others_may_have_cost_makes_a_claim_less_sure(
    share: float, waited: float | None, confidence: str
) -> None:
    busy = on_a_busy_machine(rule("TD901", costs_host_time=True)(), claim(share), waited)
    assert (busy.confidence, "waited" in busy.message) == (confidence, confidence != "high")
    assert on_a_busy_machine(rule("TD901")(), claim(share), waited).confidence == "high"


def paced(us: float) -> RunBuilder:
    b = RunBuilder()
    for _ in range(4):
        with b.step(), b.op("aten::mm", us=us):
            b.launch(us)
    return b


@pytest.mark.parametrize(("other", "gain"), [(1_000.0, 50.0), (4_000.0, 25.0), (500.0, 50.0)])
def test_a_claim_on_another_recording_keeps_its_share_of_a_shorter_step_and_is_never_more(
    other: float, gain: float
) -> None:
    """Of a recording the first file cannot tell: its steps are plain, and what costs 50 us is in another."""

    asked: list[float] = []

    class Elsewhere(rule("TD901")):  # type: ignore[misc]
        def check(self, ctx: Context) -> Iterator[Claim]:
            asked.append(ctx[Steps].step_ns)
            if len(asked) == 1:
                raise NotCaptured("not here")
            fix = Fix(title="p", kind="patch", safety="unsafe", text="p")
            taken = Removal(gpu_rows=(int(files[1].gpu[0]),))
            yield claim(0.05, saving=Saving(time_us_per_step=50.0), removal=taken, fixes=(fix,))

    files = [replace(paced(us).run(), path=f"logs/{us}.json") for us in (2_000.0, other)]
    result = diagnosed(Elsewhere, captures=[Capture(rank=0, run=files[0], further=(files[1],))])
    assert asked[0] != asked[1]
    saving = result.findings[0].saving
    assert saving is not None and saving.time_us_per_step == pytest.approx(gain, rel=0.05)
    assert result.what_if == []  # the re-timing of this file knows no row of the other


def test_only_what_somebody_can_make_is_replayed() -> None:
    taken = Removal(gpu_rows=(int(steps().run().gpu[0]),))
    patch = Fix(title="p", kind="patch", safety="unsafe", codemod=None, text="p")
    shown = Fix(title="s", kind="advice", safety="display")
    for fix, replayed in ((patch, ["TD901-1"]), (shown, [])):
        result = diagnosed(rule("TD901", claim(fixes=(fix,), removal=taken)))
        assert [w.fixes for w in result.what_if if w.fixes] == [replayed] * bool(replayed)


@pytest.mark.parametrize(("device", "explains"), [(0, True), (None, True), (1, False)])
def test_a_finding_is_explained_by_one_on_its_own_device(device: int | None, explains: bool) -> None:
    fix = Fix(title="mend the cause", kind="advice", safety="display")
    cause = rule("TD901", claim(0.1, location=Location(device=device), fixes=(fix,)))
    effect = rule("TD902", claim(0.2, location=Location(device=0)), explained_by=("TD901",))
    found = {f.code: f for f in diagnosed(cause, effect).findings}
    assert found["TD902"].refers_to == (["TD901-1"] if explains else [])
    assert ("mend the cause" in [f.title for f in found["TD902"].fixes]) == explains


def test_what_goes_by_a_model_is_an_estimate_and_what_takes_time_out_a_bound() -> None:
    def made(basis: Basis) -> Saving:
        saving = Saving(time_us_per_step=800.0, share_of_step=0.8, basis=basis)
        found = diagnosed(rule("TD901", claim(saving=saving))).findings[0].saving
        assert found is not None
        return found

    assert (made("replay").known, made("replay").high) == ("up_to", None)
    assert (made("model").known, made("model").low, made("model").high) == ("about", 0.5, 1.25)


def test_a_sum_with_an_estimate_in_it_is_one_whose_interval_goes_by_time() -> None:
    sure = Saving(time_us_per_step=300.0)
    together = known_together([sure, Saving(time_us_per_step=100.0).about(0.2, 3.0)])
    assert (together.known, together.low, together.high) == ("about", 0.8, 1.5)
    assert known_together([sure, sure]).known == "up_to"
