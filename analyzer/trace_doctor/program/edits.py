"""Edits of a script's text: ranges of characters with their new text, and the few shapes that codemods need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import libcst as cst

from trace_doctor.model import Safety
from trace_doctor.program.script import Script, Statement
from trace_doctor.program.text_file import TextFile

Refusal = Literal["already", "ambiguous", "unresolved", "display"]


_LINE = "line:"
"""starts the keys of edits that put a line a level deeper"""


@dataclass(frozen=True)
class Edit:
    """Replaces characters [start, end) of the script's text.

    Edits with the same `key` mean the same thing when their `meaning` is equal (two fixes that both set
    `pin_memory=True`), and contradict each other when it is not.
    """

    start: int
    end: int
    text: str
    key: str = ""
    meaning: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        """(place, meaning): two edits of one place and meaning are the same, of one place and two meanings they clash."""
        return (self.key or f"{self.start}:{self.end}", self.meaning or self.text)


@dataclass(frozen=True)
class Option:
    """An option of the command line with a value. `names` are all its spellings."""

    flag: str
    value: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Change:
    """What a codemod wants to do to a script, a launch script or a configuration file."""

    script: TextFile
    edits: tuple[Edit, ...]
    line: int
    """line of the script (1-based) that the change is about"""
    safety: Safety = "unsafe"
    notes: tuple[str, ...] = ()
    framework: str | None = None
    more: tuple[tuple[TextFile, tuple[Edit, ...]], ...] = ()
    """edits of other files that belong to the same change (the option's default in one, the call in another)"""
    elsewhere: str = ""
    """which files may undo the change and were not checked"""
    options: tuple[Option, ...] = ()
    """that belong to the change: what they set is left to them"""

    @property
    def files(self) -> tuple[tuple[TextFile, tuple[Edit, ...]], ...]:
        """All files with their edits, the main one first."""
        return ((self.script, self.edits), *self.more) if self.edits else self.more


def change_of(
    file: TextFile, edits: Sequence[Edit], does: str, framework: str, notes: Sequence[str] = ()
) -> Change:
    """The change of a launch script or a configuration file. Raises NoEdit where there is none: it `does` so already."""
    if not edits:
        raise NoEdit("already", f"{file.name} {does} already", framework=framework)
    return Change(file, tuple(edits), file.line_of(edits[0].start), "unsafe", tuple(notes), framework)


@dataclass
class Gathered:
    """Edits of several files while they are put together to one change, by the names of the files."""

    files: dict[str, tuple[TextFile, list[Edit]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def keep(self, file: TextFile, edits: Iterable[Edit]) -> None:
        """Adds edits of a file to those it has; nothing for none."""
        if more := list(edits):
            self.files.setdefault(file.name, (file, []))[1].extend(more)

    def change(self, main: TextFile, line: int, framework: str | None) -> Change:
        """One change of all files; about `line` of the main one where that changes, else about its first edit."""
        files = [(file, tuple(union([edits]))) for file, edits in self.files.values()]
        files.sort(key=lambda f: f[0].name != main.name)
        first, edits = files[0]
        line = line if first.name == main.name else first.line_of(edits[0].start)
        return Change(first, edits, line, "unsafe", tuple(self.notes), framework, more=tuple(files[1:]))


def together(change: Change, also: Change) -> Change:
    """Two changes as one, which is about what the first is about."""
    edits = Gathered(notes=list(dict.fromkeys([*change.notes, *also.notes])))
    for file, changes in (*change.files, *also.files):
        edits.keep(file, changes)
    return edits.change(change.script, change.line, change.framework)


@dataclass(frozen=True)
class Candidate:
    """A place of the source that a fix could mean."""

    file: str
    line: int
    code: str

    @classmethod
    def of(cls, file: TextFile, line: int) -> Candidate:
        """A line of a file, with its text."""
        return cls(file.name, line, file.line_text(line).strip())


class NoEdit(Exception):
    """A codemod that leaves the script alone, and why.

    `already`: nothing to do; `ambiguous`: several places, none chosen; `unresolved`: the place was not found or is not
    understood; `display`: understood, but not to be done by a machine. `command` is what to type instead, in the terms
    of `framework`; `sketches` what the edit would be: one, or one for each of the places that it may be for.
    """

    def __init__(
        self,
        kind: Refusal,
        why: str,
        candidates: Iterable[Candidate] = (),
        *,
        command: str | None = None,
        framework: str | None = None,
    ) -> None:
        super().__init__(why)
        self.kind: Refusal = kind
        self.why = why
        self.candidates = tuple(candidates)
        self.command = command
        self.framework = framework
        self.sketches: tuple[Change, ...] = ()


@contextmanager
def sketched(change: Change) -> Iterator[None]:
    """What is refused within is an edit that is known, and that people may make once they have judged the reason."""
    try:
        yield
    except NoEdit as refused:
        if refused.kind == "display" and not refused.sketches:
            refused.sketches = (change,)
        raise


def clash(a: Iterable[Edit], b: Iterable[Edit]) -> bool:
    """Whether two sets of edits cannot both be made."""
    return any(_contradict(left, right) for left in a for right in b if left.identity != right.identity)


def _contradict(edit: Edit, right: Edit) -> bool:
    """Whether two edits mean the same thing otherwise, overlap, or move what the other stands at."""
    overlap = edit.start < right.end and right.start < edit.end
    moved = _moves_start_of(edit, right) or _moves_start_of(right, edit)
    return edit.identity[0] == right.identity[0] or overlap or moved


def _moves_start_of(edit: Edit, other: Edit) -> bool:
    """Whether one edit puts a line a level deeper that another adds a line above, takes away or wraps as well."""
    return edit.key.startswith(_LINE) and other.start <= edit.start < max(other.end, other.start + 1)


def union(groups: Iterable[Sequence[Edit]]) -> list[Edit]:
    """The edits of several fixes that do not clash, each once, by place; at the same one last what is set off from the imports."""
    by_identity: dict[tuple[str, str], Edit] = {}
    for edit in (e for group in groups for e in group):
        by_identity.setdefault(edit.identity, edit)
    order = {identity: i for i, identity in enumerate(by_identity)}
    return sorted(
        by_identity.values(), key=lambda e: (e.start, e.end, e.text.startswith("\n"), order[e.identity])
    )


def apply(script: TextFile, edits: Iterable[Edit]) -> str:
    """The file's text after edits that do not overlap. Line ends of inserted text become those of the file."""
    out, at = [], 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if edit.start < at:
            raise ValueError("edits overlap")
        out.append(script.text[at : edit.start])
        out.append(edit.text.replace("\n", script.newline))
        at = edit.end
    return "".join([*out, script.text[at:]])


# ---------------------------------------------------------------------- statements


def line_span(script: Script, node: cst.CSTNode) -> tuple[int, int]:
    """Range of the whole lines that a node stands on, with the last line end."""
    first, last = script.lines(node)
    start = script.line_starts[first - 1]
    end = script.line_starts[last] if last < len(script.line_starts) else len(script.text)
    return start, end


def shares_line(script: Script, statement: Statement) -> bool:
    """Whether other statements stand on the line of a small statement (`a(); b()`, `if x: a()`)."""
    up = script.parent(statement)
    if isinstance(up, cst.SimpleStatementLine):
        return len(up.body) > 1
    return isinstance(up, cst.SimpleStatementSuite)


def remove(script: Script, statement: cst.BaseSmallStatement) -> Edit:
    """Takes a small statement out. A block that would be left empty goes with it where that changes nothing,
    else it keeps a `pass`."""
    up = script.parent(statement)
    assert isinstance(up, cst.SimpleStatementLine | cst.SimpleStatementSuite)
    if len(up.body) > 1:
        index = next(i for i, s in enumerate(up.body) if s is statement)
        if index + 1 < len(up.body):
            return Edit(script.span(statement)[0], script.span(up.body[index + 1])[0], "")
        return Edit(script.span(up.body[index - 1])[1], script.span(statement)[1], "")
    if isinstance(up, cst.SimpleStatementLine):
        block = script.parent(up)
        if not isinstance(block, cst.IndentedBlock) or len(block.body) > 1:
            return _cut_lines(script, up)
        owner = script.parent(block)
    else:
        owner = script.parent(up)
    if isinstance(owner, cst.If) and _removable(script, owner):
        return _cut_lines(script, owner)
    return Edit(*script.span(statement), "pass")


def _cut_lines(script: Script, node: cst.CSTNode) -> Edit:
    """Takes whole lines out, with one of the empty lines around them where there are two; the last line of a file that
    ends without a line end takes the one before it along."""
    start, end = line_span(script, node)
    first, last = script.lines(node)
    if first > 1 and not script.line_text(first - 1).strip() and not script.line_text(last + 1).strip():
        end = script.line_starts[last + 1] if last + 1 < len(script.line_starts) else end
    if end == len(script.text) and start and script.text[end - 1] not in "\r\n":
        start -= 2 if script.text[start - 2 : start] == "\r\n" else 1
    return Edit(start, end, "")


def _removable(script: Script, owner: cst.If) -> bool:
    """An `if` without other branches whose test has no effect, and which is not its block's only statement."""
    quiet = not any(script.all(kind, within=owner.test) for kind in (cst.Call, cst.Await, cst.NamedExpr))
    block = script.parent(owner)
    alone = not isinstance(block, cst.IndentedBlock | cst.Module) or len(block.body) == 1
    return quiet and owner.orelse is None and not alone


def _indent_lines(script: Script, statement: cst.CSTNode, lines: Iterable[str]) -> str:
    """Lines with the indentation of a statement."""
    indent = script.indent(statement)
    return "".join(f"{indent}{line}\n" if line else "\n" for line in lines)


def insert_before(script: Script, statement: cst.CSTNode, code: str, key: str = "") -> Edit:
    """New lines above a statement's line, with its indentation."""
    start = script.line_starts[script.line(statement) - 1]
    return Edit(start, start, _indent_lines(script, statement, code.split("\n")), key, code)


def replace_lines(script: Script, first: cst.CSTNode, last: cst.CSTNode, lines: Iterable[str]) -> Edit:
    """Other lines in place of those from one statement to another, with the indentation of the first."""
    start, end = line_span(script, first)[0], line_span(script, last)[1]
    text = _indent_lines(script, first, lines)
    return Edit(start, end, text if script.text[end - 1] in "\r\n" else text.rstrip("\n"))


def insert_after(script: Script, statement: Statement, code: str, key: str = "") -> Edit:
    """A statement right after another, on a line of its own unless the other shares its line."""
    if shares_line(script, statement):
        end = script.span(statement)[1]
        return Edit(end, end, f"; {code}", key, code)
    end = line_span(script, statement)[1]
    line = f"{script.indent(statement)}{code}"
    closed = not end or script.text[end - 1] in "\r\n"
    return Edit(end, end, f"{line}\n" if closed else f"\n{line}", key, code)


def wrap(script: Script, first: cst.CSTNode, last: cst.CSTNode, header: str) -> list[Edit]:
    """Puts the lines of a run of statements one level deeper below a header (`if ...:`, `with ...:`). Lines inside
    strings stay where they are."""
    begin = script.line_starts[script.line(first) - 1]
    end = script.span(last)[1]
    indent = script.indent(first)
    unit = script.level(indent)
    strings = [
        script.lines(n)
        for kind in (cst.SimpleString, cst.FormattedString)
        for n in script.all(kind)
        if begin <= script.span(n)[0] < end
    ]
    edits = [Edit(begin, begin, f"{indent}{header}\n{unit}", f"{_LINE}{begin}", header)]
    final = script.line_of(begin + len(script.text[begin:end].rstrip()))
    for line in range(script.line(first) + 1, final + 1):
        if script.line_text(line).strip() and not any(a < line <= b for a, b in strings):
            at = script.line_starts[line - 1]
            edits.append(Edit(at, at, unit, f"{_LINE}{at}", f"in {begin} {header}"))
    return edits


# ---------------------------------------------------------------------- call arguments


def argument_end(script: Script, arg: cst.Arg) -> int:
    """Offset right after an argument's value, before its comma."""
    if isinstance(arg.comma, cst.Comma):
        return script.span(arg.comma)[0] - len(cst.Module([]).code_for_node(arg.comma.whitespace_before))
    return script.span(arg)[1]


def set_argument(script: Script, call: cst.Call, arg: cst.Arg, value: str) -> Edit:
    """Replaces the value of an argument that is there."""
    key = f"arg:{script.span(call)[0]}:{arg.keyword.value if arg.keyword else script.span(arg)[0]}"
    outer = script.outer_span(arg.value)
    return Edit(outer[0], outer[1], value, key, value)


def add_arguments(script: Script, call: cst.Call, values: Mapping[str, str]) -> list[Edit]:
    """Appends keyword arguments to a call in the style it is written in, one edit each."""
    start, close = script.span(call)[0], script.span(call)[1] - 1
    pairs = [(f"arg:{start}:{name}", f"{name}={value}", value) for name, value in values.items()]
    if not call.args:
        return [
            Edit(close, close, text if i == 0 else f", {text}", key, value)
            for i, (key, text, value) in enumerate(pairs)
        ]
    last = call.args[-1]
    at = argument_end(script, last)
    if "#" in script.text[at:close]:  # the comment belongs to the last argument: new lines go below it
        indent, below = script.indent(last), script.line_starts[script.line_of(close) - 1]
        comma = [] if isinstance(last.comma, cst.Comma) else [Edit(at, at, ",", f"comma:{start}", ",")]
        return comma + [Edit(below, below, f"{indent}{text},\n", key, value) for key, text, value in pairs]
    if _one_per_line(script, call):
        gap = "\n" + script.indent(last)
        return [Edit(at, at, f",{gap}{text}", key, value) for key, text, value in pairs]
    return [Edit(at, at, f", {text}", key, value) for key, text, value in pairs]


def _one_per_line(script: Script, call: cst.Call) -> bool:
    starts = [script.line(a) for a in call.args]
    return script.line(call.func) < starts[0] and len(set(starts)) == len(starts)


def remove_argument(script: Script, call: cst.Call, arg: cst.Arg) -> Edit:
    """Takes one argument out of a call, with the comma that separated it."""
    index = next(i for i, a in enumerate(call.args) if a is arg)
    key = f"arg:{script.span(call)[0]}:{arg.keyword.value if arg.keyword else script.span(arg)[0]}"
    if index + 1 < len(call.args):
        return Edit(script.span(arg)[0], script.span(call.args[index + 1])[0], "", key, "removed")
    if index > 0:
        return Edit(argument_end(script, call.args[index - 1]), argument_end(script, arg), "", key, "removed")
    gap = len(cst.Module([]).code_for_node(call.whitespace_before_args))
    return Edit(script.outer_span(arg)[0] - gap, script.span(call)[1] - 1, "", key, "removed")
