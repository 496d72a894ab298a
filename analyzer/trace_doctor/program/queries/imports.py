"""Names for what a codemod inserts: the binding that a script has already, else an import beside its other ones."""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from trace_doctor.program.edits import Edit, NoEdit, insert_after, insert_before
from trace_doctor.program.script import Script, dotted, imported_modules

_SUBMODULES = (
    "torch.utils.checkpoint",
    "torch.utils.data",
    "torch.distributed.fsdp",
    "torch.nn.attention",
    "torch._dynamo",
)
"""what importing a package above them need not have loaded"""


def name_for(script: Script, qualified: str, at: cst.CSTNode) -> tuple[str, tuple[Edit, ...]]:
    """How to write a dotted name (`torch.utils.checkpoint.checkpoint`) where `at` stands, and the import that it needs.

    Raises NoEdit where every name that could be bound means something else in the script.
    """
    candidates = [
        (full, name)
        for name, full, _ in bindings(script)
        if (full == qualified or (qualified.startswith(f"{full}.") and _reaches(full, qualified)))
        and not _rebound(script, name, at)
    ]
    if candidates:
        full, name = max(candidates, key=lambda b: len(b[0]))
        return name + qualified[len(full) :], ()
    module, _, leaf = qualified.rpartition(".")
    anchor = last_import(script, at, qualified.split(".")[0])
    if anchor is None:
        raise NoEdit(
            "unresolved", f"{script.name} has no imports at its top to put `import {module}` next to"
        )
    if qualified.startswith("torch._"):
        text, name, new = f"import {'.'.join(qualified.split('.')[:2])}", qualified, "torch"
    elif module in ("", "torch"):
        text, name, new = f"import {module or qualified}", qualified, "torch"
    else:
        text, name, new = f"from {module} import {leaf}", leaf, leaf
        if uses(script, new):
            text, name, new = f"import {module}", qualified, qualified.split(".")[0]
    if uses(script, new) and not _is_package(script, new):
        raise NoEdit("display", f"the script has a {new} of its own, so {qualified} has no plain name in it")
    return name, (add_import(script, anchor, text, f"import {name}"),)


def add_import(script: Script, anchor: cst.SimpleStatementLine, text: str, key: str) -> Edit:
    """An import among those around a line that is one: of the same module beside its other names, else where it sorts if they
    are sorted, else below the line. The first of the standard library stands above all, apart from them."""
    (new,) = cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine).body
    assert isinstance(new, cst.Import | cst.ImportFrom)
    root = imported_modules(new)[0].split(".")[0]
    lines = [line for line, _ in _imports_at_top(script)]
    if lines and root in sys.stdlib_module_names and not _is_standard(anchor):
        edit = insert_before(script, lines[0], f"{text}\n", key)
        return replace(edit, meaning=text)
    block = _block_of(script, anchor)
    for old in (line.body[0] for line in block if isinstance(new, cst.ImportFrom)):
        named = isinstance(old, cst.ImportFrom) and not isinstance(old.names, cst.ImportStar)
        if named and isinstance(old, cst.ImportFrom) and imported_modules(old) == imported_modules(new):
            return _with_name(script, old, text.rpartition(" ")[2], key)
    for order in (_by_kind, _by_module):
        keys = [order(line.body[0]) for line in block]
        if keys == sorted(keys):
            before = [line for line, sort in zip(block, keys, strict=True) if sort <= order(new)]
            if not before:
                return insert_before(script, block[0], text, key)
            anchor = before[-1]
            break
    return insert_after(script, anchor.body[-1], text, key)


def _by_module(node: cst.CSTNode) -> tuple[bool | str, ...]:
    assert isinstance(node, cst.Import | cst.ImportFrom)
    return (imported_modules(node)[0].lower(),)


def _by_kind(node: cst.CSTNode) -> tuple[bool | str, ...]:
    return (isinstance(node, cst.ImportFrom), *_by_module(node))


