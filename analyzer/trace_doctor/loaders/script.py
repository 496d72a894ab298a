"""A training script as a LibCST tree over its bytes: positions, qualified names, and edits that keep the rest.

The tree is only read. An edit is a range of characters and its new text, so everything outside the range stays as it
was byte by byte: encoding, byte order mark, line ends, the missing newline at the end.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import tokenize
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import libcst as cst
from libcst.metadata import (
    MetadataWrapper,
    PositionProvider,
    QualifiedName,
    QualifiedNameSource,
    ScopeProvider,
    WhitespaceInclusivePositionProvider,
)

from trace_doctor.errors import UnreadableScript
from trace_doctor.loaders.nested import PLAIN, nesting, try_to_parse

N = TypeVar("N", bound=cst.CSTNode)
Block = cst.Module | cst.IndentedBlock | cst.SimpleStatementSuite
Statement = cst.BaseStatement | cst.BaseSmallStatement

_NEWLINE = re.compile(r"\r\n?|\n")

FRAMEWORKS = {
    "deepspeed": "deepspeed",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "accelerate": "accelerate",
    "transformers": "transformers",
}


class TextFile:
    """A text file by its bytes: places in it, and edits that keep the rest. Lines are 1-based, columns and offsets
    count characters of `text`.

    Raises UnreadableScript when the bytes do not decode.
    """

    def __init__(self, data: bytes, name: str, path: Path | None = None) -> None:
        self.data = data
        self.name = name
        """as shown to people: relative to the source folder, with forward slashes"""
        self.path = path
        self.text, self.encoding, self.bom = _decode(data, name)

    def rewritten(self, data: bytes) -> None:
        """Raises UnreadableScript when these bytes would not be a file of this kind any more."""
        text = TextFile(data, self.name).text
        if self.name.endswith(".json"):
            try:
                json.loads(text)
            except ValueError as error:
                raise UnreadableScript(f"{self.name}: {error}") from None

    def encode(self, text: str) -> bytes:
        """The bytes of `text` in this file's encoding, with its byte order mark."""
        return (codecs.BOM_UTF8 if self.bom else b"") + text.encode(self.encoding)

    @cached_property
    def newline(self) -> str:
        """The line end that most lines have."""
        ends = Counter(_NEWLINE.findall(self.text))
        return ends.most_common(1)[0][0] if ends else "\n"

    @cached_property
    def line_starts(self) -> list[int]:
        return [0, *(m.end() for m in _NEWLINE.finditer(self.text))]

    def offset(self, line: int, column: int) -> int:
        if line > len(self.line_starts):  # LibCST ends the last line even where the file does not
            return len(self.text)
        return min(self.line_starts[line - 1] + column, len(self.text))

    def line_of(self, offset: int) -> int:
        return bisect_right(self.line_starts, offset)

    def line_text(self, line: int) -> str:
        """Text of a line without its line end; empty past the end."""
        if not 1 <= line <= len(self.line_starts):
            return ""
        end = self.line_starts[line] if line < len(self.line_starts) else len(self.text)
        return self.text[self.line_starts[line - 1] : end].rstrip("\r\n")

    def enclosing_function(self, line: int) -> str | None:
        """Only scripts have functions."""
        return None


