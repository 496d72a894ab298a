"""`batch-size` and `gradient-accumulation`: how many samples the device sees at once."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from trace_doctor.fixes.batch_sizes import (
    batch_argument,
    batch_size_of,
    own_size,
    part_of_batch,
    refuse_divided,
    resize,
    sharing,
    used_otherwise,
)
from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.codemods.zero_grad import refuse_changed_gradients
from trace_doctor.fixes.configured import Key, configured
from trace_doctor.fixes.literals import source_text
from trace_doctor.model.parameters import BatchSize, GradientAccumulation
from trace_doctor.program.edits import Change, Edit, Option, insert_after, remove, sketched, wrap
from trace_doctor.program.place import Place, already, only, refusal
from trace_doctor.program.queries.dataloaders import loader_of, loaders_on_line, training_loaders
from trace_doctor.program.queries.loops import method_calls, optimizer_steps, zero_grads
from trace_doctor.program.queries.training import Step, find_step, refuse_done, whole_line
from trace_doctor.program.queries.values import where_set
from trace_doctor.program.script import Script, dotted, literal

_SIZE = {"transformers": "TrainingArguments(per_device_train_batch_size=...)"}
_ACCUMULATE = {
    "accelerate": "Accelerator(gradient_accumulation_steps=N) and `with accelerator.accumulate(model):`",
    "lightning": "Trainer(accumulate_grad_batches=N)",
    "transformers": "TrainingArguments(gradient_accumulation_steps=N)",
    "deepspeed": '"gradient_accumulation_steps" in its configuration',
}
_SHARED = "the loader of {}:{} gets the same batches"
_AFTER_BACKWARD = ("step", "update", "zero_grad", "unscale_", "clip_grad_norm_", "clip_grad_value_")


@codemod("batch-size", BatchSize, words=("DataLoader", "TrainingArguments"), elsewhere=True)
def batch_size(place: Place, params: BatchSize) -> Change:
    """Raises the batch size of the training loader where it is set. params: `size`, or `times` as large."""
    refuse_done(place.scripts, _SIZE)
    loaders = loaders_on_line(place) or training_loaders(place)
    script, call = only(loaders, "construct a DataLoader that feeds training", "no DataLoader(...) was found")
    if (key := _key(place, script, call)) is not None:
        edits = tuple(key.edits(params.size or key.value * (params.times or 1)))
        return Change(key.document.file, edits, key.document.line(*key.path))
    origin, size = batch_size_of(place, script, call)
    goal = params.size or size * (params.times or 1)
    if size >= goal:
        raise already(origin.script, origin.value, f"sets a batch of {size} already")
    if params.times and origin.flag:
        option = Option(origin.flag, source_text(goal), origin.flags)
        return Change(origin.script, (), origin.script.line(origin.value), options=(option,))
    others = sharing(place, call, origin)
    own = origin if not others or used_otherwise(place, origin) else own_size(script, call, origin)
    change = resize(own, goal)
    if others and own is origin:
        change = replace(
            change, notes=(*change.notes, *(_SHARED.format(o.name, o.line(c)) for o, c in others))
        )
    with sketched(change):
        refuse_divided(origin, place.program)
    return change


def _key(place: Place, script: Script, call: cst.Call) -> Key | None:
    """The key of a configuration file that holds a loader's batch size."""
    arg = batch_argument(place, script, call)
    is_set = literal(arg.value) is not ... or where_set(arg.script, arg.value, place.program) is not None
    return None if is_set else configured(place, arg.script, arg.value)


# ---------------------------------------------------------------------- gradient accumulation


@codemod(
    "gradient-accumulation",
    GradientAccumulation,
    adds="enumerate len step batch_index micro_step",
    words=(".backward(",),
    elsewhere=True,
)
def gradient_accumulation(place: Place, params: GradientAccumulation) -> Change:
    """Divides the batch into N smaller ones, and steps the optimizer after every N of them. params: `steps`."""
    count = params.steps
    refuse_done(place.scripts, _ACCUMULATE)
    step = find_step(place)
    script, loop = step.script, step.home
    if not isinstance(loop, cst.For):
        raise refusal(script, step.backward, "the step is in no `for` loop over batches")
    steps = optimizer_steps(script, loop)
    if any(isinstance(up, cst.If) for call, _ in steps for up in script.between(call, loop)):
        raise already(script, loop, "steps under a condition already")
    loader = loader_of(place.program, script, loop.iter)
    if loader is None:
        raise refusal(script, loop, "the loader of the loop, whose batches get smaller, was not found")
    origin, size = part_of_batch(place, *loader, count)
    smaller = resize(origin, size)
    counter, counter_edits = _counter(script, loop)
    run, clearing = _step_lines(step, loop)
    test = f"({counter} + 1) % {source_text(count)} == 0"
    length = _length(loop)
    header = f"if {test} or {counter} + 1 == len({length}):" if length else f"if {test}:"
    edits = [*counter_edits, _divide_loss(step, count)]
    edits += wrap(script, run[0], run[-1], header)
    if clearing is not None:
        stepping = script.statement_of(optimizer_steps(script, loop)[0][0])
        assert isinstance(stepping, cst.Expr | cst.Assign)
        refuse_changed_gradients(place, script, stepping, clearing, loop)
        edits.append(remove(script, clearing))
        inner = script.level(script.indent(run[-1]))
        after = insert_after(script, run[-1].body[-1], inner + script.code(clearing), "accumulate")
        edits.append(after)
    apart = smaller.script.name != script.name
    change = Change(
        script,
        tuple(edits) if apart else (*smaller.edits, *edits),
        script.line(step.backward),
        notes=(*smaller.notes, *_counted(script, loop, counter, run), _LAST.format(count=count)),
        more=((smaller.script, smaller.edits),) if apart else (),
    )
    with sketched(change):
        refuse_divided(origin, place.program)
    return change


