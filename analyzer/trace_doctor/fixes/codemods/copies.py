"""`pinned-copies` and `channels-last`: how a batch gets to the device, and in which layout."""

from __future__ import annotations

import re

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.model.parameters import Parameters
from trace_doctor.program.dataflow import dataflow_of, method_of, parameters
from trace_doctor.program.edits import Change, Gathered, add_arguments, insert_after, insert_before, sketched
from trace_doctor.program.place import Place, already, on_line, only, refusal
from trace_doctor.program.project import Project
from trace_doctor.program.queries.arguments import Arguments, set_value
from trace_doctor.program.queries.dataloaders import loader_of, refuse_batches_on_gpu, refuse_own_batches
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.queries.loops import changes_in_place, method_calls, names_in, trains
from trace_doctor.program.queries.training import Model, find_model, find_step, ready, refuse_done, whole_line
from trace_doctor.program.script import (
    Script,
    argument,
    assigned_names,
    dotted,
    literal,
    method_name,
    receiver,
)

_DEVICE = re.compile(r"device|cuda|xpu|rank|gpu", re.IGNORECASE)
_CUDA = re.compile(r"cuda(:\d+)?")
_INSTEAD = {
    "accelerate": "Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True)) with pin_memory=True",
    "transformers": 'TrainingArguments(accelerator_config={"non_blocking": True}), where pinning is the default',
    "lightning": "pin_memory=True of the DataModule's loaders: it copies without blocking then",
}


@codemod(
    "pinned-copies",
    Parameters,
    adds="non_blocking pin_memory True type",
    words=("DataLoader",),
    elsewhere=True,
)
def pinned_copies(place: Place, params: Parameters) -> Change:
    """Copies batches from pinned memory without blocking: pin_memory=True of the loader with non_blocking=True.

    Never safe: while a copy runs, whatever else holds the batch (a view, a callback, the dataset that keeps one buffer)
    must not change it, and a script does not show that.
    """
    refuse_done(place.scripts, _INSTEAD)
    program = place.program
    loops = [(s, loop) for s in place.scripts for loop in s.all(cst.For) if loader_of(program, s, loop.iter)]
    loops = [(s, loop) for s, loop in loops if _copies(program, s, loop)]
    loops = on_line(place, loops) or loops
    loops = [(s, f) for s, f in loops if trains(s, f)] or (loops if place.line is not None else [])
    script, loop = only(
        loops, "copy a loader's batches", "no loop copies the batches of a DataLoader to a device"
    )
    copies = _copies(program, script, loop)
    blocking = [c for c in copies if _non_blocking(c) is None]
    edits = Gathered()
    edits.keep(script, [e for c in blocking for e in add_arguments(script, c, {"non_blocking": "True"})])
    made = loader_of(program, script, loop.iter)
    assert made is not None
    home, loader = made
    _pin(program, home, loader, edits, _on_cuda(home, loader, copies) if home is script else "True")
    if not edits.files:
        raise already(script, copies[0], "copies from pinned memory already")
    for copy in copies:
        if (made_anew := _made_anew(script, loop, copy)) is not None:
            raise refusal(
                script, made_anew, "the tensor that is copied is made here, in memory that is not pinned"
            )
        if _written_later(script, loop, copy):
            raise refusal(script, copy, "what is copied is changed in place afterwards")
    refuse_own_batches(program, home, loader)
    change = edits.change(script, script.line(copies[0]), None)
    with sketched(change):
        refuse_batches_on_gpu(program, home, loader)
    return change


def _pin(program: Project, home: Script, loader: cst.Call, edits: Gathered, value: str) -> None:
    """Adds pin_memory. What a condition chooses between pins where one of its choices does: the others are for runs without
    a GPU."""
    views = Arguments(program, home, loader, {"num_workers": 5, "pin_memory": 7}).alternatives()
    for view in views:
        if view.hidden:
            raise refusal(home, loader, f"the loader takes {view.hidden}, which may pin")
    pins = [view.find("pin_memory") for view in views]
    if any(pin is not None and literal(pin.value) not in (False, None) for pin in pins):
        return
    for pin in pins:
        if pin is not None:
            edits.keep(pin.script, [set_value(pin, value if pin.container is loader else "True")])
    if not any(pins):
        edits.keep(home, add_arguments(home, loader, {"pin_memory": value}))
    workers = [view.find("num_workers") for view in views]
    if all(w is None or literal(w.value) == 0 for w in workers):
        edits.notes.append("with num_workers=0 the main process copies each batch to pinned memory itself")


