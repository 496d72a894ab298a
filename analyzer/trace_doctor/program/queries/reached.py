"""The code of a program that a stretch of statements runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from trace_doctor.program.project import Project
from trace_doctor.program.queries.gradients import is_use
from trace_doctor.program.script import Script

_MOST = 400
"""definitions that are followed; more are no step of a training loop"""


def reached(
    program: Project, script: Script, nodes: Iterable[cst.CSTNode]
) -> Iterator[tuple[Script, cst.CSTNode]]:
    """These statements, and the functions and classes of the program that they call, or call what was made of, and those
    that these call. Of a class every method, and the classes that it descends from. Then the constructions of what is
    called, as `criterion` of `criterion(x, y)`."""
    open_: list[tuple[Script, cst.CSTNode]] = [(script, node) for node in nodes]
    visited: set[int] = set()
    while open_ and len(visited) < _MOST:
        where, node = open_.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        yield where, node
        for call in where.all(cst.Call, within=node):
            open_ += _called(program, where, call.func)
            for home, origin in program.of(where, call.func):
                if isinstance(origin, cst.Call) and origin is not call:
                    open_.append((home, origin))
                    open_ += _called(program, home, origin.func)


def _called(program: Project, script: Script, func: cst.BaseExpression) -> list[tuple[Script, cst.CSTNode]]:
    match = program.definition(script, func)
    if match is None:
        return []
    where, node = match
    return [*program.lineage(where, node)] if isinstance(node, cst.ClassDef) else [(where, node)]


def uncalled_function(program: Project, script: Script, line: int) -> cst.FunctionDef | None:
    """The function of module level around a line, where no script of the program uses its name. One with a decorator, or called
    `main`, may be called from outside."""
    for function in script.all(cst.FunctionDef):
        outermost = script.nearest(function, cst.FunctionDef, cst.ClassDef) is None
        if outermost and script.covers(function, line):
            name = function.name.value
            uses = (
                n
                for s in program.scripts_with(name)
                for n in s.all(cst.Name)
                if n.value == name and is_use(s, n) and not (s is script and s.within(n, function))
            )
            called = name == "main" or bool(function.decorators) or next(uses, None) is not None
            return None if called else function
    return None
