from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trace_doctor.config.budget_table import parse_budgets
from trace_doctor.gate.baseline import Baseline
from trace_doctor.gate.decision import Terms, decide
from trace_doctor.model import (
    Finding,
    Ignored,
    Input,
    Location,
    Outcome,
    OutcomeKind,
    Pace,
    Ranks,
    Result,
    Saving,
    Severity,
    Suppressed,
)
from trace_doctor.model.findings import Confidence


def result(*severities: Severity, td101: OutcomeKind = "passed") -> Result:
    findings = [
        Finding(id=f"TD401-{i}", code="TD401", name="x", title="x", severity=s, confidence="high", message="x.", fingerprint=str(i))
        for i, s in enumerate(severities)
    ]  # fmt: skip
    outcome = Outcome(
        code="TD101",
        name="dataloader-starvation",
        outcome=td101,
        reason="no steps" if td101 == "skipped" else None,
    )
    return Result(findings=findings, outcomes=[outcome])


@pytest.mark.parametrize(
    ("severities", "fail_on", "code"),
    [
        ((), "info", 0),
        (("info",), "warning", 0),
        (("info",), "info", 1),
        (("warning",), "warning", 1),
        (("warning",), "critical", 0),
        (("critical",), "critical", 1),
        (("critical",), "never", 0),
    ],
)
def test_fail_on(severities: tuple[Severity, ...], fail_on: str, code: int) -> None:
    gate = decide(result(*severities), Terms(fail_on=fail_on))
    assert gate.code == code
    assert len(gate.failing) == code


def test_a_skipped_rule_fails_only_when_required() -> None:
    assert decide(result(td101="skipped")).code == 0
    gate = decide(result(td101="skipped"), Terms(require=["TD101"]))
    assert gate.code == 3
    assert "no steps" in gate.verdict
    assert decide(result(td101="passed"), Terms(require=["dataloader-starvation"])).code == 0
    assert decide(result(td101="error"), Terms(require=["TD101"])).code == 3


def test_a_required_rule_that_was_not_selected_is_undecided() -> None:
    assert decide(Result(), Terms(require=["TD101"])).code == 3


def test_a_finding_beats_undecided() -> None:
    assert decide(result("critical", td101="skipped"), Terms(require=["TD101"])).code == 1


def test_the_recipe_of_the_python_page_runs() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "python-api.md").read_text()
    recipe = re.search(r"## check\n+```python\n(.+?)```", page, re.S)
    assert recipe
    space = {"result": result("critical")}
    exec(recipe.group(1), space)
    assert space["result"].gate is not None
    assert space["result"].gate.code == 0


def test_captures_without_any_event_do_not_pass_for_healthy() -> None:
    """A recording that went wrong must not let a merge through; one sound capture is enough to decide."""
    empty, sound = (Input(path="a.json", kind="trace", events=n) for n in (0, 7))
    gate = decide(Result(inputs=[empty, empty]))
    assert (gate.code, gate.verdict) == (3, "check is inconclusive: the captures hold no event")
    assert decide(Result(inputs=[empty, sound])).code == 0


def test_one_finding_is_enough_of_a_capture_without_events() -> None:
    empty = Input(path="a.json", kind="trace", events=0)
    assert decide(Result(inputs=[empty], findings=result("info").findings)).code == 0


BUDGET = parse_budgets({"step_time": "2 ms"})
NOTHING = Baseline.of(result())


def paced(*severities: Severity, ms: float = 1.0) -> Result:
    trace = Input(path="a.json", kind="trace", events=1, pace=Pace(steps=5, median_us=ms * 1e3, mad_us=0.0))
    return msgspec.structs.replace(result(*severities), inputs=[trace])


