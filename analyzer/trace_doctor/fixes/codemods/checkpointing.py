"""`checkpoint-blocks`: the activations of a model's repeated blocks are recomputed in backward instead of kept."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.model.parameters import Parameters
from trace_doctor.program.edits import Change, Edit, NoEdit, add_arguments, insert_after, shares_line, wrap
from trace_doctor.program.place import Place, already, candidate, only, refusal
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.queries.loops import method_calls
from trace_doctor.program.queries.repeated_blocks import Blocks, repeated_blocks
from trace_doctor.program.queries.training import find_model, find_step, refuse_done, trained_classes
from trace_doctor.program.script import Script, dotted

_CHECKPOINT = "torch.utils.checkpoint.checkpoint"
_SEQUENTIAL = "torch.utils.checkpoint.checkpoint_sequential"
_INSTEAD = {
    "transformers": "TrainingArguments(gradient_checkpointing=True)",
    "deepspeed": '"activation_checkpointing" in its configuration and deepspeed.checkpointing.checkpoint in the model',
}


@codemod(
    "checkpoint-blocks",
    Parameters,
    adds="torch utils checkpoint checkpoint_sequential use_reentrant False len is_grad_enabled gradient_checkpointing_enable",
    words=("ModuleList", "Sequential", "from_pretrained"),
    elsewhere=True,
)
def checkpoint_blocks(place: Place, params: Parameters) -> Change:
    """Recomputes each repeated block in backward (use_reentrant=False) instead of keeping its activations."""
    for script in place.scripts:
        refuse_done([script], _INSTEAD)
        switches = (c for c, _ in method_calls(script, "gradient_checkpointing_enable"))
        for call in (*script.calls(_CHECKPOINT, _SEQUENTIAL), *switches):
            raise already(script, call, "recomputes activations already")
    uses = [(s, u) for s in place.scripts for b in repeated_blocks(s) for u in _uses(s, b)]
    line = place.line
    here = [(s, u) for s, u in uses if line is not None and s.covers(s.nearest(u, cst.ClassDef) or u, line)]
    if not uses:
        return _pretrained(place)
    uses = here or _of_trained(place, uses)
    script, call = only(uses, "run repeated blocks", "")
    change = _sequential(script, call) if script.code(call.func).startswith("self.") else _block(script, call)
    importers = place.program.importers(script)
    if len(importers) > 1:
        change = replace(
            change,
            notes=(*change.notes, f"changes the training of all that import it: {', '.join(importers)}"),
        )
    return _with_gradients(place, script, call, change)


def _block(script: Script, call: cst.Call) -> Change:
    """`block(x)` in a loop over a list of blocks."""
    name, imports = name_for(script, _CHECKPOINT, call)
    if not call.args or any(a.star for a in call.args):
        raise refusal(script, call, "what the block is called with cannot be seen")
    start, end = script.span(call.func)
    first = script.span(call.args[0])[0]
    edits = [Edit(start, end, name), Edit(first, first, f"{script.code(call.func)}, ")]
    edits += add_arguments(script, call, {"use_reentrant": "False"})
    return Change(script, (*imports, *edits), script.line(call))


def _with_gradients(place: Place, script: Script, call: cst.Call, change: Change) -> Change:
    """The edit under `if torch.is_grad_enabled():` where the program runs without gradients as well, where there is nothing to
    recompute and checkpoint() would only keep the state of the random numbers."""
    statement = script.statement_of(call)
    simple = isinstance(statement, cst.BaseSmallStatement) and not shares_line(script, statement)
    if not simple or not place.program.scripts_with("no_grad", "inference_mode"):
        return change
    assert isinstance(statement, cst.BaseSmallStatement)
    torch, imports = name_for(script, "torch", call)
    unit = script.level(script.indent(statement))
    code = script.code(statement).replace("\n", f"\n{unit}")
    before = insert_after(script, statement, f"else:\n{script.indent(statement)}{unit}{code}", "without")
    inside = wrap(script, statement, statement, f"if {torch}.is_grad_enabled():")
    return replace(change, edits=(*imports, *change.edits, *inside, before))


def _of_trained(place: Place, uses: list[tuple[Script, cst.Call]]) -> list[tuple[Script, cst.Call]]:
    """Those in classes that the model of a training step is made of: a frozen encoder has blocks as well."""
    program = place.program
    if not program.scripts_with(".backward("):
        return uses
    classes = list(trained_classes(program))
    visited: set[cst.CSTNode | None] = set()
    while classes:
        where, owner = classes.pop()
        if owner in visited:
            continue
        for home, node in program.lineage(where, owner):
            visited.add(node)
            for name in home.all(cst.Name, within=node):
                part = program.class_by_name(home, name) if name.value[:1].isupper() else None
                classes += [part] if part is not None else []
    ours = [(s, u) for s, u in uses if s.nearest(u, cst.ClassDef) in visited]
    if not ours:
        why = "cannot see whether the model that is trained is made of these blocks"
        raise NoEdit("display", why, [candidate(s, u) for s, u in uses])
    return ours


def _uses(script: Script, blocks: Blocks) -> list[cst.Call]:
    """Calls of a block in a loop over the list, or of a whole nn.Sequential."""
    path = f"self.{blocks.path}"
    if blocks.sequential:
        return [c for c in script.all(cst.Call, within=blocks.owner) if dotted(c.func) == path]
    calls = []
    for loop in script.all(cst.For, within=blocks.owner):
        name = _variable(script, loop, path)
        if name is not None:
            calls += [c for c in script.all(cst.Call, within=loop.body) if dotted(c.func) == name]
    return calls


def _variable(script: Script, loop: cst.For, path: str) -> str | None:
    """`block` of `for block in self.blocks`, `for i, block in enumerate(self.blocks)`."""
    if dotted(loop.iter) == path:
        return dotted(loop.target)
    if isinstance(loop.iter, cst.Call) and loop.iter.args and dotted(loop.iter.args[0].value) == path:
        pair = loop.target if script.callee(loop.iter) == "enumerate" else None
        if isinstance(pair, cst.Tuple):
            return dotted(pair.elements[1].value)
    return None


def _sequential(script: Script, call: cst.Call) -> Change:
    """`self.layers(x)` of an nn.Sequential of blocks."""
    if len(call.args) != 1 or call.args[0].star or call.args[0].keyword is not None:
        raise refusal(script, call, "what the blocks are called with cannot be seen")
    name, imports = name_for(script, _SEQUENTIAL, call)
    path, value = script.code(call.func), script.code(call.args[0].value)
    text = f"{name}({path}, len({path}), {value}, use_reentrant=False)"
    return Change(script, (*imports, Edit(*script.span(call), text)), script.line(call))


def _pretrained(place: Place) -> Change:
    """A model of transformers has its own switch."""
    model = find_model(find_step(place))
    script, name = model.script, model.callee
    if not (name.startswith("transformers.") and name.endswith((".from_pretrained", ".from_config"))):
        why = "the model has no list of repeated blocks in these scripts"
        raise refusal(*model.construction, why, kind="unresolved")
    code = f"{model.name}.gradient_checkpointing_enable()"
    edit = insert_after(script, model.setup, code, "checkpoint-blocks")
    return Change(script, (edit,), script.line(model.setup))
