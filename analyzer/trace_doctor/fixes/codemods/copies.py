"""`pinned-copies` and `channels-last`: how a batch gets to the device, and in which layout."""

from __future__ import annotations

import re

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.model.parameters import Parameters
from trace_doctor.program.dataflow import DATALOADERS, dataflow_of
from trace_doctor.program.edits import Change, add_arguments, insert_after, insert_before, set_argument
from trace_doctor.program.place import Place, already, on_line, only, refusal
from trace_doctor.program.queries.dataloaders import refuse_batches_on_gpu
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.queries.loops import changes_in_place, method_calls, names_in, trains
from trace_doctor.program.queries.training import find_model, find_step, refuse_done, whole_line
from trace_doctor.program.script import Script, argument, dotted, literal, method_name, receiver

_DEVICE = re.compile(r"device|cuda|xpu|rank|gpu", re.IGNORECASE)
_INSTEAD = {
    "accelerate": "Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True)) with pin_memory=True",
    "transformers": 'TrainingArguments(accelerator_config={"non_blocking": True}), where pinning is the default',
    "lightning": "pin_memory=True of the DataModule's loaders: it copies without blocking then",
}


@codemod(
    "pinned-copies", Parameters, adds="non_blocking pin_memory True", words=("DataLoader",), elsewhere=True
)
def pinned_copies(place: Place, params: Parameters) -> Change:
    """Copies batches from pinned memory without blocking: pin_memory=True of the loader with non_blocking=True.

    Safe where torch itself makes the batches, nothing in the program has a `to` of its own, and no name of what is
    being copied is left with which it could be changed meanwhile.
    """
    refuse_done(place.scripts, _INSTEAD)
    loops = [(s, loop) for s in place.scripts for loop in s.all(cst.For) if _copies(s, loop)]
    loops = on_line(place, loops) or loops
    loops = [(s, f) for s, f in loops if trains(s, f)] or (loops if place.line is not None else [])
    script, loop = only(
        loops, "copy a loader's batches", "no loop copies the batches of a DataLoader to a device"
    )
    copies = _copies(script, loop)
    blocking = [c for c in copies if _non_blocking(c) is None]
    edits = [e for c in blocking for e in add_arguments(script, c, {"non_blocking": "True"})]
    loader = _loader(script, loop)
    assert loader is not None
    if any(a.star for a in loader.args):
        raise refusal(script, loader, "the loader takes *args or **kwargs that may pin")
    refuse_batches_on_gpu(place.program, script, loader)
    pin_memory = argument(loader, "pin_memory", 7)
    if pin_memory is None:
        edits += add_arguments(script, loader, {"pin_memory": "True"})
    elif literal(pin_memory.value) is False:
        edits.append(set_argument(script, loader, pin_memory, "True"))
    if not edits:
        raise already(script, copies[0], "copies from pinned memory already")
    for copy in copies:
        if _written_later(script, loop, copy):
            raise refusal(script, copy, "what is copied is changed in place afterwards")
    plain = _of_torch(place, script, loader) and not _host_names_used(script, loop, copies)
    return Change(script, tuple(edits), script.line(copies[0]), "safe" if plain else "unsafe")


def _non_blocking(copy: cst.Call) -> cst.Arg | None:
    """What a copy says of waiting: `to(device, dtype, non_blocking)`, `to(tensor, non_blocking)`, `cuda(device, non_blocking)`."""
    second = argument(copy, "non_blocking", 1)
    if method_name(copy) == "cuda" or (second is not None and isinstance(literal(second.value), bool)):
        return second
    return argument(copy, "non_blocking", 2)


def _of_torch(place: Place, script: Script, loader: cst.Call) -> bool:
    """Whether batches are tensors that torch collates: no function or class of the program makes them or has its own `to`."""
    collate = argument(loader, "collate_fn", 6)
    if script.callee(loader) not in DATALOADERS or (collate and literal(collate.value) is not None):
        return False
    scripts = place.program.scripts_with("def to", "def cuda")
    return not any(f.name.value in ("to", "cuda") for s in scripts for f in s.all(cst.FunctionDef))


