"""Which DataLoader feeds the loop that a finding is about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from trace_doctor.program.place import Place, refusal
from trace_doctor.program.queries.loops import loops, method_calls, optimizer_steps, trains, zero_grads
from trace_doctor.program.script import Script, argument, assigned_names

Loader = tuple[Script, cst.Call]
_NOT_TRAINING = re.compile(r"(?:^|_)(?:val|valid|validation|test|eval|dev|pred|predict|infer)", re.IGNORECASE)
_TRAINING_WORDS = ("backward(", ".step(", "zero_grad(", ".fit(")
_HOOKS = ("train_dataloader", "get_train_dataloader")


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
            return loaders
    every = _constructions(place)
    for script in trainers if every else ():
        for loop in training_loops(script):
            for where, origin in place.program.of(script, loop.iter):
                if isinstance(origin, cst.Call):
                    constructor = where.code(origin.func)
                    raise refusal(where, origin, f"the training loop draws from {constructor}(...)")
    return [f for f in every if not _for_validation(*f)]


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


def _handed_over(place: Place, script: Script) -> Iterator[Loader]:
    """Loaders given to `trainer.fit(model, loader)` or `Trainer(train_dataloader=loader)`."""
    for call, _ in method_calls(script, "fit"):
        arg = argument(call, "train_dataloaders", 1) or argument(call, "train_dataloader", 1)
        if arg is not None:
            yield from _drawn_from(place, script, arg.value)


def _for_validation(script: Script, call: cst.Call) -> bool:
    """Whether the name that a loader is bound to, or the function that returns it, says that it does not train."""
    names = [script.function_name(call), *assigned_names(script.statement_of(call))]
    return any(_NOT_TRAINING.search(part) for name in names for part in (name or "").split("."))
