"""`autocast` and `matmul-precision`: less precise arithmetic where a script computes in fp32."""

from __future__ import annotations

from typing import Any

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.nodes import written
from trace_doctor.model.parameters import Autocast, Parameters
from trace_doctor.program.edits import Change, Edit, NoEdit, insert_after, insert_before, wrap
from trace_doctor.program.place import Place, already, candidate, only, refusal
from trace_doctor.program.queries.imports import below_imports, last_import, name_for
from trace_doctor.program.queries.loops import Loop, method_calls, optimizer_steps
from trace_doctor.program.queries.training import (
    Step,
    find_step,
    model_calls,
    outermost,
    part_calls,
    refuse_frameworks,
    whole_line,
)
from trace_doctor.program.script import Script, dotted, literal
from trace_doctor.program.versions import TorchBounds

_INSTEAD = {
    "bfloat16": {
        "deepspeed": '"bf16": {"enabled": true} in its configuration',
        "accelerate": 'Accelerator(mixed_precision="bf16")',
        "lightning": 'Trainer(precision="bf16-mixed")',
        "transformers": "TrainingArguments(bf16=True)",
    },
    "float16": {
        "deepspeed": '"fp16": {"enabled": true} in its configuration',
        "accelerate": 'Accelerator(mixed_precision="fp16")',
        "lightning": 'Trainer(precision="16-mixed")',
        "transformers": "TrainingArguments(fp16=True)",
    },
}
_CASTS = ("half", "bfloat16")
_SPARSE = ("torch.spmm", "torch.sparse", "sparse_coo")


@codemod(
    "autocast",
    Autocast,
    adds="torch autocast device_type dtype bfloat16 float16 cuda cpu xpu mps hpu mtia "
    "amp GradScaler scaler scale step update unscale_",
    words=(".backward(",),
    elsewhere=True,
)
def autocast(place: Place, params: Autocast) -> Change:
    """Runs the forward pass and the loss under autocast; for fp16 with a GradScaler around backward and step.

    params: `dtype` (bfloat16, float16), `device` (cuda).
    """
    dtype, device = params.dtype, params.device
    for script in place.scripts:
        refuse_frameworks(script, _INSTEAD[dtype])
        if "autocast(" in script.text:
            raise NoEdit("already", f"{script.name} uses autocast already")
    for script in place.program.mentioning(*_SPARSE):
        raise NoEdit("display", f"{script.name} multiplies sparse matrices, which autocast leaves in fp32")
    step = find_step(place)
    script = step.script
    for method in _CASTS:
        for call, _ in method_calls(script, method):
            raise refusal(script, call, f"the script casts with .{method}() itself")
    if next(method_calls(script, "scale"), None) is not None:
        raise refusal(script, step.backward, "the script scales its loss itself")
    first, last = _forward(step)
    torch, imports = name_for(script, "torch", step.backward)
    header = f"with {torch}.autocast(device_type={written(device)}, dtype={torch}.{dtype}):"
    edits = [*imports, *wrap(script, first, last, header)]
    if dtype == "float16":
        edits += _scaled(step, place.torch, torch, device)
    return Change(script, tuple(edits), script.line(first))


def _forward(step: Step) -> tuple[cst.CSTNode, cst.CSTNode]:
    """The run of statements of one block from the first call of the model to the one that computes the loss."""
    script, loss = step.script, dotted(step.loss)
    if loss is None:
        raise refusal(script, step.backward, "the loss is computed and differentiated on one line")
    before = script.span(step.backward)[0]
    targets = [
        a
        for a in script.all(cst.Assign, within=step.home)
        if script.span(a)[1] <= before and any(dotted(t.target) == loss for t in a.targets)
    ]
    if not targets:
        raise refusal(script, step.backward, f"where {loss} is computed was not found", kind="unresolved")
    last = whole_line(script, targets[-1])
    calls = [c for c in model_calls(step, step.home) if script.span(c)[0] < script.span(last)[1]]
    if not calls:
        raise refusal(script, last, "the step calls no model that is made in this script", kind="unresolved")
    parts = [c for c in part_calls(step, step.home) if script.span(c)[0] < script.span(calls[0])[0]]
    calls = [*parts, *calls]
    block, end = script.block_of(targets[-1])
    for index, line in enumerate(block.body[: end + 1]):
        if script.span(line)[0] <= script.span(calls[0])[0] < script.span(line)[1]:
            if index < end and _leaves(script, block.body[index : end + 1]):
                raise refusal(script, last, "backward() lies between the model and the loss")
            return line, last
    raise refusal(script, last, "model and loss are in different blocks")