@pytest.mark.parametrize(
    ("found", "terms", "verdict"),
    [
        (paced(), Terms(fail_on="never"), "check passed: findings do not fail (fail-on never)"),
        (paced(), Terms(fail_on="critical"), "check passed: no finding at critical or above"),
        (
            paced(),
            Terms(budgets=BUDGET, fail_on="never"),
            "check passed: findings do not fail (fail-on never), no budget broken",
        ),
        (paced(), Terms(baseline=NOTHING), "check passed: no new finding at warning or above, no regression"),
        (paced("critical"), Terms(), "check failed: 1 finding at warning or above (TD401)"),
        (paced("critical", "warning"), Terms(), "check failed: 2 findings at warning or above (TD401)"),
        (paced("critical"), Terms(baseline=NOTHING), "check failed: 1 new finding at warning or above (TD401)"),
        (paced(ms=3), Terms(budgets=BUDGET), "check failed: 1 limit exceeded (step_time)"),
        (result(), Terms(budgets=BUDGET), "check is inconclusive: step_time"),
        (paced(), Terms(require=["TD1", "TD2"]), "check is inconclusive: "),
    ],
)  # fmt: skip
def test_the_verdict_says_what_was_asked(found: Result, terms: Terms, verdict: str) -> None:
    said = decide(found, terms).verdict
    assert said.startswith(verdict) if verdict.endswith((" ", "step_time")) else said == verdict


@pytest.mark.parametrize(("rules", "more"), [(5, 0), (6, 2)])
def test_of_many_reasons_the_first_are_said(rules: int, more: int) -> None:
    codes = ["TD101", "TD201", "TD202", "TD301", "TD302", "TD403"][:rules]
    verdict = decide(Result(), Terms(require=codes)).verdict
    assert verdict.count("not selected") == rules - more
    assert verdict.endswith(f"{more} more reasons") == bool(more)


def test_an_entry_that_names_another_place_does_not_know_the_finding() -> None:
    """As one that was written by hand: what a reviewer reads in it is what it accepts."""
    now = result("warning")
    baseline = Baseline.of(now)
    assert decide(now, Terms(baseline=baseline)).code == 0
    entry = msgspec.structs.replace(baseline.findings[0], place="train.py val")
    elsewhere = msgspec.structs.replace(baseline, findings=[entry])
    assert decide(now, Terms(baseline=elsewhere)).code == 1


def test_what_the_baseline_has_and_this_result_has_not() -> None:
    """Gone where its rule looked, else not checked; silenced is neither."""
    had = result("warning", "warning")
    baseline = Baseline.of(had)
    looked = Outcome(code="TD401", name="x", outcome="passed")
    silenced = Suppressed(finding=had.findings[1], kind="comment", where="a.py:1")
    for now, notes in (
        (result(), ["not checked"] * 2),
        (msgspec.structs.replace(result(), outcomes=[looked]), ["fixed: TD401"] * 2),
        (msgspec.structs.replace(result("warning"), suppressed=[silenced]), ["suppressed: TD401"]),
        (had, []),
    ):
        said = decide(now, Terms(baseline=baseline)).notes
        assert len(said) == len(notes) and all(n in s for n, s in zip(notes, said, strict=True)), said


@pytest.mark.parametrize(("before", "now"), [(None, 0.9), (0.1, None), (None, None)])
def test_a_cost_that_one_side_does_not_know_is_no_worse(before: float | None, now: float | None) -> None:
    def costs(share: float | None) -> Result:
        made = result("info")
        finding = msgspec.structs.replace(made.findings[0], saving=Saving(share_of_step=share))
        return msgspec.structs.replace(made, findings=[finding])

    assert decide(costs(now), Terms(fail_on="info", baseline=Baseline.of(costs(before)))).code == 0


ELSEWHERE = [
    ("lib/fault.py", "src/fault.py", True), ("lib/fault.py", "lib/fault.py", False), ("fault.py", "lib/fault.py", False),
    ("/ci/build1/src/a.py", "/ci/build2/src/a.py", False), ("/ci/1/lib/a.py", "/ci/1/src/a.py", True),
    ("C:\\ci1\\src\\a.py", "D:/ci2/src/a.py", False), ("/ci/1/src/a.py", "src/a.py", False), ("/ci/1/src/a.py", "lib/a.py", True),
    (None, None, False),
]  # fmt: skip


@pytest.mark.parametrize(("before", "now", "new"), ELSEWHERE)
def test_a_file_of_the_same_name_in_another_folder_is_not_known(
    before: str | None, now: str | None, new: bool
) -> None:
    known, shown = in_file(before), in_file(now)
    gate = decide(shown, Terms(baseline=Baseline.of(known)))
    assert (gate.code, gate.known) == ((1, []) if new else (0, ["TD401-0"]))


