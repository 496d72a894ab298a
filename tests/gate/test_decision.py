from __future__ import annotations

import re
from pathlib import Path

import pytest

from trace_doctor.gate.decision import Terms, decide
from trace_doctor.model import Finding, Input, Outcome, OutcomeKind, Result, Severity


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
    assert (gate.code, gate.verdict) == (3, "check could not decide: the captures hold no event")
    assert decide(Result(inputs=[empty, sound])).code == 0
