"""Which script of a source folder is the one that is started."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import libcst as cst

from trace_doctor.program.queries.loops import loops, trains
from trace_doctor.program.script import Script
from trace_doctor.program.source_tree import SourceTree

_TRAINING_WORDS = (b".backward(", b"Trainer(", b".fit(", b".train(")


def entry_scripts(tree: SourceTree, capture_names: Sequence[str], words: Sequence[str]) -> list[Script]:
    """The scripts that can be the one that is started: one where that is clear, else all that are possible.

    Of several: those that train, themselves or in what they import; the one that the capture names; the only one with a
    main guard; without guards the one that no other imports, or that has its training loop at module level. A module of
    another candidate is no script, whatever it does when it is imported.
    """
    graph = tree.imports
    names = graph.started_scripts(capture_names)
    if not capture_names:
        needles = [w.encode() for w in words or ("torch",)]
        holding = graph.reaching(_holding(tree, needles))
        names = [n for n in names if n in holding] or _holding(tree, needles)
    training = graph.reaching(_holding(tree, _TRAINING_WORDS))
    names = [n for n in names if n in training] or names
    with_guard = [n for n in names if b"__main__" in tree.data(n)]
    possible = {*names}
    started = {*with_guard, *(n for n in names if not graph.importers[n] & possible)}
    names = [n for n in names if n in started] or names
    candidates = with_guard or [n for n in names if not graph.importers[n]] or names
    for choice in (names, [n for n in names if n in capture_names], candidates):
        if len(choice) == 1:
            return _parsed(tree, choice)
    if with_guard:
        return _parsed(tree, with_guard)
    scripts = _parsed(tree, candidates)
    return [s for s in scripts if _trains_at_top(s)] or scripts


def main_guard(script: Script) -> cst.If | None:
    """`if __name__ == "__main__":` with lines below it."""
    for statement in script.module.body:
        if isinstance(statement, cst.If) and "__main__" in script.code(statement.test):
            return statement if isinstance(statement.body, cst.IndentedBlock) else None
    return None


@lru_cache(maxsize=4)
def training_files(tree: SourceTree) -> list[str]:
    """The files of all programs of a folder that train; all files where none does. For captures that name no script."""
    graph = tree.imports
    training = graph.reaching(_holding(tree, _TRAINING_WORDS))
    return graph.reach(n for n in graph.started_scripts(()) if n in training) or tree.files


def _holding(tree: SourceTree, words: Sequence[bytes]) -> list[str]:
    return [n for n in tree.files if any(word in tree.data(n) for word in words)]


def _parsed(tree: SourceTree, names: Sequence[str]) -> list[Script]:
    return [s for s in map(tree.script, names) if s is not None]


def _trains_at_top(script: Script) -> bool:
    return any(
        script.nearest(loop, cst.FunctionDef, cst.ClassDef) is None and trains(script, loop)
        for loop in loops(script)
    )
