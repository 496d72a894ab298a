"""The documentation keeps up with the code."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest
from typer.main import get_command

from trace_doctor.cli.app import application
from trace_doctor.registry import all_rules
from trace_doctor.testing import run_case

ROOT = Path(__file__).resolve().parent.parent
APP = application()
PAGES = sorted(p for p in [*ROOT.glob("*.md"), *ROOT.glob("*/**/*.md")] if ".venv" not in p.parts)


def commands() -> list[str]:
    return [c.name or c.callback.__name__ for c in APP.registered_commands if c.callback]


@pytest.mark.parametrize("command", commands())
def test_every_command_is_documented_and_has_help(command: str) -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "docs" / "cli.md").read_text(), re.M)
    assert command in ", ".join(headings).split(", ")
    registered = next(c for c in APP.registered_commands if (c.name or c.callback.__name__) == command)  # type: ignore[union-attr]
    assert registered.callback is not None
    assert registered.callback.__doc__


@pytest.mark.parametrize("rule", all_rules(), ids=lambda r: r.code)
def test_every_rule_has_a_page_and_is_in_the_index(rule: type) -> None:
    assert (ROOT / "docs" / "rules" / f"{rule.code}.md").exists()  # type: ignore[attr-defined]
    assert rule.code in (ROOT / "rules" / "README.md").read_text()  # type: ignore[attr-defined]


def test_every_page_is_reached_from_the_first() -> None:
    start = ROOT / "docs" / "index.md"
    linked = {start.parent / name for name in re.findall(r"\]\((\S+?)\)", start.read_text(encoding="utf-8"))}
    pages = {*start.parent.glob("*.md"), *start.parent.glob("how-to/*.md")}
    assert pages - {start} <= linked


@pytest.mark.parametrize("command", commands())
def test_every_option_is_in_the_reference(command: str) -> None:
    reference = (ROOT / "docs" / "cli-reference.md").read_text(encoding="utf-8")
    section = reference.split(f"## trace-doctor {command}\n", 1)[1].split("\n## ", 1)[0]
    parameters = get_command(APP).commands[command].params  # type: ignore[attr-defined]
    for option in (name for p in parameters for name in p.opts if name.startswith("--") and not p.hidden):
        assert re.search(rf"{re.escape(option)}\b", section), option


@pytest.mark.parametrize("page", ["README.md", "docs/accuracy.md"])
def test_pages_show_the_accuracy_that_was_measured(page: str) -> None:
    measured = (ROOT / "bench" / "accuracy" / "RESULT.md").read_text(encoding="utf-8")
    assert measured.split("\n\n")[1] in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"(`+).+?\1", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", prose):
        assert (page.parent / target).exists(), target


def test_the_recipe_of_writing_rules_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.+?)```", (ROOT / "docs" / "writing-rules.md").read_text(), re.S)
    assert code
    (tmp_path / "recipe_rule.py").write_text(code.group(1), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    rule = importlib.import_module("recipe_rule").PythonPauses
    for case in (*rule.VALID, *rule.INVALID):
        run_case(rule, case)


SHELL = [
    (page, line)
    for page in PAGES
    if page.is_relative_to(ROOT / "docs") or page.parent == ROOT
    for block in re.findall(r"^```(?:sh|console)\n(.+?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    for line in re.sub(r"\\\n\s*", "", block).splitlines()
    if re.match(r"(?:\$ )?trace-doctor \w", line)
]


@pytest.mark.parametrize(("page", "line"), SHELL, ids=[f"{p.name}: {line[:70]}" for p, line in SHELL])
def test_commands_of_pages_have_the_options_they_show(page: Path, line: str) -> None:
    """What is shown with its output is run by `docs.generate`; of the rest, which needs a reader's files, this much."""
    for part in re.findall(r"trace-doctor (\w.*?)(?= [|&#]|;|$)", line):
        words = part.split(" -- ")[0].split()
        known = get_command(APP).commands  # type: ignore[attr-defined]
        assert words[0] in known
        options = {name for parameter in known[words[0]].params for name in parameter.opts}
        shown = {word.split("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)}
        assert shown <= options, shown - options


SESSIONS = [page for page in PAGES if ">>> " in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", SESSIONS, ids=lambda p: p.name)
def test_what_a_page_types_gives_what_it_shows(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    tried = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert tried.attempted
    assert not tried.failed
