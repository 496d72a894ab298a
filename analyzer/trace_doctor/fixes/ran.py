"""Whether an edit stands in code that the capture can be about."""

from __future__ import annotations

import libcst as cst

from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import Change, sketched
from trace_doctor.program.place import Place, refusal
from trace_doctor.program.queries.loops import evaluates, in_handler
from trace_doctor.program.script import Script, literal

_RESETS = ("torch.cuda.reset_peak_memory_stats", "torch.cuda.reset_max_memory_allocated")
_PEAKS = ("torch.cuda.max_memory_allocated", "torch.cuda.max_memory_reserved")
_SAVES = ("torch.save(", "save_pretrained", "state_dict", "save_model", "save_checkpoint", "save_state")


def refuse_off_the_path(place: Place, change: Change, *, steps: bool) -> None:
    """Raises NoEdit for an edit in an exception handler, in a branch that the recording shows not to have run or that a constant
    shuts, and for one of training `steps` in evaluation code, where neither the line nor the function that the capture names
    can be in it."""
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
                if (test := _shut(file, node)) is not None:
                    raise refusal(
                        file, node, f"the edit would stand in a branch that does not run: {test} is False"
                    )
                if steps and place.line is None and evaluates(file, node) and not _named(place, file, node):
                    raise refusal(
                        file, node, "the edit would stand in evaluation code, which the capture does not name"
                    )


def refuse_measurement(change: Change) -> None:
    """Raises NoEdit for an edit of a script that trains to measure: it resets the peak of GPU memory, reads it, and saves
    nothing of what it trained. What it reports would be of another program."""
    for file, _ in change.files:
        if not isinstance(file, Script) or any(word in file.text for word in _SAVES):
            continue
        if "backward(" in file.text and file.calls(*_RESETS) and (reads := file.calls(*_PEAKS)):
            with sketched(change):
                raise refusal(
                    file, reads[0], "the script measures GPU memory, and would report another figure"
                )


def _shut(script: Script, node: cst.CSTNode) -> str | None:
    """The name of the constant False that a branch around a node asks for; none where the script runs texts as code, which may
    set it."""
    if "exec(" in script.text or "globals()" in script.text:
        return None
    inner = node
    for up in script.ancestors(node):
        if isinstance(up, cst.If) and inner is up.body and isinstance(up.test, cst.Name):
            bindings = dataflow_of(script).bindings_of(up.test)
            named = {n.name.value for g in script.all(cst.Global) for n in g.names}
            if (
                len(bindings) == 1
                and up.test.value not in named
                and bindings[0].value is not None
                and literal(bindings[0].value) is False
            ):
                return up.test.value
        inner = up
    return None


def _named(place: Place, script: Script, node: cst.CSTNode) -> bool:
    last = (place.function or "").replace("<locals>.", "").rpartition(".")[2]
    return bool(last) and script.function_name(node) == last
