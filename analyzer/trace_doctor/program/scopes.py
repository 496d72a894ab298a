"""What names of a script stand for: the import behind a dotted name, as far as nothing else binds it.

The answers are those of LibCST's ScopeProvider. That visits every node of a file to note every access; here only what
binds names is looked at, and a name is looked up where somebody asks for it, which is what few of them are.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst
from libcst.helpers import get_full_name_for_node

from trace_doctor.program.syntax_tree import SyntaxTree

_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)
_ANY_TIME = -1
"""bound before anything of the scope runs"""


@dataclass(frozen=True)
class _Binding:
    end: int
    """offset in the script from which on it holds"""
    import_name: str | None = None
    """the qualified name that it stands for; None for what no import binds"""


@dataclass(eq=False)
class _Scope:
    node: cst.CSTNode
    parent: _Scope | None
    bindings: dict[str, list[_Binding]] = field(default_factory=dict)
    elsewhere: dict[str, _Scope] = field(default_factory=dict)
    """names declared `global` or `nonlocal`"""

    def outside(self) -> _Scope | None:
        """The scope in which names are looked for next: that of a class is not seen from inside of its functions."""
        return _visible(self.parent)

    def holder_of(self, name: str) -> _Scope | None:
        """The scope that binds a name as seen from this one; None for a builtin or unknown name."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.elsewhere:
                scope = _visible(scope.elsewhere[name])
            elif name in scope.bindings:
                return scope
            else:
                scope = scope.outside()
        return None


def _visible(scope: _Scope | None) -> _Scope | None:
    while scope is not None and isinstance(scope.node, cst.ClassDef):
        scope = scope.parent
    return scope