def _loader(script: Script, loop: cst.For) -> cst.Call | None:
    dataflow = dataflow_of(script)
    loaders = [o for o in dataflow.of(loop.iter) if isinstance(o, cst.Call) and dataflow.is_dataloader(o)]
    return loaders[0] if len(loaders) == 1 and len(dataflow.of(loop.iter)) == 1 else None


def _copies(script: Script, loop: cst.For) -> list[cst.Call]:
    """`x.to(device)`, `x.cuda()` of what the loader delivers, in the order they stand."""
    if _loader(script, loop) is None:
        return []
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
            _loader(script, f) is not None for f in inner
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


def _written_later(script: Script, loop: cst.For, copy: cst.Call) -> bool:
    """Whether the source of a copy that does not wait is written to while the copy may still run."""
    value, statement = receiver(copy), script.statement_of(copy)
    source = dotted(value) if value is not None else None
    targets = statement.targets if isinstance(statement, cst.Assign) else ()
    if source is None or any(source in names_in(script, t.target) for t in targets):
        return False
    calls = script.all(cst.Call, within=loop.body)
    return any(changes_in_place(c, source) for c in calls if script.span(c)[0] > script.span(copy)[1])


Pair = tuple[cst.BaseExpression, cst.BaseExpression]
"""what is bound, and to what"""
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)
_ENDS = (cst.CompFor, cst.Lambda, cst.NamedExpr, cst.BaseSmallStatement, cst.BaseCompoundStatement)
_PARTS = ("items", "keys", "values", "pop", "get")
"""methods that take a batch apart"""
_LOOKS = ("shape", "ndim", "dtype", "size", "dim", "numel", "len", "isinstance", "torch.is_tensor")
"""what a tensor is asked without a change of it or a further name for it"""


def _host_names_used(script: Script, loop: cst.For, copies: list[cst.Call]) -> bool:
    """Whether what the copies read is not plainly the loader's, or has a name that is used for more than to take it
    apart or to look at it, unless that name holds the copy by then."""
    pairs = [
        p
        for a in script.all(cst.Assign, loop.body)
        for t in a.targets
        for p in _one_by_one(t.target, a.value)
    ]
    pairs += [(f.target, f.iter) for f in script.all(cst.For, loop.body)]
    pairs += [(f.target, f.iter) for f in script.all(cst.CompFor, loop.body)]
    to_copies = [(t, v) for t, v in pairs if v in copies or _copies_each(script, v, copies)]
    flows = [(names_in(script, t), _kept_names(script, v, to_copies, copies)) for t, v in pairs]
    batch = names_in(script, loop.target)
    roots = {n.split(".")[0] for c in copies if (source := receiver(c)) for n in names_in(script, source)}
    aliases = set(roots)
    for _ in range(4):
        for targets, sources in flows:
            batch |= targets if sources & batch else set()
            aliases |= targets if sources & aliases else sources if targets & aliases else set()
    others = [
        b for p, (b, sources) in zip(pairs, flows, strict=True) if p not in to_copies and not sources & batch
    ]
    if not roots <= batch or any(targets & roots for targets in others):
        return True
    names = [n for name in aliases & batch for n in script.variables(name, loop.body)]
    return any(not _harmless(script, n, to_copies, copies) for n in names)


def _one_by_one(target: cst.BaseExpression, value: cst.BaseExpression) -> list[Pair]:
    """`x, y = a, b` as two assignments."""
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
        return [(t.value, v.value) for t, v in zip(target.elements, value.elements, strict=False)]
    return [(target, value)]


def _copies_each(script: Script, value: cst.BaseExpression, copies: list[cst.Call]) -> bool:
    if script.callee(value) in ("tuple", "list", "dict") and isinstance(value, cst.Call) and value.args:
        value = value.args[0].value
    return isinstance(value, _COMPREHENSIONS) and any(script.within(c, value) for c in copies)


