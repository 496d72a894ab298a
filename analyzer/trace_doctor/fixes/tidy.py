"""What edits leave behind in a script: names that nothing reads any more, and lines that they made too long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import libcst as cst

from trace_doctor.errors import UnreadableScript
from trace_doctor.fixes.line_width import wrapped
from trace_doctor.program.edits import Edit, apply, remove
from trace_doctor.program.queries.imports import uses
from trace_doctor.program.script import Script, assigned_names, dotted, method_name
from trace_doctor.program.source_tree import SourceTree

_PURE = re.compile(
    r"(.*\.)?(size|dim|numel|len|float|int|bool|min|max|sqrt|to|type|view|reshape|unsqueeze|squeeze|transpose|permute|expand|"
    r"contiguous|masked_fill|repeat|logical_not|ones|zeros|full|arange|triu|tril|ones_like|zeros_like)"
)
"""what is called for its value alone"""


def tidied(script: Script, edits: Iterable[Edit], tree: SourceTree | None = None) -> str:
    """The script's text after edits, without the imports and local variables that only replaced code read, and with the
    lines that got too long broken. No other file of `tree` takes the imports from this one."""
    edits = sorted(edits, key=lambda e: (e.start, e.end))
    text, freed = wrapped(script, edits, apply(script, edits)), _names_in(script, edits)
    while freed:
        try:
            script = Script(script.encode(text), script.name, script.path)
        except (UnreadableScript, UnicodeError):
            return text  # `new_bytes` says so
        removals = [e for name in sorted(freed) for e in _without(script, name, tree)][:1]
        text, freed = apply(script, removals), freed | _names_in(script, removals) if removals else set()
    return text


def _names_in(script: Script, edits: Iterable[Edit]) -> set[str]:
    """Names in replaced text, without attributes."""
    texts = (script.text[e.start : e.end] for e in edits)
    return {name for text in texts for name in re.findall(r"(?<![.\w])[^\W\d]\w*", text)}


def _without(script: Script, name: str, tree: SourceTree | None) -> Iterator[Edit]:
    """Takes out what binds a name that nothing reads: its one import, or the assignments of a function."""
    found = uses(script, name)
    imports = [
        (node, alias)
        for node in script.imports()
        for alias in (() if isinstance(node.names, cst.ImportStar) else node.names)
        if any(script.within(n, alias) for n in found)
    ]
    if len(imports) == 1 and len(found) == 1 and not _wanted(script, name, tree):
        yield from without_import(script, *imports[0])
    for function in {script.function_of(n) for n in found} if not imports else ():
        mine = [n for n in found if function is not None and script.within(n, function)]
        lines = [
            s for s in script.all(cst.Assign, function) if assigned_names(s) == [name] and _pure(script, s)
        ]
        if mine and all(any(script.within(n, s) for s in lines) for n in mine):
            yield from (remove(script, s) for s in lines)


def _wanted(script: Script, name: str, tree: SourceTree | None) -> bool:
    """Whether a text of the script says a name (`__all__`, an annotation), or another file may take it from there."""
    word = re.compile(rf"\b{name}\b")
    if script.name.endswith("__init__.py") or any(
        word.search(script.code(s)) for s in script.all(cst.SimpleString)
    ):
        return True
    importers = [n for n in tree.files if script.name in tree.imports.imports[n]] if tree is not None else []
    taken = re.compile(rf"import\s*\*|import\b[^\n]*\b{name}\b|import\s*\([^)]*\b{name}\b")
    return any(taken.search(tree.data(n).decode("utf-8", "replace")) for n in importers if tree is not None)


def without_import(
    script: Script, node: cst.Import | cst.ImportFrom, alias: cst.ImportAlias
) -> Iterator[Edit]:
    """Takes one name out of an import, the statement where it is the only one; nothing where a comment speaks of it."""
    assert not isinstance(node.names, cst.ImportStar)
    if any("#" in script.line_text(n) for n in script.lines(node)):
        return
    if len(node.names) > 1:
        last = node.names[-1] is alias
        first = (
            script.span(node.names[-2])[0] + len(script.code(node.names[-2]))
            if last
            else script.span(alias)[0]
        )
        yield Edit(first, script.span(alias)[1] if last else script.outer_span(alias)[1], "")
    elif len(script.block_of(node)[0].body) > 1:
        removal = remove(script, node)
        if script.parent(node) is script.module.body[0]:  # with the empty lines that set it off
            rest = script.text[removal.end :]
            removal = replace(removal, end=removal.end + len(rest) - len(rest.lstrip("\r\n")))
        yield removal


def _pure(script: Script, assign: cst.Assign) -> bool:
    effects = any(script.all(kind, assign) for kind in (cst.Await, cst.Yield, cst.NamedExpr))
    return not effects and all(
        _PURE.fullmatch(dotted(c.func) or method_name(c) or "") for c in script.all(cst.Call, assign)
    )