_LAST = "the last step of an epoch may be of fewer than {count} batches, whose loss is divided by {count} all the same"


def _counted(script: Script, loop: cst.For, counter: str, run: list[cst.SimpleStatementLine]) -> list[str]:
    """Which numbers of the loop count steps now, and smaller batches after the edit."""
    names = {counter} if script.variables(counter, loop.body) else set()
    for addition in script.all(cst.AugAssign, within=loop.body):
        outside = not any(script.within(addition, line) for line in run)
        if outside and isinstance(literal(addition.value), int) and (name := dotted(addition.target)):
            names.add(name)
    return [f"{name} counts the smaller batches, no longer the steps" for name in sorted(names)]


def _counter(script: Script, loop: cst.For) -> tuple[str, list[Edit]]:
    """The loop's batch counter, and the edits that make one."""
    call, target = loop.iter, loop.target
    if isinstance(call, cst.Call) and script.callee(call) == "enumerate" and isinstance(target, cst.Tuple):
        name = dotted(target.elements[0].value)
        if name is None or len(call.args) != 1:
            raise refusal(script, loop, "the loop counts its batches in another way")
        return name, []
    return numbered(script, loop)


def numbered(script: Script, loop: cst.For) -> tuple[str, list[Edit]]:
    """A counter for a loop that has none, and the edits that make it."""
    target = loop.target
    name = next((n for n in ("step", "batch_index", "micro_step") if not script.variables(n)), None)
    if name is None:
        raise refusal(script, loop, "the loop has no counter")
    (start, end), (first, last) = script.outer_span(target), script.span(loop.iter)
    text = script.text[start:end].rstrip()
    bare = isinstance(target, cst.Tuple) and not target.lpar
    edit = Edit(start, start + len(text), f"{name}, ({text})" if bare else f"{name}, {text}")
    return name, [edit, Edit(first, first, "enumerate("), Edit(last, last, ")")]


def _length(loop: cst.For) -> str | None:
    """The loader's name, where the loop goes over it directly or through enumerate and tqdm."""
    node: cst.BaseExpression = loop.iter
    while isinstance(node, cst.Call) and node.args:
        node = node.args[0].value
    return dotted(node)


def _step_lines(
    step: Step, loop: cst.For
) -> tuple[list[cst.SimpleStatementLine], cst.BaseSmallStatement | None]:
    """The lines after backward up to the last that belongs to stepping, and a zero_grad before it that has to move."""
    script = step.script
    backward = whole_line(script, step.backward)
    steps = optimizer_steps(script, loop)
    _, step_call = only([(script, c) for c, _ in steps], "step an optimizer", "0 places step an optimizer")
    block, index = script.block_of(backward)
    run = []
    for line in block.body[index + 1 :]:
        if not isinstance(line, cst.SimpleStatementLine) or not _is_stepping(script, line):
            break
        run.append(line)
    if not any(script.covers(line, script.line(step_call)) for line in run):
        raise refusal(script, step_call, "other statements stand between backward() and step()")
    clears = [script.statement_of(c) for c, _ in zero_grads(script, loop)]
    if len(clears) != 1 or not isinstance(clears[0], cst.Expr):
        raise refusal(script, loop, "not exactly one zero_grad() in the loop")
    inside = any(script.parent(clears[0]) is line for line in run)
    if not inside and script.span(clears[0])[0] > script.span(backward)[0]:
        raise refusal(script, clears[0], "zero_grad() is apart from step()")
    if not inside:
        whole_line(script, clears[0])
    return run, None if inside else clears[0]


def _is_stepping(script: Script, line: cst.SimpleStatementLine) -> bool:
    callee = _callee(script, line)
    scaler = callee != "update" or "scaler" in script.code(line.body[0]).lower()  # a meter has update(), too
    return len(line.body) == 1 and callee in _AFTER_BACKWARD and scaler


def _callee(script: Script, line: cst.SimpleStatementLine) -> str:
    node = line.body[0]
    value = node.value if isinstance(node, cst.Expr | cst.Assign) else None
    if not isinstance(value, cst.Call):
        return ""
    name = script.callee(value) or dotted(value.func) or ""
    return name.split(".")[-1]


def _divide_loss(step: Step, count: int) -> Edit:
    """`(loss / N).backward()`, `scaler.scale(loss / N).backward()`"""
    script = step.script
    scale = next(
        (c for c, _ in method_calls(script, "scale") if c.args and c.args[0].value is step.loss), None
    )
    start, end = script.outer_span(step.loss)
    text = f"{script.text[start:end]} / {source_text(count)}"
    return Edit(start, end, text if scale is not None else f"({text})")