class Names:
    """The names of one script."""

    def __init__(self, tree: SyntaxTree) -> None:
        self._tree = tree
        self._scopes: dict[cst.CSTNode, _Scope] = {}
        self._top = _Scope(tree.module, None)
        self._scopes[tree.module] = self._top
        declarations: list[cst.Global | cst.Nonlocal] = [*tree.all(cst.Global), *tree.all(cst.Nonlocal)]
        for statement in declarations:
            scope = self._scope(statement)
            outer = self._top if isinstance(statement, cst.Global) else scope.parent or self._top
            for item in statement.names if scope is not self._top else ():
                scope.elsewhere[item.name.value] = outer
        for name, node, end, import_name in self._all_bindings():
            scope = self._scope(node)
            target = scope
            while name in target.elsewhere and target.elsewhere[name] is not target:
                target = _visible(target.elsewhere[name]) or self._top
            target.bindings.setdefault(name, []).append(_Binding(end, import_name))

    def meaning(self, node: cst.CSTNode) -> tuple[set[str], bool]:
        """(qualified names of the imports that an expression can stand for, whether it can be something else). A builtin
        is `builtins.name` and something else; an unknown name is nothing at all."""
        full = get_full_name_for_node(node) or ""
        scope, prefix = self._scope(node), full
        while prefix:
            holder = scope.holder_of(prefix)
            if holder is not None:
                return self._imports(node, scope, holder, prefix, full)
            if hasattr(builtins, prefix):
                return {f"builtins.{full}"}, True
            prefix = prefix.rpartition(".")[0]
        return set(), False

    def _imports(
        self, node: cst.CSTNode, scope: _Scope, holder: _Scope, prefix: str, full: str
    ) -> tuple[set[str], bool]:
        bindings = holder.bindings[prefix]
        if holder is scope and prefix == full and not isinstance(node, cst.Call):
            start = self._tree.span(node)[0]
            bindings = [b for b in bindings if b.end <= start]
            if not bindings:
                further = scope.outside()
                holder_outside = further.holder_of(prefix) if further is not None else None
                bindings = holder_outside.bindings[prefix] if holder_outside is not None else []
                if holder_outside is None and hasattr(builtins, prefix):
                    return {f"builtins.{full}"}, True
        rest = full[len(prefix) :]
        names = {b.import_name + rest for b in bindings if b.import_name is not None}
        return names, any(b.import_name is None for b in bindings)

    # ------------------------------------------------------------------ scopes

    def _scope(self, node: cst.CSTNode) -> _Scope:
        """The scope that a node is evaluated in."""
        home = self._home(node)
        if home not in self._scopes:
            self._scopes[home] = _Scope(home, self._scope(home))
        return self._scopes[home]

    def _home(self, node: cst.CSTNode) -> cst.CSTNode:
        """The module, function, class or comprehension whose names a node sees. Defaults, decorators, annotations, bases
        and the first `in` of a comprehension are evaluated outside of what they belong to."""
        child, outside = node, False
        for up in self._tree.ancestors(node):
            if isinstance(up, cst.Param):
                outside = child is not up.name
            elif isinstance(up, cst.CompFor):
                outside = child is up.iter
            elif isinstance(up, cst.FunctionDef | cst.Lambda):
                if (child is up.body or child is up.params) and not outside:
                    return up
                outside = False
            elif isinstance(up, cst.ClassDef):
                if child is up.body:
                    return up
            elif isinstance(up, _COMPREHENSIONS):
                if child is not up.for_in or not outside:
                    return up
                outside = False
            elif isinstance(up, cst.Module):
                return up
            child = up
        return self._tree.module

    # ------------------------------------------------------------------ bindings

    def _all_bindings(self) -> Iterator[tuple[str, cst.CSTNode, int, str | None]]:
        """(name, node of the scope that is given it, offset from which on it holds, qualified name of an import)."""
        all_, end = self._tree.all, self._end
        imports: list[cst.Import | cst.ImportFrom] = [*all_(cst.Import), *all_(cst.ImportFrom)]
        for statement in imports:
            yield from self._of_import(statement)
        definitions: list[cst.FunctionDef | cst.ClassDef] = [*all_(cst.FunctionDef), *all_(cst.ClassDef)]
        for definition in definitions:
            yield definition.name.value, definition, end(definition), None
        for param in all_(cst.Param):
            yield param.name.value, param.name, _ANY_TIME, None
        for assign in all_(cst.Assign):
            for target in assign.targets:
                yield from self._targets(target.target, end(assign))
        changes: list[cst.AugAssign | cst.AnnAssign | cst.NamedExpr]
        changes = [*all_(cst.AugAssign), *all_(cst.AnnAssign), *all_(cst.NamedExpr)]
        for change in changes:
            yield from self._targets(change.target, end(change))
        for loop in all_(cst.For):
            yield from self._targets(loop.target, end(loop.target))
        for part in all_(cst.CompFor):
            yield from self._targets(part.target, _ANY_TIME)
        for alias in all_(cst.AsName):
            if not isinstance(self._tree.parent(alias), cst.ImportAlias):
                yield from self._targets(alias.name, end(alias))
        cases: list[tuple[cst.Name | None, cst.CSTNode]] = [(c.name, c) for c in all_(cst.MatchAs)]
        cases += [(star.name, star) for star in all_(cst.MatchStar)]
        cases += [(mapping.rest, mapping) for mapping in all_(cst.MatchMapping)]
        for name, case in cases:
            if name is not None:
                yield name.value, case, end(case), None

    def _end(self, node: cst.CSTNode) -> int:
        return self._tree.span(node)[1]

    def _targets(self, target: cst.BaseExpression, end: int) -> Iterator[tuple[str, cst.CSTNode, int, None]]:
        if isinstance(target, cst.Name):
            yield target.value, target, end, None
        elif isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                yield from self._targets(element.value, end)

    def _of_import(
        self, node: cst.Import | cst.ImportFrom
    ) -> Iterator[tuple[str, cst.CSTNode, int, str | None]]:
        if isinstance(node.names, cst.ImportStar):
            return
        module = ""
        if isinstance(node, cst.ImportFrom):
            module = "." * len(node.relative) + (
                get_full_name_for_node(node.module) or "" if node.module else ""
            )
            module += "" if module.endswith(".") else "."
        for alias in node.names:
            real, end = get_full_name_for_node(alias.name) or "", self._end(node)
            if alias.asname is not None:
                name = alias.asname.name
                if isinstance(name, cst.Name):
                    yield name.value, node, end, module + real
                continue
            parts = real.split(".")
            for count in range(1, len(parts) + 1):
                prefix = ".".join(parts[:count])
                yield prefix, node, end, module + prefix