def _kept_names(
    script: Script, value: cst.BaseExpression, to_copies: list[Pair], copies: list[cst.Call]
) -> set[str]:
    """Names through whose value what is bound to an expression may be changed: not those that are only copied or asked."""
    uses = [u for name in names_in(script, value) for u in script.variables(name, value)]
    return {
        u.value for u in uses if not _holds(script, u, to_copies) and _reaches(script, u, copies) is not None
    }


def _reaches(script: Script, name: cst.Name, copies: list[cst.Call]) -> cst.CSTNode | None:
    """The statement, or the loop of a comprehension, that a use of a name leads out to as the value or a part of it.

    None where the use ends within: in a copy, or in a question. A call that it is given to is returned as it is.
    """
    node: cst.CSTNode = name
    for up in script.ancestors(name):
        if isinstance(up, cst.Attribute) and up.value is node and up.attr.value in _LOOKS:
            return None
        if isinstance(up, cst.Index) or up in copies:
            return None
        if isinstance(up, cst.Call):
            if up.func is not node and script.callee(up) in _LOOKS:
                return None
            if up.func is not node or method_name(up) not in _PARTS:
                return up
        if isinstance(up, _ENDS):
            return up
        node = up
    return None


def _harmless(script: Script, name: cst.Name, to_copies: list[Pair], copies: list[cst.Call]) -> bool:
    """Whether a use of a name of the batch binds it, takes it apart, looks at it, copies it, or finds the copy there."""
    holds, copies_it = _holds(script, name, to_copies), any(script.within(name, c) for c in copies)
    if holds or copies_it:
        return not (holds and copies_it)
    statement = _reaches(script, name, copies)
    if isinstance(statement, cst.Assign):
        targets = [part for t in statement.targets for part in _parts(t.target)]
        return all(isinstance(t, cst.Name) or any(t is h for h, _ in to_copies) for t in targets)
    return statement is None or isinstance(statement, cst.CompFor | cst.For | cst.If | cst.Del)


def _holds(script: Script, name: cst.Name, to_copies: list[Pair]) -> bool:
    """Whether a name, or what is taken out of it there, was bound to a copy before."""
    path: cst.CSTNode = name
    codes = {name.value}
    while isinstance(up := script.parent(path), cst.Attribute | cst.Subscript) and up.value is path:
        path = up
        codes.add(script.code(path))
    before = [t for t, v in to_copies if script.span(v)[1] < script.span(name)[0]]
    return any(script.code(part) in codes for t in before for part in _parts(t))


def _parts(target: cst.BaseExpression) -> list[cst.BaseExpression]:
    return [e.value for e in target.elements] if isinstance(target, cst.Tuple | cst.List) else [target]


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
    script, call = model.script, model.calls[0]
    images = model.callee.startswith(("torchvision.models.", "timm."))
    homes = {id(s): s for s in (script, model.construction[0], *(model.definition or ())[:1])}
    if not images and not any(s.calls("torch.nn.Conv2d") for s in homes.values()):
        raise refusal(*model.construction, "the model has no Conv2d in these scripts")
    arg = call.args[0].value if call.args and call.args[0].keyword is None else None
    if arg is None or not isinstance(arg, cst.Name) or len(model.calls) > 1:
        raise refusal(script, call, "the images have no name where the model is called")
    torch, imports = name_for(script, "torch", call)
    layout = f"{torch}.channels_last"
    to_layout = insert_after(script, model.setup, f"{model.name}.to(memory_format={layout})", "channels-last")
    edits = [*imports, to_layout]
    bindings = dataflow_of(script).bindings_of(arg)
    moves = [b.value for b in bindings if isinstance(b.value, cst.Call | cst.Tuple)]
    copies = [c for m in moves for c, r in method_calls(script, "to", m) if dotted(r) == arg.value]
    if len(copies) == 1:
        edits += add_arguments(script, copies[0], {"memory_format": layout})
    else:
        code = f"{arg.value} = {arg.value}.to(memory_format={layout})"
        edits.append(insert_before(script, whole_line(script, call), code, "channels-last-input"))
    return Change(script, tuple(edits), script.line(model.setup))
