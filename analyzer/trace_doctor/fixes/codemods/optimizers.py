"""`optimizer-args` and `replace-optimizer`: how the optimizer updates, and how much state it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.nodes import written
from trace_doctor.model.parameters import OptimizerArgs, ReplaceOptimizer
from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import Change, Edit, NoEdit, add_arguments, remove_argument, set_argument
from trace_doctor.program.place import Place, already, candidate, only
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.queries.loops import method_calls
from trace_doctor.program.queries.training import refuse_frameworks
from trace_doctor.program.script import Script, argument, dotted, literal
from trace_doctor.program.versions import has_fused

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
    """Sets fused=True (or foreach=...) of the optimizer that training steps, where its class and torch's version have it.

    params: `fused` or `foreach`; `class` (AdamW, ...) where the capture names it.
    """
    option = "foreach" if params.foreach is not None else "fused"
    value = params.foreach if params.foreach is not None else params.fused is not False
    script, call = _optimizer(place, params.optimizer, _INSTEAD["fused"])
    name, where = script.callee(call) or "", [candidate(script, call)]
    if option == "fused" and value and not has_fused(name, place.torch):
        raise NoEdit("display", f"{name} has no fused form in every torch version this can be", where)
    if any(a.star for a in call.args):
        raise NoEdit("display", "the optimizer takes *args or **kwargs that may hold these", where)
    differentiable = argument(call, "differentiable")
    if value and differentiable is not None and literal(differentiable.value) is not False:
        raise NoEdit("display", f"differentiable=True and {option}=True exclude each other", where)
    there = argument(call, option)
    edits: list[Edit] = []
    if there is not None:
        now = literal(there.value)
        if now is value:
            raise already(script, call, f"passes {option}={value} already")
        if now is not None and option == "fused":
            raise NoEdit("display", f"{option} is set on purpose", where)
        edits.append(set_argument(script, call, there, written(value)))
    if option == "fused" and value and not place.torch.at_least(2, 4) and not _on_device(script, call):
        why = "its parameters may still be on the CPU there, where only torch 2.4 and newer have a fused form"
        raise NoEdit("display", f"{why} (say --torch-version)", where)
    other = argument(call, _ALTERNATIVE[option])
    if value and other is not None:
        edits.append(remove_argument(script, call, other))
    if there is None and value and other is not None and other is call.args[-1]:
        edits = [_exchange(script, other, f"{option}={written(value)}")]
    elif there is None:
        edits += add_arguments(script, call, {option: written(value)})
    return Change(script, tuple(edits), script.line(call))


def _on_device(script: Script, call: cst.Call) -> bool:
    """Whether the model whose parameters an optimizer takes was moved to a device before."""
    end = script.span(call)[0]
    for node, receiver in method_calls(script, "parameters"):
        if script.span(call)[0] <= script.span(node)[0] < script.span(call)[1]:
            name = dotted(receiver) or ""
            moved = [c for m in ("to", "cuda") for c, r in method_calls(script, m) if dotted(r) == name]
            made = [b.value for b in dataflow_of(script).bound(receiver)]
            moved += [c for m in ("to", "cuda") for v in made for c, _ in method_calls(script, m, v)]
            made += [o for o in dataflow_of(script).of(receiver) if isinstance(o, cst.Call)]
            wrapped = any(_DDP in script.code(v) for v in made if isinstance(v, cst.Call))
            return wrapped or any(script.span(c)[0] < end for c in moved)
    return False


_DDP = "DistributedDataParallel"
"""takes parameters that are on their device"""


def _exchange(script: Script, arg: cst.Arg, text: str) -> Edit:
    start, end = script.span(arg)
    comma = len(script.code(arg.comma)) if isinstance(arg.comma, cst.Comma) else 0
    whole = script.text[start:end].rstrip()
    stop = start + len(whole) - (comma if whole.endswith(",") else 0)
    return Edit(start, stop, text, f"arg:{start}", text)


def _optimizer(place: Place, named: str, instead: Mapping[str, str]) -> tuple[Script, Any]:
    """The construction of the one optimizer that training steps."""
    for script in place.scripts:
        refuse_frameworks(script, {**instead, **_INSTEAD["deepspeed"]})
    found: list[tuple[Script, Any]] = [
        (script, call)
        for script in place.scripts
        for call in script.all(cst.Call)
        if (script.callee(call) or "").startswith("torch.optim.") and dataflow_of(script).is_optimizer(call)
    ]
    if named:
        found = [(s, c) for s, c in found if (s.callee(c) or "").split(".")[-1] == named] or found
    found = [(s, c) for s, c in found if _is_stepped(s, c)] or found
    if not found and any("bitsandbytes" in s.text or "Adafactor" in s.text for s in place.scripts):
        raise NoEdit("already", "the optimizer is none of torch's")
    return only(found, "make an optimizer", "no optimizer of torch.optim is made in this script")


def _is_stepped(script: Script, call: cst.Call) -> bool:
    tracked = dataflow_of(script)
    receivers = [r for _, r in method_calls(script, "step")]
    receivers += [c.args[0].value for c, _ in method_calls(script, "step") if c.args]
    return any(origin is call for r in receivers for origin in tracked.of(r))


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
    name, where = script.callee(call) or "", [candidate(script, call)]
    new = _EIGHT_BIT.get(name, "") if goal == "adamw-8bit" else "torch.optim.Adafactor"
    if name == new:
        raise already(script, call, "uses Adafactor already")
    if name not in _EIGHT_BIT:
        raise NoEdit("display", f"{name} is not replaced: its update is another one", where)
    if goal == "adafactor" and not place.torch.at_least(2, 5):
        raise NoEdit("display", "torch.optim.Adafactor needs torch 2.5 or newer (say --torch-version)", where)
    if goal == "adamw-8bit" and any(w in s.text for s in place.scripts for w in ("fully_shard", "FSDP")):
        raise NoEdit("display", "bitsandbytes does not take the sharded parameters of FSDP", where)
    if any(a.star for a in call.args):
        raise NoEdit("display", "the optimizer takes *args or **kwargs that may not fit the other one", where)
    amsgrad = argument(call, "amsgrad", 5)
    maximize = argument(call, "maximize")
    if any(a is not None and literal(a.value) is not False for a in (amsgrad, maximize)):
        raise NoEdit("display", "the other optimizer has no amsgrad and no maximize", where)
    text, imports = name_for(script, new, call)
    edits = [Edit(*script.span(call.func), text)]
    unwanted = [argument(call, n) for n in _OF_TORCH_ONLY]
    if goal == "adafactor":
        return Change(script, (*imports, *edits, *_for_adafactor(script, call, name)), script.line(call))
    edits += _without(script, call, [a for a in unwanted if a is not None])
    return Change(script, (*imports, *edits), script.line(call))


def _without(script: Script, call: cst.Call, unwanted: list[cst.Arg]) -> list[Edit]:
    """Takes several arguments out; the last ones of a call together, with the comma before them."""
    kept = [a for a in call.args if all(a is not u for u in unwanted)]
    tail = call.args[len(kept) :]
    if all(any(a is u for u in unwanted) for a in tail) and kept:
        start = _end(script, kept[-1])
        return [Edit(start, _end(script, call.args[-1]), "")]
    return [remove_argument(script, call, u) for u in unwanted]


def _end(script: Script, arg: cst.Arg) -> int:
    return script.outer_span(arg.value)[1]


def _for_adafactor(script: Script, call: cst.Call, name: str) -> list[Edit]:
    """Adafactor has other second moments: only parameters, learning rate and weight decay are taken over."""
    kept = [argument(call, "params", 0), argument(call, "lr", 1), argument(call, "weight_decay", 4)]
    texts = [script.code(kept[0].value)] if kept[0] is not None else []
    texts += [f"lr={script.code(kept[1].value)}"] if kept[1] is not None else []
    decay = script.code(kept[2].value) if kept[2] is not None else "0.01" if name.endswith("AdamW") else None
    texts += [f"weight_decay={decay}"] if decay is not None else []
    start, end = script.outer_span(call.args[0])[0], script.span(call)[1] - 1
    return [Edit(start, end, ", ".join(texts))]
