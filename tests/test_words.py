"""Our sentences keep to the field's words and to a length: titles, help texts and hand-written pages. What rules say in
their own cases is checked where `test_rule_cases` runs them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from typer.main import get_command
from words import BANNED, MESSAGE_WORDS, PAGE_WORDS, TITLE_WORDS, banned, faults, page_faults, title_faults

from trace_doctor.cli.app import application
from trace_doctor.registry import all_rules

ROOT = Path(__file__).resolve().parent.parent
GENERATED_OR_RECORDS = {"accuracy-appendix.md", "cli-reference.md", "evidence.md"}
"""pages of `docs` that are generated from code comments or from help, or that keep the history of measurements"""
PAGES = [
    *(p for p in sorted((ROOT / "docs").glob("*.md")) if p.name not in GENERATED_OR_RECORDS),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(ROOT / folder / "README.md" for folder in ("analyzer", "sample_traces")),
]


def helps(command: click.Command) -> Iterator[str]:
    """Every help text of a command and of those below it, one for each paragraph and parameter."""
    yield from (command.help or "").split("\n\n")
    yield from (getattr(parameter, "help", None) or "" for parameter in command.params)
    for below in getattr(command, "commands", {}).values():
        yield from helps(below)


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of each string of more than a word but docstrings; what an f-string fills in is an n."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            said = "".join(str(v.value) if isinstance(v, ast.Constant) else "n" for v in node.values)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in parts | statements
        ):
            said = node.value
        else:
            continue
        if " " in said.strip():
            yield node.lineno, said


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages(page: Path) -> None:
    assert not page_faults(page.read_text(encoding="utf-8"))


def test_the_notebook() -> None:
    cells = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    said = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert "DataFrame" in said
    assert not page_faults(said)


def test_titles_of_rules() -> None:
    assert not [fault for rule in all_rules() for fault in title_faults(rule.title)]


def test_help_texts() -> None:
    texts = list(helps(get_command(application())))
    assert any("Fail CI" in text for text in texts)
    assert not [fault for text in texts for fault in faults(" ".join(text.split()), MESSAGE_WORDS)]


def test_texts_in_the_source() -> None:
    """Names of cases and of made captures are for us; all else of more than a word may be shown."""
    ours = (ROOT / "analyzer" / "trace_doctor" / "testing",)
    folders = (ROOT / "analyzer" / "trace_doctor", ROOT / "rules" / "trace_doctor_rules" / "techniques")
    files = [p for folder in folders for p in folder.rglob("*.py") if not set(ours) & set(p.parents)]
    found = [
        f"{file.name}:{line}: {fault}"
        for file in files
        for line, text in texts(ast.parse(file.read_text(encoding="utf-8")))
        for fault in banned(text)
    ]
    assert len(files) > 100
    assert not found


def test_a_text_of_the_source_is_read_whole() -> None:
    source = 'def f(us):\n    """12 ms a step"""\n    return f"waits {us} ms a step", "by hand", "beside"\n'
    assert sorted(texts(ast.parse(source))) == [(3, "by hand"), (3, "waits n ms a step")]


@pytest.mark.parametrize(
    ("sentence", "phrase"),
    [
        ("The GPU waits 12 ms a step.", "ms a step"),
        ("28 rules could not look.", "could not look"),
        ("The fix did what it promised.", "promised"),
        ("Apply it by hand.", "by hand"),
        ("fp32 products take 40% of kernel time.", "products"),
        ("Memory is given back and taken again.", "given back"),
        ("It saves 12 % of the step.", "2 %"),
        ("The captures are analysed.", "analysed"),
    ],
)
def test_a_banned_phrase_is_found(sentence: str, phrase: str) -> None:
    found = faults(sentence, MESSAGE_WORDS)
    assert any(repr(phrase) in fault for fault in found), found
    assert any(repr(phrase) in fault for fault in page_faults(f"# Title\n\n- a point\n- {sentence}\n"))


def test_a_long_sentence_is_found() -> None:
    most = "word " * (MESSAGE_WORDS - 1) + "word."
    assert not faults(f"{most} {most}", MESSAGE_WORDS)
    assert faults(f"{most} One {most}", MESSAGE_WORDS)
    line = "word " * (PAGE_WORDS // 2) + "\n"
    assert not page_faults(f"{line}{line.rstrip()}.\n\n{line}")
    assert page_faults(f"{line}{line}and more.\n")


def test_a_title_stands_alone_and_is_short() -> None:
    assert not title_faults("Set pin_memory=True")
    assert title_faults("Or set pin_memory=True")
    assert title_faults("Set " + "word " * TITLE_WORDS)


def test_code_and_the_length_of_tables_do_not_count() -> None:
    row = "| " + "word " * 2 * PAGE_WORDS + "|"
    assert not page_faults(f"`12 ms a step` is old.\n\n```text\nby hand\n```\n\n{row}\n")
    assert page_faults("| 12 ms a step | |\n")


def test_what_is_said_instead_is_not_banned() -> None:
    assert not [fault for better in BANNED.values() for fault in faults(better, MESSAGE_WORDS)]
