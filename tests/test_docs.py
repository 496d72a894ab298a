"""The documentation keeps up with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trace_doctor.cli.app import app
from trace_doctor.registry import all_rules

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(p for p in [*ROOT.glob("*.md"), *ROOT.glob("*/**/*.md")] if ".venv" not in p.parts)


def commands() -> list[str]:
    return [c.name or c.callback.__name__ for c in app.registered_commands if c.callback]


@pytest.mark.parametrize("command", commands())
def test_every_command_is_documented_and_has_help(command: str) -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "docs" / "cli.md").read_text(), re.M)
    assert command in ", ".join(headings).split(", ")
    registered = next(c for c in app.registered_commands if (c.name or c.callback.__name__) == command)  # type: ignore[union-attr]
    assert registered.callback is not None
    assert registered.callback.__doc__


@pytest.mark.parametrize("rule", all_rules(), ids=lambda r: r.code)
def test_every_rule_has_a_page_and_is_in_the_index(rule: type) -> None:
    assert (ROOT / "docs" / "rules" / f"{rule.code}.md").exists()  # type: ignore[attr-defined]
    assert rule.code in (ROOT / "rules" / "README.md").read_text()  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_recipe_of_writing_rules_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "writing-rules.md").read_text()
    code = re.search(r"```python\n(.+?)```", text, re.S)
    assert code
    namespace: dict[str, object] = {"__name__": "recipe"}
    exec(compile(code.group(1), "writing-rules.md", "exec"), namespace)
    assert "PythonPauses" in namespace
