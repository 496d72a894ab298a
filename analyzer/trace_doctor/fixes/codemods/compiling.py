"""`compile-model`, `compile-loss`, `mark-dynamic`: what torch.compile compiles, and for which shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.literals import source_text
from trace_doctor.model.parameters import Compile, MarkDynamic
from trace_doctor.program.dataflow import dataflow_of, method_of, parameters
from trace_doctor.program.edits import Change, Edit, NoEdit, insert_after, insert_before, sketched
from trace_doctor.program.place import Place, already, on_line, only, refusal
from trace_doctor.program.project import Project
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.queries.kept import kept_output
from trace_doctor.program.queries.loops import Loop, enclosing_loop, method_calls, optimizer_steps, zero_grads
from trace_doctor.program.queries.training import (
    Model,
    Step,
    find_model,
    find_step,
    loss_assignments,
    outermost,
    ready,
    refuse_done,
    replicas,
    whole_line,
)
from trace_doctor.program.script import Script, argument, dotted, literal, positional
from trace_doctor.program.versions import accepts

_INSTEAD = {
    "accelerate": 'Accelerator(dynamo_plugin=TorchDynamoPlugin(backend="inductor"))',
    "transformers": "TrainingArguments(torch_compile=True)",
    "lightning": "model = torch.compile(model) before Trainer.fit",
    "deepspeed": "engine.compile() after deepspeed.initialize",
}
OPTIONS = (
    "mode dynamic fullgraph backend True False default reduce-overhead max-autotune max-autotune-no-cudagraphs "
    "inductor eager aot_eager cudagraphs"
)
"""arguments of torch.compile, and their values"""
_COPIES = "would call the compiled original with its weights"
_STATE = ("state_dict", "torch.save(")
_RENAMED = (
    "torch.compile(model) puts `_orig_mod.` before the names in checkpoints, and the script saves or loads some; from torch "
    "2.2 on model.compile() keeps them (say --torch-version)"
)


_OVERWRITTEN = (
    "the output is still held when the model runs again, which overwrites it in CUDA graphs: clone() it first"
)
_ACCUMULATED = (
    "gradients of several backward passes are added up before the optimizer steps, and CUDA graphs write the next over those "
    "of the one before: compile without CUDA graphs"
)


_OF_ANY_SIZE = ("torch_geometric", "torch_scatter", "torch_sparse", "import dgl", "pad_sequence(")
"""words of programs whose batches are of graphs, or padded to their longest sequence"""
_ANY_SIZE = "makes batches of many sizes: a CUDA graph would be recorded for each"


def takes_graphs(params: Compile) -> bool:
    """Whether torch.compile is asked for CUDA graphs."""
    return params.mode in ("reduce-overhead", "max-autotune") or params.backend == "cudagraphs"


def _arguments(params: Compile) -> str:
    return ", ".join(f"{name}={source_text(value)}" for name, value in params.set_values().items())


def _compile_call(torch: str, what: str, options: str) -> str:
    return f"{torch}.compile({', '.join(filter(None, [what, options]))})"


@codemod("compile-model", Compile, adds=f"torch compile {OPTIONS}", words=(".backward(",), elsewhere=True)
def compile_model(place: Place, params: Compile) -> Change:
    """Compiles the model that the training loop calls, right after it is made.

    params: any of `mode`, `dynamic`, `fullgraph`, `backend`. From torch 2.2 on in place, which keeps the names in
    checkpoints; before that and where the version is not known by torch.compile(model).
    """
    step, model = _step_and_model(place)
    notes = (*replicas(place, _COPIES), *_called_around(place.program, model))
    script, options = model.script, _arguments(params)
    name, whole = ready(model, place.program, "torch.compile")
    edit = insert_after(script, whole, f"{name}.compile({options})", "compile-model")
    in_place = Change(script, (edit,), script.line(whole), notes=notes)
    with sketched(in_place):
        _refuse_copies(place.program)
        if takes_graphs(params):
            for other in place.program.scripts_with(*_OF_ANY_SIZE):
                raise NoEdit("display", f"{other.name} {_ANY_SIZE}")
            if accumulates(step):
                raise refusal(step.script, step.backward, _ACCUMULATED)
            if (kept := kept_output(place.program, model)) is not None:
                raise refusal(*kept, _OVERWRITTEN)
    if accepts(place.torch, "torch.nn.Module.compile"):
        return in_place
    if place.program.scripts_with(*_STATE):
        with sketched(in_place):
            raise refusal(script, model.setup, _RENAMED)
    torch, imports = name_for(script, "torch", model.setup)
    code = f"{name} = {_compile_call(torch, name, options)}"
    edit = insert_after(script, whole, code, "compile-model")
    return Change(script, (*imports, edit), script.line(whole), notes=notes)


def _step_and_model(place: Place) -> tuple[Step, Model]:
    refuse_done(place.scripts, _INSTEAD)
    step = find_step(place)
    _refuse_compiled(step.script)
    model = find_model(step)
    if model.script is not step.script:
        _refuse_compiled(model.script)
    return step, model


def _refuse_copies(program: Project) -> None:
    """Raises NoEdit where a program makes copies of its model itself, on one GPU as well."""
    for script in program.scripts_with("replicate"):
        for call in script.calls("torch.nn.parallel.replicate", "torch.nn.parallel.replicate.replicate"):
            raise refusal(script, call, f"the copies that replicate() makes of the model {_COPIES}")


def _called_around(program: Project, model: Model) -> Iterator[str]:
    """Notes on calls of `model.forward()`, which compile() does not change."""
    made = {id(call) for _, call in model.constructions}
    for script in program.scripts_with(".forward("):
        for call, receiver in method_calls(script, "forward"):
            if any(id(origin) in made for _, origin in program.of(script, receiver)):
                where = f"{script.name}:{script.line(call)}"
                yield f"{where} calls {script.code(call.func)}() directly, which stays as it is, not compiled"
                return


def _refuse_compiled(script: Script) -> None:
    """Raises NoEdit where a script compiles, or says why it does not."""
    decorators = [d for d in script.all(cst.Decorator) if "torch.compile" in script.code(d)]
    methods = [c for c, _ in method_calls(script, "compile") if script.qualified(c.func) is None]
    in_place = [c for c in methods if all(a.keyword is not None for a in c.args)]
    for call in (*script.calls("torch.compile"), *in_place, *decorators):
        raise already(script, call, "compiles already")
    for comment in script.all(cst.Comment):
        if "torch.compile" in comment.value:
            raise refusal(script, comment, "a comment speaks of torch.compile, which is not used")


def accumulates(step: Step) -> bool:
    """Whether the loop around backward steps its optimizer in each N-th iteration only, or a loop around it does behind it."""
    script, loop = step.script, step.home
    if not isinstance(loop, cst.For | cst.While):
        return False
    steps, clears = optimizer_steps(script, loop), zero_grads(script, loop)
    if steps:
        return all(_each_nth(script, call, loop) for call, _ in (*steps, *clears))
    around = [
        up for up in script.between(loop, script.function_of(loop)) if isinstance(up, cst.For | cst.While)
    ]
    behind = [call for up in around for call, _ in optimizer_steps(script, up)]
    return not clears and any(enclosing_loop(script, call) in around for call in behind)


def _each_nth(script: Script, call: cst.Call, loop: cst.CSTNode) -> bool:
    """`if (i + 1) % steps == 0: optimizer.step()`"""
    tests = [up.test for up in script.between(call, loop) if isinstance(up, cst.If)]
    return any(script.all(cst.Modulo, within=test) for test in tests)


def _decorate(script: Script, function: cst.FunctionDef, torch: str, options: str) -> Edit:
    text = f"@{torch}.compile" + (f"({options})" if options else "")
    first = function.decorators[0] if function.decorators else function
    return insert_before(script, first, text, f"decorate:{function.name.value}")


# ---------------------------------------------------------------------- the loss


@codemod(
    "compile-loss", Compile, adds=f"torch compile compiled_ {OPTIONS}", words=(".backward(",), elsewhere=True
)
def compile_loss(place: Place, params: Compile) -> Change:
    """Compiles the loss function of the training step, so that its operators are fused."""
    refuse_done(place.scripts, _INSTEAD)
    step = find_step(place)
    script, call = _loss_call(step)
    options = _arguments(params)
    torch, imports = name_for(script, "torch", step.backward)
    target = dataflow_of(script).definition(call.func)
    if isinstance(target, cst.FunctionDef):
        if any("compile" in script.code(d) for d in target.decorators):
            raise already(script, target, "is compiled already")
        if script.nearest(target, cst.ClassDef) is not None:
            raise refusal(script, target, "the loss is a method")
        return Change(script, (*imports, _decorate(script, target, torch, options)), script.line(target))
    origins = [o for o in dataflow_of(script).of(call.func) if o is not call.func]
    if len(origins) == 1 and isinstance(origins[0], cst.Call):
        if any(script.callee(up) == "torch.compile" for up in script.ancestors(origins[0])):
            raise already(script, origins[0], "is compiled already")
        text = _compile_call(torch, script.code(origins[0]), options)
        edit = Edit(*script.span(origins[0]), text, "compile-loss", text)
        return Change(script, (*imports, edit), script.line(origins[0]))
    return _compile_function(step, call, torch, options, imports)


def _loss_call(step: Step) -> tuple[Script, cst.Call]:
    """The one call that computes the loss from the model's outputs, which is no model itself."""
    values = [a.value for a in loss_assignments(step)] or [step.loss]
    calls = [(step.script, v) for v in values if isinstance(v, cst.Call) and _is_loss(step, v)]
    return only(
        calls, "compute the loss", "the loss is computed by no function that can be compiled on its own"
    )


