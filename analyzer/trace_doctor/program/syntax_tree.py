"""A module as a LibCST tree: where its nodes stand and what they lie in. The tree is only read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import takewhile
from typing import TypeVar

import libcst as cst

from trace_doctor.program.positions import Layout

N = TypeVar("N", bound=cst.CSTNode)


class SyntaxTree:
    """Offsets count characters of the text that the module was parsed from, `length` in all."""

    def __init__(self, module: cst.Module, layout: Layout, length: int) -> None:
        self.module = module
        self._layout = layout
        self._end = length

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Character range of a node, without the white space and comments around it."""
        start, end = self._layout.inner.get(node) or self._layout.outer[node]
        return start, min(end, self._end)  # LibCST ends the last line even where the file does not

    def outer_span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Character range of a node with the white space, comments and punctuation that belong to it."""
        start, end = self._layout.outer[node]
        return start, min(end, self._end)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """None for the module."""
        return self._layout.parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """From the parent outwards."""
        while (up := self._layout.parents.get(node)) is not None:
            yield up
            node = up

    def between(self, node: cst.CSTNode, outer: cst.CSTNode | None) -> Iterator[cst.CSTNode]:
        """From the parent outwards, up to an ancestor that does not count."""
        return takewhile(lambda up: up is not outer, self.ancestors(node))

    def nearest(self, node: cst.CSTNode, *kinds: type[N]) -> N | None:
        """The innermost enclosing node of one of these types; the node itself does not count."""
        return next((a for a in self.ancestors(node) if isinstance(a, kinds)), None)

    def within(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        """Whether a node begins inside of another one."""
        start, end = self.span(outer)
        return start <= self._start(node) < end

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
        """The innermost function that a node is in; None at module level."""
        return self.nearest(node, cst.FunctionDef)