def _leaves(script: Script, lines: Any) -> bool:
    return any(True for line in lines for _ in method_calls(script, "backward", line))


def _scaled(step: Step, torch: TorchBounds, name: str, device: str) -> list[Edit]:
    """`scaler.scale(loss).backward()`, `scaler.step(optimizer)`, `scaler.update()`, and its construction."""
    script = step.script
    steps = optimizer_steps(script, step.home)
    where = [candidate(script, call) for call, _ in steps] or [candidate(script, step.backward)]
    if len(steps) != 1 or steps[0][0].args:
        raise NoEdit(
            "display", "a GradScaler needs one optimizer.step() without a closure in the loop", where
        )
    if "scaler" in script.text:
        raise NoEdit("display", "the script has a scaler of its own", where)
    if not isinstance(step.home, Loop):
        raise NoEdit("display", "the step is a function: its GradScaler is made outside and passed in", where)
    call, optimizer = steps[0]
    statement = script.statement_of(call)
    if not isinstance(statement, cst.Expr):
        raise NoEdit("display", "the value of step() is used", where)
    make = (
        f"{name}.amp.GradScaler({written(device)})"
        if torch.at_least(2, 3)
        else f"{name}.cuda.amp.GradScaler()"
    )
    receiver = step.backward.func
    assert isinstance(receiver, cst.Attribute)
    start, end = script.outer_span(receiver.value)
    edits = [
        insert_before(script, outermost(script, step.home), f"scaler = {make}", "scaler"),
        Edit(start, end, f"scaler.scale({script.text[start:end]})", "scale", "loss"),
        Edit(*script.span(call), f"scaler.step({optimizer})", "scaler.step", optimizer),
        insert_after(script, statement, "scaler.update()", "scaler.update"),
    ]
    for clip in script.calls("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_"):
        if script.span(step.home)[0] <= script.span(clip)[0] < script.span(step.home)[1]:
            line = whole_line(script, clip)
            edits.append(insert_before(script, line, f"scaler.unscale_({optimizer})", "unscale"))
    return edits


# ---------------------------------------------------------------------- TF32

_NEW = "fp32_precision"
_MATMUL = "torch.backends.cuda.matmul"


@codemod(
    "matmul-precision",
    Parameters,
    adds="torch set_float32_matmul_precision high backends cuda matmul fp32_precision tf32",
    scope="program",
    words=("torch",),
)
def matmul_precision(place: Place, params: Parameters) -> Change:
    """Lets fp32 matrix products use TF32, through whichever of torch's two interfaces the script uses already.

    Mixing them raises where the legacy setting is read (torch 2.9 and later), so never both. The interface by
    attributes is used only where the script does.
    """
    script, _ = only(
        [(s, s.module) for s in place.scripts], "can be the script that is started", "no script found"
    )
    new = False
    for call in script.calls("torch.set_float32_matmul_precision"):
        value = literal(call.args[0].value) if call.args else ...
        where = f"{script.name}:{script.line(call)}"
        if value in ("high", "medium"):
            raise NoEdit("already", f"{where} allows TF32 already")
        raise refusal(script, call, "the precision of fp32 products is set on purpose")
    for assign in script.all(cst.Assign):
        names = [script.qualified(t.target) or "" for t in assign.targets]
        if f"{_MATMUL}.allow_tf32" in names:
            if literal(assign.value) is True:
                raise already(script, assign, "allows TF32 already")
            raise refusal(script, assign, "TF32 is switched off on purpose")
        if any(n in (f"{_MATMUL}.{_NEW}", f"torch.backends.{_NEW}") for n in names):
            if literal(assign.value) == "tf32":
                raise already(script, assign, "allows TF32 already")
            raise refusal(script, assign, "the precision of fp32 products is set on purpose")
        new |= any(n.startswith("torch.backends.") and n.endswith(f".{_NEW}") for n in names)
    anchor = last_import(script)
    if anchor is None or (not script.frameworks and "torch" not in script.text):
        raise NoEdit("unresolved", f"{script.name} imports no torch")
    torch, imports = name_for(script, "torch", script.module)
    code = (
        f'{torch}.backends.cuda.matmul.{_NEW} = "tf32"'
        if new
        else f'{torch}.set_float32_matmul_precision("high")'
    )
    return Change(
        script, (*imports, below_imports(script, anchor, code, "matmul-precision")), script.line(anchor)
    )
