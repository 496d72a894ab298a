"""`autocast`, `matmul-precision` and `single-precision`: less precise arithmetic where a script computes in fp32 or fp64."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.codemods.program import of_process
from trace_doctor.fixes.grad_scaler import scale_loss
from trace_doctor.fixes.half_precision import refuse_half_precision, refuse_own_precision
from trace_doctor.fixes.literals import source_text
from trace_doctor.model.parameters import Autocast, Parameters
from trace_doctor.program.edits import Change, Edit, Gathered, NoEdit, add_arguments, sketched, wrap
from trace_doctor.program.place import Place, already, refusal, started_script
from trace_doctor.program.queries.imports import end_of_imports, name_for
from trace_doctor.program.queries.loops import Loop, evaluates, method_calls, names_in
from trace_doctor.program.queries.training import (
    Step,
    find_step,
    lines_from,
    loss_assignments,
    may_be,
    model_calls,
    part_calls,
    refuse_done,
    replicas,
    whole_line,
)
from trace_doctor.program.script import Script, argument, bound_names, dotted, literal, method_name

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
_KINDS = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia")
_FSDP = "torch.distributed.fsdp.FullyShardedDataParallel"
_FULLY_SHARD = (
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed._composable.fsdp.fully_shard",
    "torch.distributed._composable.fsdp.fully_shard.fully_shard",
)
_POLICY = "mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
_MAKE_DEVICES = ("torch.device", "torch.accelerator.current_accelerator")
_SPARSE = ("torch.spmm", "torch.sparse", "sparse_coo")


@codemod(
    "autocast",
    Autocast,
    adds="torch autocast device_type dtype bfloat16 float16 cuda cpu xpu mps hpu mtia "
    "amp GradScaler scaler scale step update unscale_ state_dict load_state_dict type "
    "distributed fsdp MixedPrecisionPolicy mp_policy param_dtype reduce_dtype float32",
    words=(".backward(",),
    elsewhere=True,
)
def autocast(place: Place, params: Autocast) -> Change:
    """Runs the forward pass and the loss under autocast; for fp16 with a GradScaler around backward and step.

    params: `dtype` (bfloat16, float16), `device` (cuda).
    """
    dtype = params.dtype
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
    sharded = [(s, c) for s in place.program.scripts_with("fully_shard") for c in s.calls(*_FULLY_SHARD)]
    change = _policy(sharded, dtype) if sharded else _under_autocast(place, step, run, params)
    with sketched(change):
        unseen = may_be(step, model_calls(step, step.home))
        refuse_own_precision(step.program)
        refuse_half_precision(step.program, script, run, step.home, dtype, unseen)
    return change


def _under_autocast(place: Place, step: Step, run: Sequence[cst.CSTNode], params: Autocast) -> Change:
    script, dtype, device = step.script, params.dtype, params.device
    for other in place.program.scripts_with("FullyShardedDataParallel"):
        for call in other.calls(_FSDP):
            if argument(call, "mixed_precision") is not None:
                raise already(other, call, "sets the types of FullyShardedDataParallel")
            if dtype == "float16":
                raise refusal(other, call, "float16 needs a ShardedGradScaler with FullyShardedDataParallel")
    of_copies = replicas(place, "compute in float16 whatever autocast is told") if dtype == "bfloat16" else ()
    torch, imports = name_for(script, "torch", step.backward)
    header = f"with {torch}.autocast(device_type={_device_type(step, device)}, dtype={torch}.{dtype}):"
    edits = Gathered(notes=[*of_copies])
    edits.keep(script, [*imports, *wrap(script, run[0], run[-1], header)])
    if dtype == "float16":
        scale_loss(step, place.torch, device, edits)
    return edits.change(script, script.line(run[0]), None)


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
    before = [*part_calls(step, step.home), *_frozen(step, calls)]
    run = lines_from(script, min([*before, calls[0]], key=script.span), last)
    if not run:
        raise refusal(script, last, "model and loss are in different blocks")
    if any(True for line in run for _ in method_calls(script, "backward", line)):
        raise refusal(script, last, "backward() lies between the model and the loss")
    _refuse_moved(script, run)
    return run


def _refuse_moved(script: Script, run: Sequence[cst.CSTNode]) -> None:
    """Raises NoEdit where what the model computes goes to another device before the loss: in 16 bits, where autocast does not act."""
    made = {name for line in run for a in script.all(cst.Assign, within=line) for name in bound_names(a)}
    for line in run:
        for call, value in (*method_calls(script, "to", line), *method_calls(script, "cpu", line)):
            to_type = any("float" in script.code(a) or "dtype" in script.code(a) for a in call.args)
            if names_in(script, value) & made and not to_type:
                raise refusal(
                    script, call, "the loss is computed on another device, where autocast does not act"
                )


def _frozen(step: Step, calls: Sequence[cst.Call]) -> list[cst.Call]:
    """Calls, without gradients, of modules in eval() that compute what the model gets: most of the time may be theirs."""
    script = step.script
    inputs = {name for call in calls for arg in call.args for name in names_in(script, arg.value)}
    modules = {script.code(module) for _, module in method_calls(script, "eval")}
    return [
        call
        for assign in script.all(cst.Assign, step.home)
        if bound_names(assign) & inputs and evaluates(script, assign)
        for call in script.all(cst.Call, within=assign)
        if script.code(call.func) in modules
    ]


def _device_type(step: Step, device: str) -> str:
    """What the script calls the kind of its device where it moves the batch or the model, else the device that ran."""
    script = step.script
    function = script.function_of(step.home) if isinstance(step.home, Loop) else step.home
    for call, _ in method_calls(script, "to", function):
        arg = argument(call, "device", 0)
        value = arg.value if arg is not None else None
        if not isinstance(value, cst.Name | cst.Attribute) or script.function_of(call) is not function:
            continue
        origins = step.program.of(script, value)
        if origins and all(s.callee(o) in _MAKE_DEVICES for s, o in origins):
            return f"{script.code(value)}.type"
        if len(origins) > 1 and all(literal(o) in _KINDS for _, o in origins):
            return script.code(value)
    return source_text(device)


# ---------------------------------------------------------------------- FSDP2


def _policy(calls: Sequence[tuple[Script, cst.Call]], dtype: str) -> Change:
    """The types of FSDP2 in place of autocast: parameters are gathered in 16 bits, gradients reduced in fp32."""
    edits = Gathered()
    for script, call in calls:
        if argument(call, "mp_policy") is not None:
            raise already(script, call, "has a MixedPrecisionPolicy")
        if any(a.star for a in call.args):
            raise refusal(
                script, call, f"the arguments of fully_shard are elsewhere: {_POLICY} belongs there"
            )
        if dtype == "float16":
            raise refusal(script, call, "float16 needs a ShardedGradScaler with fully_shard")
        home = script.callee(call).partition(".fully_shard")[0]
        policy, imports = name_for(script, f"{home}.MixedPrecisionPolicy", call)
        torch, more = name_for(script, "torch", call)
        types = f"param_dtype={torch}.{dtype}, reduce_dtype={torch}.float32"
        edits.keep(
            script, [*imports, *more, *add_arguments(script, call, {"mp_policy": f"{policy}({types})"})]
        )
    script, call = calls[0]
    return edits.change(script, script.line(call), None)


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
    words = ("set_float32_matmul_precision", "allow_tf32", _NEW)
    for other in (script, *(s for s in place.program.scripts_with(*words) if s is not script)):
        for call in other.calls("torch.set_float32_matmul_precision"):
            if call.args and literal(call.args[0].value) in ("high", "medium"):
                raise already(other, call, already_on)
            with sketched(_instead(other, call.args[0].value if call.args else call, '"high"')):
                raise refusal(other, call, on_purpose)
        for assign in other.all(cst.Assign):
            names = [other.qualified(t.target) or "" for t in assign.targets]
            if f"{_MATMUL}.allow_tf32" in names:
                if literal(assign.value) is True:
                    raise already(other, assign, already_on)
                with sketched(_instead(other, assign.value, "True")):
                    raise refusal(other, assign, "TF32 is switched off on purpose")
            if any(n in (f"{_MATMUL}.{_NEW}", f"torch.backends.{_NEW}") for n in names):
                if literal(assign.value) == "tf32":
                    raise already(other, assign, already_on)
                with sketched(_instead(other, assign.value, '"tf32"')):
                    raise refusal(other, assign, on_purpose)
            new |= any(n.startswith("torch.backends.") and n.endswith(f".{_NEW}") for n in names)
    anchor = end_of_imports(script)
    if anchor is None or (not script.frameworks and "torch" not in script.text):
        raise NoEdit("unresolved", f"{script.name} imports no torch")
    torch, imports = name_for(script, "torch", script.module)
    code = f'backends.cuda.matmul.{_NEW} = "tf32"' if new else 'set_float32_matmul_precision("high")'
    edit = of_process(script, place.program, anchor, f"{torch}.{code}", "matmul-precision")
    return Change(script, (*imports, edit), script.line(anchor))


def _instead(script: Script, value: cst.BaseExpression, text: str) -> Change:
    return Change(script, (Edit(*script.span(value), text),), script.line(value))


# ---------------------------------------------------------------------- single-precision

_FLOAT64 = ("torch.float64", "torch.double")
_FROM_NUMPY = ("torch.from_numpy", "torch.as_tensor")


@codemod("single-precision", Parameters, adds="float float32", words=(".double(", "float64", "torch.double"))
def single_precision(place: Place, params: Parameters) -> Change:
    """Asks for float32 wherever the program asks for float64, but for what is added up."""
    edits, first = Gathered(), None
    for script in place.program.scripts_with("double", "float64"):
        for node in (*script.all(cst.Call), *script.all(cst.Attribute)):
            if (edit := _narrower(script, node)) is None:
                continue
            statement = script.statement_of(node)
            if isinstance(statement, cst.AugAssign):
                edits.notes.append(f"{script.name}:{script.line(node)} adds up in float64, which stays")
                continue
            first = first or (script, node)
            edits.keep(script, [edit])
    if first is None:
        raise NoEdit(
            "unresolved", "no script asks for float64: it comes from the data, which is NumPy's default"
        )
    for script in place.program.scripts_with("from_numpy", "as_tensor"):
        for call in script.calls(*_FROM_NUMPY):
            raise refusal(
                script, call, "the type of this tensor is that of an array: cast it with .float() as well"
            )
    script, node = first
    return edits.change(script, script.line(node), None)


def _narrower(script: Script, node: cst.CSTNode) -> Edit | None:
    """The edit of `x.double()` or `torch.float64`; None for anything else."""
    if isinstance(node, cst.Call):
        if method_name(node) != "double" or node.args or not isinstance(node.func, cst.Attribute):
            return None
        return Edit(*script.span(node.func.attr), "float")
    if not isinstance(node, cst.Attribute) or script.qualified(node) not in _FLOAT64:
        return None
    passed = script.parent(node)
    call = script.parent(passed) if isinstance(passed, cst.Arg) else None
    named = isinstance(passed, cst.Arg) and passed.keyword is not None and passed.keyword.value == "dtype"
    if not isinstance(call, cst.Call) or not (
        named or method_name(call) in ("to", "type") or script.callee(call) == "torch.set_default_dtype"
    ):
        raise refusal(script, node, "what follows from this use of float64 is not known")
    return Edit(*script.span(node.attr), "float32")
