"""docs/evidence.md: every piece of evidence, from its class: what it says, what its fields hold, what it needs, who uses it."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from trace_doctor.evidence.base import Evidence
from trace_doctor.evidence.rank_summary import JobEvidence
from trace_doctor.registry import all_rules

Kind = type[Evidence] | type[JobEvidence]
PACKAGES = ("trace_doctor.evidence", "trace_doctor_rules")
_HEAD = """# Evidence

What rules look at, and what this is made of: a class with `build(facts)`, made once for a capture when it is first asked for
(`ctx[TimeLedger]` in a rule, `facts[TimeLedger]` in evidence). Where a capture cannot tell, it raises `NotCaptured` with how to
record it, and the rules that need it are skipped. Starts, ends and lengths in columns are integer nanoseconds (`_ns`), in what
people read microseconds (`_us`); memory is bytes; shares are 0 to 1; intervals are arrays of shape (n, 2), sorted and disjoint.
Evidence that one rule alone needs lives beside it, in `rules/`. What several ranks show together is a class with
`build(ranks)`, made of the summaries of the ranks of a job (`RankSummary`): a rule that needs such a class sees of each rank
its summary, never its capture. This page is generated.
"""


def page() -> str:
    """The page: a section for each folder, a part for each class."""
    lines = [_HEAD]
    for package in sorted({_package(kind) for kind in kinds()}):
        mine = [kind for kind in kinds() if _package(kind) == package]
        beside = package.startswith("trace_doctor_rules")
        about = "" if beside else f": {(importlib.import_module(package).__doc__ or '').strip()}"
        lines.append(f"## {package.partition('.')[2].replace('evidence.', '') or package}{about}\n")
        for kind in mine:
            lines += _part(kind)
    return "\n".join(lines).rstrip() + "\n"


@cache
def kinds() -> tuple[Kind, ...]:
    """All classes of evidence, by module and place."""
    found: dict[str, Kind] = {}
    for module in modules():
        for name, kind in vars(module).items():
            if (
                inspect.isclass(kind)
                and issubclass(kind, Evidence | JobEvidence)
                and kind.__module__ == module.__name__
            ):
                found[f"{module.__name__}.{name}"] = kind
    return tuple(kind for kind in found.values() if kind not in (Evidence, JobEvidence))


@cache
def modules() -> tuple[ModuleType, ...]:
    found = []
    for package in map(importlib.import_module, PACKAGES):
        walk = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        found += [importlib.import_module(m.name) for m in walk]
    return tuple(sorted(found, key=lambda m: m.__name__))


def _package(kind: Kind) -> str:
    return kind.__module__.rpartition(".")[0]


def _part(kind: Kind) -> Iterator[str]:
    file = Path(inspect.getsourcefile(kind) or "")
    root = next(p for p in file.parents if p.name in ("analyzer", "rules"))
    yield f"### {kind.__name__}\n"
    yield inspect.cleandoc(kind.__doc__ or "") + "\n"
    rows = list(_fields(kind))
    if rows:
        yield "| field | type | what it holds |\n| --- | --- | --- |"
        yield from (f"| `{name}` | `{form}` | {about} |" for name, form, about in rows)
        yield ""
    rows = list(_methods(kind))
    if rows:
        yield "| method | what it gives |\n| --- | --- |"
        yield from (f"| `{form}` | {about} |" for form, about in rows)
        yield ""
    needs = [
        other.__name__ for other in kinds() if other is not kind and other.__name__ in _asked(kind.__module__)
    ]
    users = [r.code for r in all_rules() if kind in r.needs or kind.__name__ in _asked(r.__module__)]
    others = [o.__name__ for o in kinds() if o is not kind and kind.__name__ in _asked(o.__module__)]
    yield f"Needs: {', '.join(needs) or 'the capture alone'}. Used by: {', '.join([*users, *others]) or 'the result'}."
    yield f"[{file.relative_to(root.parent).as_posix()}](../{file.relative_to(root.parent).as_posix()})\n"


@cache
def _asked(module: str) -> frozenset[str]:
    """Names that the module imports from modules of evidence."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    return frozenset(
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGES)
        for alias in node.names
    )


def _fields(kind: Kind) -> Iterator[tuple[str, str, str]]:
    """Name, type and the text below it, of the fields that the class itself declares."""
    [body] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    for node, behind in zip(body.body, [*body.body[1:], None], strict=True):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and not node.target.id.startswith("_")
            and "ClassVar" not in ast.unparse(node.annotation)
        ):
            about = ""
            if isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant):
                about = _in_a_cell(str(behind.value.value))
            yield node.target.id, _in_a_cell(ast.unparse(node.annotation)), about


def _methods(kind: Kind) -> Iterator[tuple[str, str]]:
    """Signature and docstring of what may be asked of it, properties without parentheses."""
    [body] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    for node in body.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name != "build":
            made_by = [ast.unparse(decorator) for decorator in node.decorator_list]
            gives = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            takes = ast.unparse(node.args).removeprefix("self").removeprefix("cls").removeprefix(", ")
            asked = node.name if "property" in made_by else f"{node.name}({takes})"
            yield _in_a_cell(asked + gives), _in_a_cell(ast.get_docstring(node) or "")


def _in_a_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
