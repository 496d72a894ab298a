from __future__ import annotations

import pytest

from trace_doctor.gate import decide
from trace_doctor.model import Finding, Outcome, OutcomeKind, Result, Severity


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
    assert decide(result(*severities), fail_on).code == code


def test_a_skipped_rule_fails_only_when_required() -> None:
    assert decide(result(td101="skipped")).code == 0
    decision = decide(result(td101="skipped"), require=["TD101"])
    assert decision.code == 3
    assert "no steps" in decision.text
    assert decide(result(td101="passed"), require=["dataloader-starvation"]).code == 0
    assert decide(result(td101="error"), require=["TD101"]).code == 3


def test_a_required_rule_that_was_not_selected_is_undecided() -> None:
    assert decide(Result(), require=["TD101"]).code == 3


def test_a_finding_beats_undecided() -> None:
    assert decide(result("critical", td101="skipped"), require=["TD101"]).code == 1
