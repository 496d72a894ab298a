"""The keyword arguments that reach a call, wherever they are written: in the call, in a dictionary that is splatted into
it, in the one call of the function whose `**kwargs` it passes on, or in the `functools.partial` that it calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

import libcst as cst

from trace_doctor.program.dataflow import dataflow_of, parameters
from trace_doctor.program.edits import Edit, add_arguments
from trace_doctor.program.place import refusal
from trace_doctor.program.project import Project
from trace_doctor.program.script import Script, dotted, key_of, literal, method_name, receiver

Container = cst.Call | cst.Dict
_CHANGES = ("pop", "popitem", "clear", "setdefault", "__setitem__")


@dataclass(frozen=True)
class Argument:
    """One argument: its value, and what it is written in (None for `kwargs["name"] = value`)."""

    name: str
    value: cst.BaseExpression
    script: Script
    container: Container | None


class Arguments:
    """What a call is passed."""

    def __init__(
        self, project: Project, script: Script, call: cst.Call, positions: Mapping[str, int]
    ) -> None:
        self._project = project
        self.script = script
        self.call = call
        self._hidden = ""
        self._choices: list[tuple[Script, cst.Dict]] = []
        """dictionaries of which a condition takes one when the script runs"""
        self._choice: tuple[Script, cst.Dict] | None = None
        self._chosen_by = ""
        self._skipped: dict[str, tuple[str, Script, cst.BaseExpression]] = {}
        """arguments that a branch which did not run while it was recorded adds to a dictionary -> where, and that"""
        entries = [*self._of_call(script, call, positions)]
        for partial in project.partials(script, call.func)[:1]:
            entries += self._of_call(*partial, {})
        self._by_name: dict[str, list[Argument]] = {}
        for entry in entries:
            self._by_name.setdefault(entry.name, []).append(entry)

    @property
    def hidden(self) -> str:
        """The text of what may hold any argument; empty where all are visible. A condition's choice holds any until one of its
        `alternatives` is asked."""
        return self._hidden or (self._chosen_by if self._choice is None else "")

    def find(self, name: str) -> Argument | None:
        """The argument by its name, from the nearest place that sets it."""
        entries = self._by_name.get(name)
        return entries[0] if entries else None

    def times(self, name: str) -> int:
        """How many places set an argument: more than one decide between them when the script runs."""
        return len(self._by_name.get(name, ()))

    def alternatives(self) -> list[Arguments]:
        """The arguments as they are with each of the dictionaries that a condition decides between."""
        views = []
        for choice in self._choices:
            view, others = copy(self), [node for _, node in self._choices if node is not choice[1]]
            view._choice = choice
            view._by_name = {
                name: rest
                for name, entries in self._by_name.items()
                if (rest := [e for e in entries if not any(e.container is node for node in others)])
            }
            views.append(view)
        return views or [self]

    def _of_call(
        self, script: Script, call: cst.Call, positions: Mapping[str, int], depth: int = 0
    ) -> Iterator[Argument]:
        names = {position: name for name, position in positions.items()}
        for index, arg in enumerate(call.args):
            if arg.star == "**":
                yield from self._of_mapping(script, arg.value, depth)
            elif arg.star:
                self._hidden = f"*{script.code(arg.value)}"
            elif arg.keyword is not None:
                yield Argument(arg.keyword.value, arg.value, script, call)
            elif index in names:
                yield Argument(names[index], arg.value, script, call)

    def _of_mapping(self, script: Script, node: cst.BaseExpression, depth: int) -> Iterator[Argument]:
        """Entries of a dictionary by its literal, `dict(...)`, its name, and what is added to that name later."""
        if isinstance(node, cst.IfExp):
            yield from self._of_choices(
                [(script, node.body), (script, node.orelse)], script.code(node), depth
            )
        elif isinstance(node, cst.Dict):
            for element in node.elements:
                if isinstance(element, cst.StarredDictElement):
                    yield from self._of_mapping(script, element.value, depth + 1)
                elif isinstance(element, cst.DictElement) and isinstance(name := literal(element.key), str):
                    yield Argument(name, element.value, script, node)
                else:
                    self._hidden = script.code(node)
        elif method_name(node) == "copy" and (source := receiver(node)) is not None:
            yield from self._of_mapping(script, source, depth + 1)
        elif isinstance(node, cst.Call) and script.callee(node) == "dict" and _only_keywords(node):
            yield from self._of_call(script, node, {})
        else:
            yield from self._of_name(script, node, depth)

    def _of_name(self, script: Script, node: cst.BaseExpression, depth: int) -> Iterator[Argument]:
        origins = [(s, n) for s, n in self._project.of(script, node) if n is not node]
        name, function = dotted(node), script.function_of(node)
        star = function.params.star_kwarg if function is not None else None
        if depth > 4:
            self._hidden = f"**{script.code(node)}"
            return
        if function is not None and star is not None and star.name.value == name:
            yield from self._of_callers(script, function, name, depth)
        elif len(origins) == 1 and isinstance(origins[0][1], cst.Dict | cst.Call):
            yield from self._of_mapping(*origins[0], depth + 1)
        else:
            bindings = dataflow_of(script).bindings_of(node)
            one = len(bindings) == 1 and isinstance(bindings[0].value, cst.IfExp)
            yield from self._of_choices(origins if one else [], script.code(node), depth)
        for statement, entries in self._added_to(script, name, node, depth) if name is not None else ():
            if self._project.executed.skipped(script, statement) is None:
                yield from entries
                continue
            home = origins[0] if origins else (script, node)
            for entry in entries:
                where = f"{entry.script.name}:{entry.script.line(entry.value)}"
                self._skipped[entry.name] = (where, *home)

    def _of_choices(
        self, choices: Sequence[tuple[Script, cst.BaseExpression]], what: str, depth: int
    ) -> Iterator[Argument]:
        """Entries of dictionaries that exclude each other."""
        literals = [(s, n) for c in choices for s, n in self._project.of(*c) if isinstance(n, cst.Dict)]
        if self._choices or not literals or len(literals) != len(choices):
            self._hidden = f"**{what}"
            return
        self._choices = literals
        for script, node in literals:
            yield from self._of_mapping(script, node, depth + 1)
        self._chosen_by = f"**{what}"

    def _of_callers(
        self, script: Script, function: cst.FunctionDef, name: str, depth: int
    ) -> Iterator[Argument]:
        """What the one call of a function passes beyond its named parameters."""
        calls = self._project.callers(script, function)
        if len(calls) != 1 or (function, name) in dataflow_of(script).bindings:
            self._hidden = f"**{name}, of {len(calls)} calls" if len(calls) > 1 else f"**{name}"
            return
        own = parameters(function)
        yield from (a for a in self._of_call(*calls[0], {}, depth + 1) if a.name not in own)

    def _added_to(
        self, script: Script, name: str, node: cst.BaseExpression, depth: int
    ) -> Iterator[tuple[cst.CSTNode, Iterator[Argument]]]:
        """The statements that add to a dictionary, and what."""
        home = script.function_of(node)
        for call in script.all(cst.Call):
            container, method = receiver(call), method_name(call)
            if container is None or dotted(container) != name or script.function_of(call) is not home:
                continue
            if method in _CHANGES:
                self._hidden = f"**{name}"
            if method == "update":
                yield call, self._of_update(script, call, depth)
        for assign in script.all(cst.Assign):
            target = assign.targets[0].target
            if not isinstance(target, cst.Subscript) or dotted(target.value) != name:
                continue
            if script.function_of(assign) is home and (key := key_of(target)) is not None:
                yield assign, iter([Argument(key, assign.value, script, None)])
            elif script.function_of(assign) is home:
                self._hidden = f"**{name}"

    def _of_update(self, script: Script, call: cst.Call, depth: int) -> Iterator[Argument]:
        for arg in call.args:
            if arg.keyword is not None:
                yield Argument(arg.keyword.value, arg.value, script, call)
            else:
                yield from self._of_mapping(script, arg.value, depth + 1)

    # ------------------------------------------------------------------ edits

    def add(self, beside: Argument | None, values: Mapping[str, str]) -> tuple[Script, list[Edit]]:
        """New arguments where another one is written that they belong to; without one in the call itself, or where a branch
        that did not run would pass them twice, in the dictionary that the branch adds to. Raises NoEdit where there is none."""
        script, container = self.script, beside.container if beside is not None else None
        twice = next((name for name in self._skipped if name in values), None)
        if twice is not None and container in (None, self.call):
            where, home, mapping = self._skipped[twice]
            if not isinstance(mapping, cst.Dict):
                raise refusal(script, self.call, f"{where} sets {twice}, in a branch that did not run")
            script, container = home, mapping
        elif beside is not None and container is not None:
            script = beside.script
        elif self._choice is not None:
            script, container = self._choice
        if isinstance(container, cst.Dict):
            return script, add_entries(script, container, values)
        return script, add_arguments(script, container or self.call, values)


def refuse_configured(script: Script, call: cst.Call, *arguments: cst.Arg | None) -> None:
    """Raises NoEdit where one of a call's arguments, which an edit would change or take away, is computed or configured."""
    for arg in arguments:
        if arg is not None and literal(arg.value) is ...:
            name = arg.keyword.value if arg.keyword is not None else "an argument"
            raise refusal(script, call, f"{name} is set on purpose, from {script.code(arg.value)}")


