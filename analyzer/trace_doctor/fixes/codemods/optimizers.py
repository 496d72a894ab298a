"""`optimizer-args` and `replace-optimizer`: how the optimizer updates, and how much state it keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.literals import source_text
from trace_doctor.model.parameters import OptimizerArgs, ReplaceOptimizer
from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import (
    Change,
    Edit,
    NoEdit,
    add_arguments,
    argument_end,
    remove_argument,
    set_argument,
    sketched,
)
from trace_doctor.program.place import Place, already, only, refusal
from trace_doctor.program.project import Project
from trace_doctor.program.queries.arguments import refuse_configured, refuse_explained
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.queries.loops import Loop, enclosing_loop, method_calls
from trace_doctor.program.queries.training import refuse_done
from trace_doctor.program.script import Script, argument, dotted, literal, positional
from trace_doctor.program.versions import accepts, has_fused, needs

_INSTEAD = {
    "fused": {"transformers": 'TrainingArguments(optim="adamw_torch_fused")'},
    "adamw-8bit": {"transformers": 'TrainingArguments(optim="adamw_bnb_8bit")'},
    "adafactor": {"transformers": 'TrainingArguments(optim="adafactor")'},
    "deepspeed": {"deepspeed": '"optimizer" in its configuration'},
}
_ALTERNATIVE = {"fused": "foreach", "foreach": "fused"}
_EIGHT_BIT = {
    "torch.optim.AdamW": "bitsandbytes.optim.AdamW8bit",
    "torch.optim.Adam": "bitsandbytes.optim.Adam8bit",
}
_ONE_BY_ONE = ("torch.optim.LBFGS", "torch.optim.Muon", "torch.optim.SparseAdam")
_OF_TORCH = frozenset([
    "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "LBFGS", "Muon", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD", "SparseAdam",
])  # fmt: skip
_ON_CPU = "torch.optim.AdamW(fused) on the CPU"
_NEEDS = {
    "adamw-8bit": "the package bitsandbytes has to be installed",
    "adafactor": "its learning rate is relative to the size of each parameter: tune it again",
}
_OF_TORCH_ONLY = ("fused", "foreach", "capturable", "differentiable", "maximize")


@codemod(
    "optimizer-args",
    OptimizerArgs,
    adds="fused foreach True False",
    scope="call",
    words=("torch",),
    elsewhere=True,
)
def optimizer_args(place: Place, params: OptimizerArgs) -> Change:
    """Sets fused=True (or foreach=...) of the optimizer that training steps, where its class and torch's version have it; of
    several where one loop steps them all and they are of one class, which is all that a capture names.

    params: `fused` or `foreach`; `class` (AdamW, ...) where the capture names it.
    """
    changes: list[Change] = []
    there: NoEdit | None = None
    for script, call in _optimizers(place, params.optimizer, _INSTEAD["fused"]):
        try:
            changes.append(_set_form(place, params, script, call))
        except NoEdit as refused:
            if refused.kind != "already":
                raise
            there = refused
    if not changes:
        assert there is not None
        raise there
    return replace(changes[0], edits=tuple(e for change in changes for e in change.edits))


def _set_form(place: Place, params: OptimizerArgs, script: Script, call: cst.Call) -> Change:
    """The edit of one optimizer. Raises NoEdit where its class, or its arguments, allow none."""
    option = "foreach" if params.foreach is not None else "fused"
    value = params.foreach if params.foreach is not None else params.fused is not False
    if option == "foreach" and script.callee(call) in _ONE_BY_ONE:
        raise refusal(script, call, f"{script.callee(call)} takes no foreach")
    if any(a.star for a in call.args):
        raise refusal(script, call, "the optimizer takes *args or **kwargs that may hold these")
    differentiable = argument(call, "differentiable")
    if value and differentiable is not None and literal(differentiable.value) is not False:
        raise refusal(script, call, f"differentiable=True and {option}=True exclude each other")
    there, other = argument(call, option), argument(call, _ALTERNATIVE[option])
    edits: list[Edit] = []
    if there is not None:
        if literal(there.value) is value:
            raise already(script, call, f"passes {option}={value} already")
        edits.append(set_argument(script, call, there, source_text(value)))
    if value and other is not None:
        edits.append(remove_argument(script, call, other))
    if there is None and value and other is not None and other is call.args[-1]:
        start, text = script.span(other)[0], f"{option}={source_text(value)}"
        edits = [Edit(start, argument_end(script, other), text, f"arg:{start}", text)]
    elif there is None:
        edits += add_arguments(script, call, {option: source_text(value)})
    change = Change(script, tuple(edits), script.line(call))
    with sketched(change):
        if option == "fused" and there is not None and literal(there.value) not in (None, ...):
            raise refusal(script, call, f"{option} is set on purpose")
        refuse_configured(script, call, there, other if value else None)
        refuse_explained(script, call, (option, _ALTERNATIVE[option]))
        if option == "fused" and value:
            _refuse_fused(place, script, call)
    return change


def _refuse_fused(place: Place, script: Script, call: cst.Call) -> None:
    """Raises NoEdit where the torch that runs may have no fused form of an optimizer."""
    name = script.callee(call)
    if not has_fused(name, place.torch):
        raise refusal(script, call, f"{name} has no fused form in every torch version this can be")
    if not accepts(place.torch, _ON_CPU) and not _on_device(script, call):
        why = "its parameters may still be on the CPU there, where only torch 2.4 and newer have a fused form"
        raise refusal(script, call, f"{why} (say --torch-version)")


def _on_device(script: Script, call: cst.Call) -> bool:
    """Whether the model whose parameters an optimizer takes was moved to a device before."""
    for _, model in method_calls(script, "parameters", call):
        name = dotted(model) or ""
        moves = [c for m in ("to", "cuda") for c, r in method_calls(script, m) if dotted(r) == name]
        origins = [b.value for b in dataflow_of(script).bindings_of(model)]
        moves += [c for m in ("to", "cuda") for v in origins for c, _ in method_calls(script, m, v)]
        origins += [o for o in dataflow_of(script).of(model) if isinstance(o, cst.Call)]
        in_ddp = any(_DDP in script.code(v) for v in origins if isinstance(v, cst.Call))
        return in_ddp or any(script.span(c)[0] < script.span(call)[0] for c in moves)
    return False


_DDP = "DistributedDataParallel"
"""takes parameters that are on their device"""


def _optimizer(place: Place, class_name: str, instead: Mapping[str, str]) -> tuple[Script, cst.Call]:
    """The construction of the one optimizer that training steps."""
    found = _made(place, class_name, instead)
    return only(found, "make an optimizer", "no optimizer of torch.optim is made in this script")


def _optimizers(place: Place, class_name: str, instead: Mapping[str, str]) -> list[tuple[Script, cst.Call]]:
    """As `_optimizer`, and those of one class that one loop steps together."""
    found = _made(place, class_name, instead)
    classes = {script.callee(call) for script, call in found}
    loops = [_stepping_loops(place.program, call) for _, call in found]
    homes = {script.function_of(call) for script, call in found}
    if len(found) > 1 and len(classes) == 1 and len(homes) == 1 and set.intersection(*loops):
        return found
    return [only(found, "make an optimizer", "no optimizer of torch.optim is made in this script")]


def _made(place: Place, class_name: str, instead: Mapping[str, str]) -> list[tuple[Script, cst.Call]]:
    """The constructions of optimizers that are stepped, of the class that was captured; all where none is seen to be."""
    refuse_done(place.scripts, {**instead, **_INSTEAD["deepspeed"]})
    optimizers = [
        (script, call)
        for script in place.scripts
        for call in script.all(cst.Call)
        if script.callee(call).startswith("torch.optim.") and dataflow_of(script).is_optimizer(call)
    ]
    if class_name and optimizers:
        captured = [(s, c) for s, c in optimizers if s.callee(c).split(".")[-1] == class_name]
        if not captured and class_name in _OF_TORCH:  # else what wraps one of torch's
            raise NoEdit(
                "unresolved",
                f"the capture steps {class_name}, and no {class_name} of torch.optim is made here",
            )
        optimizers = captured or optimizers
    optimizers = [(s, c) for s, c in optimizers if any(_steps(place.program, c))] or optimizers
    if not optimizers and any("bitsandbytes" in s.text or "Adafactor" in s.text for s in place.scripts):
        raise NoEdit("already", "the optimizer is none of torch's")
    return optimizers


def _steps(program: Project, made: cst.Call) -> Iterator[tuple[Script, cst.Call]]:
    """The calls that step what a call makes, `opt.step()` or `scaler.step(opt)`."""
    for script in program.scripts_with(".step("):
        for step, value in method_calls(script, "step"):
            if any(o is made for v in (value, *positional(step)[:1]) for _, o in program.of(script, v)):
                yield script, step


def _stepping_loops(program: Project, made: cst.Call) -> set[Loop]:
    """The innermost loops around the steps of an optimizer."""
    loops = (enclosing_loop(script, step) for script, step in _steps(program, made))
    return {loop for loop in loops if loop is not None}


# ---------------------------------------------------------------------- another optimizer


@codemod(
    "replace-optimizer",
    ReplaceOptimizer,
    adds="bitsandbytes torch optim AdamW8bit Adam8bit Adafactor lr weight_decay",
    scope="call",
    words=("torch",),
    elsewhere=True,
)
def replace_optimizer(place: Place, params: ReplaceOptimizer) -> Change:
    """Replaces AdamW by one with less state: 8-bit (bitsandbytes) or Adafactor.

    params: `to`: adamw-8bit or adafactor.
    """
    goal = params.to
    script, call = _optimizer(place, params.optimizer, _INSTEAD[goal])
    name = script.callee(call)
    new = _EIGHT_BIT.get(name, "") if goal == "adamw-8bit" else "torch.optim.Adafactor"
    if name == new:
        raise already(script, call, "uses Adafactor already")
    if name not in _EIGHT_BIT:
        raise refusal(script, call, f"{name} is not replaced: its update is another one")
    if goal == "adafactor" and not accepts(place.torch, new):
        raise refusal(script, call, needs(new))
    if goal == "adamw-8bit" and any(w in s.text for s in place.scripts for w in ("fully_shard", "FSDP")):
        raise refusal(script, call, "bitsandbytes does not take the sharded parameters of FSDP")
    if any(a.star for a in call.args):
        raise refusal(script, call, "the optimizer takes *args or **kwargs that may not fit the other one")
    for arg in (argument(call, "amsgrad", 5), argument(call, "maximize")):
        if arg is not None and literal(arg.value) is not False:
            raise refusal(script, call, "the other optimizer has no amsgrad and no maximize")
    text, imports = name_for(script, new, call)
    arguments = _for_adafactor(script, call, name) if goal == "adafactor" else _without(script, call)
    edits = (*imports, Edit(*script.span(call.func), text), *arguments)
    notes = [_NEEDS[goal]]
    if any("load_state_dict" in s.text for s in place.program.scripts_with("load_state_dict")):
        notes.append(f"optimizer state of {name.rpartition('.')[2]} in checkpoints does not load into it")
    return Change(script, edits, script.line(call), notes=tuple(notes))


def _without(script: Script, call: cst.Call) -> list[Edit]:
    """Takes out what only torch's optimizers have; the last arguments of a call together, with the comma before them."""
    removals = [a for name in _OF_TORCH_ONLY if (a := argument(call, name)) is not None]
    rest = [a for a in call.args if a not in removals]
    if rest and tuple(call.args[: len(rest)]) == tuple(rest):
        return [Edit(script.outer_span(rest[-1].value)[1], script.outer_span(call.args[-1].value)[1], "")]
    return [remove_argument(script, call, u) for u in removals]


def _for_adafactor(script: Script, call: cst.Call, optimizer: str) -> list[Edit]:
    """Adafactor has other second moments: only parameters, learning rate and weight decay are taken over."""
    arguments = {
        name: argument(call, name, at) for name, at in (("params", 0), ("lr", 1), ("weight_decay", 4))
    }
    texts = [f"{name}={script.code(arg.value)}" for name, arg in arguments.items() if arg is not None]
    texts[:1] = [texts[0].removeprefix("params=")] if texts else []
    if arguments["weight_decay"] is None and optimizer.endswith("AdamW"):
        texts.append("weight_decay=0.01")
    start, end = script.outer_span(call.args[0])[0], script.span(call)[1] - 1
    return [Edit(start, end, ", ".join(texts))]