def _is_loss(step: Step, value: cst.Call) -> bool:
    script = step.script
    name = script.callee(value)
    dataflow = dataflow_of(script)
    origins = dataflow.of(value.func)
    definition = dataflow.definition(value.func)
    local = isinstance(definition, cst.FunctionDef) and not _runs_a_model(script, definition)
    constructors = [script.callee(o) for o in origins if isinstance(o, cst.Call)]
    functional = re.fullmatch(r"torch\.nn\.functional\.\w*(loss|entropy|div)\w*", name) is not None
    classes = bool(constructors) and all(re.fullmatch(r"torch\.nn\.\w+Loss", n) for n in constructors)
    return local or functional or classes


_MODEL_NAME = re.compile(r"(?:.*[._])?(?:model|net|network|module|backbone|encoder|decoder|generator|unet)")


def _runs_a_model(script: Script, function: cst.FunctionDef) -> bool:
    """Whether a function calls what it is passed, or something with a model's name: more than a loss."""
    names = parameters(function)
    callees = [dotted(c.func) or "" for c in script.all(cst.Call, within=function.body)]
    return any(name in names or _MODEL_NAME.fullmatch(name.lower()) for name in callees)


def _compile_function(
    step: Step, call: cst.Call, torch: str, options: str, imports: tuple[Edit, ...]
) -> Change:
    """`compiled_cross_entropy = torch.compile(F.cross_entropy)` above the loop, and its use in it."""
    script = step.script
    if not isinstance(step.home, Loop):
        raise refusal(script, call, "the step is a function: compile its loss function once outside")
    text = script.code(call.func)
    name = f"compiled_{text.split('.')[-1]}"
    if name in script.text:
        raise NoEdit("already", f"{script.name} has {name} already")
    code = f"{name} = {_compile_call(torch, text, options)}"
    above = insert_before(script, outermost(script, step.home), code, "compile-loss")
    return Change(script, (*imports, above, Edit(*script.span(call.func), name)), script.line(call))


