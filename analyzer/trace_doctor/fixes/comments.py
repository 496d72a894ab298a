"""Comments that an edit leaves beside what it changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from trace_doctor.program.edits import Change, Edit
from trace_doctor.program.script import Script

_WORD = re.compile(r"[A-Za-z]{4,}|\d+(?:\.\d+)?")


def with_comments_named(change: Change) -> Change:
    """The change, with a note for each comment that speaks of what it takes away or replaces: it may no longer hold."""
    lines = {
        (file.name, line)
        for file, edits in change.files
        if isinstance(file, Script)
        for line in _lines(file, edits)
    }
    notes = [f"the comment at {name}:{line} may no longer hold" for name, line in sorted(lines)]
    return replace(change, notes=(*change.notes, *notes)) if notes else change


def _lines(script: Script, edits: tuple[Edit, ...]) -> Iterator[int]:
    spans = [(c, *script.span(c)) for c in script.all(cst.Comment)]
    left = [(c, a) for c, a, b in spans if not any(e.start <= a and b <= e.end for e in edits)]
    for edit in edits:
        words = _words(script.text[edit.start : edit.end]) - _words(edit.text)
        if not words:
            continue
        last = script.line_of(max(edit.start, edit.end - 1))
        statements = script.statements_on(script.line_of(edit.start))
        first = script.line(statements[0]) if statements else script.line_of(edit.start)
        while first > 1 and script.line_text(first - 1).strip().startswith("#"):
            first -= 1
        for comment, start in left:
            if first <= script.line_of(start) <= last and words & _words(comment.value):
                yield script.line_of(start)


def _words(text: str) -> set[str]:
    """Words and numbers, of identifiers each part: `num_workers=0` gives `workers` and `0`."""
    return {w.lower() for w in _WORD.findall(text.replace("_", " "))}
