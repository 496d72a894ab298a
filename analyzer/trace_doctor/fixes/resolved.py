"""Fixes that were resolved against the source, and which of them go together."""

from __future__ import annotations

import difflib
import platform
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from trace_doctor.errors import UnreadableScript
from trace_doctor.fixes.tidy import tidied
from trace_doctor.model import Finding, Fix, Safety
from trace_doctor.program import edits as editing
from trace_doctor.program.edits import Candidate, Change, NoEdit
from trace_doctor.program.nesting_guard import PLAIN, nesting
from trace_doctor.program.script import Script
from trace_doctor.program.source_tree import SourceTree
from trace_doctor.program.text_file import TextFile

Status = Literal[
    "ready", "held", "conflict", "covered", "already", "ambiguous", "unresolved", "display", "advice"
]
_LONGEST = 40
"""lines of a sketch"""
_VERSION = "Python " + ".".join(platform.python_version_tuple()[:2])


@dataclass(frozen=True)
class PlannedFix:
    """One fix of one finding, resolved against the source."""

    finding: Finding
    index: int
    """position in finding.fixes"""
    fix: Fix
    status: Status
    why: str = ""
    candidates: tuple[Candidate, ...] = ()
    change: Change | None = None
    diff: bytes = b""
    sketch: str = ""
    """of a fix that is not made: what it would change in the script"""

    @property
    def missing(self) -> str:
        """Why the fix is not made and, where the reason has a place, that place; one line."""
        places = list(dict.fromkeys(f"{c.file}:{c.line}" for c in self.candidates))
        if self.status == "ambiguous":
            more = f" and {len(places) - 3} more" if len(places) > 3 else ""
            return f"{self.why}: {', '.join(places[:3])}{more}"
        return f"{places[0]}: {self.why}" if places and places[0] not in self.why else self.why

    @property
    def label(self) -> str:
        """The finding's id, with the number of the fix (from 1) where it has several."""
        return labels_of(self.finding)[self.index]

    @property
    def safety(self) -> Safety:
        """What the rule says of it; only shown where the codemod says so."""
        return self.change.safety if self.change and self.fix.safety == "unsafe" else self.fix.safety


def labels_of(finding: Finding) -> list[str]:
    """What its fixes are called: its id, with their numbers (from 1) where they are several."""
    several = len(finding.fixes) > 1
    return [f"{finding.id}.{n}" if several else finding.id for n, _ in enumerate(finding.fixes, 1)]


def sketch_of(changes: Iterable[Change]) -> str:
    """What changes would do, as `path:line` with `-` and `+` lines; empty where one of them would break its file."""
    files = [file for change in changes for file in change.files]
    try:
        for file, edits in files:
            new_bytes(file, edits)
    except NoEdit:
        return ""
    parts = (_sketch(file.name, file.text, _new_text(file, edits)) for file, edits in files)
    lines = "\n".join(parts).split("\n")
    more = len(lines) - _LONGEST
    return "\n".join([*lines[:_LONGEST], f"... {more} more lines"] if more > 1 else lines)


def _sketch(path: str, before: str, after: str) -> str:
    """What changes, without the lines around it, in a form that no tool applies: `path:line`, then `-` and `+` lines."""
    a, b = before.split("\n"), after.split("\n")
    lines = []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag != "equal":
            lines += [
                f"{path}:{i1 + 1}",
                *(f"- {line}" for line in a[i1:i2]),
                *(f"+ {line}" for line in b[j1:j2]),
            ]
    return "\n".join(line.rstrip() for line in lines)


def _is_shallow(script: TextFile) -> bool:
    """Deeper ones may end the process."""
    return isinstance(script, Script) and nesting(script.text) <= PLAIN


def _new_text(script: TextFile, changes: Iterable[editing.Edit], tree: SourceTree | None = None) -> str:
    if isinstance(script, Script) and _is_shallow(script):
        return tidied(script, changes, tree)
    return editing.apply(script, changes)


