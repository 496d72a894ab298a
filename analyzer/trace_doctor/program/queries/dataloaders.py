"""Which DataLoader feeds the loop that a finding is about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from trace_doctor.program.dataflow import dataflow_of, method_of
from trace_doctor.program.place import Place, refusal
from trace_doctor.program.project import Project
from trace_doctor.program.queries.loops import (
    NOT_TRAINING,
    enclosing_loop,
    loops,
    method_calls,
    optimizer_steps,
    trains,
    zero_grads,
)
from trace_doctor.program.queries.reached import reached
from trace_doctor.program.script import Script, argument, assigned_names, dotted, method_name, positional

Loader = tuple[Script, cst.Call]
_TRAINING_WORDS = ("backward(", ".step(", "zero_grad(", ".fit(")
_GPU, _CPU = (
    re.compile(r"device|cuda|xpu|rank|gpu", re.IGNORECASE),
    re.compile(r"cuda|xpu|gpu", re.IGNORECASE),
)
"""what is likely a GPU, and what is one although the CPU is spoken of as well"""
_ONLY_CPU = "only those of the CPU can be pinned, or come from a worker"
_ON_CPU = re.compile(r"cpu|torch\.(?:Float|Double|Half|BFloat16)Tensor")
_OPENS = (
    "h5py.File",
    "lmdb.open",
    "lmdb.Environment",
    "zipfile.ZipFile",
    "tarfile.open",
    "tarfile.TarFile",
    "tables.open_file",
    "sqlite3.connect",
    "open",
)
_MOVES = ("to", "cuda")
_OF_TENSORS = ("shape", "dtype", "ndim", "size")
_MAKE_SAMPLES = ("__init__", "__getitem__", "__getitems__", "__iter__", "__next__", "__call__")
_HOOKS = ("train_dataloader", "get_train_dataloader")
_EVALUATION_HOOK = "val_dataloader"
_EVALUATION_WORDS = ("no_grad", "inference_mode", ".eval(")


def loaders_on_line(place: Place) -> list[Loader]:
    """Loaders constructed, iterated or drawn from on the line that the capture names."""
    script = place.script
    if script is None or place.line is None:
        return []
    places = (s.iter if isinstance(s, cst.For) else s for s in script.statements_on(place.line))
    return next(filter(None, (_drawn_from(place, script, within) for within in places)), [])


def training_loaders(place: Place) -> list[Loader]:
    """Loaders that feed training: those of the function that the capture names, else of the loops that train, else what
    is handed to a framework to train with.

    Without any such sign all loaders that are not for validation. Raises NoEdit where the loops that train draw from
    something else.
    """
    trainers = [place.script] if place.script else place.program.scripts_with(*_TRAINING_WORDS)
    for loaders in (
        _unique(f for s in place.scripts for f in _in_function(place, s, place.function)),
        _unique(f for s in trainers for loop in training_loops(s) for f in _drawn_from(place, s, loop.iter)),
        _unique(f for s in trainers for f in _handed_over(place, s)),
        [(s, c) for s, c in _constructions(place) if s.function_name(c) in _HOOKS],
    ):
        if loaders:
            return [f for f in loaders if not _for_validation(*f)] or loaders
    every = _constructions(place)
    for script in trainers if every else ():
        for loop in training_loops(script):
            for where, origin in place.program.of(script, loop.iter):
                if isinstance(origin, cst.Call):
                    constructor = where.code(origin.func)
                    raise refusal(where, origin, f"the training loop draws from {constructor}(...)")
    return [f for f in every if not _for_validation(*f)]


def evaluation_loaders(place: Place, training: Loader) -> list[Loader]:
    """Other loaders that are iterated again and again, by loops that do not train: what evaluates after each epoch, and the
    hook of Lightning that gives it its loader."""
    found = [(s, c) for s, c in _constructions(place) if s.function_name(c) == _EVALUATION_HOOK]
    for script in place.program.scripts_with(*_EVALUATION_WORDS):
        for loop in loops(script):
            if isinstance(loop, cst.For) and not trains(script, loop):
                found += _iterated_again(place, script, loop)
    return [(s, c) for s, c in _unique(found) if c is not training[1]]


def _iterated_again(place: Place, script: Script, loop: cst.For) -> list[Loader]:
    """The loaders of a loop that runs again and again; of those that calls of its function pass, the ones of calls that do."""
    function, loaders = script.function_of(loop), _drawn_from(place, script, loop.iter)
    if not loaders or function is None or enclosing_loop(script, loop) is not None:
        return loaders if enclosing_loop(script, loop) is not None else []
    again, once = set[int](), set[int]()
    for where, call in place.program.callers(script, function):
        passed = again if _repeats(place.program, where, call) else once
        passed.update(id(c) for _, c in _drawn_from(place, where, call))
    repeats = _repeats(place.program, script, loop)
    return [(s, c) for s, c in loaders if id(c) in again or (repeats and id(c) not in once)]


def is_made_anew(project: Project, script: Script, call: cst.Call) -> bool:
    """Whether a loader is made again for each loop over it: something repeats its construction, and no loop is around those over it
    alone."""
    if not _repeats(project, script, call):
        return False
    own = [
        loop
        for loop in loops(script)
        if isinstance(loop, cst.For) and script.function_of(loop) is script.function_of(call)
        if any(origin is call for _, origin in project.of(script, loop.iter))
    ]
    return bool(own) and all(enclosing_loop(script, n) is enclosing_loop(script, call) for n in own)


def _repeats(program: Project, script: Script, node: cst.CSTNode, depth: int = 3) -> bool:
    """Whether a loop is around a node, or around a call of the function that it stands in, and so on."""
    if enclosing_loop(script, node) is not None:
        return True
    function = script.function_of(node)
    return function is not None and any(
        _repeats(program, where, call, depth - 1)
        for where, call in program.callers(script, function)
        if depth
    )


def _constructions(place: Place) -> list[Loader]:
    names = {s.name for s in place.scripts}
    return [(s, c) for s, c in place.program.dataloaders if s.name in names]


def _unique(loaders: Iterable[Loader]) -> list[Loader]:
    return list({id(call): (script, call) for script, call in loaders}.values())


def training_loops(script: Script) -> Iterator[cst.For]:
    """Loops over data that run backward, step an optimizer or clear gradients."""
    for loop in loops(script):
        if not isinstance(loop, cst.For) or script.callee(loop.iter) == "range":
            continue
        if trains(script, loop) or optimizer_steps(script, loop) or zero_grads(script, loop):
            yield loop


def _in_function(place: Place, script: Script, function: str | None) -> Iterator[Loader]:
    """Loaders that the loops and `next()` calls of a named function draw from."""
    if function is None:
        return
    name = function.replace("<locals>.", "").split(".")[-1]
    own = [n for n in loops(script) if isinstance(n, cst.For) and script.function_name(n) == name]
    for loop in [n for n in training_loops(script) if n in own] or own:
        yield from _drawn_from(place, script, loop.iter)
    for call in script.all(cst.Call):
        if script.callee(call) == "next" and script.function_name(call) == name:
            yield from _drawn_from(place, script, call)


def _drawn_from(place: Place, script: Script, within: cst.CSTNode) -> list[Loader]:
    """Loaders that an expression, or what it is called with (`logger.log_every(loader, 10)`), comes from."""
    kinds = (cst.Call, cst.Name, cst.Attribute)
    nodes = [n for kind in kinds for n in script.all(kind, within)]
    if isinstance(within, cst.BaseExpression):
        nodes.insert(0, within)
    return _unique(
        (where, origin)
        for node in nodes
        for where, origin in place.program.of(script, node)
        if isinstance(origin, cst.Call) and place.program.is_dataloader(where, origin)
    )


def loader_of(project: Project, script: Script, iterable: cst.BaseExpression) -> Loader | None:
    """The one DataLoader whose batches a loop gets: what it iterates, or what the function gets whose result that is, as
    `logger.log_every(loader, 10)`. Not what a class gets: one that prefetches copies the batches itself."""
    found: list[Loader] = []
    for where, origin in project.of(script, iterable):
        if not isinstance(origin, cst.Call):
            return None
        passed = [o for value in positional(origin) for o in project.of(where, value)]
        name = (dotted(origin.func) or "").rpartition(".")[2]
        of_call = [] if name[:1].isupper() or project.class_by_name(where, origin.func) else passed
        made = [(where, origin)] if project.is_dataloader(where, origin) else of_call
        loaders = [(s, o) for s, o in made if isinstance(o, cst.Call) and project.is_dataloader(s, o)]
        if not loaders:
            return None
        found += loaders
    loaders = _unique(found)
    return loaders[0] if len(loaders) == 1 else None


def _handed_over(place: Place, script: Script) -> Iterator[Loader]:
    """Loaders given to `trainer.fit(model, loader)` or `Trainer(train_dataloader=loader)`."""
    for call, _ in method_calls(script, "fit"):
        arg = argument(call, "train_dataloaders", 1) or argument(call, "train_dataloader", 1)
        if arg is not None:
            yield from _drawn_from(place, script, arg.value)


def _for_validation(script: Script, call: cst.Call) -> bool:
    """Whether the name that a loader is bound to, or the function that returns it, says that it does not train."""
    names = [script.function_name(call), *assigned_names(script.statement_of(call))]
    return any(NOT_TRAINING.search(part) for name in names for part in (name or "").split("."))


def refuse_batches_on_gpu(project: Project, script: Script, call: cst.Call) -> None:
    """Raises NoEdit where the dataset or the collate function of a loader puts tensors on the GPU: those cannot be pinned,
    and a process that was forked cannot make any."""
    for other in project.scripts_with("set_default_device", "set_default_tensor_type"):
        for made in other.calls("torch.set_default_device", "torch.set_default_tensor_type"):
            texts = [other.code(a.value) for a in made.args]
            if not any(_ON_CPU.search(text) for text in texts):
                raise refusal(other, made, f"tensors are made on the GPU by default: {_ONLY_CPU}")
    for what, where, within in _makes_batches(project, script, call):
        for copy in where.all(cst.Call, within):
            if where.function_name(copy) in _MOVES:
                continue  # what calls it says where to, and is seen itself
            if _on_gpu(project, where, copy):
                raise refusal(where, copy, f"the {what} puts tensors on the GPU: {_ONLY_CPU}")


def refuse_own_batches(project: Project, script: Script, call: cst.Call) -> None:
    """Raises NoEdit where a loader delivers objects of a class of the program that moves itself: its `to()` takes no
    `non_blocking`, or nothing pins it."""
    for _, where, within in _makes_batches(project, script, call):
        move = method_of(within, "to") if isinstance(within, cst.ClassDef) else None
        if move is None or not isinstance(within, cst.ClassDef):
            continue
        names = {p.name.value for p in (*move.params.params, *move.params.kwonly_params)}
        if ("non_blocking" not in names and move.params.star_kwarg is None) or not method_of(
            within, "pin_memory"
        ):
            why = f"the batch is a {within.name.value}, whose to() would need non_blocking, and it a method pin_memory()"
            raise refusal(where, move, why)


def _makes_batches(
    project: Project, script: Script, call: cst.Call
) -> Iterator[tuple[str, Script, cst.CSTNode]]:
    """What runs where a loader's batches are made, and whether it is of its collate function or dataset."""
    makers = [
        ("collate function", argument(call, "collate_fn", 6)),
        ("dataset", argument(call, "dataset", 0)),
    ]
    for what, arg in makers:
        for home, start in _code_of(project, script, arg.value) if arg is not None else ():
            runs = reached(project, home, [start]) if isinstance(start, cst.FunctionDef) else [(home, start)]
            for where, within in runs:
                yield what, where, within


