"""Where each node of a syntax tree stands in the text: spans, parents and nodes by type, from one walk.

LibCST has no positions in its nodes: they come from writing the tree out again. Its own providers write it once for each
kind of position, and their visitors build every node anew; here one writing gives all of it, and the text to compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import libcst as cst
from libcst._nodes.internal import CodegenState

Span = tuple[int, int]
"""offsets of the first character and of the one behind the last"""


@dataclass
class Layout(CodegenState):
    """Filled by `Layout.of(module)`. Nodes compare by identity."""

    at: int = 0
    inner: dict[cst.CSTNode, Span] = field(default_factory=dict)
    """nodes with white space of their own that does not count: without it"""
    outer: dict[cst.CSTNode, Span] = field(default_factory=dict)
    parents: dict[cst.CSTNode, cst.CSTNode] = field(default_factory=dict)
    by_type: dict[type[cst.CSTNode], list[cst.CSTNode]] = field(default_factory=dict)
    """in source order"""
    _open: list[tuple[cst.CSTNode, int]] = field(default_factory=list)

    @classmethod
    def of(cls, module: cst.Module) -> Layout:
        """Writes the module out once, which notes where every node begins and ends."""
        layout = cls(module.default_indent, module.default_newline)
        module._codegen(layout)
        return layout

    @property
    def text(self) -> str:
        """What was written so far."""
        return "".join(self.tokens)

    def add_indent_tokens(self) -> None:
        self.tokens.extend(self.indent_tokens)
        self.at += sum(map(len, self.indent_tokens))

    def add_token(self, value: str) -> None:
        self.tokens.append(value)
        self.at += len(value)

    def before_codegen(self, node: cst.CSTNode) -> None:
        if self._open:
            self.parents[node] = self._open[-1][0]
        self.by_type.setdefault(type(node), []).append(node)
        self._open.append((node, self.at))

    def after_codegen(self, node: cst.CSTNode) -> None:
        self.outer[node] = (self._open.pop()[1], self.at)

    @contextmanager
    def record_syntactic_position(
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> Iterator[None]:
        start = self.at
        yield
        first = start if start_node is None else (self.inner.get(start_node) or self.outer[start_node])[0]
        last = self.at if end_node is None else (self.inner.get(end_node) or self.outer[end_node])[1]
        self.inner[node] = (first, last)