def new_bytes(script: TextFile, changes: Iterable[editing.Edit], tree: SourceTree | None = None) -> bytes:
    """The file's new bytes, which parse. Raises NoEdit where an edit would break the file. `tree` has the files that may
    import from it."""
    try:
        text = _new_text(script, changes, tree)
        data = script.encode(text)
        script.rewritten(data)
    except (UnreadableScript, UnicodeError):
        raise NoEdit("unresolved", f"the edit would leave {script.name} unreadable") from None
    if _is_shallow(script) and not _compiles(text) and _compiles(script.text):
        raise NoEdit("unresolved", f"{_VERSION} could not read {script.name} after the edit")
    return data


def _compiles(text: str) -> bool:
    """Whether this version of Python reads it: before 3.12 a line break within an f-string, say, is none that LibCST minds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "script", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


# ---------------------------------------------------------------------- several fixes together


_APART = frozenset(frozenset(("gradient-accumulation", other)) for other in ("zero-grad", "no-sync"))
"""what is right for the script as it is, and another edit beside the other: accumulation moves what clears the gradients"""


def together(items: list[PlannedFix]) -> list[PlannedFix]:
    """Drops what another fix does as well; refuses both of two fixes that contradict each other."""
    conflicts: dict[int, str] = {}
    duplicates: dict[int, str] = {}
    apart: dict[int, str] = {}
    firsts: list[int] = []
    """ready and covered by none: of many findings with one fix it stays one, and each is compared with that alone"""
    for later in (i for i, item in enumerate(items) if item.status == "ready"):
        for earlier in firsts:
            a, b = items[earlier], items[later]
            assert a.change is not None and b.change is not None
            pairs = [(x, y) for f, x in a.change.files for g, y in b.change.files if f.name == g.name]
            same = bool(pairs) and _edits_of(b.change) <= _edits_of(a.change)
            if pairs and frozenset((a.fix.codemod, b.fix.codemod)) in _APART:
                apart[later] = f"{a.label} changes what it would build on: run fix again after it"
                break
            contradict = any(editing.clash(x, y) for x, y in pairs)
            kin = a.finding.code == b.finding.code and a.fix.codemod == b.fix.codemod
            if same or (contradict and (kin or a.finding.id == b.finding.id)):
                duplicates[later] = f"{a.label} does this already" if same else f"an alternative to {a.label}"
                break
            if contradict:
                conflicts.setdefault(earlier, f"contradicts {b.label}")
                conflicts.setdefault(later, f"contradicts {a.label}")
        else:
            firsts.append(later)
    items = _with_status(_with_status(items, {**conflicts, **apart}, "conflict"), duplicates, "covered")
    return _refuse_unparsable(items)


def _with_status(items: list[PlannedFix], why: Mapping[int, str], status: Status) -> list[PlannedFix]:
    """Those by their number get a status and the reason for it."""
    return [replace(item, status=status, why=why[n]) if n in why else item for n, item in enumerate(items)]


def _refuse_unparsable(items: list[PlannedFix]) -> list[PlannedFix]:
    """Refuses edits that are fine alone and leave no valid file together (the last two statements of one block)."""
    by_file: dict[str, list[int]] = {}
    for number, item in enumerate(items):
        if item.status == "ready" and item.change is not None:
            for file, _ in item.change.files:
                by_file.setdefault(file.name, []).append(number)
    conflicts: dict[int, str] = {}
    for name, mine in by_file.items():
        if len(mine) < 2 or _parse(name, [items[n] for n in mine]):
            continue
        pairs = [p for p in combinations(mine, 2) if not _parse(name, [items[n] for n in p])]
        for a, b in pairs or combinations(mine, 2):
            for one, other in ((a, b), (b, a)):
                conflicts.setdefault(one, f"together with {items[other].label} it would leave no valid file")
    return _with_status(items, conflicts, "conflict")


def _parse(name: str, items: Sequence[PlannedFix]) -> bool:
    """Whether a file parses after the edits of all of these."""
    files = [(f, e) for i in items if i.change is not None for f, e in i.change.files if f.name == name]
    try:
        new_bytes(files[0][0], editing.union([e for _, e in files]))
    except NoEdit:
        return False
    return True


def _edits_of(change: Change) -> set[tuple[str, tuple[str, str]]]:
    return {(file.name, edit.identity) for file, edits in change.files for edit in edits}
