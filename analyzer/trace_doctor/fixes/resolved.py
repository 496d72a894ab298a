"""Fixes that were resolved against the source, and which of them go together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from trace_doctor.errors import UnreadableScript
from trace_doctor.model import Finding, Fix, Safety
from trace_doctor.program import edits as editing
from trace_doctor.program.edits import Candidate, Change, NoEdit
from trace_doctor.program.text_file import TextFile

Status = Literal[
    "ready", "held", "conflict", "covered", "already", "ambiguous", "unresolved", "display", "advice"
]
_SAFETY_ORDER: tuple[Safety, ...] = ("safe", "unsafe", "display")


@dataclass(frozen=True)
class Planned:
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

    @property
    def label(self) -> str:
        return self.finding.id if len(self.finding.fixes) == 1 else f"{self.finding.id}.{self.index + 1}"

    @property
    def safety(self) -> Safety:
        """The less safe of what the rule and the codemod say."""
        said = [self.fix.safety, self.change.safety if self.change else "safe"]
        return max(said, key=_SAFETY_ORDER.index)


def checked(script: TextFile, changes: Iterable[editing.Edit]) -> bytes:
    """The file's new bytes, which parse. Raises NoEdit where an edit would break the file."""
    text = editing.apply(script, changes)
    try:
        data = script.encode(text)
        script.rewritten(data)
    except (UnreadableScript, UnicodeError):
        raise NoEdit("unresolved", f"the edit would leave {script.name} unreadable") from None
    return data


# ---------------------------------------------------------------------- several fixes together


def together(items: list[Planned]) -> list[Planned]:
    """Drops what another fix does as well; refuses both of two fixes that contradict each other."""
    refused: dict[int, str] = {}
    covered: dict[int, str] = {}
    kept: list[int] = []
    """ready and covered by none: of many findings with one fix it stays one, and each is compared with that alone"""
    for later in (i for i, item in enumerate(items) if item.status == "ready"):
        for earlier in kept:
            a, b = items[earlier], items[later]
            assert a.change is not None and b.change is not None
            pairs = [(x, y) for f, x in a.change.files for g, y in b.change.files if f.name == g.name]
            same = bool(pairs) and _edits_of(b.change) <= _edits_of(a.change)
            contradict = any(editing.clash(x, y) for x, y in pairs)
            kin = a.finding.code == b.finding.code and a.fix.codemod == b.fix.codemod
            if same or (contradict and (kin or a.finding.id == b.finding.id)):
                covered[later] = f"{a.label} does this already" if same else f"an alternative to {a.label}"
                break
            if contradict:
                refused.setdefault(earlier, f"contradicts {b.label}")
                refused.setdefault(later, f"contradicts {a.label}")
        else:
            kept.append(later)
    return _parsing(_with_status(_with_status(items, refused, "conflict"), covered, "covered"))


def _with_status(items: list[Planned], why: Mapping[int, str], status: Status) -> list[Planned]:
    """Those by their number get a status and the reason for it."""
    return [replace(item, status=status, why=why[n]) if n in why else item for n, item in enumerate(items)]


def _parsing(items: list[Planned]) -> list[Planned]:
    """Refuses edits that are fine alone and leave no valid file together (the last two statements of one block)."""
    by_file: dict[str, list[int]] = {}
    for number, item in enumerate(items):
        if item.status == "ready" and item.change is not None:
            for file, _ in item.change.files:
                by_file.setdefault(file.name, []).append(number)
    refused: dict[int, str] = {}
    for name, mine in by_file.items():
        if len(mine) < 2 or _parse(name, [items[n] for n in mine]):
            continue
        pairs = [p for p in combinations(mine, 2) if not _parse(name, [items[n] for n in p])]
        for a, b in pairs or combinations(mine, 2):
            for one, other in ((a, b), (b, a)):
                refused.setdefault(one, f"together with {items[other].label} it would leave no valid file")
    return _with_status(items, refused, "conflict")


def _parse(name: str, items: Sequence[Planned]) -> bool:
    """Whether a file parses after the edits of all of these."""
    files = [(f, e) for i in items if i.change is not None for f, e in i.change.files if f.name == name]
    try:
        checked(files[0][0], editing.union([e for _, e in files]))
    except NoEdit:
        return False
    return True


def _edits_of(change: Change) -> set[tuple[str, tuple[str, str]]]:
    return {(file.name, edit.identity) for file, edits in change.files for edit in edits}
