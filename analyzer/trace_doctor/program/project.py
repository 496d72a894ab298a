"""The scripts of one program together: where a value comes from across files.

`Origins` follows a value inside one script. A `Project` goes on where that trail ends at an import: into the function
of another file that made the value, and from a parameter to the callers in the files that import it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TypeVar
from weakref import WeakKeyDictionary

import libcst as cst

from trace_doctor.program.dataflow import DATALOADERS, Trail, dataflow_of, default_of, method_of, walk
from trace_doctor.program.executed import Executed
from trace_doctor.program.script import Script, dotted, imported_modules
from trace_doctor.program.source_tree import SourceTree
from trace_doctor.program.text_file import TextFile

T = TypeVar("T")
N = TypeVar("N", bound=cst.CSTNode)
Definition = cst.FunctionDef | cst.ClassDef
Place = tuple[Script, cst.BaseExpression]
"""an expression and the script it stands in"""

_CLASS = re.compile(rb"^[ \t]*class[ \t]+(\w+)[ \t]*\(", re.MULTILINE)
_MAX_DEPTH = 24
_MAX_REEXPORTS = 4


class Project:
    """Scripts that run together. `tree` parses files of `names` on demand; without one only `scripts` are known."""

    def __init__(
        self, scripts: Sequence[Script], tree: SourceTree | None = None, names: Iterable[str] = ()
    ) -> None:
        self._scripts = list(scripts)
        self._tree = tree
        self._names = sorted(names)
        self._trails: dict[int, list[Trail]] = {}
        self._calls: dict[int, list[tuple[Script, cst.Call]]] = {}
        self._open_receivers: set[int] = set()
        """receivers whose class is being looked for: `x = x.step()` asks for its own"""
        self._cut_short = 0
        """how often such a question went without an answer; what was found meanwhile may not be all and is not kept"""
        self._definitions: dict[int, tuple[Script, Definition] | None] = {}
        self.executed = Executed()
        """what ran of it while it was recorded"""

    @classmethod
    def of_tree(cls, tree: SourceTree, names: Iterable[str], executed: Executed | None = None) -> Project:
        """The program of these files of a source, made once: every fix of a result asks for it."""
        key, programs = (executed, *sorted(names)), _programs.setdefault(tree, {})
        if key not in programs:
            programs[key] = cls((), tree, names)
            programs[key].executed = executed or Executed()
        return programs[key]

    def ran(self, nodes: Iterable[tuple[Script, N]]) -> list[tuple[Script, N]]:
        """Those that the recording does not show to be skipped; all where it shows that of all."""
        every = list(nodes)
        return [(s, n) for s, n in every if self.executed.skipped(s, n) is None] or every

    def scripts_with(self, *words: str) -> list[Script]:
        """Scripts of the program that hold one of these words."""
        if self._tree is None:
            return [s for s in self._scripts if any(w in s.text for w in words)]
        return self._tree.scripts_with(*words, among=self._names)

    def not_checked(self, names: Sequence[str]) -> str:
        """Which files of the source folder may set one of these names and are of no kind that is checked, in words; empty
        where there is none."""
        return self._tree.not_checked(names) if self._tree is not None else ""

    def files(self, *suffixes: str) -> list[TextFile]:
        """Launch scripts and configuration files of the source folder with one of these suffixes."""
        if self._tree is None:
            return []
        texts = (self._tree.text(n) for n in self._tree.others if n.endswith(suffixes))
        return [f for f in texts if f is not None]

    def importers(self, script: Script) -> list[str]:
        """Files of the source folder that import a script; tests do not count."""
        return sorted(self._tree.imports.importers.get(script.name, ())) if self._tree is not None else []

    def share_imports(self, one: Script, other: Script) -> bool:
        """Whether one of two scripts imports the other, itself or through others."""
        if self._tree is None or one is other:
            return True
        imports = self._tree.imports
        return other.name in imports.reach([one.name]) or one.name in imports.reach([other.name])

    # ------------------------------------------------------------------ names

    def resolve(self, script: Script, qualified: str | None) -> tuple[Script, cst.CSTNode] | None:
        """The definition, or the assigned value, that a name imported into a script stands for in this program."""
        for _ in range(_MAX_REEXPORTS):
            other, names = self._file_of(script, qualified) or (script, [])
            if not names:
                return None
            if (node := _at_top(other, names)) is not None:
                return other, node
            script, qualified = other, _imported_as(other, names)
            if qualified is None:
                return self._star_import(other, names)
        return None

    def _resolve_node(self, script: Script, node: cst.BaseExpression) -> tuple[Script, cst.CSTNode] | None:
        """What an expression of a script stands for in another file; a name that nothing here binds, through `import *`."""
        qualified = script.qualified(node)
        if qualified is not None or not isinstance(node, cst.Name) or "import *" not in script.text:
            return self.resolve(script, qualified)
        own = dataflow_of(script)
        is_local = own.bindings_of(node) or own.parameter_of(node) is not None
        return None if is_local else self._star_import(script, [node.value])

    def _star_import(
        self, script: Script, names: list[str], depth: int = 0
    ) -> tuple[Script, cst.CSTNode] | None:
        """The one thing that the `import *` of a script give a name to."""
        matches: dict[int, tuple[Script, cst.CSTNode]] = {}
        for node in script.all(cst.ImportFrom) if self._tree is not None and depth < _MAX_REEXPORTS else ():
            if not isinstance(node.names, cst.ImportStar):
                continue
            assert self._tree is not None
            file = self._tree.imports.resolve(imported_modules(node)[0], script.name)
            data = self._tree.data(file) if file is not None else b""
            if file is None or not (names[0].encode() in data or b"import *" in data):
                continue
            if (other := self._tree.script(file)) is not None:
                top = _at_top(other, names)
                there = (other, top) if top is not None else self._star_import(other, names, depth + 1)
                if there is not None:
                    matches[id(there[1])] = there
        return next(iter(matches.values())) if len(matches) == 1 else None

    def _file_of(self, script: Script, qualified: str | None) -> tuple[Script, list[str]] | None:
        """The file that holds a dotted name, and the rest of the name inside it."""
        if qualified is None or self._tree is None:
            return None
        dots = qualified[: len(qualified) - len(qualified.lstrip("."))]
        parts = qualified[len(dots) :].split(".")
        for end in range(len(parts), 0 if not dots else -1, -1):
            name = self._tree.imports.resolve(dots + ".".join(parts[:end]), script.name)
            other = self._tree.script(name) if name is not None else None
            if other is not None:
                return other, parts[end:]
        return None

    def definition(self, script: Script, func: cst.BaseExpression) -> tuple[Script, Definition] | None:
        """The function or class of this program that an expression names."""
        return self._memo(self._definitions, func, lambda: self._definition(script, func))

    def _memo(self, cache: dict[int, T], node: cst.CSTNode, find: Callable[[], T]) -> T:
        """The answer for a node, kept unless a question of it went without one."""
        if id(node) not in cache:
            before, answer = self._cut_short, find()
            if self._cut_short != before:
                return answer
            cache[id(node)] = answer
        return cache[id(node)]

    def _definition(self, script: Script, func: cst.BaseExpression) -> tuple[Script, Definition] | None:
        local = dataflow_of(script).definition(func)
        if local is not None:
            return script, local
        target = self._resolve_node(script, func)
        if target is not None:
            return (target[0], target[1]) if isinstance(target[1], cst.FunctionDef | cst.ClassDef) else None
        if isinstance(func, cst.Attribute):
            owner = self.class_of(script, func.value)
            return self._method(*owner, func.attr.value) if owner is not None else None
        return None

    def class_by_name(self, script: Script, func: cst.BaseExpression) -> tuple[Script, cst.ClassDef] | None:
        """The class of this program that an expression names."""
        match = self.definition(script, func)
        return (match[0], match[1]) if match is not None and isinstance(match[1], cst.ClassDef) else None

    def class_of(self, script: Script, receiver: cst.BaseExpression) -> tuple[Script, cst.ClassDef] | None:
        """The class of this program that a receiver is an instance of."""
        own = dataflow_of(script).class_of(receiver)
        if own is not None:
            return script, own
        if id(receiver) in self._open_receivers:
            self._cut_short += 1
            return None
        self._open_receivers.add(id(receiver))
        try:
            origins = self.of(script, receiver)
        finally:
            self._open_receivers.discard(id(receiver))
        where, call = origins[0] if len(origins) == 1 else (script, None)
        if not isinstance(call, cst.Call) or isinstance(call.func, cst.Attribute):
            return None
        return self.class_by_name(where, call.func)

    def _method(self, script: Script, owner: cst.ClassDef, name: str) -> tuple[Script, Definition] | None:
        """A method by its name, in a class or in the classes of this program that it descends from."""
        for where, node in self.lineage(script, owner):
            method = method_of(node, name)
            if method is not None:
                return where, method
        return None

    def lineage(self, script: Script, owner: cst.ClassDef) -> list[tuple[Script, cst.ClassDef]]:
        """A class and those of this program that it descends from, nearest first."""
        classes: list[tuple[Script, cst.ClassDef]] = []
        open_ = [(script, owner)]
        while open_:
            where, node = open_.pop(0)
            if any(node is n for _, n in classes):
                continue
            classes.append((where, node))
            for base in node.bases:
                if (up := self.class_by_name(where, base.value)) is not None:
                    open_.append(up)
        return classes

    def bases(self, script: Script, owner: cst.ClassDef) -> set[str]:
        """Qualified names of the foreign classes that a class descends from."""
        return {
            name
            for where, node in self.lineage(script, owner)
            for base in node.bases
            if (name := where.qualified(base.value)) is not None
        }

    # ------------------------------------------------------------------ origins

    def of(self, script: Script, node: cst.BaseExpression) -> list[Place]:
        """The expressions that a value can come from, as `Origins.of`, across the files of the program."""
        trails = self.trails(script, node)
        return self.ran({id(value): (where, value) for where, value, _ in trails}.values())

    def trails(self, script: Script, node: cst.BaseExpression) -> list[Trail]:
        """As `of`, with the position of what is taken out of a tuple: `model` of `model, loss = build()` is item 0."""
        start = (script, node, None)
        return self._memo(self._trails, node, lambda: walk(start, self._step, _MAX_DEPTH))

    def _step(self, trail: Trail) -> list[Trail]:
        script, node, item = trail
        trails = [(script, value, position) for value, position in dataflow_of(script).step(node, item) or ()]
        return trails + self._cross(script, node, item, bool(trails))

    def _cross(self, script: Script, node: cst.BaseExpression, item: int | None, local: bool) -> list[Trail]:
        """One step back that leaves the script, or reads a default that no caller overrides."""
        if isinstance(node, cst.Call) and not local:
            target = self.definition(script, node.func)
            if target is not None and isinstance(target[1], cst.FunctionDef):
                return [(target[0], value, item) for value in dataflow_of(target[0]).returns(target[1])]
        if not isinstance(node, cst.Name | cst.Attribute):
            return []
        function = dataflow_of(script).parameter_of(node)
        if function is None:
            where, value = self._resolve_node(script, node) or (script, None)
            return [(where, value, item)] if isinstance(value, cst.BaseExpression) else []
        name = dotted(node) or ""
        calls = self._memo(self._calls, function, lambda: self._callers(script, function))
        arguments = [(s, dataflow_of(script).argument_for(function, name, c)) for s, c in calls]
        default = default_of(function, name)
        trails = [(script if v is default else s, v, item) for s, v in arguments if v is not None]
        return trails if trails or local or default is None else [(script, default, item)]

    def arguments_for(self, script: Script, function: cst.FunctionDef, name: str) -> list[Place]:
        """What the calls of a function in the program pass for a parameter; empty where one of them passes what cannot be
        seen."""
        calls = self.callers(script, function)
        values = [(s, dataflow_of(script).argument_for(function, name, call)) for s, call in calls]
        seen = [(s, value) for s, value in values if value is not None]
        return seen if len(seen) == len(values) else []

    def callers(self, script: Script, function: cst.FunctionDef) -> list[tuple[Script, cst.Call]]:
        """The calls of a function, or of the class that it makes the objects of, in the program."""
        own = [(script, call) for call in dataflow_of(script).callers(function)]
        return own + self._memo(self._calls, function, lambda: self._callers(script, function))

    def _callers(self, script: Script, function: cst.FunctionDef) -> list[tuple[Script, cst.Call]]:
        """Calls of a function (or of its class) in the other files of the program."""
        owner = dataflow_of(script).owner(function)
        target: Definition = owner if owner is not None and function.name.value == "__init__" else function
        return [
            (other, call)
            for other in self.scripts_with(target.name.value)
            if other is not script
            for call in other.all(cst.Call)
            if _last_name(call.func) == target.name.value or isinstance(call.func, cst.Name)
            if (definition := self.definition(other, call.func)) is not None and definition[1] is target
        ]

    # ------------------------------------------------------------------ kinds

    def is_dataloader(self, script: Script, node: cst.BaseExpression) -> bool:
        """Whether an expression constructs a DataLoader, or a subclass that this program defines."""
        if not isinstance(node, cst.Call):
            return False
        if script.callee(node) in DATALOADERS or self._is_partial(script, node.func):
            return True
        subclass = self.derived_class(script, node.func)
        return subclass is not None and not self.bases(*subclass).isdisjoint(DATALOADERS)

    def derived_class(self, script: Script, func: cst.BaseExpression) -> tuple[Script, cst.ClassDef] | None:
        """The class of this program with a base of its own that an expression names. By its name first: most of what
        is called is no such class, and a method's receiver is not looked for."""
        name = script.qualified(func) or dotted(func) or ""
        if name.rpartition(".")[2] not in self._subclass_names:
            return None
        return self.class_by_name(script, func)

    @cached_property
    def _subclass_names(self) -> frozenset[str]:
        """Names of the classes that are defined with a base in the program's files, which are not parsed for it."""
        return frozenset(name.decode() for data in self._data() for name in _CLASS.findall(data))

    def _data(self) -> Iterator[bytes]:
        if self._tree is None:
            return (s.data for s in self._scripts)
        return map(self._tree.data, self._names)

    @cached_property
    def _has_partials(self) -> bool:
        return any(b"partial(" in data and b"DataLoader" in data for data in self._data())

    def partials(self, script: Script, func: cst.BaseExpression) -> list[tuple[Script, cst.Call]]:
        """The calls of `functools.partial` that a name can stand for."""
        origins = self.of(script, func) if isinstance(func, cst.Name | cst.Attribute) else []
        return [(s, c) for s, c in origins if isinstance(c, cst.Call) and s.callee(c) == "functools.partial"]

    def _is_partial(self, script: Script, func: cst.BaseExpression) -> bool:
        """Whether a name is bound to `functools.partial(DataLoader, ...)`."""
        partials = self.partials(script, func) if self._has_partials else []
        return any(bool(c.args) and s.qualified(c.args[0].value) in DATALOADERS for s, c in partials)

    @cached_property
    def dataloaders(self) -> list[tuple[Script, cst.Call]]:
        """All constructions of DataLoaders in the program."""
        return self.ran(
            (script, call)
            for script in self.scripts_with("DataLoader")
            for call in script.all(cst.Call)
            if self.is_dataloader(script, call)
        )


