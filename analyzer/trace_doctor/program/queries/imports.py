"""Names for what a codemod inserts: the binding that a script has already, else an import beside its other ones."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from trace_doctor.program.edits import Edit, NoEdit, insert_after
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
    bound = [
        (full, name)
        for name, full in _bindings(script)
        if (full == qualified or (qualified.startswith(f"{full}.") and _reaches(full, qualified)))
        and not _rebound(script, name, at)
    ]
    if bound:
        full, name = max(bound, key=lambda b: len(b[0]))
        return name + qualified[len(full) :], ()
    module, _, leaf = qualified.rpartition(".")
    anchor = last_import(script, at, qualified.split(".")[0])
    if anchor is None:
        raise NoEdit("unresolved", f"{script.name} has no imports at its top to put `import {module}` beside")
    if qualified.startswith("torch._"):
        text, name, new = f"import {'.'.join(qualified.split('.')[:2])}", qualified, "torch"
    elif module in ("", "torch"):
        text, name, new = f"import {module or qualified}", qualified, "torch"
    else:
        text, name, new = f"from {module} import {leaf}", leaf, leaf
        if _taken(script, new):
            text, name, new = f"import {module}", qualified, qualified.split(".")[0]
    if _taken(script, new) and not _is_package(script, new):
        raise NoEdit("display", f"the script has a {new} of its own, so {qualified} has no plain name in it")
    return name, (insert_after(script, anchor.body[-1], text, f"import {name}"),)


def last_import(
    script: Script, before: cst.CSTNode | None = None, package: str = "torch"
) -> cst.SimpleStatementLine | None:
    """The last line above the script's definitions that imports from a package, or else from torch; where none does, the
    last import.

    With `before`, only lines above the top-level statement that holds this node count.
    """
    last: cst.SimpleStatementLine | None = None
    torch: cst.SimpleStatementLine | None = None
    own: cst.SimpleStatementLine | None = None
    end = len(script.text) if before is None else script.span(before)[0]
    for statement in script.module.body:
        if before is not script.module and script.span(statement)[1] > end:
            break
        if not isinstance(statement, cst.SimpleStatementLine):
            if isinstance(statement, cst.FunctionDef | cst.ClassDef):
                break
            continue
        node = statement.body[-1]
        if not isinstance(node, cst.Import | cst.ImportFrom):
            continue
        if isinstance(node, cst.ImportFrom) and dotted(node.module or cst.Name("x")) == "__future__":
            continue
        last = statement
        roots = {m.split(".")[0] for m in imported_modules(node)}
        torch = statement if "torch" in roots else torch
        own = statement if package in roots else own
    return own or torch or last


def below_imports(script: Script, anchor: cst.SimpleStatementLine, code: str, key: str) -> Edit:
    """Lines below an import, set off by empty lines; a first `import` line joins the imports above."""
    edit = insert_after(script, anchor.body[-1], code, key)
    above = "" if code.startswith("import ") else "\n"
    following = script.line_text(script.lines(anchor)[1] + 1).strip()
    return Edit(edit.start, edit.end, above + edit.text + ("\n" if following else ""), key, code)


def _bindings(script: Script) -> Iterator[tuple[str, str]]:
    """(name, what it stands for) of the imports at module level."""
    for node in script.imports():
        line = script.parent(node)
        if line is None or script.parent(line) is not script.module:
            continue
        if isinstance(node, cst.Import):
            for alias in node.names:
                full = dotted(alias.name) or ""
                if alias.asname is not None:
                    yield dotted(alias.asname.name) or "", full
                else:
                    yield full.split(".")[0], full.split(".")[0]
                    if "." in full:
                        yield full, full
        elif not isinstance(node.names, cst.ImportStar) and not node.relative:
            module = imported_modules(node)[0]
            for alias in node.names:
                full = f"{module}.{dotted(alias.name)}"
                yield dotted(alias.asname.name if alias.asname else alias.name) or "", full


def _reaches(full: str, qualified: str) -> bool:
    """Whether the attributes of an imported module lead to a name without another import."""
    return not any(qualified.startswith(m) and not full.startswith(m) for m in _SUBMODULES)


def _rebound(script: Script, name: str, at: cst.CSTNode) -> bool:
    """Whether a function around a place gives a name another meaning."""
    first = name.split(".")[0]
    for function in [a for a in script.ancestors(at) if isinstance(a, cst.FunctionDef)]:
        if any(p.name.value == first for p in script.all(cst.Param, within=function.params)):
            return True
        if any(dotted(t.target) == first for t in script.all(cst.AssignTarget, within=function)):
            return True
    return False


def _taken(script: Script, name: str) -> bool:
    """Whether a script uses an identifier for anything of its own or of another import."""
    return bool(_uses(script, name))


def _uses(script: Script, name: str) -> list[cst.Name]:
    """Where a name stands for a variable, or is bound by an import."""
    return [
        n
        for n in script.variables(name)
        if not any(_holds(script, outer, n) for a in script.ancestors(n) for outer in _unbound(a))
    ]


def _unbound(node: cst.CSTNode) -> list[cst.CSTNode]:
    """The parts of an import statement that bind no name: `a.b` of `from a.b import c` and of `import a.b as c`."""
    if isinstance(node, cst.ImportFrom) and node.module is not None:
        return [node.module]
    return [node.name] if isinstance(node, cst.ImportAlias) and node.asname is not None else []


def _holds(script: Script, outer: cst.CSTNode, node: cst.CSTNode) -> bool:
    (start, end), (first, last) = script.span(outer), script.span(node)
    return start <= first and last <= end


def _is_package(script: Script, name: str) -> bool:
    """Whether a name is an imported top-level package everywhere it is used."""
    imported = any(bound == full == name for bound, full in _bindings(script))
    targets = {id(t.target) for t in script.all(cst.AssignTarget)} | {
        id(p.name) for p in script.all(cst.Param)
    }
    return imported and not any(id(u) in targets for u in _uses(script, name))