def test_with_the_source_a_path_is_the_whole_one() -> None:
    baseline = Baseline.of(in_file("a.py", scripts=["a.py"], source_root="train/"))
    for file, root, code in (("a.py", "train/", 0), ("train/a.py", "", 0), ("a.py", "", 1)):
        shown = in_file(file, scripts=[file], source_root=root)
        assert decide(shown, Terms(baseline=baseline)).code == code


def test_a_checkout_in_another_folder_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baselines = []
    for build in ("build1", "build2"):
        (tmp_path / build).mkdir()
        monkeypatch.chdir(tmp_path / build)
        baselines.append(Baseline.of(in_file(str(tmp_path / build / "a.py"))))
    assert decide(in_file(str(tmp_path / "build2" / "a.py")), Terms(baseline=baselines[0])).code == 0
    assert baselines[0] == baselines[1]


def in_file(file: str | None, **more: Any) -> Result:
    made = result("warning")
    finding = msgspec.structs.replace(made.findings[0], location=Location(file=file))
    return msgspec.structs.replace(made, findings=[finding], **more)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "incomplete"),
        ({"incomplete": []}, "2 of 8 ranks"),
        ({"incomplete": [], "ranks": Ranks(read=[0, 1])}, ""),
        ({"incomplete": [], "ranks": Ranks(read=[0, 1], recorded=[0, 1, 2])}, "nothing was read of rank 2"),
        ({"incomplete": [], "ranks": Ranks(read=[0], recorded=[0, 1, 2])}, ""),
        ({"incomplete": [], "ranks": Ranks(), "ignored": [Ignored(path="a", reason="empty", unread=True)]}, "a was not read"),
        ({"incomplete": [], "ranks": Ranks(), "inputs": [Input(path="a", kind="trace", too_little="cut"), Input(path="b", kind="trace")]}, "a cannot be judged: cut"),
    ],
)  # fmt: skip
def test_what_a_result_no_longer_says_is_shown_by_the_rest_of_it(change: dict[str, Any], says: str) -> None:
    whole = Result(
        inputs=[Input(path=f"rank{n}", kind="trace", rank=n, events=9) for n in (0, 1)],
        outcomes=[Outcome(code="TD101", name="dataloader-starvation", outcome="passed")],
        ranks=Ranks(read=[0, 1], world=8),
        incomplete=["incomplete"],
    )
    gate = decide(msgspec.structs.replace(whole, **change))
    assert (gate.code, says in gate.verdict) == (3 if says else 0, True)


@pytest.mark.parametrize(("severity", "code"), [("info", 3), ("warning", 0)])
def test_a_required_rule_that_found_a_note_and_could_not_look_fully(severity: Severity, code: int) -> None:
    """Silenced, so that the finding itself decides nothing."""
    found = result(severity)
    outcome = Outcome(code="TD401", name="x", outcome="fired", reason="the history ends at its peak")
    silenced = Suppressed(finding=found.findings[0], kind="comment", where="a.py:1")
    both = msgspec.structs.replace(found, findings=[], suppressed=[silenced], outcomes=[outcome])
    decided = decide(both, Terms(require=["TD401"]))
    assert (decided.code, decided.undecided) == (
        code, ["TD401 (info only, and the history ends at its peak)"] * (code == 3),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("confidence", "share", "code"), [("low", 0.5, 3), ("low", 0.02, 0), ("medium", 0.5, 0)]
)
def test_a_required_rule_whose_doubt_keeps_a_warning_back(
    confidence: Confidence, share: float, code: int
) -> None:
    found = result("info")
    [finding] = found.findings
    doubtful = msgspec.structs.replace(finding, confidence=confidence, saving=Saving(share_of_step=share))
    outcome = Outcome(code="TD401", name="x", outcome="fired")
    one = msgspec.structs.replace(found, findings=[doubtful], outcomes=[outcome])
    decided = decide(one, Terms(require=["TD401"]))
    assert (decided.code, decided.undecided) == (code, ["TD401 (info only, of low confidence)"] * (code == 3))
