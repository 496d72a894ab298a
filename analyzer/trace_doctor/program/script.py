"""A training script as a LibCST tree over its bytes: positions, qualified names, and edits that keep the rest.

The tree is only read. An edit is a range of characters and its new text, so everything outside the range stays as it
was byte by byte: encoding, byte order mark, line ends, the missing newline at the end.
"""

from __future__ import annotations

import codecs
import io
import json
import tokenize
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import libcst as cst

from trace_doctor.errors import UnreadableScript
from trace_doctor.program.nesting_guard import PLAIN, nesting, try_to_parse
from trace_doctor.program.positions import Layout
from trace_doctor.program.scopes import Names
from trace_doctor.regex import regex

if TYPE_CHECKING:
    from trace_doctor.program.dataflow import Origins

N = TypeVar("N", bound=cst.CSTNode)
Block = cst.Module | cst.IndentedBlock | cst.SimpleStatementSuite
Statement = cst.BaseStatement | cst.BaseSmallStatement

_NEWLINE = regex(r"\r\n?|\n")

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
        self.module = _parsed(self.text, name)
        self._layout = Layout.of(self.module)
        if self._layout.text != self.text:
            raise UnreadableScript(f"{name}: cannot be written back unchanged; it is left alone")
        self._rewritten: set[bytes] = set()
        self.tracking: Origins | None = None
        """where its values come from; filled by origins.tracked"""

    @classmethod
    def read(cls, path: Path, name: str) -> Script:
        return cls(path.read_bytes(), name, path)

    def rewritten(self, data: bytes) -> None:
        if data not in self._rewritten:
            _parsed(TextFile(data, self.name).text, self.name)
            self._rewritten.add(data)

    # ------------------------------------------------------------------ places

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Character range of a node, without the white space and comments around it."""
        start, end = self._layout.inner.get(node) or self._layout.outer[node]
        return start, min(end, len(self.text))  # LibCST ends the last line even where the file does not

    def outer_span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Character range of a node with the white space, comments and punctuation that belong to it."""
        start, end = self._layout.outer[node]
        return start, min(end, len(self.text))

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and last line of a node."""
        start, end = self._layout.inner.get(node) or self._layout.outer[node]
        return self.line_of(start), self.line_of(end)

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
        return self._layout.parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """From the parent outwards."""
        while (up := self._layout.parents.get(node)) is not None:
            yield up
            node = up

    def nearest(self, node: cst.CSTNode, *kinds: type[N]) -> N | None:
        """The innermost enclosing node of one of these types; the node itself does not count."""
        return next((a for a in self.ancestors(node) if isinstance(a, kinds)), None)

    def all(self, kind: type[N], within: cst.CSTNode | None = None) -> list[N]:
        """Nodes of exactly this type, in source order."""
        nodes: list[N] = self._layout.by_type.get(kind, [])  # type: ignore[assignment]
        if within is None:
            return list(nodes)
        start, end = self.span(within)
        first = bisect_left(nodes, start, key=self._start)
        last = bisect_right(nodes, end, lo=first, key=self._start)
        return [n for n in nodes[first:last] if self.span(n)[1] <= end]

    def _start(self, node: cst.CSTNode) -> int:
        return self.span(node)[0]

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
        for kind, nodes in self._layout.by_type.items():
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
        names, other = self._names.meaning(node)
        return next(iter(names)) if len(names) == 1 and not other else None

    def callee(self, call: cst.CSTNode) -> str | None:
        """Qualified name of what a call calls; builtins by their bare name."""
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name | cst.Attribute):
            return None
        names, other = self._names.meaning(call.func)
        if len(names) != 1:
            return None
        name = next(iter(names))
        if other:  # methods of an expression are named `builtins.None`
            builtin = isinstance(call.func, cst.Name) and name.startswith("builtins.")
            return name.removeprefix("builtins.") if builtin else None
        return name

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

    @cached_property
    def _names(self) -> Names:
        return Names(self)


def _parsed(text: str, name: str) -> cst.Module:
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
