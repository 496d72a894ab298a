"""A training script: its bytes, its syntax tree, and what its names mean."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import libcst as cst

from trace_doctor.errors import UnreadableScript
from trace_doctor.files import read_regular
from trace_doctor.program.nesting_guard import PLAIN, nesting, try_to_parse
from trace_doctor.program.positions import Layout
from trace_doctor.program.scopes import Names
from trace_doctor.program.syntax_tree import SyntaxTree
from trace_doctor.program.text_file import TextFile

Block = cst.Module | cst.IndentedBlock | cst.SimpleStatementSuite
Statement = cst.BaseCompoundStatement | cst.BaseSmallStatement

FRAMEWORKS = {
    "deepspeed": "deepspeed",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "accelerate": "accelerate",
    "transformers": "transformers",
}


class Script(TextFile, SyntaxTree):
    """One Python file.

    Raises UnreadableScript when the bytes do not decode, do not parse, or do not survive a round trip.
    """

    def __init__(self, data: bytes, name: str, path: Path | None = None) -> None:
        TextFile.__init__(self, data, name, path)
        module = _parse(self.text, name)
        layout = Layout.of(module)
        if layout.text != self.text:
            raise UnreadableScript(f"{name}: cannot be written back unchanged; it is left alone")
        SyntaxTree.__init__(self, module, layout, len(self.text))
        self._rewritten: set[bytes] = set()
        self.tracking: object = None
        """where its values come from; filled by `dataflow_of`"""

    @classmethod
    def read(cls, path: Path, name: str) -> Script:
        """Raises OSError, and UnreadableScript for what is no Python."""
        return cls(read_regular(path), name, path)

    def rewritten(self, data: bytes) -> None:
        if data not in self._rewritten:
            _parse(TextFile(data, self.name).text, self.name)
            self._rewritten.add(data)

    # ------------------------------------------------------------------ places

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and last line of a node."""
        start, end = self._layout.inner.get(node) or self._layout.outer[node]
        return self.line_of(start), self.line_of(end)

    def line(self, node: cst.CSTNode) -> int:
        """The first line of a node, from 1."""
        return self.lines(node)[0]

    def covers(self, node: cst.CSTNode, line: int) -> bool:
        """Whether a node stands on a line."""
        first, last = self.lines(node)
        return first <= line <= last

    def code(self, node: cst.CSTNode) -> str:
        """The text of a node as it is written, without the parentheses around it."""
        start, end = self.span(node)
        return self.text[start:end]

    def indent(self, node: cst.CSTNode) -> str:
        """White space before the first character of the line on which the node starts, behind a form feed: with that, Python
        counts anew, and it is a break of the page that no other line is to have."""
        line = self.line_text(self.line(node))
        return line[: len(line) - len(line.lstrip(" \t\f"))].rpartition("\f")[2]

    def statement_of(self, node: cst.CSTNode) -> Statement | None:
        """The small or compound statement that a node is part of."""
        around = (a for a in (node, *self.ancestors(node)) if isinstance(a, Statement))
        return next(around, None)

    def block_of(self, statement: cst.CSTNode) -> tuple[Block, int]:
        """The block that holds a statement (or its line) and its index there."""
        line: cst.CSTNode = statement
        up = self.parent(line)
        if isinstance(up, cst.SimpleStatementLine):
            line, up = up, self.parent(up)
        assert isinstance(up, cst.Module | cst.IndentedBlock | cst.SimpleStatementSuite)
        return up, next(i for i, child in enumerate(up.body) if child is line)

    def statements_on(self, line: int) -> list[Statement]:
        """Small statements that cover a line, and compound statements whose header does; innermost first."""
        statements: list[tuple[int, int, Statement]] = []
        for kind, nodes in self._layout.by_type.items():
            for node in nodes if issubclass(kind, Statement) else ():
                first, last = self.header_lines(node)
                if isinstance(node, Statement) and first <= line <= last:
                    start, end = self.span(node)
                    statements.append((end - start, start, node))
        return [node for _, _, node in sorted(statements, key=lambda f: f[:2])]

    def header_lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """Lines of a statement; of a compound one only those up to its colon."""
        first, last = self.lines(node)
        body = getattr(node, "body", None)
        if isinstance(body, cst.IndentedBlock | cst.SimpleStatementSuite):
            last = min(last, max(first, self.line_of(self.outer_span(body)[0])))
        return first, last

    def enclosing_function(self, line: int) -> str | None:
        """Qualified name of the function around a line, as `Class.method`; None at module level."""
        around = [node for node in self.all(cst.FunctionDef) if self.covers(node, line)]
        return self.function_path(max(around, key=self.line)) if around else None

    def function_name(self, node: cst.CSTNode) -> str:
        """Name of the innermost function around a node, as a capture has it at module level as well."""
        function = self.function_of(node)
        return "<module>" if function is None else function.name.value

    def function_path(self, node: cst.FunctionDef | cst.ClassDef) -> str:
        """`Class.method`, `outer.inner`: the names of the definitions around and including one."""
        outer = [a.name.value for a in self.ancestors(node) if isinstance(a, cst.FunctionDef | cst.ClassDef)]
        return ".".join([*reversed(outer), node.name.value])

    def functions_like(self, function: str, line: int | None = None) -> list[str]:
        """Qualified names of the functions of this last part: of the one around the line, where it has that name."""
        last = function.rpartition(".")[2]
        around = self.enclosing_function(line) if line is not None else None
        if around is not None and around.rpartition(".")[2] == last:
            return [around]
        return [self.function_path(node) for node in self.all(cst.FunctionDef) if node.name.value == last]

    def level(self, indent: str) -> str:
        """The white space that puts a line one level below a line with this indentation."""
        return "\t" if "\t" in indent else self.module.default_indent

    # ------------------------------------------------------------------ names

    def variables(self, name: str, within: cst.CSTNode | None = None) -> list[cst.Name]:
        """Where a name stands for a variable: not for an attribute, nor for the keyword of an argument."""
        return [
            n
            for n in self.all(cst.Name, within)
            if n.value == name
            and not (isinstance(up := self.parent(n), cst.Attribute) and up.attr is n)
            and not (isinstance(up, cst.Arg) and up.keyword is n)
        ]

    def qualified(self, node: cst.CSTNode) -> str | None:
        """Dotted name of an expression through imports and aliases: `torch.utils.data.DataLoader`.

        None when it is local, shadowed, or has more than one meaning.
        """
        names, other = self._names.meaning(node)
        return next(iter(names)) if len(names) == 1 and not other else None

    def callee(self, call: cst.CSTNode) -> str:
        """Qualified name of what a call calls, builtins by their bare name; empty where that is not known. With `*` for an
        attribute of a module that is looked up by its name: `torchvision.models.*` of `models.__dict__[arch]()`."""
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Subscript | cst.Call):
            module = self._searched(call.func)
            return f"{module}.*" if module is not None else ""
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name | cst.Attribute):
            return ""
        names, other = self._names.meaning(call.func)
        if len(names) != 1:
            return ""
        name = next(iter(names))
        if other:  # methods of an expression are named `builtins.None`
            builtin = isinstance(call.func, cst.Name) and name.startswith("builtins.")
            return name.removeprefix("builtins.") if builtin else ""
        return name

    def _searched(self, func: cst.Subscript | cst.Call) -> str | None:
        """The module among whose attributes `vars(module)[name]` and `getattr(module, name)` look for a name."""
        table = func.value if isinstance(func, cst.Subscript) else None
        if isinstance(table, cst.Attribute) and table.attr.value == "__dict__":
            return self.qualified(table.value)
        search, call = ("getattr", func) if table is None else ("vars", table)
        if isinstance(call, cst.Call) and call.args and self.callee(call) == search:
            return self.qualified(call.args[0].value)
        return None

    def calls(self, *names: str) -> list[cst.Call]:
        """Calls of functions or classes with one of these qualified names."""
        return [c for c in self.all(cst.Call) if self.callee(c) in names]

    def imports(self, within: cst.CSTNode | None = None) -> list[cst.Import | cst.ImportFrom]:
        """All below `within`, functions included; of the whole script where that is None."""
        return [*self.all(cst.Import, within), *self.all(cst.ImportFrom, within)]

    @cached_property
    def frameworks(self) -> frozenset[str]:
        """Which of deepspeed, lightning, accelerate, transformers the file imports."""
        roots = set()
        for node in self.imports():
            roots |= {name.split(".")[0] for name in imported_modules(node)}
        return frozenset(FRAMEWORKS[r] for r in roots if r in FRAMEWORKS)

    @cached_property
    def _names(self) -> Names:
        return Names(self)


