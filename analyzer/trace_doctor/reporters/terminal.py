"""Lines of a terminal: cleaning, wrapping to a width, colour as an addition that changes no layout."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trace_doctor.errors import no_command_at_start, no_commands
from trace_doctor.reporters.units import columns, visible

_SGR = {
    "bold": "1",
    "dim": "2",
    "critical": "1;31",
    "warning": "1;33",
    "info": "1;34",
    "good": "1;32",
    "compute": "34",
    "comm": "35",
    "copy": "36",
    "idle": "33",
}
_ASCII = {
    "✖": "x", "▲": "!", "●": "*", "✔": "+", "·": "-", "µ": "u", "…": "...", "–": "-", "—": "-", "−": "-",
    "“": '"', "”": '"', "’": "'", "→": "->", "≥": ">=", "≤": "<=", "×": "x", "≈": "~",
    "█": "#", "▓": "%", "▒": "=", "░": ".",
}  # fmt: skip

WIDEST = 1_000
"""columns, of no terminal more"""
Piece = tuple[str, str]
"""text and style ('' for none)"""


class Terminal:
    """Collects lines no wider than `width`. Widths are measured before colour is added."""

    def __init__(self, width: int, *, color: bool, ascii: bool) -> None:
        self.width = min(max(width, 40), WIDEST)
        self.color = color
        self.ascii = ascii
        self.lines: list[str] = []

    def clean(self, text: str) -> str:
        """One line, harmless, in the characters that may be used."""
        text = visible(text)
        if self.ascii and not text.isascii():
            text = "".join(_ASCII.get(c, c) for c in text).encode("ascii", "backslashreplace").decode()
            text = no_commands(text)  # "##×[" has become `##x[`
        return text

    def style(self, text: str, style: str) -> str:
        """The text in a style, where there is colour."""
        return f"\x1b[{_SGR[style]}m{text}\x1b[0m" if self.color and style and text else text

    def blank(self) -> None:
        """An empty line, where there is none yet."""
        if self.lines and self.lines[-1]:
            self.lines.append("")

    def put(self, text: str, style: str = "", *, indent: int = 0, first: str = "") -> None:
        """A paragraph: wrapped at spaces, every line indented, `first` put into the first line's indent."""
        head = self.clean(first)
        indent = max(indent, columns(head))
        if indent > self.width // 2:  # what was to stand beside the text leaves no room for it
            self.put(head, indent=2)
            head, indent = "", 2
        for number, line in enumerate(self._wrap(self.clean(text), self.width - indent)):
            lead = (head if number == 0 else "") + " " * (indent - (columns(head) if number == 0 else 0))
            self.lines.append((lead + self.style(line, style)).rstrip())

    def row(self, cells: Sequence[tuple[str, int]], style: str = "") -> None:
        """Cells side by side, two blanks before the first: cut or filled to their width, to the right where it is
        negative."""
        line = " "
        for text, width in cells:
            text = _shortened(self.clean(text), abs(width), self.clean("…"))
            room = " " * (abs(width) - columns(text))
            line += " " + (room + text if width < 0 else text + room)
        self.lines.append(self.style(line.rstrip(), style))

    def flow(self, pieces: Sequence[Piece], *, indent: int = 0) -> None:
        """Pieces side by side; one that does not fit begins the next line, indented."""
        gap = "  "
        line, position, empty = "", 0, True
        for text, style in pieces:
            for number, part in enumerate(self._wrap(self.clean(text), self.width - indent)):
                width = columns(part) + (0 if empty else columns(gap))
                if not empty and (number or position + width > self.width):
                    self.lines.append(line.rstrip())
                    line, position, empty = " " * indent, indent, True
                if not empty:
                    line, position = line + gap, position + columns(gap)
                line, position, empty = line + self.style(part, style), position + columns(part), False
        if not empty:
            self.lines.append(line.rstrip())

    def text(self) -> str:
        """All lines, none of which begins with a command of a CI server."""
        # foreign text may be wrapped so that a command begins a line
        return "\n".join(no_command_at_start(line) for line in self.lines).rstrip("\n") + "\n"

    def _wrap(self, text: str, room: int) -> list[str]:
        """Lines of at most `room` columns. What has no space to break at is cut, at least one character for a line."""
        lines, line, room = [], "", max(room, 1)
        for word in text.split():
            while not _fits(word, room):
                head = _cut(word, room - columns(line) - (1 if line else 0))
                if line and columns(head) < 12:
                    lines.append(line)
                    line = ""
                    continue
                head = head or word[0]
                lines.append(f"{line} {head}" if line else head)
                word, line = word[len(head) :], ""
            if line and columns(line) + 1 + columns(word) > room:
                lines.append(line)
                line = word
            elif word:
                line = f"{line} {word}" if line else word
        if line:
            lines.append(line)
        return lines


_FILE = re.compile(r"[^/\\\s(]+\.py(?::\d+)?\)?$")
"""the end of a place: what is left of it if it is cut"""


def _shortened(text: str, room: int, mark: str) -> str:
    """Cut at its end; of a place in the middle, so that file and line stay."""
    if columns(text) <= room:
        return text
    if file := _FILE.search(text):
        left = room - columns(mark)
        end = _head(file[0][::-1], left)[::-1]
        return _head(text[: file.start()], left - columns(end)) + mark + end
    return _head(text, room - columns(mark)) + mark


def _fits(word: str, room: int) -> bool:
    return len(_head(word, room)) == len(word)


def _head(word: str, room: int) -> str:
    """The longest head that takes at most `room` columns."""
    width = 0
    for i, char in enumerate(word):
        width += columns(char)
        if width > room:
            return word[:i]
    return word


def _cut(word: str, room: int) -> str:
    """The longest head of the word that fits; of a path up to a slash, where one is near."""
    head = _head(word, room)
    after = head.rfind("/") + 1
    return head[:after] if len(head) < len(word) and after > len(head) // 2 else head
