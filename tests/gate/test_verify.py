"""What is gone, what is not, and what nobody can know: `verify` on results made by hand."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trace_doctor import model as m
from trace_doctor.gate.diff import difference
from trace_doctor.gate.verify import verify
from trace_doctor.model.verification import Verification
from trace_doctor.reporters import Options
from trace_doctor.reporters.units import columns
from trace_doctor.reporters.verification import render


def fault(code: str = "TD101", n: int = 1, **change: Any) -> m.Finding:
    """A fault that costs 40 of 100 ms on rank 0, seen in `train`."""
    saving = m.Saving(time_us_per_step=40_000.0, share_of_step=0.4, basis="replay")
    base = m.Finding(
        id=f"{code}-{n}", code=code, name=f"rule-{code.lower()}", title="It waits", severity="warning",
        confidence="high", message="It waits.", fingerprint=f"{code} in train", rank=0, saving=saving,
        location=m.Location(file="train.py", line=41, function="train", rank=0),
    )  # fmt: skip
    return msgspec.structs.replace(base, **change)


def outcome(code: str = "TD101", kind: m.OutcomeKind = "passed", **more: Any) -> m.Outcome:
    return m.Outcome(code=code, name=f"rule-{code.lower()}", outcome=kind, **{"inputs": [0], **more})


def trace(rank: int = 0, **more: Any) -> m.Input:
    recorded = m.Recorded(shapes=True, stacks=True, memory=True)
    known = {"recorded": recorded, "steps": 6, "step_source": "profiler_step", **more}
    return m.Input(path=f"rank{rank}.json", kind="trace", rank=rank, **known)


def steps(*milliseconds: float, rank: int = 0, input: int = 0) -> list[m.StepRow]:
    return [
        m.StepRow(input=input, rank=rank, index=i, start_us=0.0, dur_us=1.0, pace_us=ms * 1e3)
        for i, ms in enumerate(milliseconds)
    ]


def result(*findings: m.Finding, **more: Any) -> m.Result:
    """A capture of one rank; rules of the findings fired, TD101 and TD403 passed unless told otherwise."""
    fired = {f.code for f in findings}
    outcomes = [outcome(c, "fired" if c in fired else "passed") for c in sorted({"TD101", "TD403", *fired})]
    return m.Result(findings=list(findings), **{"inputs": [trace()], "outcomes": outcomes, **more})


def fates(made: Verification) -> list[str]:
    return [f.fate for f in made.findings]


# ---------------------------------------------------------------------- what became of a finding


def test_gone_is_what_the_same_rule_looked_for_and_did_not_find() -> None:
    made = verify(result(fault()), result())
    assert (fates(made), made.code, made.verdict) == (["gone"], 0, "verify passed: the finding is fixed")


@pytest.mark.parametrize(("before", "after", "code"), [(6, 1, 3), (6, 2, 3), (6, 3, 0), (2, 2, 0), (2, 1, 3)])
def test_one_or_two_steps_are_too_few_to_show_that_a_finding_is_gone(
    before: int, after: int, code: int
) -> None:
    made = verify(result(fault(), inputs=[trace(steps=before)]), result(inputs=[trace(steps=after)]))
    assert (made.code, "whole step" in made.verdict) == (code, code == 3)
    short = [trace(steps=after), trace(steps=before)]
    assert verify(result(fault(), inputs=[trace(steps=before)]), result(inputs=short)).code == 0, (
        "another trace of the rank has them"
    )


def test_a_quantity_that_only_one_side_knows_tells_nothing() -> None:
    time, both = m.Saving(time_us_per_step=40_000.0), m.Saving(time_us_per_step=20_000.0, bytes=1 << 30)
    for before, after, fate in ((time, both, "smaller"), (both, time, "still_there")):
        assert fates(verify(result(fault(saving=before)), result(fault(saving=after)))) == [fate]


@pytest.mark.parametrize(
    ("cost", "fate"), [(60_000.0, "still_there"), (40_000.0, "still_there"), (33_000.0, "still_there"), (20_000.0, "smaller")]
)  # fmt: skip
def test_found_again(cost: float, fate: str) -> None:
    again = fault(saving=m.Saving(time_us_per_step=cost), rank=0, id="TD101-7")
    made = verify(result(fault()), result(again))
    assert (fates(made), made.code) == ([fate], 1)
    assert made.findings[0].after_id == "TD101-7"
    assert made.new == []


def test_a_note_that_became_a_warning_is_no_note() -> None:
    note = fault("TD403", severity="info")
    before = result(fault(), note)
    assert [verify(before, result(after)).code for after in (fault("TD403"), note)] == [1, 0]


@pytest.mark.parametrize(
    ("cost", "code"), [(60_000.0, 1), (40_000.0, 1), (39_000.0, 1), (32_000.0, 0), (None, 3)], ids=str
)
def test_a_fault_is_no_note_where_it_costs_as_much(cost: float | None, code: int) -> None:
    """Less may be known of it, as where AFTER holds one step, or nothing, as where it lacks the launches."""
    saving = None if cost is None else m.Saving(time_us_per_step=cost)
    again = fault(severity="info", confidence="low", saving=saving)
    assert verify(result(fault()), result(again)).code == code


def test_memory_that_is_no_longer_short_is_no_more_than_a_note() -> None:
    """How severe it is goes by how full the device is: nothing of it has to be known to be saved."""
    short = fault("TD403", saving=m.Saving(bytes=4 << 30))
    assert verify(result(short), result(fault("TD403", severity="info", saving=None))).code == 0


UNKNOWN: dict[str, m.Result] = {
    "no snapshot": result(outcomes=[outcome(kind="skipped", reason="no snapshot", capture="dump one", inputs=[])]),
    "failed": result(outcomes=[outcome(kind="error", reason="Traceback", inputs=[])]),
    "not run": result(outcomes=[]),
    "of which AFTER has no capture": result(inputs=[trace(rank=1)]),
    "lacks the evidence": result(inputs=[trace(), trace(rank=1)], outcomes=[outcome(inputs=[1])]),
    "without the Python stacks": result(inputs=[trace(recorded=m.Recorded(stacks=False))]),
    "does not say where": result(
        fault(location=m.Location(), fingerprint="elsewhere", id="TD101-1"), fault(location=m.Location(), fingerprint="x", id="TD101-2")
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", sorted(UNKNOWN))
def test_what_after_cannot_show_is_never_gone(reason: str) -> None:
    several = [fault(), fault(n=2, fingerprint="b"), fault(n=3, fingerprint="c")]
    before = result(*several) if reason == "does not say where" else result(fault())
    made = verify(before, UNKNOWN[reason])
    assert made.findings[-1].fate == "not_captured"
    assert reason in (made.findings[-1].reason or "")
    assert "gone" not in fates(made)
    assert made.code == (1 if reason == "does not say where" else 3)


WHOLE = trace(work=m.Work(kernels=90.0, operators=40.0, launches=0.8))
LESSER = {
    "kernels": trace(work=m.Work(operators=40.0)),
    "operators": trace(work=m.Work(kernels=90.0, launches=0.8)),
    "launches": trace(work=m.Work(kernels=90.0, operators=40.0, launches=0.2)),
    "step markers": trace(work=WHOLE.work, step_source=None),
}


@pytest.mark.parametrize("lost", sorted(LESSER))
def test_what_after_was_recorded_without_may_have_taken_the_finding_along(lost: str) -> None:
    lesser = [LESSER[lost]]
    smaller = fault(saving=m.Saving(time_us_per_step=10.0))
    for after in (result(inputs=lesser), result(smaller, inputs=lesser)):
        made = verify(result(fault(), inputs=[WHOLE]), after)
        assert (fates(made), made.code) == (["not_captured"], 3)
        assert f"without the {lost}" in (made.findings[0].reason or "")
    about_others = [fault("TD003"), fault("TD403", saving=m.Saving(bytes=4 << 30))]
    for finding in about_others:
        outcomes = [outcome("TD003"), outcome("TD403")]
        made = verify(result(finding, inputs=[WHOLE]), result(inputs=lesser, outcomes=outcomes))
        assert fates(made) == ["gone"]
    assert verify(result(fault(), inputs=lesser), result(inputs=lesser)).code == 0


def test_time_that_no_longer_has_an_owner_may_be_that_of_the_finding() -> None:
    def ledger(unowned_ms: int) -> dict[str, Any]:
        row = m.TimeLedgerRow(
            input=0, rank=0, device=0, phase="steady", steps=2, window_ns=20_000_000, compute_ns=4_000_000, exposed_comm_ns=0,
            exposed_copy_ns=0, idle_ns=m.IdleNs(python=16_000_000), step_us=0.0,
        )  # fmt: skip
        owner = m.OwnershipRow(
            input=0, rank=0, device=0, part="python", total_ns=16_000_000, unowned_ns=unowned_ms * 2_000_000
        )
        return {"time_ledger": [row], "ownership": [owner]}

    costs = fault(saving=m.Saving(time_us_per_step=4e3))
    for unowned_ms, code in ((2, 0), (3, 3)):
        made = verify(result(costs, **ledger(1)), result(steps=steps(9, 9), **ledger(unowned_ms)))
        assert made.code == code, unowned_ms
    assert "2.0 ms per step more" in (made.findings[0].reason or "")
    assert verify(result(costs), result(**ledger(8))).code == 0, "an older result does not say"
    for ms, code in ((9.0, 3), (7.0, 0)):
        shorter = m.Summary(step_us=ms * 1e3)
        before = result(costs, summary=m.Summary(step_us=1e4), **ledger(1))
        assert verify(before, result(summary=shorter, steps=steps(9, 9), **ledger(3))).code == code, ms


def test_steps_that_nothing_is_compared_with_are_no_longer_faster() -> None:
    pace = m.Pace(steps=5, median_us=1.0, mad_us=0.1)
    outcomes = [outcome(code) for code in ("TD003", "TD101", "TD403")]
    before = result(fault("TD003"), inputs=[trace(plain=pace)])
    after = [result(inputs=[trace(plain=p)], outcomes=outcomes) for p in (pace, None)]
    assert [verify(before, side).code for side in after] == [0, 3]


@pytest.mark.parametrize(("code", "fails"), [("TD001", 0), ("TD003", 0), ("TD006", 1), ("TD101", 1)])
def test_a_note_about_the_recording_is_no_change_of_the_program(code: str, fails: int) -> None:
    known = [outcome(c) for c in ("TD001", "TD003", "TD006", "TD101")]
    made = verify(
        result(fault("TD103"), outcomes=[*known, outcome("TD103", "fired")]),
        result(fault(code), outcomes=[*known, outcome("TD103")]),
    )
    assert (made.code, len(made.new)) == (fails, fails)


def test_how_to_record_what_is_missing_is_told() -> None:
    made = verify(result(fault()), UNKNOWN["no snapshot"])
    assert made.findings[0].capture == "dump one"
    assert "record: dump one" in render(made, Options())


def test_a_rule_that_yields_to_another_has_not_found_it_gone() -> None:
    other = fault("TD201", fingerprint="sync")
    after = result(other, outcomes=[outcome(refers_to=["TD201-1"]), outcome("TD201", "fired")])
    made = verify(result(fault()), after)
    assert (fates(made), made.findings[0].after_id, made.code) == (["still_there"], "TD201-1", 1)


def test_left_out_by_the_settings_is_not_gone() -> None:
    hiding = {"min-saving": {"value": 0.5, "origin": "trace-doctor.toml"}}
    made = verify(result(fault()), result(outcomes=[outcome(kind="fired")], config=hiding))
    assert (fates(made), made.code) == (["smaller"], 1)
    edited = verify(result(fault()), result(outcomes=[outcome(kind="fired")]))
    assert (fates(edited), edited.code) == (["not_captured"], 3)


def test_what_settings_hide_in_after_alone_is_not_gone() -> None:
    """Of two faults of a rule one is left: above what the settings ask for; the other below, and there."""
    lesser = fault(n=2, fingerprint="b", saving=m.Saving(time_us_per_step=39_000.0))
    settings = {"min-saving": {"value": 0.395, "origin": "trace-doctor.toml"}}
    shown = result(fault(n=1), config=settings)
    both = result(fault(), lesser, config=settings)
    assert fates(verify(both, shown)) == ["still_there", "gone"]
    made = verify(both, shown, whole_before=result(fault(), lesser), whole_after=result(fault(), lesser))
    assert (fates(made), made.code) == (["still_there", "still_there"], 1)
    assert made.findings[1].reason == "AFTER's settings hide it: min-saving"


def test_what_settings_hide_in_before_is_named() -> None:
    settings = {"ignore": {"value": ["TD403"], "origin": "environment"}}
    before, after = result(fault(), config=settings), result(config=settings)
    whole = result(fault(), fault("TD403"))
    made = verify(before, after, whole_before=whole, whole_after=result(fault("TD403")))
    unseen = "not looked for: TD403 rule-td403 of BEFORE, hidden by ignore"
    assert (made.code, made.warnings) == (0, [unseen])
    assert made.verdict == f"verify passed: the finding is fixed; {unseen}"
    assert (
        verify(before, after, whole_before=before, whole_after=after).verdict
        == "verify passed: the finding is fixed"
    )
    saved = verify(after, after)
    assert saved.verdict.endswith("BEFORE has no finding; its settings may hide some: ignore")


@pytest.mark.parametrize("of", ["before", "after"])
def test_a_side_that_has_lost_its_findings_proves_nothing(of: str) -> None:
    """A saved result whose rule fired, and that no longer says what it found."""
    lost = result(outcomes=[outcome("TD101", "fired")])
    sides = (lost, result()) if of == "before" else (result(fault()), lost)
    made = verify(*sides)
    assert made.code == 3
    assert f"{of.upper()} has no finding of TD101, which fired" in made.undecided


def test_silenced_is_not_gone() -> None:
    silenced = m.Suppressed(finding=fault(), kind="comment", where="train.py:41")
    made = verify(result(fault()), result(outcomes=[outcome(kind="fired")], suppressed=[silenced]))
    assert (fates(made), made.findings[0].reason, made.code) == (
        ["still_there"],
        "silenced by train.py:41",
        1,
    )


def test_a_fault_of_several_recordings_is_gone_when_it_is_in_none() -> None:
    thrice = [fault(n=n + 1, input=n) for n in range(3)]
    runs = {"inputs": [trace(), trace(), trace()]}
    assert fates(verify(result(*thrice, **runs), result(fault(input=2), **runs))) == ["still_there"] * 3
    assert fates(verify(result(*thrice, **runs), result(**runs))) == ["gone"] * 3


def test_a_fault_recorded_three_times_promises_once() -> None:
    runs = [trace(), trace(), trace()]
    found = [fault(n=n + 1, input=n) for n in range(3)]
    today = [m.WhatIf(input=n, fixes=[], step_us=100_000.0) for n in range(3)]
    each = [m.WhatIf(input=n, fixes=[f"TD101-{n + 1}"], step_us=60_000.0 + n) for n in range(3)]
    before = result(*found, inputs=runs, what_if=[*today, *each], summary=m.Summary(step_us=100_000.0))
    made = verify(before, result(inputs=runs))
    assert made.promise.time_us_per_step == 40_000.0
    bare = msgspec.structs.replace(before, what_if=[])
    alone = verify(bare, result(inputs=runs)).promise
    assert (alone.time_us_per_step, alone.basis) == (40_000.0, "replay")
    two = verify(result(fault(), fault("TD403", fingerprint="b")), result()).promise
    assert (two.time_us_per_step, two.basis) == (80_000.0, "bound")


@pytest.mark.parametrize("told", [(m.Location(), fault().location), (fault().location, m.Location())])
def test_a_fault_whose_place_one_side_does_not_know_is_the_same(told: tuple[m.Location, m.Location]) -> None:
    before, after = (fault(location=where, fingerprint=str(i)) for i, where in enumerate(told))
    made = verify(result(before), result(after))
    assert (fates(made), made.new) == (["still_there"], [])


def test_the_same_fault_in_another_place_is_gone_and_new() -> None:
    elsewhere = fault(
        fingerprint="TD101 in evaluate", location=m.Location(file="eval.py", function="evaluate")
    )
    made = verify(result(fault()), result(elsewhere))
    assert (fates(made), [n.id for n in made.new], made.code) == (["gone"], ["TD101-1"], 1)


def in_file(file: str, n: int = 1) -> m.Finding:
    return fault(n=n, fingerprint="utils.py load", location=m.Location(file=file, function="load"))


def test_two_files_of_one_name_are_two_faults() -> None:
    two = result(in_file("/old/a/utils.py"), in_file("/old/b/utils.py", 2))
    made = verify(two, result(in_file("/new/b/utils.py")))
    assert (fates(made), made.new) == (["gone", "still_there"], [])
    assert [f.measured_us for f in made.findings] == [made.promise.measured_us, None]
    assert verify(two, result()).promise.time_us_per_step == 80_000.0
    both = difference(two, result()).rules
    assert [rule.findings_before for rule in both if rule.code == "TD101"] == [2]
    silenced = m.Suppressed(finding=in_file("/new/b/utils.py"), kind="comment", where="train.py:41")
    assert fates(verify(two, result(suppressed=[silenced]))) == ["gone", "still_there"]


def test_a_file_that_was_moved_is_the_same() -> None:
    moved = verify(result(in_file("/base/utils.py")), result(in_file("/fix/utils.py")))
    assert (fates(moved), moved.new) == (["still_there"], [])
    another = verify(result(in_file("a/utils.py"), in_file("b/utils.py", 2)), result(in_file("c/utils.py")))
    assert (fates(another), len(another.new)) == (["gone", "gone"], 1)


def test_each_finding_of_after_answers_for_one_of_before() -> None:
    twice = [fault(), fault(n=2)]
    assert fates(verify(result(*twice), result(fault()))) == ["still_there", "gone"]
    assert fates(verify(result(*twice), result(*twice))) == ["still_there", "still_there"]


# ---------------------------------------------------------------------- new ones, selection, exit code


@pytest.mark.parametrize(
    ("severity", "fail_on", "code"),
    [("info", "warning", 0), ("info", "info", 1), ("warning", "warning", 1), ("warning", "critical", 0), ("critical", "never", 0)],
)  # fmt: skip
def test_new_findings_fail_from_a_severity_on(severity: m.Severity, fail_on: str, code: int) -> None:
    made = verify(result(fault()), result(fault("TD403", severity=severity)), fail_on=fail_on)
    assert ([n.code for n in made.new], made.code) == (["TD403"], code)


def test_what_before_could_not_have_shown_is_not_known_to_be_new() -> None:
    before = result(fault(), outcomes=[outcome(kind="fired"), outcome("TD403", "skipped", inputs=[])])
    made = verify(before, result(fault("TD403", severity="critical")))
    assert (made.new[0].checked_before, made.code) == (False, 0)
    assert "newly checked" in render(made, Options())


def test_only_the_chosen_findings_are_followed() -> None:
    both = result(fault(), fault("TD403"))
    assert verify(both, result(fault("TD403")), chosen={"TD101-1"}).code == 0
    assert verify(both, result(fault("TD403"))).code == 1


def test_one_still_there_beats_one_unknown() -> None:
    after = result(fault(), outcomes=[outcome(kind="fired"), outcome("TD403", "skipped", inputs=[])])
    made = verify(result(fault(), fault("TD403")), after)
    assert (fates(made), made.code) == (["still_there", "not_captured"], 1)


def test_nothing_before_and_nothing_after() -> None:
    made = verify(result(), result())
    assert (made.code, "nothing to verify" in made.verdict) == (0, True)


# ---------------------------------------------------------------------- step time, memory, promises


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ((100, 101, 99, 100), (60, 61, 59, 60), "faster"),
        ((60, 61, 59, 60), (100, 101, 99, 100), "slower"),
        ((100, 101, 99, 100), (99, 100, 98, 99), "within_noise"),
        ((100, 140, 70, 120), (90, 130, 60, 110), "within_noise"),
        ((100, 100), (50, 50, 50), "too_few_steps"),
        ((), (50, 50, 50), "not_captured"),
    ],
)
def test_step_time_says_only_what_the_steps_carry(
    before: tuple[float, ...], after: tuple[float, ...], verdict: str
) -> None:
    made = verify(result(steps=steps(*before)), result(steps=steps(*after)))
    assert made.step_time.verdict == verdict
    assert made.code == 0


def test_runs_that_differ_among_themselves_widen_the_noise() -> None:
    """Three quiet recordings that disagree by 20 % cannot show a gain of 10 %."""
    runs = [*steps(100, 100, 100), *steps(120, 120, 120, input=1), *steps(110, 110, 110, input=2)]
    made = verify(result(steps=runs), result(steps=steps(99, 99, 99)))
    assert made.step_time.before is not None
    assert made.step_time.before.captures == 3
    assert made.step_time.verdict == "within_noise"


def test_quiet_steps_of_runs_that_differ_show_no_gain() -> None:
    """So many steps that their own deviation says little: only that the two recordings differ does."""
    runs = [*steps(*[100.0] * 60), *steps(*[120.0] * 60, input=1)]
    made = verify(result(steps=runs), result(steps=steps(*[99.0] * 60)))
    assert made.step_time.before is not None
    assert made.step_time.before.noise_us == 10_000.0
    assert made.step_time.verdict == "within_noise"


def test_the_slowest_rank_is_the_step() -> None:
    made = verify(
        result(steps=[*steps(50, 50, 50), *steps(100, 100, 100, rank=1)]), result(steps=steps(50, 50, 50))
    )
    assert made.step_time.before is not None
    assert (made.step_time.before.rank, made.step_time.change_us) == (1, -50_000.0)


def what_if(**alone: float) -> list[m.WhatIf]:
    """A step of 100 ms; what each finding gives alone, and 30 ms with all of them."""
    today = [m.WhatIf(fixes=[], step_us=100_000.0)]
    each = [m.WhatIf(fixes=[i], step_us=100_000.0 - gain * 1e3) for i, gain in alone.items()]
    return [*today, *each, m.WhatIf(fixes=list(alone), step_us=30_000.0)]


def test_promised_beside_measured() -> None:
    before = result(fault(), steps=steps(100, 100, 100), what_if=what_if(**{"TD101-1": 70}))
    made = verify(before, result(steps=steps(35, 35, 35)))
    assert (made.promise.time_us_per_step, made.promise.measured_us) == (70_000.0, 65_000.0)
    assert made.findings[0].measured_us == 65_000.0
    assert "up to 70 ms of the mean step (simulated), measured 65.0 ms (93% of it)" in " ".join(
        render(made, Options()).split()
    )


def test_more_than_promised_within_what_steps_vary_is_no_share_above_all_of_it() -> None:
    before = result(fault(), steps=steps(195, 205, 200), what_if=what_if(**{"TD101-1": 70}))
    made = verify(before, result(steps=steps(120, 130, 125)))
    assert made.promise.measured_us == 75_000.0
    assert "measured 75.0 ms (all of it)" in " ".join(render(made, Options()).split())


def test_promises_of_several_are_never_added_beyond_what_all_give_together() -> None:
    names = ("TD101", "TD201", "TD501")
    found = [fault(c, fingerprint=c) for c in names]
    before = result(*found, what_if=what_if(**{"TD101-1": 40, "TD201-1": 50, "TD501-1": 20}))
    made = verify(before, result(outcomes=[outcome(c) for c in names]))
    assert made.promise.time_us_per_step == 70_000.0
    two = verify(
        before, result(found[1], outcomes=[outcome("TD101"), outcome("TD201", "fired"), outcome("TD501")])
    )
    assert two.promise.time_us_per_step == 60_000.0
    capped = verify(
        before, result(found[2], outcomes=[outcome("TD101"), outcome("TD201"), outcome("TD501", "fired")])
    )
    assert capped.promise.time_us_per_step == 70_000.0, "40 and 50 are more than all three give together"
    assert [f.measured_us for f in two.findings] == [None, None, None]


def test_what_a_few_long_steps_cost_is_measured_as_it_is_promised() -> None:
    """Compilations in two of six steps: the median of neither side holds one, the mean that promises are of does."""
    compiles = fault(saving=m.Saving(time_us_per_step=2_000_000.0))
    before = result(compiles, steps=steps(10, 10, 10, 10, 6000, 6000), summary=m.Summary(step_us=None))
    made = verify(before, result(steps=steps(10, 10, 10, 10, 10, 10)))
    assert made.promise.measured_us == pytest.approx(2 / 6 * 5_990_000)
    assert made.step_time.verdict == "within_noise", "whether steps became faster goes by the median"
    assert "of the mean step (upper bound), measured 2.00 s (" in " ".join(render(made, Options()).split())


def test_peak_memory_and_what_was_promised_of_it() -> None:
    spike = fault("TD403", saving=m.Saving(bytes=3 << 30, share_of_peak=0.5))
    peaks = [m.Summary(peak_allocated_bytes=n << 30, peak_reserved_bytes=n << 30) for n in (6, 4)]
    made = verify(result(spike, summary=peaks[0]), result(summary=peaks[1]))
    assert (made.promise.bytes, made.promise.measured_bytes) == (3 << 30, 2 << 30)
    assert made.promise.time_us_per_step is None, "of time nothing was promised"
    assert "6.00 GiB → 4.00 GiB" in render(made, Options())


def test_what_was_measured_stands_beside_the_one_finding_that_promised_of_it() -> None:
    """Of time, of memory; not beside one of the same fault that is still there."""
    slow, spike = fault(), fault("TD403", saving=m.Saving(bytes=3 << 30))
    again = fault(n=2, rank=1, fingerprint=slow.fingerprint)
    peaks = [m.Summary(peak_allocated_bytes=n << 30) for n in (6, 4)]
    sides = [[trace(), trace(1)], [trace(), trace(1)]]
    ranks = [steps(100, 100, 100), steps(60, 60, 60)]
    made = verify(
        result(slow, again, spike, inputs=sides[0], steps=ranks[0], summary=peaks[0]),
        result(again, inputs=sides[1], steps=ranks[1], summary=peaks[1]),
    )
    assert [(f.id, f.fate, f.measured_us, f.measured_bytes) for f in made.findings] == [
        (slow.id, "gone", 40_000.0, None),
        (again.id, "still_there", None, None),
        (spike.id, "gone", None, 2 << 30),
    ]


@pytest.mark.parametrize("plain", [(100, 50), (100, None), (None, 50)])
def test_steps_without_the_profiler_count_where_both_sides_have_them(
    plain: tuple[float | None, float | None],
) -> None:
    sides = []
    for ms in plain:
        pace = m.Pace(steps=9, median_us=ms * 1e3, mad_us=1.0) if ms is not None else None
        profiled = m.Pace(steps=3, median_us=200_000.0, mad_us=1.0)
        sides.append(result(inputs=[trace(plain=pace, pace=profiled)], steps=steps(200, 200, 200)))
    made = verify(*sides).step_time
    assert made.change_us == (-50_000 if None not in plain else 0)
    assert ("without the profiler" in made.how) == (None not in plain)


def test_steps_without_the_profiler_count_where_every_rank_has_them() -> None:
    profiled, plain = (m.Pace(steps=9, median_us=ms * 1e3, mad_us=1.0) for ms in (200, 100))
    inputs = [trace(pace=profiled, plain=plain), trace(1, pace=profiled)]
    one = result(inputs=inputs, steps=[*steps(200, 200, 200), *steps(200, 200, 200, rank=1, input=1)])
    assert "without the profiler" not in verify(one, one).step_time.how


@pytest.mark.parametrize("known", ["before", "after"])
def test_a_peak_that_one_side_lacks_is_not_compared(known: str) -> None:
    peak, none = m.Summary(peak_allocated_bytes=6 << 30), m.Summary()
    before, after = (peak, none) if known == "before" else (none, peak)
    made = verify(result(fault("TD403"), summary=before), result(summary=after))
    assert made.promise.measured_bytes is None


def test_a_function_is_a_place_as_well() -> None:
    """Two faults of one rule in two functions, of files that nobody knows, are two."""
    before, after = (fault(location=m.Location(function=f), fingerprint=f) for f in ("train", "validate"))
    made = verify(result(before), result(after))
    assert (fates(made), [f.id for f in made.new]) == (["gone"], [after.id])


def test_only_notes_on_the_capture_are_followed_as_well() -> None:
    note = fault("TD001", severity="info")
    made = verify(result(note), result(outcomes=[outcome(c) for c in ("TD001", "TD101", "TD403")]))
    assert (fates(made), made.code, made.verdict) == (["gone"], 0, "verify passed: the finding is fixed")


# ---------------------------------------------------------------------- doubts

H100 = m.TorchVersion(min="2.9.1", max="2.9.1")
DOUBTS: dict[str, tuple[m.Result, m.Result]] = {
    "another device": (result(inputs=[trace(device_name="V100")]), result(inputs=[trace(device_name="H100")])),
    "another torch version": (
        result(inputs=[trace(torch_version=H100)]),
        result(inputs=[trace(torch_version=m.TorchVersion(min="2.13.0", max="2.13.0"))]),
    ),
    "another number of ranks": (result(inputs=[trace(), trace(1)]), result()),
    "different model or batch size": (
        result(inputs=[trace(work=m.Work(shapes=["aten::linear [64, 8] [8, 8]"]))]),
        result(inputs=[trace(work=m.Work(shapes=["aten::linear [128, 8] [8, 8]"]))]),
    ),
    "kernels per step": (
        result(inputs=[trace(work=m.Work(kernels=1000.0))]),
        result(inputs=[trace(work=m.Work(kernels=300.0))]),
    ),
    "steps are marked by": (result(), result(inputs=[trace(step_source="optimizer")])),
    "with_stack=True only before": (result(), result(inputs=[trace(recorded=m.Recorded(stacks=False))])),
    "other settings: min-saving": (
        result(config={"min-saving": {"value": 0.1, "origin": "file"}}),
        result(),
    ),
    "the same recording": (result(steps=steps(1, 2, 3)), result(steps=steps(1, 2, 3))),
}  # fmt: skip


@pytest.mark.parametrize("doubt", sorted(DOUBTS))
def test_what_makes_a_difference_that_no_fix_made_is_named(doubt: str) -> None:
    made = verify(*DOUBTS[doubt])
    assert [doubt in w for w in made.warnings] == [True], made.warnings
    assert made.code == (3 if "ranks" in doubt else 0)


def test_nothing_is_fixed_in_the_same_recording() -> None:
    """As where AFTER was diagnosed by other thresholds, or findings were taken out of it."""
    before, after = result(fault(), steps=steps(1, 2, 3)), result(steps=steps(1, 2, 3))
    made = verify(before, after)
    assert (fates(made), made.code) == (["gone"], 3)
    assert "the same recording, in which no fix can show" in made.verdict
    assert verify(before, result(steps=steps(1, 2, 4))).code == 0


@pytest.mark.parametrize(
    ("before", "after", "lacks"),
    [((0, 1), (0,), "AFTER: rank 1"), ((0,), (0, 1), "BEFORE: rank 1"), ((0,), (1,), "BEFORE: rank 1"), (range(9), (0,), "AFTER: ranks 1, 2"),
     ((0, 1), (0, 1), ""), ((1,), (1,), "")],
)  # fmt: skip
def test_a_rank_that_only_one_side_has_is_not_compared(before: Any, after: Any, lacks: str) -> None:
    sides = [result(inputs=[trace(r) for r in ranks]) for ranks in (before, after)]
    for compare in (verify, difference):
        made = compare(*sides)
        assert (made.code, bool(made.undecided)) == ((3, True) if lacks else (0, False))
        assert not lacks or made.undecided[0].startswith(lacks)
        allowed = compare(*sides, allow_partial=True)
        assert (allowed.code, allowed.partial) == (0, made.undecided)


def test_what_was_not_recorded_is_no_doubt() -> None:
    unknown = result(inputs=[m.Input(path="a", kind="trace")])
    assert verify(unknown, result()).warnings == verify(result(), unknown).warnings == []


# ---------------------------------------------------------------------- the object

locations = st.builds(
    m.Location, file=st.none() | st.sampled_from(["a.py", "b.py"]), line=st.none() | st.integers(1, 9)
)
findings = st.lists(
    st.builds(
        fault,
        st.sampled_from(["TD101", "TD403"]),
        fingerprint=st.sampled_from("xyz"),
        rank=st.sampled_from([None, 0, 1]),
        location=locations,
        severity=st.sampled_from(["info", "warning", "critical"]),
        saving=st.none()
        | st.builds(m.Saving, time_us_per_step=st.floats(0, 1e6), bytes=st.integers(0, 1 << 40)),
    ),
    max_size=5,
).map(lambda found: [msgspec.structs.replace(f, id=f"{f.code}-{i}") for i, f in enumerate(found)])
kinds = st.sampled_from(["fired", "passed", "skipped", "error"])
results = st.builds(
    lambda found, a, b, inputs, times: m.Result(
        findings=found,
        inputs=inputs,
        outcomes=[outcome("TD101", a, inputs=None), outcome("TD403", b)],
        steps=steps(*times),
    ),
    findings,
    kinds,
    kinds,
    st.lists(st.builds(trace, st.sampled_from([0, 1])), max_size=2),
    st.lists(st.floats(0, 1e4), max_size=4),
)  # fmt: skip

unhurried = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@unhurried
@given(results, results)
def test_every_finding_is_accounted_for_and_fits_schema_and_terminal(
    before: m.Result, after: m.Result
) -> None:
    made = verify(before, after)
    assert [f.id for f in made.findings] == [f.id for f in before.findings]
    answered = [f.after_id for f in made.findings if f.after_id] + [n.id for n in made.new]
    assert set(answered) == {f.id for f in after.findings}
    decided = {o.code for o in after.outcomes if o.outcome in ("fired", "passed")}
    assert all(f.code in decided for f in made.findings if f.fate == "gone")
    deciding = [f for f in made.findings if f.severity != "info"] or made.findings
    assert made.code != 0 or all(f.fate == "gone" or f.after_severity == "info" for f in deciding)
    jsonschema.Draft202012Validator(m.json_schema(Verification)).validate(json.loads(made.to_json()))
    assert Verification.from_json(made.to_json()) == made
    for ascii in (False, True):
        text = render(made, Options(ascii=ascii))
        assert [line for line in text.splitlines() if columns(line) > 80] == []


@unhurried
@given(results)
def test_a_result_beside_itself_has_lost_and_gained_nothing(same: m.Result) -> None:
    made = verify(same, same)
    assert set(fates(made)) <= {"still_there"}
    assert (made.new, made.step_time.verdict in ("within_noise", "too_few_steps", "not_captured")) == (
        [],
        True,
    )


# ---------------------------------------------------------------------- what AFTER did not look for


def setting(name: str, value: Any) -> dict[str, Any]:
    return {"config": {name: {"value": value, "origin": "file"}}}


NOT_LOOKED_FOR: dict[str, tuple[m.Result, m.Result]] = {
    "AFTER: TD101 was not run": (result(), result(outcomes=[outcome("TD403")])),
    "AFTER: TD101, TD403 were not run": (result(), result(outcomes=[])),
    "AFTER: no rule was run": (result(outcomes=[]), result(outcomes=[])),
    "may hide findings: min-saving": (result(), result(**setting("min-saving", 0.9))),
    "may hide findings: min-confidence": (result(), result(**setting("min-confidence", "high"))),
    "may hide findings: warning-at": (result(**setting("warning-at", 0.01)), result()),
    "may hide findings: severity": (result(), result(**setting("severity", {"TD101": "info"}))),
    "may hide findings: suppress": (
        result(**setting("suppress", {"TD403": "x"})),
        result(**setting("suppress", {"TD403": "x", "TD101": "x"})),
    ),
    "may hide findings: steps": (result(), result(**setting("steps", [7, 8]))),
    "findings: steps, which begin later": (
        result(**setting("steps", [3, 7])),
        result(**setting("steps", [4, 7])),
    ),
    "findings: steps, which end earlier": (
        result(**setting("steps", [3, 7])),
        result(**setting("steps", [3, 6])),
    ),
    "findings: min-confidence of another version": (
        result(**setting("min-confidence", "certain")),
        result(**setting("min-confidence", "low")),
    ),
    "findings: min-saving in words": (
        result(**setting("min-saving", "little")),
        result(**setting("min-saving", 0.0)),
    ),
    "may hide findings: device": (result(**setting("device", 0)), result(**setting("device", 1))),
    "may hide findings: rules": (result(), result(**setting("rules", {"TD101": {"min_share": 0.9}}))),
}


@pytest.mark.parametrize("said", sorted(NOT_LOOKED_FOR))
def test_nothing_new_is_said_only_of_rules_that_looked_on_both_sides(said: str) -> None:
    before, after = NOT_LOOKED_FOR[said]
    said = re.split(", which| of another| in words", said)[0]
    for chosen in (None, ["TD403-1"]):
        with_finding = msgspec.structs.replace(before, findings=[fault("TD403")]) if chosen else before
        made = verify(with_finding, after, chosen=chosen, allow_partial=True)
        assert made.code == 3
        assert said in made.undecided[0]
        assert said in made.verdict


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (result(outcomes=[outcome("TD403")]), result()),
        (result(), result(outcomes=[outcome(), outcome("TD403", "skipped", reason="no snapshot")])),
        (result(outcomes=[outcome(), outcome("TD403", "skipped")]), result(outcomes=[outcome()])),
        (result(**setting("min-saving", 0.1)), result()),
        (result(**setting("min-confidence", "high")), result(**setting("min-confidence", "medium"))),
        (result(**setting("rules", {"a": 1})), result(**setting("rules", {"a": 1}))),
        (result(**setting("suppress", {"TD101": "x"})), result(**setting("suppress", {"TD101": "y"}))),
        (result(**setting("steps", [3, 7])), result(**setting("steps", [2, 8]))),
        (result(**setting("device", 1)), result()),
    ],
    ids=[
        "an older BEFORE",
        "skipped in AFTER",
        "skipped in BEFORE",
        "a lower limit",
        "less sure",
        "the same",
        "another reason",
        "more steps",
        "all devices",
    ],
)
def test_what_after_looked_for_as_well_is_nothing_new(before: m.Result, after: m.Result) -> None:
    assert verify(before, after).code == 0


def test_rules_that_did_not_look_decide_nothing_where_nothing_new_is_asked_for() -> None:
    assert verify(result(fault()), result(outcomes=[outcome()]), fail_on="never").code == 0
