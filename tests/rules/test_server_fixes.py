"""On a capture of an inference server findings name its options, and no edit of a training script."""

from __future__ import annotations

import pytest

from trace_doctor.capture import Capture
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.registry import all_rules
from trace_doctor.rule import Claim, Rule
from trace_doctor.testing import RunBuilder
from trace_doctor.testing.cases import claims_on


def _served(rule: type[Rule]) -> list[Claim]:
    """What the rule says of the faults in its own cases where a server runs them."""
    claims: list[Claim] = []
    for case in rule.INVALID:
        built = case.build()
        if not isinstance(built, RunBuilder):
            continue
        for event in built.events:
            if event["name"].startswith("ProfilerStep#"):
                event["name"] = "execute_context_0(0)_generation_8(8)"
        facts = Facts(Capture(0, run=built.run()))
        try:
            claims += claims_on(rule(), [facts]) if facts[Steps].of_server else []
        except NotCaptured:
            continue
        if claims:
            break
    return claims


@pytest.mark.parametrize("rule", [r for r in all_rules() if r.server_fixes], ids=lambda r: r.code)
def test_a_fault_in_a_server_is_mended_by_its_options(rule: type[Rule]) -> None:
    claims = _served(rule)
    assert claims
    assert {fix.title for claim in claims for fix in claim.fixes} == {fix.title for fix in rule.server_fixes}


@pytest.mark.parametrize("code", ["TD202", "TD203"])
def test_host_work_of_a_server_is_no_matter_for_a_loader_or_the_compiler(code: str) -> None:
    (rule,) = (r for r in all_rules() if r.code == code)
    text = " ".join(fix.text or "" for claim in _served(rule) for fix in claim.fixes)
    assert "SGLang" in text
    assert "DataLoader" not in text
    assert "torch.compile" not in text
