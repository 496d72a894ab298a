"""The words that a shell completes: formats and rules."""

from __future__ import annotations

FILES = {
    "text": ".txt", "html": ".html", "json": ".json", "sarif": ".sarif", "junit": ".xml", "markdown": ".md",
}  # fmt: skip
"""Format -> how its files usually end"""


def format_words(incomplete: str) -> list[str]:
    """For the shell: the formats of --output."""
    return [f for f in (*FILES, "github", "perfetto=") if f.startswith(incomplete)]


def rule_words(incomplete: str) -> list[tuple[str, str]]:
    """For the shell: codes with what they find, or names; of a list with commas the last."""
    from trace_doctor.registry import all_rules

    before, comma, last = incomplete.rpartition(",")
    words = [(w, r.title) for r in all_rules() for w in (r.code, r.name) if last or w == r.code]
    return [(before + comma + w, title) for w, title in words if w.lower().startswith(last.lower())]
