"""SARIF 2.1.0, for code scanning and editors: one result for each finding, each with a place in the repository.

GitHub refuses an upload in which one result has no place, and tells alerts apart by `primaryLocationLineHash`. Only what
is used is written; the limits (25,000 results, 10 MB) are far above what a result holds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from trace_doctor.model import Finding, Fix, Outcome, Result, Suppressed
from trace_doctor.model.html_safe_json import html_safe
from trace_doctor.reporters import Options, units
from trace_doctor.reporters.diagnosis import shortages
from trace_doctor.reporters.diffs import Edit, edits_of
from trace_doctor.reporters.fix_labels import is_patch
from trace_doctor.reporters.labels import saving_words
from trace_doctor.reporters.source_locations import anchors, capture_path, inside

_LEVEL = {"critical": "error", "warning": "warning", "info": "note"}
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"
Object = dict[str, Any]


def visible(text: str, *, block: bool = False) -> str:
    """Foreign text that is no link to anybody: SARIF reads `[text](address)` in messages as one."""
    return units.visible(text, block=block).replace("](", "] (")


def _plain(text: str) -> Object:
    """A message without placeholders: braces of its text are doubled (3.11.5 of the standard)."""
    return {"text": visible(text).replace("{", "{{").replace("}", "}}")}


def render(result: Result, options: Options) -> str:
    """SARIF 2.1.0; suppressed findings are in it as suppressed."""
    findings = [*result.findings, *(s.finding for s in result.suppressed)]
    rules = {f.code: f for f in reversed(findings)}
    codes = {code: n for n, code in enumerate(sorted(rules))}
    occurrences: Counter[str] = Counter()
    results = []
    in_baseline = frozenset(result.gate.known) if result.gate is not None else frozenset()
    with_baseline = result.gate is not None and result.gate.with_baseline
    suppressions: list[Suppressed | None] = [*[None] * len(result.findings), *result.suppressed]
    for finding, place, suppressed in zip(findings, anchors(result, findings), suppressions, strict=True):
        occurrences[finding.fingerprint] += 1
        entry = _result(result, finding, place)
        if options.saved:  # viewers offer to apply them
            entry.pop("fixes", None)
        entry["ruleIndex"] = codes[finding.code]
        entry["partialFingerprints"] = {
            "primaryLocationLineHash": f"{finding.fingerprint}:{occurrences[finding.fingerprint]}",
            "traceDoctorFingerprint/v1": finding.fingerprint,
        }
        if with_baseline:
            entry["baselineState"] = "unchanged" if finding.id in in_baseline else "new"
        entry["suppressions"] = [_suppression(suppressed)] if suppressed is not None else []
        results.append(entry)
    titles = {o.code: o.title for o in result.outcomes}
    driver = {
        "name": result.tool.name,
        "version": result.tool.version,
        "rules": [_rule(rules[code], titles.get(code, "")) for code in codes],
    }
    run: Object = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The root of the repository."}}},
        "invocations": [_invocation(result)],
        "results": results,
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    text = json.dumps(log, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    return html_safe(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")


def _rule(example: Finding, title: str) -> Object:
    """`title`: of the rule; a finding may have one of its own, with its figures."""
    title = visible(title or example.title or example.name)
    why = visible(example.why, block=True).strip() or title
    more = f"`trace-doctor rule {example.code}` explains it, with the thresholds in force."
    return {
        "id": example.code,
        "name": example.name,
        "shortDescription": {"text": title},
        "fullDescription": {"text": why},
        "help": {"text": f"{why}\n\n{more.replace('`', '')}", "markdown": f"{why}\n\n{more}"},
        "defaultConfiguration": {"level": _LEVEL[example.severity]},
        "properties": {"tags": ["performance", "pytorch"], "precision": example.confidence},
    }


def _result(result: Result, finding: Finding, place: tuple[str, int]) -> Object:
    entry: Object = {
        "ruleId": finding.code,
        "level": _LEVEL[finding.severity],
        "message": _plain(_message(finding)),
        "locations": [_location(*place, finding.location.function)],
        "relatedLocations": [
            {**_location(capture_path(result, finding)), "message": {"text": "the capture it was found in"}}
        ],
        "properties": {"confidence": finding.confidence, "id": finding.id, **_saving(finding)},
    }
    fixes = [f for fix in finding.fixes if is_patch(fix) for f in _fix(fix)]
    if fixes:
        entry["fixes"] = fixes
    return entry


def _message(finding: Finding) -> str:
    """The sentence and what to do: alerts are listed by it, without the rest."""
    patch = next((f for f in finding.fixes if f.safety != "display" and not f.short), None)
    parts = [finding.message, f"Fix: {patch.title}." if patch else "", saving_words(finding.saving)]
    return " ".join(s for s in parts if s)


def _location(file: str, line: int | None = None, function: str | None = None) -> Object:
    uri = quote(file, safe="/~!$&'()*+,;=@-._", errors="replace")
    physical: Object = {"artifactLocation": {"uri": uri, "uriBaseId": _ROOT}}
    if line is not None:
        physical["region"] = {"startLine": line}
    location_object: Object = {"physicalLocation": physical}
    if function:
        location_object["logicalLocations"] = [{"fullyQualifiedName": visible(function), "kind": "function"}]
    return location_object


def _saving(finding: Finding) -> Object:
    saving = finding.saving
    properties = {
        "known": saving.known,
        "low": saving.low,
        "high": saving.high,
        "basis": saving.basis,
        "timeUsPerStep": saving.time_us_per_step,
        "shareOfStep": saving.share_of_step,
        "bytes": saving.bytes,
    } if saving else {}  # fmt: skip
    return {"saving": {k: v for k, v in properties.items() if v is not None}} if saving else {}


def _fix(fix: Fix) -> Iterator[Object]:
    changes = [
        {
            "artifactLocation": _location(path)["physicalLocation"]["artifactLocation"],
            "replacements": [_replacement(edit) for edit in changed.edits],
        }
        for changed in edits_of(fix.diff or "")
        if (path := inside(changed.path)) is not None
    ]
    if changes:
        yield {"description": _plain(f"{fix.title} [{fix.safety}]"), "artifactChanges": changes}


def _replacement(edit: Edit) -> Object:
    """Whole lines: from the start of the first to the start of the one behind the last."""
    end = edit.line + edit.removed
    region = {"startLine": edit.line, "startColumn": 1, "endLine": end, "endColumn": 1}
    inserted = {"insertedContent": {"text": edit.text}} if edit.text else {}
    return {"deletedRegion": region, **inserted}


def _suppression(silenced: Suppressed) -> Object:
    return {
        "kind": "inSource" if silenced.kind == "comment" else "external",
        "status": "accepted",
        "justification": visible(silenced.reason or "no reason given"),
    }


def _invocation(result: Result) -> Object:
    """Rules that could not look are told: absent is not passed."""
    blind = [o for o in result.outcomes if o.outcome in ("skipped", "error")]
    invocation: Object = {
        "executionSuccessful": True,
        "toolExecutionNotifications": [_notification(o) for o in blind]
        + [{"level": "warning", "message": _plain(why)} for why in shortages(result)],
    }
    if result.gate is not None:
        invocation["exitCode"] = result.gate.code
        invocation["exitCodeDescription"] = visible(result.gate.verdict)
    return invocation


def _notification(outcome: Outcome) -> Object:
    text = f"{outcome.code} {outcome.name} {outcome.outcome}: {outcome.reason or 'no reason given'}"
    return {"level": "note" if outcome.outcome == "skipped" else "error", "message": _plain(text)}
