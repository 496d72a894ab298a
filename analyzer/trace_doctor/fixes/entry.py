"""Which script of a source folder is the one that is started."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from trace_doctor.fixes.loops import loops, trains
from trace_doctor.loaders.script import Script
from trace_doctor.loaders.source import SourceTree

_TRAINING_WORDS = (b".backward(", b"Trainer(", b".fit(", b".train(")


def entry_scripts(tree: SourceTree, named: Sequence[str], words: Sequence[str]) -> list[Script]:
    """The scripts that can be the one that is started: one where that is clear, else all that are possible.

    Tried in order: the only file; of the files with a main guard (else with a training loop at module level) the one
    that the capture names, the only one, the only one that trains.
    """
    scripts = tree.mentioning(*(words or ("torch",)))
    if len(scripts) <= 1:
        return scripts
    started = [s for s in scripts if "__main__" in s.text] or [s for s in scripts if _trains_at_top(s)]
    for narrowed in (
        [s for s in started if s.name in named],
        started,
        [s for s in started if any(w in s.data for w in _TRAINING_WORDS)],
    ):
        if len(narrowed) == 1:
            return narrowed
    return started or scripts


def _trains_at_top(script: Script) -> bool:
    return any(
        script.nearest(loop, cst.FunctionDef, cst.ClassDef) is None and trains(script, loop)
        for loop in loops(script)
    )
