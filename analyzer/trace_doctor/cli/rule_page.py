"""A rule's page, from its docstring and its thresholds: one text for `rule`, the docs, SARIF and the report."""

from __future__ import annotations

from typing import Any

from trace_doctor.rule import HEADINGS, Rule


def page(rule: type[Rule], in_force: Rule | None = None) -> str:
    """The page as Markdown, with the thresholds in force (the defaults when none are given)."""
    sections = rule.sections()
    instance = in_force or rule()
    parts = [f"# {rule.code} {rule.name}", sections.get("", "")]
    for heading in HEADINGS:
        if text := sections.get(heading):
            parts += [f"## {heading}", text]
    rows = [
        f"| `{name}` | {getattr(instance, name)} | {t.unit} | {t.description} | {t.source} |"
        for name, t in rule.known_thresholds.items()
    ]
    if rows:
        parts += [
            "## Thresholds",
            "\n".join(
                ["| name | value | unit | meaning | source |", "| --- | --- | --- | --- | --- |", *rows]
            ),
        ]
    if rule.yields_to:
        parts.append(
            "Yields to "
            + ", ".join(rule.yields_to)
            + ": where one of them explains the same moments, it speaks."
        )
    return "\n\n".join(p for p in parts if p) + "\n"


def facts(rule: type[Rule]) -> dict[str, Any]:
    """The same as data."""
    return {
        "code": rule.code,
        "name": rule.name,
        "title": rule.title,
        "needs": [e.__name__ for e in rule.needs],
        "wants": [e.__name__ for e in rule.wants],
        "yields_to": list(rule.yields_to),
        "sections": rule.sections(),
        "thresholds": {
            name: {"default": t.default, "unit": t.unit, "description": t.description, "source": t.source}
            for name, t in rule.known_thresholds.items()
        },
    }