def _parse(text: str, name: str) -> cst.Module:
    """Raises UnreadableScript for what is no Python, or nested deeper than this process can follow."""
    if nesting(text) > PLAIN:
        try_to_parse(text, name)
    try:
        return cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        where = f"line {error.raw_line}" if error.raw_line else "somewhere"
        raise UnreadableScript(f"{name}: cannot be parsed ({where}); it is left alone") from None
    except Exception as error:  # LibCST raises more than it documents on odd files
        raise UnreadableScript(
            f"{name}: cannot be parsed ({type(error).__name__}); it is left alone"
        ) from None


def imported_modules(node: cst.Import | cst.ImportFrom) -> list[str]:
    """Absolute module names that an import statement loads; relative imports give a leading dot."""
    if isinstance(node, cst.Import):
        return [dotted(alias.name) or "" for alias in node.names]
    module = dotted(node.module) if node.module is not None else ""
    return ["." * len(node.relative) + (module or "")]


def dotted(node: cst.CSTNode) -> str | None:
    """`a.b.c` of names and attributes; None for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr.value}" if base is not None else None
    return None


def method_name(node: cst.CSTNode | None) -> str | None:
    """`step` of the call `optimizer.step()`; None for what is no call of an attribute."""
    return (
        node.func.attr.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) else None
    )


def receiver(node: cst.CSTNode | None) -> cst.BaseExpression | None:
    """`optimizer` of the call `optimizer.step()`; None for what is no call of an attribute."""
    return node.func.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) else None


def assigned_names(node: cst.CSTNode | None) -> list[str | None]:
    """Dotted names of what `x = y = ...` assigns to, None for a target of another form; empty for what is no such statement."""
    return [dotted(t.target) for t in node.targets] if isinstance(node, cst.Assign) else []


def bound_names(assign: cst.Assign) -> set[str]:
    """Dotted names of all that an assignment binds: also `loss` of `loss, count = f(x)`."""
    names = {n for n in assigned_names(assign) if n is not None}
    for target in assign.targets:
        if isinstance(target.target, cst.Tuple | cst.List):
            names |= {n for e in target.target.elements if (n := dotted(e.value)) is not None}
    return names


def positional(call: cst.Call) -> list[cst.BaseExpression]:
    """The values of a call that are passed one by one, without a name."""
    return [a.value for a in call.args if a.keyword is None and not a.star]


def argument(call: cst.Call, name: str, position: int | None = None) -> cst.Arg | None:
    """The argument passed by this name, or at this position when it is passed without a name."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg
    if position is None:
        return None
    for index, arg in enumerate(call.args):
        if arg.keyword is not None or arg.star:
            return None
        if index == position:
            return arg
    return None


def key_of(node: cst.CSTNode) -> str | None:
    """`name` of `x["name"]`; None for anything else."""
    index = node.slice[0].slice if isinstance(node, cst.Subscript) and len(node.slice) == 1 else None
    key = literal(index.value) if isinstance(index, cst.Index) else None
    return key if isinstance(key, str) else None


def literal(node: cst.CSTNode | None) -> object:
    """Value of a literal expression; `...` (Ellipsis) when it is none."""
    import ast

    if node is None:
        return ...
    try:
        return ast.literal_eval(cst.Module([]).code_for_node(node))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ...
