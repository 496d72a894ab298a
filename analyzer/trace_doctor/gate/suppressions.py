"""Findings that somebody looked at and accepted: by a comment at the place, or by an entry of the configuration.

    loss_value = loss.item()  # trace-doctor: ignore[TD201] logged once a step on purpose

    [tool.trace-doctor.suppress]
    TD404 = "the smoke test skips the optimizer"            # a rule
    "TD201 train.py:evaluate" = "the metric is needed"      # of one file, or of one function in it

An entry of the configuration is `trace_doctor.config.suppress_entry`. A comment speaks of the statement that it stands in, or that follows it where it stands alone. Several codes are parted by
commas; a prefix (TD4) or a name is as good as a code.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from trace_doctor.config.suppress_entry import SuppressEntry, check_selector, dotted, means
from trace_doctor.errors import UsageError
from trace_doctor.model import LOOKED, Finding, Result, Suppressed
from trace_doctor.program.source_tree import SourceTree

_MARK = b"trace-doctor:"
_COMMENT = re.compile(r"#\s*trace-doctor:\s*ignore\[([^\]]*)\]\s*(.*)")
_LIKE_A_COMMENT = re.compile(r"#[\s#]*trace-doctor:|trace-doctor:\s*ignore")
"""what is meant to be one, wherever in a comment it stands"""
Locate = Callable[[Sequence[Finding]], Sequence[Finding]]
"""Findings with their places as the source names them."""


@dataclass(frozen=True)
class Comment:
    """`first` and `last` are the lines it speaks of."""

    file: str
    line: int
    first: int
    last: int
    selectors: tuple[str, ...]
    reason: str

    @property
    def where(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"

    def covers(self, finding: Finding) -> bool:
        """Whether the comment speaks of this finding: of its rule, at one of the lines it is for."""
        at = finding.location
        return (
            at.file == self.file
            and at.line is not None
            and self.first <= at.line <= self.last
            and any(means(s, finding.code, finding.name) for s in self.selectors)
        )


@dataclass(frozen=True)
class Suppressions:
    """What silences findings: entries of the configuration, and comments of the source."""

    entries: Mapping[SuppressEntry, str] = field(default_factory=dict)
    """with their reasons"""
    comments: Sequence[Comment] = ()
    notes: Sequence[str] = ()
    tree: SourceTree | None = None

    @classmethod
    def of(cls, entries: Mapping[str, str], source: Path | None) -> Suppressions:
        """Raises UsageError for an entry of the configuration that names no rule, or every finding."""
        parsed = {SuppressEntry.parse(key, reason): reason for key, reason in entries.items()}
        notes: list[str] = []
        tree = SourceTree(source) if source is not None else None
        comments = _comments(tree, notes) if tree is not None else []
        return cls(parsed, comments, notes, tree)

    def silenced(self, findings: Sequence[Finding], locate: Locate) -> list[Suppressed]:
        """The findings that are silenced. They are located only where there is a comment that could mean one."""
        located = {f.id: f.location for f in locate(findings)} if self.comments else {}
        silenced = []
        for finding in findings:
            placed = msgspec.structs.replace(finding, location=located.get(finding.id, finding.location))
            comment = next((c for c in self.comments if c.covers(placed)), None)
            entry = next((e for e in self.entries if e.covers(placed, self._function(placed, e))), None)
            if comment is not None:
                silenced.append(
                    Suppressed(finding=placed, kind="comment", where=comment.where, reason=comment.reason)
                )
            elif entry is not None:
                silenced.append(
                    Suppressed(finding=placed, kind="config", where=entry.key, reason=self.entries[entry])
                )
        return silenced

    def said(self, result: Result) -> list[str]:
        """What was silenced, by what, and which entries found nothing to silence although their rule could look."""
        looked = [o for o in result.outcomes if o.outcome in LOOKED]

        def could(selectors: Sequence[str]) -> bool:
            return any(means(s, o.code, o.name) for s in selectors for o in looked)

        silencers = {(s.kind, s.where) for s in result.suppressed}
        silent = [
            f"suppressed: {s.finding.id} {s.finding.name}, by {s.where} ({s.reason or 'no reason given'})"
            for s in result.suppressed
        ]
        idle = [
            f"{c.where} ignore[{', '.join(c.selectors)}]"
            for c in self.comments
            if ("comment", c.where) not in silencers and could(c.selectors)
        ]
        idle += [
            f"suppress.{e.key!r}"
            for e in self.entries
            if ("config", e.key) not in silencers and could([e.selector])
        ]
        unused = [f"unused suppression: {entry} silences nothing in these captures" for entry in idle]
        return [*silent, *unused, *self._of_short_names(result.findings), *self.notes]

    def _function(self, finding: Finding, entry: SuppressEntry) -> str:
        """The function of a finding as far as the entry asks for it. A capture seldom names the class, the source does."""
        at = finding.location
        recorded = at.function or ""
        if self.tree is None or not at.file or len(dotted(recorded)) >= len(entry.function):
            return recorded
        files = self.tree.matches(at.file, recorded, at.line)
        script = self.tree.script(files[0]) if len(files) == 1 else None
        names = script.functions_like(recorded, at.line) if script is not None else []
        return names[0] if len(names) == 1 else recorded

    def _of_short_names(self, findings: Sequence[Finding]) -> list[str]:
        """Why entries do not silence findings of a function that has, as recorded, the name of theirs."""
        lines = []
        for entry in (e for e in self.entries if len(e.function) > 1):
            for finding in findings:
                if not entry.may_cover(finding) or entry.covers(finding):
                    continue
                recorded, known = finding.location.function or "", self._function(finding, entry)
                where = "the source does not tell" if self.tree is not None else "--source may tell"
                why = f"it is {known}" if known != recorded else f"of which class {known} is, {where}"
                lines.append(f"suppress.{entry.key!r} does not silence {finding.id}: {why}")
        return lines


def _comments(tree: SourceTree, notes: list[str]) -> list[Comment]:
    return [
        comment
        for name in tree.files
        if _MARK in tree.data(name)
        for comment in _of_script(tree, name, notes)
    ]


def _of_script(tree: SourceTree, name: str, notes: list[str]) -> list[Comment]:
    script = tree.script(name)
    if script is None:
        notes.append(f"{name}: comments were not read: the file cannot be parsed")
        return []
    comments = []
    text = io.StringIO(script.text, newline=None)  # a lone CR ends a line for Python as well
    tokens = tokenize.generate_tokens(text.readline)
    statement: list[int] = []  # lines of tokens since the last statement ended
    waiting: list[tuple[int, re.Match[str]]] = []
    try:
        for token in tokens:
            line = token.start[0]
            if token.type == tokenize.COMMENT:
                match = _COMMENT.match(token.string)
                if match is not None:
                    waiting.append((line, match))
                elif (meant := _LIKE_A_COMMENT.search(token.string)) is not None:
                    behind = " behind another comment" if meant.start() else ""
                    notes.append(
                        f"{name}:{line}: not understood{behind}: {token.string[meant.start() :][:60]}"
                    )
            elif token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
                first, last = min(statement, default=line), max(statement, default=line)
                comments += [_comment(name, at, first, last, match, notes) for at, match in waiting]
                statement, waiting = [], []
            elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
                statement += [line, token.end[0]]
    except (tokenize.TokenError, IndentationError, SyntaxError):
        notes.append(f"{name}: comments behind line {max(statement, default=1)} were not read")
    return [c for c in comments if c is not None]


def _comment(
    name: str, line: int, first: int, last: int, match: re.Match[str], notes: list[str]
) -> Comment | None:
    selectors = tuple(s.strip() for s in match[1].split(",") if s.strip())
    try:
        for selector in selectors:
            check_selector(selector, "ignore")
    except UsageError as error:
        notes.append(f"{name}:{line}: {error}")
        return None
    if not selectors:
        notes.append(f"{name}:{line}: ignore[] names no rule")
        return None
    return Comment(name, line, min(first, line), max(last, line), selectors, match[2].strip())
