"""Lines that edits make longer than the project lets them be, broken as formatters do it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath
from tokenize import TokenInfo

from trace_doctor.files import open_regular
from trace_doctor.program.edits import Edit
from trace_doctor.program.script import Script
from trace_doctor.program.text_file import TextFile

_CONFIGURATIONS = ("ruff.toml", ".ruff.toml", "pyproject.toml", ".flake8", "setup.cfg", "tox.ini")
_SETTING = re.compile(rb"(?m)^\s*(?:max[-_])?line[-_]length\s*=\s*(\d{2,3})\b")
_USUAL = 88
"""characters of a line for black and ruff, where the project says nothing"""
_STAYS = re.compile(r"#\s*(?:noqa|type:|fmt:|pylint:|pragma:)")
"""comments that are for a program, about their line"""
_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_FSTRING = (getattr(tokenize, "FSTRING_START", -1), getattr(tokenize, "FSTRING_END", -1))


def width(script: Script) -> int:
    """Characters that a line may have, as the nearest configuration of a formatter or linter says, of those in the folders
    from the script's up to that of the source."""
    depth = len(PurePosixPath(script.name).parts)
    for folder in script.path.parents[:depth] if script.path is not None else ():
        found: list[bytes] = []
        for name in _CONFIGURATIONS:
            with suppress(OSError), open_regular(folder / name, follow=False) as file:
                found += _SETTING.findall(file.read(1_000_000))
        if found:
            return min(map(int, found))
    return _USUAL


def wrapped(script: Script, edits: Sequence[Edit], text: str) -> str:
    """The text that edits (by place) gave, with the lines broken that they made too long, as far as that leaves the same
    program."""
    most, after = width(script), TextFile(script.encode(text), script.name)
    mixed = text.count("\r") != text.count("\r\n")  # line ends that Python's tokenizer does not count
    for row in sorted(() if mixed else _lengthened(script, edits, after, most), reverse=True):
        broken = _broken(script, text, row, most)
        text = broken if _same(text, broken) else text
    return text


def _lengthened(script: Script, edits: Sequence[Edit], after: TextFile, most: int) -> set[int]:
    """Lines of the new text that are too long, and that the edits changed, where they were not so before."""
    found, shift = set[int](), 0
    for edit in edits:
        begin, new = edit.start + shift, edit.text.replace("\n", script.newline)
        shift += len(new) - (edit.end - edit.start)
        first, last = after.line_of(begin), after.line_of(begin + len(new))
        # a long line that only moves, or has another value, is left alone
        stays = edit.start < edit.end or not new.rpartition("\n")[2].strip()
        whole = "\n" in new and edit.start == script.line_starts[script.line_of(edit.start) - 1]
        before = {last: script.line_of(edit.end)} if stays else {}
        if stays and not whole:  # else a line of its own stands above
            before[first] = script.line_of(edit.start)
        long = {n for n, old in before.items() if len(script.line_text(old)) > most}
        found |= {n for n in range(first, last + 1) if len(after.line_text(n)) > most} - long
    return found


def _same(old: str, new: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.dump(ast.parse(old)) == ast.dump(ast.parse(new))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False


def _broken(script: Script, text: str, row: int, most: int) -> str:
    """The text with a line broken, and what is left of that where it is too long as well."""
    lines, open_ = text.split("\n"), [row]
    end = "\r" if script.newline == "\r\n" else ""
    while open_:
        row = open_.pop()
        line = lines[row - 1].removesuffix(end)
        parts = (
            _parts(script, [line.removesuffix(end) for line in lines], row, most) if len(line) > most else []
        )
        if parts and (max(map(len, parts)) < len(line) or parts[0].lstrip().startswith("#")):
            lines[row - 1 : row] = [part + end for part in parts]
            open_ += range(row, row + len(parts))
    return "\n".join(lines)


@dataclass(eq=False)
class _Bracket:
    start: tuple[int, int]
    """line and column"""
    outside: _Bracket | None
    end: tuple[int, int] = (0, 0)
    inside: list[TokenInfo] = field(default_factory=list)
    """with the brackets within as two tokens each, but not what stands in those"""

    def columns(self, row: int, text: str) -> list[int]:
        """Where its own commas, or `for`s, stand on a line."""
        return [t.start[1] for t in self.inside if t.string == text and t.start[0] == row]


def _parts(script: Script, lines: Sequence[str], row: int, most: int) -> list[str]:
    """The lines that a line becomes; empty where it cannot be broken."""
    line = lines[row - 1]
    indent = line[: len(line) - len(line.lstrip())]
    inner = indent + script.level(indent)
    found = _brackets(lines, row)
    if found is None or (row > 1 and lines[row - 2].endswith("\\")):
        return []
    brackets, comment = found
    if comment is not None:
        code = line[: comment.start[1]].rstrip()
        return [indent + comment.string, code] if code and not _STAYS.match(comment.string) else []
    open_ = [b for b in brackets if b.start[0] < row or b.end[0] > row]
    for bracket in open_:
        ends = [at for at in bracket.columns(row, ",") if at < most and line[at + 1 :].strip()]
        if ends and not bracket.columns(row, "for"):
            first, column = bracket.inside[0].start
            margin = re.sub(r"\S", " ", lines[first - 1][:column])
            return [line[: ends[-1] + 1], margin + line[ends[-1] + 1 :].lstrip()]
    closed = [b for b in brackets if b not in open_ and b.inside]
    outermost = [b for b in closed if b.outside not in closed]
    for bracket in sorted(outermost, key=lambda b: (line[b.start[1]] == "[", -b.start[1])):
        begin, end = bracket.start[1] + 1, bracket.end[1] - 1
        body, loops = line[begin:end].strip(), bracket.columns(row, "for")
        if begin <= most:
            cuts = [] if len(inner + body) <= most else loops or bracket.columns(row, ",")
            pieces = [line[a:b].strip(" ,") for a, b in pairwise([begin, *cuts, end])]
            comma = "," if cuts and not loops else ""
            return [line[:begin], *(f"{inner}{p}{comma}" for p in pieces if p), indent + line[end:]]
    return []


def _brackets(lines: Sequence[str], row: int) -> tuple[list[_Bracket], TokenInfo | None] | None:
    """The brackets of which a part stands on a line, and its comment; None for a line within a text."""
    found: list[_Bracket] = []
    inmost, quoted, comment = None, 0, None
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        quoted += (token.type == _FSTRING[0]) - (token.type == _FSTRING[1])
        if (
            token.start[0] <= row <= token.end[0]
            and token.start[0] < token.end[0]
            and token.type not in _LAYOUT
        ):
            return None
        if token.type == tokenize.COMMENT:
            comment = token if token.start[0] == row else comment
        elif token.type not in _LAYOUT and not quoted:
            closes = token.type == tokenize.OP and token.string in ")]}"
            if closes and inmost is not None:
                inmost.end, inmost = token.end, inmost.outside
            if inmost is not None:
                inmost.inside.append(token)
            if token.type == tokenize.OP and token.string in "([{":
                inmost = _Bracket(token.start, inmost)
                found.append(inmost)
    return [b for b in found if b.start[0] <= row <= b.end[0]], comment
