"""Whether an edit stands in code that the capture can be about."""

from __future__ import annotations

import libcst as cst

from trace_doctor.program.edits import Change
from trace_doctor.program.place import Place, refusal
from trace_doctor.program.queries.loops import evaluates, in_handler
from trace_doctor.program.script import Script


def refuse_off_the_path(place: Place, change: Change, *, steps: bool) -> None:
    """Raises NoEdit for an edit in an exception handler, in a branch that the recording shows not to have run, and for one of
    training `steps` in evaluation code, where neither the line nor the function that the capture names can be in it."""
    executed = place.program.executed
    for file, edits in change.files:
        if not isinstance(file, Script):
            continue
        for edit in edits:
            if edit.start == edit.end and not edit.text.strip():
                continue  # a line that only gets deeper
            for node in file.statements_on(file.line_of(edit.start))[:1]:
                if in_handler(file, node):
                    raise refusal(file, node, "the edit would stand in an exception handler")
                if (line := executed.skipped(file, node)) is not None:
                    why = f"the branch at {file.name}:{line} did not run while it was recorded"
                    raise refusal(file, node, why, kind="unresolved")
                if steps and place.line is None and evaluates(file, node) and not _named(place, file, node):
                    raise refusal(
                        file, node, "the edit would stand in evaluation code, which the capture does not name"
                    )


def _named(place: Place, script: Script, node: cst.CSTNode) -> bool:
    last = (place.function or "").replace("<locals>.", "").rpartition(".")[2]
    return bool(last) and script.function_name(node) == last
