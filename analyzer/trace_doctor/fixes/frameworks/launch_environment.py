"""Variables that launch scripts, images and job descriptions set before a script starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trace_doctor.fixes.frameworks.launchers import CONFIG, SHELL, commands, shown
from trace_doctor.program.edits import Candidate
from trace_doctor.program.place import Place
from trace_doctor.program.text_file import TextFile

_TEXT = r"""(?P<quote>["']?)(?P<value>(?:(?<=")[^"\n]*|(?<=')[^'\n]*|(?<!["'])[^\s"'#;&|\\]*))(?P=quote)"""
_FORMS = (
    rf"(?<![\w$.{{-])(?:NAME)=(?!=){_TEXT}",  # export NAME=..., env NAME=... python, ENV NAME=..., - NAME=...
    rf"(?<![\w$.{{-])(?:NAME)[ \t]*(?::=|\?=|:[ \t]|[ \t]=[ \t]){_TEXT}",  # make, YAML
    rf"^[ \t]*(?:ENV|env|setenv)[ \t]+(?:NAME)[ \t]+(?!=){_TEXT}",
    rf"name:[ \t]*[\"']?(?:NAME)[\"']?[ \t]*\r?\n[ \t]*value:[ \t]*{_TEXT}",
    rf'"(?:NAME)"[ \t]*:[ \t]*{_TEXT}',
)


@dataclass(frozen=True)
class Assigned:
    """One place that sets a variable: characters [start, end) of the file are its value, without quotes."""

    file: TextFile
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.file.text[self.start : self.end]

    @property
    def dynamic(self) -> bool:
        """Whether the value is put together when the command runs."""
        return re.search(r"[$`{]", self.text) is not None

    @property
    def candidate(self) -> Candidate:
        return shown(self.file, self.start)


def assigned(place: Place, names: Sequence[str]) -> list[Assigned]:
    """Places that set one of these variables for the program, in files that start it or start nothing else."""
    found = []
    for file in place.program.files(*SHELL, *CONFIG):
        if any(name in file.text for name in names) and _concerns(place, file):
            found += list(_in_file(file, names))
    return found


def _concerns(place: Place, file: TextFile) -> bool:
    if re.search(r"[\w-]\.py\b", file.text) is None:
        return True
    return any(c.file.name == file.name for s in place.scripts for c in commands(place, s.name)) or any(
        s.name.split("/")[-1] in file.text for s in place.scripts
    )


def _in_file(file: TextFile, names: Sequence[str]) -> Iterator[Assigned]:
    name = "|".join(map(re.escape, names))
    spans = {
        match.span("value")
        for form in _FORMS
        for match in re.finditer(form.replace("NAME", name), file.text, re.MULTILINE)
        if not _commented(file, match.start())
    }
    for start, end in sorted(spans):
        yield Assigned(file, start, end)


def _commented(file: TextFile, at: int) -> bool:
    line = file.line_starts[file.line_of(at) - 1]
    return re.search(r"(?:^|\s)#", file.text[line:at]) is not None