def refuse_open_files(project: Project, script: Script, call: cst.Call) -> None:
    """Raises NoEdit where the dataset of a loader opens a file once, which workers that are forked would read by one shared
    position or library handle."""
    dataset = argument(call, "dataset", 0)
    for where, node in _code_of(project, script, dataset.value) if dataset is not None else ():
        if not isinstance(node, cst.FunctionDef) or node.name.value != "__init__":
            continue
        for assign in where.all(cst.Assign, within=node):
            name = where.callee(assign.value) if isinstance(assign.value, cst.Call) else ""
            if name in _OPENS and (dotted(assign.targets[0].target) or "").startswith("self."):
                why = f"the workers would share the file that {name}() opens here: open it in each worker"
                raise refusal(where, assign, why)


def not_picklable(project: Project, script: Script, call: cst.Call) -> tuple[Script, cst.CSTNode] | None:
    """What a loader is given that a process which is spawned cannot get: a lambda, a function or class made in a function."""
    for arg in (
        argument(call, "collate_fn", 6),
        argument(call, "dataset", 0),
        argument(call, "worker_init_fn"),
    ):
        for where, node in _code_of(project, script, arg.value) if arg is not None else ():
            kept: list[cst.CSTNode] = []
            if isinstance(node, cst.FunctionDef) and node.name.value in _MAKE_SAMPLES:
                owner = where.nearest(node, cst.ClassDef, cst.FunctionDef)
                if isinstance(owner, cst.ClassDef) and where.function_of(owner) is not None:
                    return where, owner
                kept = [
                    a.value
                    for a in where.all(cst.Assign, node)
                    if isinstance(a.targets[0].target, cst.Attribute)
                ]
            elif isinstance(node, cst.FunctionDef):
                if where.function_of(node) is not None:
                    return where, node
            else:
                kept = [node]
            for value in kept:
                for inner in (value, *where.all(cst.Lambda, value)):
                    if isinstance(inner, cst.Lambda) and where.nearest(inner, cst.Lambda) is None:
                        return where, inner
    return None