def _block_of(script: Script, anchor: cst.SimpleStatementLine) -> list[cst.SimpleStatementLine]:
    """The imports around one without an empty line, a comment or other code between them."""
    blocks: list[list[cst.SimpleStatementLine]] = [[]]
    for line in script.module.body:
        alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
        if not alone or line.leading_lines:
            blocks.append([])
        if isinstance(line, cst.SimpleStatementLine) and isinstance(
            line.body[0], cst.Import | cst.ImportFrom
        ):
            blocks[-1].append(line)
        else:
            blocks.append([])
    return next((block for block in blocks if anchor in block), [anchor])


def _with_name(script: Script, node: cst.ImportFrom, new: str, key: str) -> Edit:
    """`from a import b, c` with one more name, in its place if they are sorted."""

    def order(name: str) -> tuple[int, str]:
        return 0 if name.isupper() else 1 if name[:1].isupper() else 2, name

    assert not isinstance(node.names, cst.ImportStar)
    aliases = list(node.names)
    orders, rows = [order(dotted(a.name) or "") for a in aliases], [script.line(a) for a in aliases]
    below = rows[0] > script.line(node) or 1 < len(rows) == len(set(rows))
    gap = "\n" + script.indent(aliases[0]) if below else " "
    place = bisect_right(orders, order(new)) if orders == sorted(orders) else len(orders)
    if place < len(aliases):
        at = script.span(aliases[place])[0]
        return Edit(at, at, f"{new},{gap}", key, new)
    at = script.span(aliases[-1])[0] + len(script.code(aliases[-1]))
    return Edit(at, at, f",{gap}{new}", key, new)


def last_import(
    script: Script, before: cst.CSTNode | None = None, package: str = "torch"
) -> cst.SimpleStatementLine | None:
    """The last line above the script's definitions that imports from a package, or else from torch; where none does, the
    last import. Of the imports above all other code where there are some: below it another one would be out of place.

    With `before`, only lines above the top-level statement that holds this node count.
    """
    imports = _imports_at_top(script, before)
    own = [line for line, roots in imports if package in roots]
    own = own or [line for line, _ in imports if package in sys.stdlib_module_names and _is_standard(line)]
    torch = [line for line, roots in imports if "torch" in roots]
    return next(reversed(own or torch or [line for line, _ in imports]), None)


def _is_standard(line: cst.SimpleStatementLine) -> bool:
    """Whether a line imports from the standard library."""
    node = line.body[-1]
    assert isinstance(node, cst.Import | cst.ImportFrom)
    return imported_modules(node)[0].split(".")[0] in sys.stdlib_module_names


def _imports_at_top(
    script: Script, before: cst.CSTNode | None = None
) -> list[tuple[cst.SimpleStatementLine, set[str]]]:
    """The lines that import above the script's definitions, with the packages that they import from."""
    imports: list[tuple[cst.SimpleStatementLine, set[str]]] = []
    above_code: int | None = None
    end = len(script.text) if before is None else script.span(before)[0]
    for statement in script.module.body:
        beyond = before is not script.module and script.span(statement)[1] > end
        if beyond or isinstance(statement, cst.FunctionDef | cst.ClassDef):
            break
        node = statement.body[-1] if isinstance(statement, cst.SimpleStatementLine) else None
        if node is not None and above_code is None and not _may_precede_imports(script, node):
            above_code = len(imports)
        if isinstance(statement, cst.SimpleStatementLine) and isinstance(node, cst.Import | cst.ImportFrom):
            imports.append((statement, {module.split(".")[0] for module in imported_modules(node)}))
    if any(roots != {"__future__"} for _, roots in imports[:above_code]):
        imports = imports[:above_code]
    return [(line, roots) for line, roots in imports if roots != {"__future__"}]


_PREPARES = re.compile(
    r"sys\.path|os\.environ|matplotlib\.use|site\.addsitedir|pytest\.importorskip|__\w+__\s*="
)