def _on_cuda(script: Script, loader: cst.Call, copies: list[cst.Call]) -> str:
    """The value of pin_memory: a comparison where the copies' device is a name that the script binds once, before the loader,
    to a GPU or else the CPU, where pinning only warns; else `True`."""
    flow = dataflow_of(script)
    devices = [arg.value for copy in copies if (arg := argument(copy, "device", 0)) is not None]
    names = {script.code(device) for device in devices}
    if len(devices) < len(copies) or len(names) != 1 or not isinstance(devices[0], cst.Name):
        return "True"
    (name,) = names
    scopes = [scope for scope, bound in flow.bindings if bound == name]
    bindings = flow.bindings_of(devices[0])
    function = script.function_of(loader)
    seen = scopes in ([script.module], [function]) and not (function and name in parameters(function))
    if not seen or len(bindings) != 1 or script.span(bindings[0].value)[0] > script.span(loader)[0]:
        return "True"
    value, attribute = bindings[0].value, ""
    if isinstance(value, cst.Call) and script.callee(value) == "torch.device" and len(value.args) == 1:
        value, attribute = value.args[0].value, ".type"
    if not isinstance(value, cst.IfExp):
        return "True"
    choices = [literal(value.body), literal(value.orelse)]
    other = next((c for c in choices if isinstance(c, str) and _CUDA.fullmatch(c)), None)
    if "cpu" not in choices or other is None:
        return "True"
    return f'{name}{attribute} == "{"cuda" if attribute else other}"'


def _non_blocking(copy: cst.Call) -> cst.Arg | None:
    """What a copy says of waiting: `to(device, dtype, non_blocking)`, `to(tensor, non_blocking)`, `cuda(device, non_blocking)`."""
    second = argument(copy, "non_blocking", 1)
    if method_name(copy) == "cuda" or (second is not None and isinstance(literal(second.value), bool)):
        return second
    return argument(copy, "non_blocking", 2)


def _copies(program: Project, script: Script, loop: cst.For) -> list[cst.Call]:
    """`x.to(device)`, `x.cuda()` of what the loader delivers, in the order they stand."""
    batch = _batch_names(script, loop)
    calls = []
    for call in script.all(cst.Call, within=loop.body):
        source, method, device = receiver(call), method_name(call), argument(call, "device", 0)
        where = script.code(device.value) if device is not None else ""
        to_device = _DEVICE.search(where) is not None and "dtype" not in where
        copies = method == "cuda" or (method == "to" and to_device)
        if source is None or not copies or any(a.star for a in call.args) or isinstance(source, cst.Call):
            continue
        inner = (up for up in script.between(call, loop) if isinstance(up, cst.For))
        between_steps = any(
            loader_of(program, script, f.iter) is not None for f in inner
        )  # a loop over another loader: validation
        if names_in(script, source) & batch and not between_steps:
            calls.append(call)
    return calls


def _batch_names(script: Script, loop: cst.For) -> set[str]:
    """What the loop's target binds, and what is taken out of it in the loop."""
    names = names_in(script, loop.target)
    for _ in range(3):
        for assign in script.all(cst.Assign, within=loop.body):
            if not isinstance(assign.value, cst.Call) and names_in(script, assign.value) & names:
                names |= {n for t in assign.targets for n in names_in(script, t.target)}
        for each in script.all(cst.CompFor, within=loop.body):
            if names_in(script, each.iter) & names:
                names |= names_in(script, each.target)
    return names


_MAKES = re.compile(r"torch\.(?:(?:\w*Tensor|tensor|from_numpy|stack|cat)$)")


def _made_anew(script: Script, loop: cst.For, copy: cst.Call) -> cst.CSTNode | None:
    """The assignment of the loop that gives what is copied a new tensor, after the loader has pinned the batch."""
    value, end = receiver(copy), script.span(copy)[0]
    name = dotted(value) if value is not None else None
    before = (a for a in script.all(cst.Assign, within=loop.body) if script.span(a)[1] <= end)
    makes = (a for a in before if name in assigned_names(a) and _MAKES.match(script.callee(a.value)))
    return next((a for a in makes if name is not None), None)


def _written_later(script: Script, loop: cst.For, copy: cst.Call) -> bool:
    """Whether the source of a copy that does not wait is written to while the copy may still run."""
    value, statement = receiver(copy), script.statement_of(copy)
    source = dotted(value) if value is not None else None
    targets = statement.targets if isinstance(statement, cst.Assign) else ()
    if source is None or any(source in names_in(script, t.target) for t in targets):
        return False
    calls = script.all(cst.Call, within=loop.body)
    return any(changes_in_place(c, source) for c in calls if script.span(c)[0] > script.span(copy)[1])