def _code_of(
    project: Project, script: Script, value: cst.BaseExpression
) -> Iterator[tuple[Script, cst.CSTNode]]:
    """What runs to make what a function, or a dataset, gives: its expressions, and functions and methods of the program."""
    for where, origin in [(script, value), *project.of(script, value)]:
        yield where, origin
        for func in [
            origin,
            *([origin.func, *(a.value for a in origin.args)] if isinstance(origin, cst.Call) else []),
        ]:
            if isinstance(func, cst.Name):  # where it comes from is told without the copy on the way
                yield from (
                    (where, b.value) for b in dataflow_of(where).bindings_of(func) if b.value is not None
                )
            home, node = project.definition(where, func) or (where, None)
            if isinstance(node, cst.FunctionDef):
                yield home, node
            elif node is not None:
                for there, owner in project.lineage(home, node):
                    yield from (
                        (there, m) for name in _MAKE_SAMPLES if (m := method_of(owner, name)) is not None
                    )


def _on_gpu(project: Project, script: Script, call: cst.Call) -> bool:
    """Whether a call is `x.cuda()`, `x.to(device)` or `torch.zeros(..., device=device)` of what is no CPU."""
    method = method_name(call)
    if method == "cuda":
        return True
    device = argument(call, "device", 0 if method == "to" else None)
    if device is None:
        return False
    origins = project.of(script, device.value)
    if origins and all(_device_of_tensor(where, origin) for where, origin in origins):
        return False  # it stays where that tensor is
    texts = [w.code(o) for w, o in [(script, device.value), *origins]]
    on_cpu = any("cpu" in text for text in texts) and not any(_CPU.search(text) for text in texts)
    return not on_cpu and any(_GPU.search(text) and "dtype" not in text for text in texts)


def _device_of_tensor(script: Script, node: cst.BaseExpression) -> bool:
    """Whether an expression is `x.device` of a tensor: an item, or what has a shape or a type as well."""
    if not isinstance(node, cst.Attribute) or node.attr.value != "device":
        return False
    if isinstance(node.value, cst.Subscript):
        return True
    attributes = script.all(cst.Attribute, within=script.function_of(node))
    tensors = {dotted(a.value) for a in attributes if a.attr.value in _OF_TENSORS} - {None}
    return dotted(node.value) in tensors