def refuse_explained(script: Script, call: cst.Call, names: Iterable[str]) -> None:
    """Raises NoEdit where a comment at a call, or right above its statement, speaks of an argument that would change: it
    may say why the argument is as it is."""
    first, last = script.lines(script.statement_of(call) or call)
    while first > 1 and script.line_text(first - 1).strip().startswith("#"):
        first -= 1
    comments = [script.line_text(n).partition("#")[2].lower() for n in range(first, last + 1)]
    for name in sorted(names):
        if any(name in comment for comment in comments):
            raise refusal(script, call, f"a comment at the call speaks of {name}")


def _only_keywords(call: cst.Call) -> bool:
    return all(a.keyword or a.star == "**" for a in call.args)


def set_value(entry: Argument, value: str) -> Edit:
    """Replaces an argument's value where it is written."""
    start, end = entry.script.outer_span(entry.value)
    in_call = isinstance(entry.container, cst.Call)
    place = (
        f"arg:{entry.script.span(entry.container)[0]}" if entry.container and in_call else f"entry:{start}"
    )
    return Edit(start, end, value, f"{place}:{entry.name}", value)


def add_entries(script: Script, node: cst.Dict, values: Mapping[str, str]) -> list[Edit]:
    """Appends entries to a dictionary in the style it is written in."""
    start, close = script.span(node)[0], script.span(node)[1] - 1
    keys = [e.key for e in node.elements if isinstance(e, cst.DictElement)]
    usual = "'" if script.text.count("'") > script.text.count('"') else '"'
    quote = keys[0].quote if keys and isinstance(keys[0], cst.SimpleString) else usual
    pairs = [(f"entry:{start}:{n}", f"{quote}{n}{quote}: {v}", v) for n, v in values.items()]
    if not node.elements:
        return [Edit(close, close, ", " * (i > 0) + t, k, v) for i, (k, t, v) in enumerate(pairs)]
    last = node.elements[-1]
    at = script.span(last.value)[1]
    column = script.span(last)[0] - script.line_starts[script.line(last) - 1]
    own_line = not script.line_text(script.line(last))[:column].strip()
    gap = "\n" + script.line_text(script.line(last))[:column] if own_line else " "
    return [Edit(at, at, f",{gap}{text}", key, value) for key, text, value in pairs]
