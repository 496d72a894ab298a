"""Fixes in programs of several files and in frameworks, by the cases in `programs/*.md`: what is captured, the files
before, and the files that change or the refusal.

## heading
fix: codemod {json}          at: file | text on the captured line, or - | function (optional)
```before path
```
```after path
```
or, instead of an `after`, `refuses: kind, words of the reason`, and `types: words of the command to type`.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from trace_doctor.fixes import Plan, plan
from trace_doctor.fixes.codemods import codemods
from trace_doctor.model import Finding, Fix, Location, Result, Target


@dataclass(frozen=True)
class Case:
    group: str
    title: str
    codemod: str
    params: dict[str, object]
    at: tuple[str, int | None, str | None] | None
    before: dict[str, str]
    after: dict[str, str]
    refuses: tuple[str, str] | None
    types: str | None

    def plan(self, root: Path) -> Plan:
        where = (
            {"file": f"/home/them/project/{self.at[0]}", "line": self.at[1], "function": self.at[2]}
            if self.at
            else {}
        )
        aimed = bool(where) and codemods()[self.codemod].scope != "program"
        target = Target(**where) if aimed else None  # type: ignore[arg-type]
        fix = Fix(title="t", kind="patch", codemod=self.codemod, params=self.params, target=target)
        finding = Finding(
            id="TD101-1", code="TD101", name="a-rule", title="t", severity="info", confidence="high", message="m",
            fingerprint="f", location=Location(**where), fixes=[fix],  # type: ignore[arg-type]
        )  # fmt: skip
        return plan(Result(findings=[finding]), root, torch_version="2.1")

    def write(self, root: Path) -> None:
        for name, text in self.before.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)


def read_cases(path: Path) -> list[Case]:
    found = []
    for part in path.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        blocks = re.findall(r"^```(before|after) (\S+)\n(.*?)^```$", body, re.DOTALL | re.MULTILINE)
        fields = dict(
            re.findall(r"^(fix|at|refuses|types): (.*)$", re.sub(r"(?s)```.*?```", "", body), re.MULTILINE)
        )
        codemod, _, params = fields["fix"].partition(" ")
        before = {name: text for kind, name, text in blocks if kind == "before"}
        after = {name: text for kind, name, text in blocks if kind == "after"}
        kind, _, words = fields.get("refuses", "").partition(", ")
        assert bool(kind) != bool(after), f"{path.name}: {title}"
        found.append(
            Case(
                path.stem, title, codemod, json.loads(params or "{}"), _at(fields.get("at"), before), before, after,
                (kind, words) if kind else None, fields.get("types"),
            )
        )  # fmt: skip
    return found


def _at(said: str | None, files: dict[str, str]) -> tuple[str, int | None, str | None] | None:
    if said is None:
        return None
    file, text, function = (part.strip() for part in said.split("|"))
    lines = [n for n, line in enumerate(files[file].split("\n"), 1) if text in line]
    return file, lines[0] if text != "-" else None, function or None


CASES = [
    case for path in sorted((Path(__file__).parent / "programs").glob("*.md")) for case in read_cases(path)
]


def ident(case: Case) -> str:
    return f"{case.group}: {case.title}"


@pytest.mark.parametrize("case", [c for c in CASES if c.after], ids=ident)
def test_edit_changes_these_files_and_no_others(case: Case, tmp_path: Path) -> None:
    case.write(tmp_path)
    made = case.plan(tmp_path)
    item = made.items[0]
    assert item.status == "ready", (item.status, item.why, item.candidates)
    assert {name: data.decode() for name, (_, data) in made.outputs.items()} == case.after
    for name, (_, data) in made.outputs.items():
        if name.endswith(".py"):
            ast.parse(data)
        (tmp_path / name).write_bytes(data)
    again = case.plan(tmp_path)
    assert not again.outputs, again.patch().decode()


@pytest.mark.parametrize("case", [c for c in CASES if c.refuses], ids=ident)
def test_refusal_says_why_and_what_to_type(case: Case, tmp_path: Path) -> None:
    case.write(tmp_path)
    item = case.plan(tmp_path).items[0]
    assert case.refuses is not None
    assert (item.status, case.refuses[1] in item.why) == (case.refuses[0], True), (item.status, item.why)
    if case.types is not None:
        assert (item.fix.kind, case.types in item.fix.text) == ("command", True), item.fix.text
    if item.status == "ambiguous":
        assert len(item.candidates) > 1
