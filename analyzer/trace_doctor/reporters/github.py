"""Workflow commands: the annotations that GitHub Actions shows beside the code and in the job's summary.

GitHub keeps ten errors, ten warnings and ten notices of a step, so the most expensive come first and a plain line counts
the rest; another one the findings that are silenced. Data escapes `%`, CR and LF; properties `:` and `,` as well, as the runner undoes it. The runner also obeys
`##[command]` anywhere in a line.
"""

from __future__ import annotations

from collections import Counter

from trace_doctor.model import Budget, Finding, Result
from trace_doctor.reporters import Options
from trace_doctor.reporters.labels import SEVERITIES, budget_words, saving_words
from trace_doctor.reporters.source_locations import failing, line_of
from trace_doctor.reporters.units import plural, visible

MOST = 10
_KIND = {"critical": "error", "warning": "warning", "info": "notice"}


def render(result: Result, options: Options) -> str:
    """Workflow commands that GitHub shows as annotations, at most MOST of a kind."""
    lines: list[tuple[str, str]] = []
    gate = result.gate
    if gate is not None and gate.code:
        lines.append(("error", _command("error", gate.verdict, {"title": result.tool.name})))
    if gate is not None:
        lines += [_budget(b) for b in gate.budgets if b.status != "passed"]
    fails = failing(result)
    ordered = sorted(result.findings, key=lambda f: (f.id not in fails, SEVERITIES.index(f.severity)))
    lines += [(_KIND[f.severity], _finding(result, f)) for f in ordered]
    count: Counter[str] = Counter()
    first_lines, left_out = [], Counter[str]()
    for kind, line in lines:
        count[kind] += 1
        if count[kind] <= MOST:
            first_lines.append(line)
        else:
            left_out[kind] += 1
    more = ", ".join(plural(left_out[k], k) for k in ("error", "warning", "notice") if left_out[k])
    rest = [f"trace-doctor: {more} more than GitHub shows of a step; see the report"] if more else []
    if result.suppressed:
        silenced = plural(len(result.suppressed), "finding")
        rest.append(f"trace-doctor: {silenced} silenced by comments or configuration")
    return "".join(line + "\n" for line in [*first_lines, *rest])


def _finding(result: Result, finding: Finding) -> str:
    place = line_of(result, finding.location)
    properties = {"title": f"{finding.code} {finding.name}"}
    if place is not None:
        properties["file"] = place[0]
        if place[1] is not None:
            properties["line"] = str(place[1])
    patch = next((f for f in finding.fixes if f.safety != "display" and not f.short), None)
    parts = [
        finding.message,
        saving_words(finding.saving),
        f"fix: {patch.title} [{patch.safety}]" if patch else "",
    ]
    return _command(_KIND[finding.severity], "\n".join(s for s in parts if s), properties)


def _budget(budget: Budget) -> tuple[str, str]:
    kind = "error" if budget.level == "error" else "warning"
    return kind, _command(kind, budget_words(budget), {"title": f"budget {budget.name}"})


def _command(kind: str, message: str, properties: dict[str, str]) -> str:
    parts = ",".join(f"{name}={_property(value)}" for name, value in sorted(properties.items()))
    return f"::{kind} {parts}::{_data(message)}"


def _data(text: str) -> str:
    text = visible(text, block=True)
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(visible(text)).replace(":", "%3A").replace(",", "%2C")
