"""Variables that launch scripts, images and job descriptions set before a script starts.

A value is edited only where its line is plainly one statement, or one plain scalar of YAML or JSON. Every other line that
names the variable is shown: quotes, arrays and here-documents are the business of a shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from trace_doctor.fixes.frameworks.launchers import CONFIG, SHELL, candidate_at, commands, simple_command
from trace_doctor.program.edits import Candidate
from trace_doctor.program.place import Place
from trace_doctor.program.text_file import TextFile

_PLAIN = r"[\w.:,/+-]+"
_OTHERS = rf"(?:\w+=(?:{_PLAIN}|\"{_PLAIN}\"|'{_PLAIN}')[ \t]+)*"
_STATEMENT = re.compile(
    rf"""[ \t]*(?P<sets>(?:export|ENV)[ \t]+)?(?:env[ \t]+)?{_OTHERS}(?P<name>\w+)=(?P<quote>["']?)(?P<value>{_PLAIN})(?P=quote)"""
    rf"""(?(sets)[ \t]*(?:[ \t]{_OTHERS}\w+=(?:{_PLAIN}|"{_PLAIN}"|'{_PLAIN}')[ \t]*)?(?:[ \t]\#.*)?\r?$|[ \t]+[\w./"$])"""
)
_CLOSED = re.compile(
    r"""(?:[^'"\\#]|(?<=\S)\#|\\.|'[^']*'|"(?:[^"\\]|\\.)*+")*+(?:\\|(?<!\S)\#.*)?\r?$""", re.DOTALL
)
"""a line at whose end no quote is open; it may go on below"""


@dataclass(frozen=True)
class Assignment:
    """One place that names a variable: characters [start, end) of the file are its value, without quotes. Where it cannot
    be told, `start` is the place itself and `end` is None."""

    file: TextFile
    start: int
    end: int | None

    @property
    def text(self) -> str | None:
        """The value without quotes; None where its end cannot be told."""
        return None if self.end is None else self.file.text[self.start : self.end]

    @property
    def candidate(self) -> Candidate:
        """The line of the value, as people are shown it."""
        return candidate_at(self.file, self.start)

    def says(self, option: str) -> bool:
        """Whether the option is among those of the value, or of the line where the value is not known."""
        text = self.candidate.code if self.text is None else self.text
        return option in re.split(r"[,'\"\s=]+", text)


def assignments_of(place: Place, names: Sequence[str]) -> list[Assignment]:
    """Places that set, or may set, one of these variables for the program, in files that start it or start nothing else."""
    assignments = []
    for file in place.program.files(*SHELL, *CONFIG):
        if any(name in file.text for name in names) and _concerns(place, file):
            assignments += list(_in_file(place, file, names))
    return assignments


def _concerns(place: Place, file: TextFile) -> bool:
    if re.search(r"[\w-]\.py\b", file.text) is None:
        return True
    return any(c.file.name == file.name for s in place.scripts for c in commands(place, s.name)) or any(
        s.name.split("/")[-1] in file.text for s in place.scripts
    )


def _in_file(place: Place, file: TextFile, names: Sequence[str]) -> Iterator[Assignment]:
    values = _scalars(file) if file.name.endswith(CONFIG) else {}
    for match in re.finditer(rf"(?<![\w$.-])(?<!\${{)(?:{'|'.join(map(re.escape, names))})(?!\w)", file.text):
        at = match.start()
        if _in_comment(file, at):
            continue
        if file.name.endswith(CONFIG):
            span = values.get(at)
        elif (span := _statement(file, at)) is not None:
            if (reaches := _reaches(place, file, at)) is False:
                continue
            span = span if reaches else None
        yield Assignment(file, *(span or (at, None)))


def _reaches(place: Place, file: TextFile, at: int) -> bool | None:
    """Whether the program sees what a statement of a shell sets: one in front of a command is for that command alone, an
    export for those below. None where that is not known."""
    names = {s.name.split("/")[-1] for s in place.scripts}
    own = [
        simple
        for name in names
        for command in commands(place, name)
        if command.file.name == file.name and (simple := simple_command(command, name)) is not None
    ]
    line = file.line_of(at)
    text = file.line_text(line)
    if (match := _STATEMENT.match(text)) is not None and match["sets"]:
        return True if not own or any(command.start > at for command in own) else None
    if any(command.start <= at < command.end for command in own):
        return True
    while text.rstrip("\r\n").endswith("\\") and line < len(file.line_starts):
        line += 1
        text += file.line_text(line)
    others = set(re.findall(r"[\w.-]+\.py\b", text))
    if others and not others & names:
        return False
    return None if own else True


def _statement(file: TextFile, at: int) -> tuple[int, int] | None:
    """The value of what one line of a shell, or of an image, sets and nothing above can reach into."""
    line = file.line_starts[file.line_of(at) - 1]
    above = file.text[:line]
    match = _STATEMENT.match(file.line_text(file.line_of(at)))
    if match is None or line + match.start("name") != at or re.search(r"<<|=\(", above):
        return None
    lines = above.split("\n")[:-1]
    if not all(map(_CLOSED.match, lines)) or (lines and lines[-1].rstrip("\r").endswith("\\")):
        return None
    return line + match.start("value"), line + match.end("value")


def _scalars(file: TextFile) -> dict[int, tuple[int, int]]:
    """The values of `NAME: value`, and of `name: NAME` with `value: value`, by where the name begins. What has a tag, an
    anchor or several lines is not written as what it means."""
    try:
        todo = list(yaml.compose_all(file.text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    spans, visited = {}, set()
    while todo:
        node = todo.pop()
        if id(node) in visited or not isinstance(node, yaml.CollectionNode):
            continue
        visited.add(id(node))
        if not isinstance(node, yaml.MappingNode):
            todo += node.value
            continue
        todo += [part for pair in node.value for part in pair]
        members = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
        pairs = [
            *node.value,
            *([(members["name"], members["value"])] if {"name", "value"} <= members.keys() else []),
        ]
        for name, value in pairs:
            span = _value_span(file, value, bare=not node.flow_style)
            if isinstance(name, yaml.ScalarNode) and span is not None:
                spans[name.start_mark.index + (name.style is not None)] = span
    return spans


def _value_span(file: TextFile, node: yaml.Node, *, bare: bool) -> tuple[int, int] | None:
    start, end = node.start_mark.index, node.end_mark.index
    text = file.text[start:end]
    if not isinstance(node, yaml.ScalarNode) or not re.fullmatch(_PLAIN, node.value):
        return None
    if text in (f'"{node.value}"', f"'{node.value}'"):
        return start + 1, end - 1
    return (start, end) if bare and text == node.value else None


def _in_comment(file: TextFile, at: int) -> bool:
    line = file.line_starts[file.line_of(at) - 1]
    return re.search(r"(?:^|\s)#", file.text[line:at]) is not None