# ---------------------------------------------------------------------- channels last


@codemod(
    "channels-last",
    Parameters,
    adds="torch to memory_format channels_last",
    words=("Conv2d", "torchvision", "timm"),
    elsewhere=True,
)
def channels_last(place: Place, params: Parameters) -> Change:
    """Keeps the model's weights and its images with the channels last, as cuDNN's kernels want them."""
    refuse_done(place.scripts, {}, "channels_last")
    step = find_step(place)
    model = find_model(step)
    script, call = step.script, model.calls[0]
    callees = [where.callee(made) for where, made in model.constructions]
    images = all(name.startswith(("torchvision.models.", "timm.")) for name in callees)
    homes = {id(s): s for s in (script, model.script, model.construction[0], *(model.definition or ())[:1])}
    if not images and not any(s.calls("torch.nn.Conv2d") for s in homes.values()):
        raise refusal(*model.construction, "the model has no Conv2d in these scripts")
    if images and any(name.startswith(_NO_IMAGES) for name in callees):
        raise refusal(*model.construction, "the model takes no batch of images of four dimensions")
    arg = call.args[0].value if call.args and call.args[0].keyword is None else None
    if arg is None or not isinstance(arg, cst.Name) or len(model.calls) > 1:
        raise refusal(script, call, "the images have no name where the model is called")
    torch, imports = name_for(script, "torch", call)
    layout = f"{torch}.channels_last"
    name, whole = ready(model, place.program, "the layout")
    root, more = name_for(model.script, "torch", whole)
    code = f"{name}.to(memory_format={root}.channels_last)"
    gathered = Gathered()
    gathered.keep(model.script, [*more, insert_after(model.script, whole, code, "channels-last")])
    edits = [*imports]
    bindings = dataflow_of(script).bindings_of(arg)
    moves = [b.value for b in bindings if isinstance(b.value, cst.Call | cst.Tuple)]
    copies = [c for m in moves for c, r in method_calls(script, "to", m) if dotted(r) == arg.value]
    if len(copies) == 1:
        edits += add_arguments(script, copies[0], {"memory_format": layout})
    else:
        code = f"{arg.value} = {arg.value}.to(memory_format={layout})"
        edits.append(insert_before(script, whole_line(script, call), code, "channels-last-input"))
    gathered.keep(script, edits)
    change = gathered.change(model.script, model.script.line(whole), None)
    with sketched(change):
        if not images:
            _refuse_other_inputs(place, model)
    return change


_NO_IMAGES = (
    "torchvision.models.video.",
    "torchvision.models.detection.",
    "torchvision.models.optical_flow.",
)


def _refuse_other_inputs(place: Place, model: Model) -> None:
    """Raises NoEdit unless the first thing that a model does with its input is a Conv2d: only four dimensions have the layout."""
    for construction in model.constructions:
        if not _goes_to_conv2d(place.program, *construction, depth=0):
            why = "the model's input is not seen to go into a Conv2d as it is: only tensors of four dimensions have this layout"
            raise refusal(*construction, why)


def _goes_to_conv2d(program: Project, script: Script, construction: cst.BaseExpression, depth: int) -> bool:
    """Whether what is constructed hands its input on to a Conv2d unchanged."""
    if not isinstance(construction, cst.Call) or depth > 6:
        return False
    callee = script.callee(construction)
    if callee in ("torch.nn.Conv2d", "torch.nn.BatchNorm2d", "torch.nn.MaxPool2d", "torch.nn.AvgPool2d"):
        return True
    if callee == "torch.nn.Sequential" and construction.args:
        first = construction.args[0]
        return not first.star and _any_goes(program, script, first.value, depth)
    owner = program.class_by_name(script, construction.func)
    forward = method_of(owner[1], "forward") if owner is not None else None
    if owner is None or forward is None or len(forward.params.params) < 2:
        return False
    where, name = owner[0], forward.params.params[1].name.value
    uses = [
        n for n in where.variables(name, forward.body) if not isinstance(where.parent(n), cst.AssignTarget)
    ]
    first_use = where.parent(uses[0]) if uses else None
    call = where.parent(first_use) if isinstance(first_use, cst.Arg) else None
    taken = isinstance(call, cst.Call) and call.args and call.args[0] is first_use
    return bool(taken) and isinstance(call, cst.Call) and _any_goes(program, where, call.func, depth)


def _any_goes(program: Project, script: Script, value: cst.BaseExpression, depth: int) -> bool:
    origins = program.of(script, value)
    return bool(origins) and all(_goes_to_conv2d(program, s, o, depth + 1) for s, o in origins)
