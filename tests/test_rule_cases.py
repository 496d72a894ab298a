"""Runs every rule's own cases, and holds every rule to the form that its page, its fixes and its tests rely on."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec import structs
from words import MESSAGE_WORDS, faults, title_faults

from trace_doctor.config import Settings
from trace_doctor.engine.findings import file_claim
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.names.event_names import is_backward, is_optimizer
from trace_doctor.fixes.plan import plan
from trace_doctor.model import Result
from trace_doctor.model.parameters import parameters
from trace_doctor.registry import all_rules
from trace_doctor.rule import HEADINGS, Claim, Rule
from trace_doctor.testing import FlightBuilder, Invalid, RunBuilder, Valid, captures_of, run_case
from trace_doctor.testing.cases import claims_on

CASES = [(rule, case) for rule in all_rules() for case in (*rule.VALID, *rule.INVALID)]


@pytest.mark.parametrize(("rule", "case"), CASES, ids=[f"{r.code}-{c.name}" for r, c in CASES])
def test_case(rule: type[Rule], case: Valid | Invalid) -> None:
    claims = run_case(rule, case)
    for claim in claims:
        assert claim.message.endswith("."), claim.message
        assert "\n" not in claim.message
        assert not faults(claim.message, MESSAGE_WORDS)
        if "training" in f"{rule.title} {claim.message}".lower():
            captures = captures_of(case.build())
            names = [name for c in captures if c.run is not None for name in c.run.names]
            trains = any(is_backward(name) or is_optimizer(name) for name in names)
            assert trains or captures[0].snapshot is not None, (
                f"inference may be called training: {claim.message}"
            )
        for table in claim.evidence:
            assert all(len(row) == len(table.columns) for row in table.rows), table.title
        for fix in claim.fixes:
            assert fix.text or fix.codemod, fix.title
            assert fix.verify, f"{fix.title}: no way to verify"
            assert not [*title_faults(fix.title), *faults(fix.verify, MESSAGE_WORDS)]
            if fix.codemod:
                shown_only = parameters(fix.codemod, fix.params).shown_only
                assert (fix.safety == "display") == shown_only, (
                    f"{fix.title}: who decides on it is the codemod's to say"
                )
            assert fix.kind == "advice" or fix.safety == "display" or fix.codemod or fix.text, fix.title


@pytest.mark.parametrize("rule", all_rules(), ids=lambda r: r.code)
def test_each_threshold_decides(rule: type[Rule]) -> None:
    """In some case the rule says something else with the number out of reach; and where that can silence the rule, some
    sound capture is saved by this number alone."""
    cases = (*rule.VALID, *rule.INVALID)

    @functools.cache
    def analyzed(n: int) -> tuple[list[Facts], list[Claim]]:
        facts = [Facts(c, Options(**cases[n].options)) for c in captures_of(cases[n].build())]
        return facts, _said(rule(**cases[n].thresholds), facts)

    def effects(name: str, default: Any) -> Iterator[tuple[bool, int] | None]:
        for n, case in enumerate(cases):
            facts, usual = analyzed(n)
            for extreme in (1, 10**15) if isinstance(default, int) else (1e-9, 1e15):
                said = _said(rule(**{**case.thresholds, name: extreme}), facts)
                fewer_or_more = (len(said) > len(usual)) - (len(said) < len(usual))
                yield (isinstance(case, Valid), fewer_or_more) if repr(said) != repr(usual) else None

    for name, told in rule.known_thresholds.items():
        seen: set[tuple[bool, int] | None] = set()
        for effect in effects(name, told.default):
            seen.add(effect)
            if effect == (
                True,
                1,
            ):  # it decides, and keeps a sound capture from an alarm: no case can change that
                break
        assert seen != {None}, f"{name} changes nothing in any case"
        assert (False, -1) not in seen or (True, 1) in seen, f"no VALID case needs {name}"


def _said(rule: Rule, ranks: list[Facts]) -> list[Claim]:
    try:
        return claims_on(rule, ranks)
    except NotCaptured:
        return []


EDITED = [(rule, case) for rule, case in CASES if isinstance(case, Invalid) and case.before is not None]


@pytest.mark.parametrize(("rule", "case"), EDITED, ids=[f"{r.code}-{c.name}" for r, c in EDITED])
def test_the_first_fix_edits_the_script_as_the_case_says(
    rule: type[Rule], case: Invalid, tmp_path: Path
) -> None:
    assert case.before is not None
    script = tmp_path / PurePosixPath(case.file or "train.py").name
    script.write_text(case.before, encoding="utf-8")
    claim = run_case(rule, case)[0]
    fix = next(fix for fix in claim.fixes if fix.codemod)
    finding = file_claim(rule(), replace(claim, fixes=[fix]), 0, 0, "trace.json", Settings()).finding
    found = Result(findings=[structs.replace(finding, id=f"{rule.code}-1")])
    planned = plan(found, tmp_path)
    assert {name: data.decode() for name, (_, data) in planned.outputs.items()} == {script.name: case.after}


@pytest.mark.parametrize("rule", all_rules(), ids=lambda r: r.code)
def test_rule_is_whole(rule: type[Rule]) -> None:
    assert re.fullmatch(r"TD\d{3}", rule.code)
    assert rule.__module__.rsplit(".", 1)[-1] == rule.name.replace("-", "_"), "file name and rule name differ"
    assert rule.title
    assert rule.needs, "a rule without declared evidence cannot abstain"
    assert rule.VALID, "no case in which the rule stays silent"
    assert rule.INVALID, "no case in which the rule fires"
    sections = rule.sections()
    missing = [h for h in ("", *HEADINGS) if not sections.get(h)]
    assert not missing, f"docstring lacks {missing}"
    for name, threshold in rule.known_thresholds.items():
        assert threshold.description, name
        assert threshold.source, f"{name} does not say where its number comes from"
    others = {r.code for r in all_rules()} - {rule.code}
    assert {*rule.yields_to, *rule.explained_by} <= others


_PASSES_WITHOUT = {
    # They are about what is in the file, and what is not there is not damaged, dear, another GPU's or left on the CPU.
    *((code, "cpu_op") for code in ("TD002", "TD004", "TD006")),
    *((code, "cuda_runtime") for code in ("TD002", "TD004", "TD006")),
    *((code, "kernel") for code in ("TD002", "TD005")),
    # The profiler records annotations whenever it records operators: a trace without them is of a script that marks nothing.
    # It is judged as one step, of which TD001 says so, and torch marks its wrappers itself.
    *((f"TD{n:03}", "user_annotation") for n in (4, 201, 202, 203, 309, 502, 603, 604, 606)),
    # Stacks are an option, and off by default: operators and annotations show all but the rarest forms.
    *((f"TD{n:03}", "python_function") for n in (3, 103, 204, 501, 603)),
}
"""(rule, category): passes without these events, and rightly so."""


def _without(built: Any, category: str) -> bool:
    """Takes the events of a category out of what a case has built; whether there were any."""
    parts = built if isinstance(built, tuple) else (built,)
    parts = [p for p in parts if not isinstance(p, FlightBuilder)]
    lists = [p.events if isinstance(p, RunBuilder) else p.annotations for p in parts]
    before = sum(map(len, lists))
    for events in lists:
        events[:] = [e for e in events if e.get("cat", "external_annotations") != category]
    return sum(map(len, lists)) < before


_CATEGORIES = [
    "cpu_op", "cuda_runtime", "gpu_memcpy", "gpu_memset", "kernel", "user_annotation", "python_function", "external_annotations",
]  # fmt: skip


@pytest.mark.parametrize("category", _CATEGORIES)
@pytest.mark.parametrize("rule", all_rules(), ids=lambda r: r.code)
def test_a_fault_whose_events_were_not_recorded_has_not_passed(rule: type[Rule], category: str) -> None:
    passed = []
    for case in rule.INVALID:
        built = case.build()
        if not _without(built, category):
            continue
        try:
            claims = claims_on(
                rule(**case.thresholds), [Facts(c, Options(**case.options)) for c in captures_of(built)]
            )
        except NotCaptured:
            continue
        passed += [] if claims else [case.name]
    assert bool(passed) == ((rule.code, category) in _PASSES_WITHOUT), passed


_NUMBERS = ("correlation", "External id", "Python id")


def _also_before_the_steps(built: Any) -> bool:
    """Lets all that a case has built happen once more before its steps, where nothing marks it; whether there are steps."""
    parts = built if isinstance(built, tuple) else (built,)
    if not all(isinstance(p, RunBuilder) and any(map(_is_step, p.events)) for p in parts):
        return False
    for part in parts:
        length = max(e["ts"] + e.get("dur", 0) for e in part.events)
        most = {k: max((e["args"].get(k, 0) for e in part.events), default=0) for k in _NUMBERS}
        first = [e for e in part.events if not _is_step(e)]
        later = [
            e
            | {
                "ts": e["ts"] + length,
                "args": e["args"] | {k: e["args"][k] + most[k] for k in _NUMBERS if k in e["args"]},
            }
            for e in part.events
        ]
        part.events[:] = [*first, *later]
    return True


def _is_step(event: dict[str, Any]) -> bool:
    return str(event["name"]).startswith("ProfilerStep#")


@pytest.mark.parametrize("rule", [r for r in all_rules() if r.code != "TD002"], ids=lambda r: r.code)
def test_what_lies_before_the_steps_changes_nothing_that_is_said(rule: type[Rule]) -> None:
    """But of a damaged file, which is said of the file as a whole."""
    case = rule.INVALID[0]
    before, built = case.build(), case.build()
    if not _also_before_the_steps(built):
        pytest.skip("the case has no steps")
    told = [
        [(c.message, c.saving, c.confidence, c.severity) for c in _said(rule(**case.thresholds), facts)]
        for b in (before, built)
        for facts in [[Facts(capture, Options(**case.options)) for capture in captures_of(b)]]
    ]
    assert told[0] == told[1] != []