def _may_precede_imports(script: Script, node: cst.BaseSmallStatement) -> bool:
    """Whether imports below a statement still stand at the top of the file: docstrings, other imports, search paths."""
    if isinstance(node, cst.Import | cst.ImportFrom):
        return True
    text = isinstance(node, cst.Expr) and isinstance(node.value, cst.SimpleString | cst.ConcatenatedString)
    return text or _PREPARES.match(script.code(node)) is not None


def end_of_imports(script: Script) -> cst.SimpleStatementLine | None:
    """The last import above the script's definitions, below which settings go: behind one in the middle, the others would
    be out of place. None where the script imports nothing."""
    last = None
    for statement in script.module.body:
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            break
        node = statement.body[-1] if isinstance(statement, cst.SimpleStatementLine) else None
        if isinstance(statement, cst.SimpleStatementLine) and isinstance(node, cst.Import | cst.ImportFrom):
            last = statement
    return last


def below_imports(script: Script, anchor: cst.SimpleStatementLine, code: str, key: str) -> Edit:
    """Lines below an import, set off by empty lines."""
    edit = insert_after(script, anchor.body[-1], code, key)
    next_line = script.line_text(script.lines(anchor)[1] + 1).strip()
    return Edit(edit.start, edit.end, "\n" + edit.text + ("\n" if next_line else ""), key, code)


def bindings(script: Script) -> Iterator[tuple[str, str, cst.Import | cst.ImportFrom]]:
    """(name, what it stands for, the statement) of the imports at module level."""
    for node in script.imports():
        line = script.parent(node)
        if line is None or script.parent(line) is not script.module or isinstance(node.names, cst.ImportStar):
            continue
        if isinstance(node, cst.ImportFrom) and node.relative:
            continue
        module = f"{imported_modules(node)[0]}." if isinstance(node, cst.ImportFrom) else ""
        for alias in node.names:
            full = f"{module}{dotted(alias.name)}"
            if alias.asname is not None:
                yield dotted(alias.asname.name) or "", full, node
            elif module:
                yield dotted(alias.name) or "", full, node
            else:
                for name in dict.fromkeys((full.split(".")[0], full)):
                    yield name, name, node


def _reaches(full: str, qualified: str) -> bool:
    """Whether the attributes of an imported module lead to a name without another import."""
    return not any(qualified.startswith(m) and not full.startswith(m) for m in _SUBMODULES)


def _rebound(script: Script, name: str, at: cst.CSTNode) -> bool:
    """Whether a function around a place gives a name another meaning."""
    around = [a for a in script.ancestors(at) if isinstance(a, cst.FunctionDef)]
    local_names = [dotted(t.target) for f in around for t in script.all(cst.AssignTarget, within=f)]
    local_names += [p.name.value for f in around for p in script.all(cst.Param, within=f.params)]
    return name.split(".")[0] in local_names


def uses(script: Script, name: str) -> list[cst.Name]:
    """Where an identifier stands for a variable, or is bound by an import: not in the `a.b` of `from a.b import c` and of
    `import a.b as c`."""
    unbound: list[cst.CSTNode] = [a.name for a in script.all(cst.ImportAlias) if a.asname is not None]
    unbound += [i.module for i in script.all(cst.ImportFrom) if i.module is not None]
    return [n for n in script.variables(name) if not any(script.within(n, outer) for outer in unbound)]


def _is_package(script: Script, name: str) -> bool:
    """Whether a name is an imported top-level package everywhere it is used; torch also through `import *`."""
    imported = any(alias == full == name for alias, full, _ in bindings(script))
    imported |= name == "torch" and any(
        isinstance(i.names, cst.ImportStar) for i in script.all(cst.ImportFrom)
    )
    targets = [t.target for t in script.all(cst.AssignTarget)] + [p.name for p in script.all(cst.Param)]
    return imported and not any(use in targets for use in uses(script, name))