# ---------------------------------------------------------------------- dynamic shapes


@codemod(
    "mark-dynamic",
    MarkDynamic,
    adds="torch _dynamo mark_dynamic",
    words=("torch.compile", ".compile("),
    elsewhere=True,
)
def mark_dynamic(place: Place, params: MarkDynamic) -> Change:
    """Says before a compiled function is called which dimension of its input changes.

    params: `name` (of the parameter of the compiled function; else its first), `dim`.
    """
    calls = [(s, c) for s in place.scripts for c in s.all(cst.Call) if _is_compiled(s, c)]
    script, call = only(
        on_line(place, calls) or calls, "call a compiled function", "no call of a compiled function was found"
    )
    value = _input(script, call, params.name)
    if value is None or not isinstance(value, cst.Name | cst.Attribute):
        raise refusal(script, call, "the input has no name at the call")
    text, dim = script.code(value), params.dim
    _refuse_static(script, call)
    if isinstance(script.statement_of(call), cst.BaseCompoundStatement):
        raise refusal(script, call, "the call stands in the head of a block")
    line = whole_line(script, call)
    if re.search(rf"mark_dynamic\(\s*{re.escape(text)}\s*,\s*{dim}\b", script.text):
        raise NoEdit("already", f"{script.name} marks dimension {dim} of {text} already")
    module, imports = name_for(script, "torch._dynamo", call)
    edit = insert_before(
        script, line, f"{module}.mark_dynamic({text}, {source_text(dim)})", f"mark:{text}:{dim}"
    )
    return Change(script, (*imports, edit), script.line(call))


def _is_compiled(script: Script, call: cst.Call) -> bool:
    """Whether a call calls what torch.compile returned, or a function under its decorator."""
    callees: list[str | None] = [
        script.callee(binding.value) for binding in dataflow_of(script).bindings_of(call.func)
    ]
    target = dataflow_of(script).definition(call.func)
    decorators = [d.decorator for d in target.decorators] if isinstance(target, cst.FunctionDef) else []
    callees += [script.qualified(d.func if isinstance(d, cst.Call) else d) for d in decorators]
    return "torch.compile" in callees


def _refuse_static(script: Script, call: cst.Call) -> None:
    """A script that says itself which shapes are dynamic is not contradicted."""
    target = dataflow_of(script).definition(call.func)
    made = [b.value for b in dataflow_of(script).bindings_of(call.func)]
    made += [d.decorator for d in target.decorators] if isinstance(target, cst.FunctionDef) else []
    for value in made:
        dynamic = argument(value, "dynamic") if isinstance(value, cst.Call) else None
        if dynamic is not None and literal(dynamic.value) not in (None, True):
            raise refusal(script, value, f"dynamic={script.code(dynamic.value)} is set on purpose")


def _input(script: Script, call: cst.Call, name: str) -> cst.BaseExpression | None:
    """What is passed for a parameter of the compiled function, by name or by its place in the definition."""
    dataflow = dataflow_of(script)
    target: cst.CSTNode | None = dataflow.definition(call.func)
    if target is None and (owner := dataflow.constructed_class(call.func)) is not None:
        target = method_of(owner, "forward")
    names = [p.name.value for p in target.params.params] if isinstance(target, cst.FunctionDef) else []
    names = names[1:] if names[:1] == ["self"] else names
    if not name:
        return next(iter(positional(call)), None)
    arg = argument(call, name, names.index(name)) if name in names else None
    return arg.value if arg is not None else None
