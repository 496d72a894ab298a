"""Which branches of a program ran while it was recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

import libcst as cst

from trace_doctor.model.captures import LinesRun
from trace_doctor.program.script import Script
from trace_doctor.program.text_file import TextFile


class Executed:
    """Goes by the content of files: of a script that was changed since, nothing is known."""

    def __init__(
        self, lines_run: Iterable[LinesRun] = (), without_effect: Collection[tuple[str, int]] = ()
    ) -> None:
        """`without_effect`: files and lines where an edit was tried, and was not in force."""
        self._without_effect = without_effect
        self._ran: dict[str, set[int]] = {}
        for file in lines_run:
            lines = self._ran.setdefault(file.sha256, set())
            lines.update(n for first, last in file.ranges for n in range(first, last + 1))

    def lines(self, script: TextFile) -> set[int]:
        """Those of a file that ran or may have; empty where that is not known."""
        return self._ran.get(hashlib.sha256(script.data).hexdigest(), set()) if self._ran else set()

    def skipped(self, script: Script, node: cst.CSTNode) -> int | None:
        """The first line of a branch around a node that did not run, although what decides about it did; the line of a node
        where an edit was not in force; else None."""
        for name, line in self._without_effect:
            first, last = script.header_lines(node)
            if name == script.name and first <= line <= last:
                return line
        ran = self.lines(script)
        for block in script.ancestors(node) if ran else ():
            owner = script.parent(block) if isinstance(block, cst.BaseSuite) else None
            if not isinstance(owner, cst.If | cst.Else | cst.For | cst.While):
                continue
            decides = script.parent(owner) if isinstance(owner, cst.Else) else owner
            first, last = script.lines(block)
            header, colon = script.lines(decides)[0] if decides is not None else 0, first - 1
            if isinstance(decides, cst.If | cst.For | cst.While):
                colon = min(script.header_lines(decides)[1], colon)
            if ran.isdisjoint(range(first, last + 1)) and not ran.isdisjoint(range(header, colon + 1)):
                return first
        return None