class Script(TextFile):
    """One Python file.

    Raises UnreadableScript when the bytes do not decode, do not parse, or do not survive a round trip.
    """

    def __init__(self, data: bytes, name: str, path: Path | None = None) -> None:
        super().__init__(data, name, path)
        if nesting(self.text) > PLAIN:
            try_to_parse(self.text, name)
        try:
            self.module = cst.parse_module(self.text)
        except cst.ParserSyntaxError as error:
            where = f"line {error.raw_line}" if error.raw_line else "somewhere"
            raise UnreadableScript(f"{name}: cannot be parsed ({where}); it is left alone") from None
        except Exception as error:  # LibCST raises more than it documents on odd files
            raise UnreadableScript(
                f"{name}: cannot be parsed ({type(error).__name__}); it is left alone"
            ) from None
        if self.module.code != self.text:
            raise UnreadableScript(f"{name}: cannot be written back unchanged; it is left alone")

    @classmethod
    def read(cls, path: Path, name: str) -> Script:
        return cls(path.read_bytes(), name, path)

    def rewritten(self, data: bytes) -> None:
        Script(data, self.name)

    # ------------------------------------------------------------------ places

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Character range of a node, without the white space and comments around it."""
        place = self._positions[node]
        return self.offset(place.start.line, place.start.column), self.offset(
            place.end.line, place.end.column
        )

    def outer_span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Character range of a node with the white space, comments and punctuation that belong to it."""
        place = self._outer_positions[node]
        return self.offset(place.start.line, place.start.column), self.offset(
            place.end.line, place.end.column
        )

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and last line of a node."""
        place = self._positions[node]
        return place.start.line, place.end.line

    def line(self, node: cst.CSTNode) -> int:
        return self.lines(node)[0]

    def code(self, node: cst.CSTNode) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def indent(self, node: cst.CSTNode) -> str:
        """White space before the first character of the line on which the node starts."""
        line = self.line_text(self.line(node))
        return line[: len(line) - len(line.lstrip(" \t\f"))]

    # ------------------------------------------------------------------ tree

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """From the parent outwards."""
        while (up := self._parents.get(node)) is not None:
            yield up
            node = up

    def nearest(self, node: cst.CSTNode, *kinds: type[N]) -> N | None:
        """The innermost enclosing node of one of these types; the node itself does not count."""
        return next((a for a in self.ancestors(node) if isinstance(a, kinds)), None)

    def all(self, kind: type[N], within: cst.CSTNode | None = None) -> list[N]:
        """Nodes of exactly this type, in source order."""
        found: list[N] = [n for n in self._by_type.get(kind, []) if isinstance(n, kind)]
        if within is None:
            return found
        start, end = self.span(within)
        return [n for n in found if start <= self.span(n)[0] and self.span(n)[1] <= end]

    def below(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """A node and all that is in it, in source order."""
        yield node
        for child in node.children:
            yield from self.below(child)

    def function_of(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        return self.nearest(node, cst.FunctionDef)

    def statement_of(self, node: cst.CSTNode) -> Statement | None:
        """The small or compound statement that a node is part of."""
        if isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            return node
        found = (
            a
            for a in self.ancestors(node)
            if isinstance(a, cst.BaseSmallStatement | cst.BaseCompoundStatement)
        )
        return next(found, None)

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
        found: list[tuple[int, int, Statement]] = []
        for kind, nodes in self._by_type.items():
            if not issubclass(kind, cst.BaseSmallStatement | cst.BaseCompoundStatement):
                continue
            for node in nodes:
                assert isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement)
                first, last = self.header_lines(node)
                if first <= line <= last:
                    start, end = self.span(node)
                    found.append((end - start, start, node))
        return [node for _, _, node in sorted(found, key=lambda f: f[:2])]

    def header_lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """Lines of a statement; of a compound one only those up to its colon."""
        first, last = self.lines(node)
        body = getattr(node, "body", None)
        if isinstance(body, cst.IndentedBlock | cst.SimpleStatementSuite):
            last = min(last, max(first, self.line_of(self.outer_span(body)[0])))
        return first, last

    def enclosing_function(self, line: int) -> str | None:
        """Qualified name of the function around a line, as `Class.method`; None at module level."""
        best: tuple[int, cst.FunctionDef] | None = None
        for node in self.all(cst.FunctionDef):
            first, last = self.lines(node)
            if first <= line <= last and (best is None or first >= best[0]):
                best = (first, node)
        return self.function_path(best[1]) if best else None

    def function_path(self, node: cst.FunctionDef | cst.ClassDef) -> str:
        """`Class.method`, `outer.inner`: the names of the definitions around and including one."""
        outer = [a.name.value for a in self.ancestors(node) if isinstance(a, cst.FunctionDef | cst.ClassDef)]
        return ".".join([*reversed(outer), node.name.value])

    # ------------------------------------------------------------------ names

    def qualified(self, node: cst.CSTNode) -> str | None:
        """Dotted name of an expression through imports and aliases: `torch.utils.data.DataLoader`.

        None when it is local, shadowed, or has more than one meaning.
        """
        names: set[str] = {n.name for n in self._qualified(node) if n.source is QualifiedNameSource.IMPORT}
        others = {n.name for n in self._qualified(node) if n.source is not QualifiedNameSource.IMPORT}
        return names.pop() if len(names) == 1 and not others else None

    def callee(self, call: cst.CSTNode) -> str | None:
        """Qualified name of what a call calls; builtins by their bare name."""
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name | cst.Attribute):
            return None
        found = self._qualified(call.func)
        builtin = isinstance(call.func, cst.Name)  # LibCST names methods of an expression `builtins.None`
        if builtin and len(found) == 1 and (only := next(iter(found))).source is QualifiedNameSource.BUILTIN:
            return str(only.name).removeprefix("builtins.")
        return self.qualified(call.func)

    def calls(self, *names: str) -> list[cst.Call]:
        """Calls of functions or classes with one of these qualified names."""
        return [c for c in self.all(cst.Call) if self.callee(c) in names]

    def imports(self, within: cst.CSTNode | None = None) -> list[cst.Import | cst.ImportFrom]:
        return [*self.all(cst.Import, within), *self.all(cst.ImportFrom, within)]

    @cached_property
    def frameworks(self) -> frozenset[str]:
        """Which of deepspeed, lightning, accelerate, transformers the file imports."""
        roots = set()
        for node in self.imports():
            roots |= {name.split(".")[0] for name in imported_modules(node)}
        return frozenset(FRAMEWORKS[r] for r in roots if r in FRAMEWORKS)

    # ------------------------------------------------------------------ metadata

    @cached_property
    def _wrapper(self) -> MetadataWrapper:
        return MetadataWrapper(self.module, unsafe_skip_copy=True)

    @cached_property
    def _positions(self):  # type: ignore[no-untyped-def]
        return self._wrapper.resolve(PositionProvider)

    @cached_property
    def _outer_positions(self):  # type: ignore[no-untyped-def]
        return self._wrapper.resolve(WhitespaceInclusivePositionProvider)

    @cached_property
    def _names(self) -> dict[cst.CSTNode, set[QualifiedName]]:
        return {}

    @cached_property
    def _scopes(self):  # type: ignore[no-untyped-def]
        return self._wrapper.resolve(ScopeProvider)

    def _qualified(self, node: cst.CSTNode) -> set[QualifiedName]:
        """Asked for node by node: LibCST's own provider names every node of the file."""
        if node not in self._names:
            scope = self._scopes.get(node)
            self._names[node] = set(scope.get_qualified_names_for(node)) if scope is not None else set()
        return self._names[node]

    @cached_property
    def _tree(self) -> tuple[dict[type[cst.CSTNode], list[cst.CSTNode]], dict[cst.CSTNode, cst.CSTNode]]:
        """(nodes by their type, in source order; node -> its parent)"""
        found: dict[type[cst.CSTNode], list[cst.CSTNode]] = {}
        parents: dict[cst.CSTNode, cst.CSTNode] = {}
        stack: list[cst.CSTNode] = [self.module]
        while stack:
            node = stack.pop()
            found.setdefault(type(node), []).append(node)
            children = node.children
            parents.update((child, node) for child in children)
            stack.extend(reversed(children))
        return found, parents

    @property
    def _by_type(self) -> dict[type[cst.CSTNode], list[cst.CSTNode]]:
        return self._tree[0]

    @property
    def _parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        return self._tree[1]


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
        left = dotted(node.value)
        return f"{left}.{node.attr.value}" if left is not None else None
    return None


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


def literal(node: cst.CSTNode | None) -> object:
    """Value of a literal expression; `...` (Ellipsis) when it is none."""
    import ast

    if node is None:
        return ...
    try:
        return ast.literal_eval(cst.Module([]).code_for_node(node))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ...


def _decode(data: bytes, name: str) -> tuple[str, str, bool]:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        bom = encoding == "utf-8-sig"
        encoding = "utf-8" if bom else encoding
        text = data[len(codecs.BOM_UTF8) if bom else 0 :].decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        raise UnreadableScript(f"{name}: its bytes do not decode as it declares; it is left alone") from None
    if "\0" in text:
        raise UnreadableScript(f"{name}: holds NUL bytes, so it is no Python source; it is left alone")
    return text, encoding, bom