def _last_name(func: cst.BaseExpression) -> str | None:
    name = func.attr if isinstance(func, cst.Attribute) else func
    return name.value if isinstance(name, cst.Name) else None


def _at_top(script: Script, names: list[str]) -> cst.CSTNode | None:
    """`f`, `Class`, `Class.method` or the value of `NAME = ...` at module level."""
    origins, inner = dataflow_of(script), (cst.FunctionDef, cst.ClassDef)
    first = [d for d in origins.definitions.get(names[0], []) if script.nearest(d, *inner) is None]
    if len(first) == 1:
        if isinstance(first[0], cst.ClassDef) and len(names) == 2:
            return method_of(first[0], names[1])
        return first[0] if len(names) == 1 else None
    binds = origins.bindings.get((script.module, ".".join(names)), [])
    return binds[0].value if len(binds) == 1 and binds[0].item is None and not binds[0].loop else None


def _imported_as(script: Script, names: list[str]) -> str | None:
    """The qualified name that an import of a script binds to a name; None where none names it."""
    for node in script.all(cst.ImportFrom):
        module = imported_modules(node)[0]
        if isinstance(node.names, cst.ImportStar):
            continue
        for alias in node.names:
            if dotted(alias.asname.name if alias.asname else alias.name) == names[0]:
                return _join(module, dotted(alias.name) or "", *names[1:])
    return None


def _join(module: str, *names: str) -> str:
    rest = ".".join(names)
    return module + rest if module.endswith(".") else f"{module}.{rest}"


_programs: WeakKeyDictionary[SourceTree, dict[tuple[Executed | str | None, ...], Project]] = (
    WeakKeyDictionary()
)
"""of each source, by what ran of them and the names of their files"""
