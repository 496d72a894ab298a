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
        names = [n for n in names if any(w in tree.data(f) for f in graph.reach(n) for w in needles)]
        names = names or [s.name for s in tree.scripts_with(*(words or ("torch",)))]
    scripts = [s for s in map(tree.script, names) if s is not None]
    if len(scripts) <= 1:
        return scripts
    scripts = [s for s in scripts if _trains(tree, s.name)] or scripts
    script_names = {s.name for s in scripts}
    with_guard = [s for s in scripts if "__main__" in s.text]
    scripts = [s for s in scripts if s in with_guard or not graph.importers[s.name] & script_names] or scripts
    candidates = with_guard or [s for s in scripts if not graph.importers[s.name]] or scripts
    for choice in (scripts, [s for s in scripts if s.name in capture_names], candidates):
        if len(choice) == 1:
            return choice
    return with_guard or [s for s in candidates if _trains_at_top(s)] or candidates


@lru_cache(maxsize=4)
def training_files(tree: SourceTree) -> list[str]:
    """The files of all programs of a folder that train; all files where none does. For captures that name no script."""
    entries = [n for n in tree.imports.started_scripts(()) if _trains(tree, n)]
    return sorted({f for n in entries for f in tree.imports.reach(n)}) or tree.files


def _trains(tree: SourceTree, name: str) -> bool:
    return any(word in tree.data(file) for file in tree.imports.reach(name) for word in _TRAINING_WORDS)


def _trains_at_top(script: Script) -> bool:
    return any(
        script.nearest(loop, cst.FunctionDef, cst.ClassDef) is None and trains(script, loop)
        for loop in loops(script)
    )
