"""JUnit XML: a suite of the rules and a suite of the budgets, for the test tab of a CI server.

A rule that could not look is skipped, never passed; a required one is an error. Findings that do not fail the check
are in the output of a case that passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from trace_doctor.errors import no_command_at_start
from trace_doctor.model import Budget, Finding, Gate, Outcome, Result
from trace_doctor.reporters import Options
from trace_doctor.reporters.fix_labels import fix_words
from trace_doctor.reporters.labels import budget_words, saving_words, where, where_in_capture
from trace_doctor.reporters.source_locations import failing
from trace_doctor.reporters.units import plural, visible

_FAMILIES = {"0": "capture", "1": "data", "2": "host", "3": "kernels", "4": "memory", "5": "compile", "6": "comms", "7": "serving"}  # fmt: skip
_NO_XML = str.maketrans({"\ufffe": "\\ufffe", "\uffff": "\\uffff"})


def render(result: Result, options: Options) -> str:
    """JUnit XML: each rule a case, each budget a case of its own."""
    paths = [i.path for i in result.inputs]
    name = paths[0] if len(paths) == 1 else plural(len(paths), "capture")
    fails = failing(result)
    outcomes = {o.code: o for o in result.outcomes}
    for f in result.findings:  # a saved result may name rules in its findings alone
        outcomes.setdefault(f.code, Outcome(code=f.code, name=f.name, outcome="fired"))
    suites = [_suite(name, [_rule(result, o, fails) for o in outcomes.values()])]
    if result.gate is not None and (missing := [*result.gate.undecided, *result.gate.partial]):
        suites.append(_suite("coverage", [_coverage(result.gate, why) for why in missing]))
    if result.gate is not None and result.gate.budgets:
        suites.append(_suite("budgets", [_budget(b) for b in result.gate.budgets]))
    root = ET.Element("testsuites", name=_clean(result.tool.name))
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(s.get(count, "0")) for s in suites)))
    root.extend(suites)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suite(name: str, cases: Sequence[ET.Element]) -> ET.Element:
    suite = ET.Element("testsuite", name=_clean(name), tests=str(len(cases)))
    for tag, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(count, str(sum(case.find(tag) is not None for case in cases)))
    suite.extend(cases)
    return suite


def _rule(result: Result, outcome: Outcome, failing: set[str]) -> ET.Element:
    family = _FAMILIES.get(outcome.code[2:3], "rules")
    case = _case(f"trace-doctor.{family}", f"{outcome.code} {outcome.name}")
    findings = [f for f in result.findings if f.code == outcome.code]
    fails = [f for f in findings if f.id in failing]
    required = result.gate is not None and any(u.split(" ")[0] == outcome.code for u in result.gate.undecided)
    reason = outcome.reason or "no reason given"
    if fails:
        more = f" (and {len(fails) - 1} more)" if len(fails) > 1 else ""
        _add(case, "failure", fails[0].message + more, "\n\n".join(map(_text, fails)), fails[0].severity)
    elif outcome.outcome == "error":
        _add(case, "error", reason, "", "error")
    elif outcome.outcome == "skipped" and required:
        _add(case, "error", f"required, but {reason}", outcome.capture or "", "undecided")
    elif outcome.outcome == "skipped":
        _add(case, "skipped", reason, outcome.capture or "")
    rest = [f for f in findings if f.id not in failing]
    silent = [s for s in result.suppressed if s.finding.code == outcome.code]
    lines = [_text(f) for f in rest] + [
        visible(f"suppressed at {s.where} ({s.reason}): {s.finding.message}") for s in silent
    ]
    if lines:
        ET.SubElement(case, "system-out").text = _clean("\n\n".join(lines))
    return case


def _text(finding: Finding) -> str:
    place = " · ".join(p for p in (where(finding.location), where_in_capture(finding.location)) if p)
    lines = [
        f"{finding.id} {finding.severity}, {finding.confidence} confidence",
        place,
        finding.message,
        saving_words(finding.saving),
        *(f"fix: {fix.title} [{fix_words(fix)}]" for fix in finding.fixes),
    ]
    return "\n".join(visible(line) for line in lines if line)


def _coverage(gate: Gate, reason: str) -> ET.Element:
    """What was not looked at: an error, unless it was let pass."""
    case = _case("trace-doctor.coverage", reason)
    _add(case, "skipped" if reason in gate.partial else "error", reason, "", "undecided")
    return case


def _budget(budget: Budget) -> ET.Element:
    case = _case("trace-doctor.budgets", budget.name)
    text = budget_words(budget)
    if budget.level == "error" and budget.status != "passed":
        tag = "failure" if budget.status == "failed" else "error"
        _add(case, tag, text, "", budget.status)
    elif budget.status == "undecided":
        _add(case, "skipped", text, "")
    else:
        ET.SubElement(case, "system-out").text = _clean(visible(text))
    return case


def _case(classname: str, name: str) -> ET.Element:
    return ET.Element("testcase", classname=classname, name=_clean(name))


def _add(case: ET.Element, tag: str, message: str, text: str, kind: str = "") -> None:
    element = ET.SubElement(case, tag, message=visible(message).translate(_NO_XML))
    if kind:
        element.set("type", kind)
    element.text = _clean(text)


def _clean(text: str) -> str:
    """No character that XML 1.0 forbids, nor one that a terminal would obey, nor a line that a CI server would."""
    return no_command_at_start(visible(text, block=True)).translate(_NO_XML)
