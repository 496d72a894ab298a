"""`autocast` and `matmul-precision`: less precise arithmetic where a script computes in fp32."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.literals import source_text
from trace_doctor.model.parameters import Autocast, Parameters
from trace_doctor.program.edits import Change, Edit, NoEdit, insert_after, insert_before, wrap
from trace_doctor.program.place import Place, already, refusal, started_script
from trace_doctor.program.queries.imports import below_imports, last_import, name_for
from trace_doctor.program.queries.loops import Loop, method_calls, optimizer_steps
from trace_doctor.program.queries.training import (
    Step,
    find_step,
    lines_from,
    loss_assignments,
    model_calls,
    outermost,
    part_calls,
    refuse_done,
    whole_line,
)
from trace_doctor.program.script import dotted, literal, receiver
from trace_doctor.program.versions import TorchBounds

_INSTEAD = {
    dtype: {
        "deepspeed": f'"{short}": {{"enabled": true}} in its configuration',
        "accelerate": f'Accelerator(mixed_precision="{short}")',
        "lightning": f'Trainer(precision="{mixed}")',
        "transformers": f"TrainingArguments({short}=True)",
    }
    for dtype, short, mixed in (("bfloat16", "bf16", "bf16-mixed"), ("float16", "fp16", "16-mixed"))
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
    refuse_done(place.scripts, _INSTEAD[dtype], "autocast(", "autocast")
    for script in place.program.scripts_with(*_SPARSE):
        raise NoEdit("display", f"{script.name} multiplies sparse matrices, which autocast leaves in fp32")
    step = find_step(place)
    script = step.script
    for method in _CASTS:
        for call, _ in method_calls(script, method):
            raise refusal(script, call, f"the script casts with .{method}() itself")
    if next(method_calls(script, "scale"), None) is not None:
        raise refusal(script, step.backward, "the script scales its loss itself")
    run = _forward(step)
    torch, imports = name_for(script, "torch", step.backward)
    header = f"with {torch}.autocast(device_type={source_text(device)}, dtype={torch}.{dtype}):"
    edits = [*imports, *wrap(script, run[0], run[-1], header)]
    if dtype == "float16":
        edits += _scale_loss(step, place.torch, torch, device)
    return Change(script, tuple(edits), script.line(run[0]))


def _forward(step: Step) -> Sequence[cst.CSTNode]:
    """The run of statements of one block from the first call of the model to the one that computes the loss."""
    script, loss = step.script, dotted(step.loss)
    if loss is None:
        raise refusal(script, step.backward, "the loss is computed and differentiated on one line")
    targets = loss_assignments(step)
    if not targets:
        raise refusal(script, step.backward, f"where {loss} is computed was not found", kind="unresolved")
    last = whole_line(script, targets[-1])
    calls = [c for c in model_calls(step, step.home) if script.span(c)[0] < script.span(last)[1]]
    if not calls:
        raise refusal(script, last, "the step calls no model that is made in this script", kind="unresolved")
    parts = [c for c in part_calls(step, step.home) if script.span(c)[0] < script.span(calls[0])[0]]
    run = lines_from(script, [*parts, *calls][0], last)
    if not run:
        raise refusal(script, last, "model and loss are in different blocks")
    if any(True for line in run for _ in method_calls(script, "backward", line)):
        raise refusal(script, last, "backward() lies between the model and the loss")
    return run


def _scale_loss(step: Step, torch: TorchBounds, name: str, device: str) -> list[Edit]:
    """`scaler.scale(loss).backward()`, `scaler.step(optimizer)`, `scaler.update()`, and its construction."""
    script = step.script
    steps = optimizer_steps(script, step.home)
    where = [call for call, _ in steps] or [step.backward]
    if len(steps) != 1 or where[0].args:
        why = "a GradScaler needs one optimizer.step() without a closure in the loop"
        raise refusal(script, where[0], why, *where[1:])
    call, optimizer = steps[0]
    if "scaler" in script.text:
        raise refusal(script, call, "the script has a scaler of its own")
    if not isinstance(step.home, Loop):
        raise refusal(script, call, "the step is a function: its GradScaler is made outside and passed in")
    statement, loss = script.statement_of(call), receiver(step.backward)
    if not isinstance(statement, cst.Expr):
        raise refusal(script, call, "the value of step() is used")
    assert loss is not None
    modern = torch.at_least(2, 3)
    make = f"{name}.amp.GradScaler({source_text(device)})" if modern else f"{name}.cuda.amp.GradScaler()"
    start, end = script.outer_span(loss)
    edits = [
        insert_before(script, outermost(script, step.home), f"scaler = {make}", "scaler"),
        Edit(start, end, f"scaler.scale({script.text[start:end]})", "scale", "loss"),
        Edit(*script.span(call), f"scaler.step({optimizer})", "scaler.step", optimizer),
        insert_after(script, statement, "scaler.update()", "scaler.update"),
    ]
    for clip in script.calls("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_"):
        if script.within(clip, step.home):
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
    script, new = started_script(place), False
    already_on, on_purpose = "allows TF32 already", "the precision of fp32 matmuls is set on purpose"
    for call in script.calls("torch.set_float32_matmul_precision"):
        if call.args and literal(call.args[0].value) in ("high", "medium"):
            raise already(script, call, already_on)
        raise refusal(script, call, on_purpose)
    for assign in script.all(cst.Assign):
        names = [script.qualified(t.target) or "" for t in assign.targets]
        if f"{_MATMUL}.allow_tf32" in names:
            if literal(assign.value) is True:
                raise already(script, assign, already_on)
            raise refusal(script, assign, "TF32 is switched off on purpose")
        if any(n in (f"{_MATMUL}.{_NEW}", f"torch.backends.{_NEW}") for n in names):
            if literal(assign.value) == "tf32":
                raise already(script, assign, already_on)
            raise refusal(script, assign, on_purpose)
        new |= any(n.startswith("torch.backends.") and n.endswith(f".{_NEW}") for n in names)
    anchor = last_import(script)
    if anchor is None or (not script.frameworks and "torch" not in script.text):
        raise NoEdit("unresolved", f"{script.name} imports no torch")
    torch, imports = name_for(script, "torch", script.module)
    code = f'backends.cuda.matmul.{_NEW} = "tf32"' if new else 'set_float32_matmul_precision("high")'
    edit = below_imports(script, anchor, f"{torch}.{code}", "matmul-precision")
    return Change(script, (*imports, edit), script.line(anchor))
