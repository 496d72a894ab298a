"""Unified diffs, taken apart into the edits they make."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_HUNK = re.compile(r"@@ -([0-9]{1,9})(?:,([0-9]{1,9}))? \+[0-9]{1,9}(?:,([0-9]{1,9}))? @@")


@dataclass
class Edit:
    """`removed` lines from `line` (from 1, of the old file) on give way to `text`; with none, it is put before `line`."""

    line: int
    removed: int = 0
    text: str = ""


@dataclass
class FileEdits:
    path: str
    edits: list[Edit] = field(default_factory=list)


def edits_of(diff: str) -> list[FileEdits]:
    """The edits of each file that a diff changes. Lines end at LF only, as in git; what is no diff gives nothing."""
    files: list[FileEdits] = []
    line = old = new = 0
    edit: Edit | None = None
    for text in re.findall(r"[^\n]*\n|[^\n]+", diff):
        if old <= 0 and new <= 0:
            edit = None if not text.startswith("\\") else edit
            if text.startswith("+++ "):
                files.append(FileEdits(text[4:].rstrip("\r\n").split("\t")[0].removeprefix("b/")))
            elif files and (hunk := _HUNK.match(text)):
                old, new = (1 if n is None else int(n) for n in hunk.group(2, 3))
                line = int(hunk[1]) + (old == 0)  # an empty old side names the line before
        elif text.startswith("-") or text.startswith("+"):
            if edit is None:
                edit = Edit(line)
                files[-1].edits.append(edit)
            if text.startswith("-"):
                edit.removed, line, old = edit.removed + 1, line + 1, old - 1
            else:
                edit.text, new = edit.text + text[1:], new - 1
            continue
        elif not text.startswith("\\"):
            edit, line, old, new = None, line + 1, old - 1, new - 1
        if text.startswith("\\") and edit is not None and edit.text:
            edit.text = edit.text.removesuffix("\n")  # "No newline at end of file"
    return [f for f in files if f.edits]
