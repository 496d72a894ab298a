"""The training step of a script: its backward, the model it calls, and where that model was made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

import libcst as cst

from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import Candidate, NoEdit, shares_line
from trace_doctor.program.place import Place, candidate, only, refusal
from trace_doctor.program.project import Project
from trace_doctor.program.queries.loops import Loop, enclosing_loop, in_handler, method_calls
from trace_doctor.program.script import (
    Script,
    Statement,
    assigned_names,
    bound_names,
    dotted,
    method_name,
    receiver,
)

Home = Loop | cst.FunctionDef | cst.Module
"""what is run once per step: the loop, else the function that some loop calls"""

WRAPPERS = (
    "torch.compile",
    "torch.nn.DataParallel",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.fsdp.FullyShardedDataParallel",
)
_NO_MODEL = re.compile(
    r"Tokenizer|Processor|Config|Collator|[Ss]chedule|pipeline|timm\.(data|loss|optim|utils|scheduler)"
)
_LOSS_NAME = re.compile(r".*(?:crit|loss)", re.IGNORECASE)
_LOSS_CLASS = re.compile(r"(.*\.)?\w*(Loss|Criterion|Metric)\w*$")


@dataclass(frozen=True)
class Step:
    """One training step: `backward` is the call, `loss` what it differentiates."""

    script: Script
    home: Home
    backward: cst.Call
    loss: cst.BaseExpression
    program: Project


@dataclass(frozen=True)
class Model:
    """The model that a step calls. `name` is how the scope that made it calls it; `setup` is the last statement there
    that gives the name its value. Its constructions, of which branches choose one, and its class can be in other files of
    the program."""

    script: Script
    name: str
    calls: tuple[cst.Call, ...]
    setup: Statement
    constructions: tuple[tuple[Script, cst.Call], ...]
    definition: tuple[Script, cst.ClassDef] | None
    """None where it is not the same on every branch"""

    @property
    def construction(self) -> tuple[Script, cst.Call]:
        """The first of them."""
        return self.constructions[0]

    @property
    def callee(self) -> str:
        """Qualified name of what constructs it; empty where branches differ."""
        names = {script.callee(call) for script, call in self.constructions}
        return names.pop() if len(names) == 1 else ""


def home_of(script: Script, node: cst.CSTNode) -> Home:
    """The loop around a node, else its function, else the module."""
    return enclosing_loop(script, node) or script.function_of(node) or script.module


def find_step(place: Place) -> Step:
    """The one step that trains; of several, the one that the captured line is in. Raises NoEdit for none and several."""
    calls = [(s, c) for s in place.scripts for c, _ in method_calls(s, "backward") if not in_handler(s, c)]
    backwards = [(s, c) for s, c in calls if loss_of(c) is not None]
    if (line := place.line) is not None and place.script is not None:
        backwards = [(s, c) for s, c in backwards if s.covers(home_of(s, c), line)] or backwards
    backwards = [(s, c) for s, c in backwards if not isinstance(home_of(s, c), cst.Module)] or backwards
    script, call = only(backwards, "call backward()", "no training step (a call of backward()) was found")
    loss = loss_of(call)
    assert loss is not None
    return Step(script, home_of(script, call), call, loss, place.program)


def loss_of(call: cst.Call) -> cst.BaseExpression | None:
    """`loss` of `loss.backward()` and `scaler.scale(loss).backward()`; None for a method of another kind."""
    value = receiver(call)
    if isinstance(value, cst.Call):
        scaled = method_name(value) == "scale" and len(value.args) == 1
        return value.args[0].value if scaled else value
    if value is None or dotted(value) is None or (call.args and call.args[0].keyword is None):
        return None  # accelerator.backward(loss), engine.backward(loss), ctx.backward(grad)
    return value


_RUNS_THE_LOOP = (
    ("deepspeed", "deepspeed.initialize"),
    ("accelerate", "Accelerator("),
    ("lightning", "LightningModule"),
    ("lightning", "Fabric("),
    ("transformers", "Trainer("),
)


def refuse_done(
    scripts: Sequence[Script], instead: Mapping[str, str], word: str = "", what: str = ""
) -> None:
    """Raises NoEdit where a framework runs the loop, which has its own switch `instead`, and where a `word` of a script
    says that it uses `what` the edit would bring."""
    for script in scripts:
        for framework, sign in _RUNS_THE_LOOP:
            if framework in script.frameworks and sign in script.text and framework in instead:
                where = [Candidate.of(script, script.line_of(script.text.index(sign)))]
                why = f"{framework.capitalize()} has its own switch: {instead[framework]}"
                raise NoEdit("display", why, where)
        if word and word in script.text:
            raise NoEdit("already", f"{script.name} uses {what or word} already")


# ---------------------------------------------------------------------- the model


def model_calls(step: Step, within: cst.CSTNode) -> list[cst.Call]:
    """Calls of a model inside a node, outermost first: every value it can have is a module that is no loss."""
    return [
        call
        for call in step.script.all(cst.Call, within=within)
        if not _LOSS_NAME.match((dotted(call.func) or "").rpartition(".")[2]) and _all_models(step, call.func)
    ]


_SHARDING = (
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed._composable.fsdp.fully_shard",
    "torch.distributed._composable.fsdp.fully_shard.fully_shard",
    "torch.distributed.tensor.parallel.parallelize_module",
    "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel",
)
_READYING = frozenset(
    [
        "to",
        "cuda",
        "to_empty",
        "train",
        "load_state_dict",
        "apply",
        "requires_grad_",
        "half",
        "bfloat16",
        "float",
    ]
)
_NO_FORWARD = re.compile(
    r"train|eval|zero_grad|(?:named_)?(?:parameters|buffers|modules|children)|to|cuda|cpu|half|float|bfloat16|apply|requires_grad_"
    r"|(?:load_)?state_dict|register_\w+|get_\w+|set_\w+|save\w*|update\w*|no_sync|compile|backward|step"
)
"""methods of a module that compute nothing of its forward pass"""


def part_calls(step: Step, within: cst.CSTNode) -> list[cst.Call]:
    """Calls of a part of a model or of another method that computes: `model.encoder(images)`."""
    return [
        call
        for call in step.script.all(cst.Call, within=within)
        if (whole := receiver(call)) is not None
        and not _NO_FORWARD.fullmatch(method_name(call) or "")
        and _all_models(step, whole)
    ]


def _all_models(step: Step, node: cst.BaseExpression) -> bool:
    origins = step.program.trails(step.script, node)
    return bool(origins) and all(_is_model(step.program, *m) for m in origins)


@lru_cache(maxsize=8)
def _with_parameters(program: Project) -> frozenset[tuple[int, int | None]]:
    """What only a module can be, whoever made it: the values that a program asks for their parameters."""
    return frozenset(
        (id(origin), item)
        for script in program.scripts_with("parameters(")
        for method in ("parameters", "named_parameters")
        for _, module in method_calls(script, method)
        for _, origin, item in program.trails(script, module)
    )


def _is_model(program: Project, script: Script, origin: cst.BaseExpression, item: int | None = None) -> bool:
    if not isinstance(origin, cst.Call):
        return False
    name = script.callee(origin) or dotted(origin.func) or ""
    functional = name.startswith(("transformers.Trainer", "torch.nn.functional.", "torch.nn.utils."))
    if _LOSS_CLASS.match(name) is not None or _NO_MODEL.search(name) is not None or functional:
        return False
    if dataflow_of(script).is_model(origin) or (id(origin), item) in _with_parameters(program):
        return True
    owner = program.class_by_name(script, origin.func)
    return owner is not None and _is_module(program, *owner)


def _is_module(program: Project, script: Script, owner: cst.ClassDef) -> bool:
    bases = program.bases(script, owner)
    return bool(bases & {"torch.nn.Module", "torch.nn.Sequential", "transformers.PreTrainedModel"})


def may_be(step: Step, calls: Sequence[cst.Call]) -> list[tuple[Script, cst.ClassDef]]:
    """The modules of the program, where nothing more is known of what the step calls than that it is a module."""
    program = step.program
    made = [(s, o) for c in calls for s, o in program.of(step.script, c.func) if isinstance(o, cst.Call)]
    if all(dataflow_of(s).is_model(o) or program.class_by_name(s, o.func) is not None for s, o in made):
        return []
    classes = [(s, c) for s in program.scripts_with("Module") for c in s.all(cst.ClassDef)]
    return [(s, c) for s, c in classes if _is_module(program, s, c)]


def trained_classes(program: Project) -> Iterator[tuple[Script, cst.ClassDef]]:
    """The classes of the models that training steps of a program call, or whose parameters an optimizer takes."""
    for script in program.scripts_with("backward("):
        for backward, _ in method_calls(script, "backward"):
            for call in script.all(cst.Call, within=home_of(script, backward)):
                yield from _module_classes(program, script, call.func)
    for script in program.scripts_with(".parameters("):
        for call in script.all(cst.Call):
            if dataflow_of(script).is_optimizer(call):
                for _, model in method_calls(script, "parameters", call):
                    yield from _module_classes(program, script, model)


def _module_classes(
    program: Project, script: Script, node: cst.BaseExpression, depth: int = 0
) -> Iterator[tuple[Script, cst.ClassDef]]:
    """The modules of this program that a value can be an instance of; through a table of constructors as well."""
    for where, origin in program.of(script, node):
        if not isinstance(origin, cst.Call):
            continue
        constructors = [(where, origin.func)]
        if isinstance(origin.func, cst.Subscript):
            tables = program.of(where, origin.func.value)
            elements = [(w, e) for w, t in tables if isinstance(t, cst.Dict) for e in t.elements]
            constructors = [(w, e.value) for w, e in elements if isinstance(e, cst.DictElement)]
        for home, func in constructors:
            match = program.definition(home, func)
            if match is None:
                continue
            file, definition = match
            if isinstance(definition, cst.ClassDef) and _is_module(program, file, definition):
                yield file, definition
            elif isinstance(definition, cst.FunctionDef) and depth < 3:
                for value in dataflow_of(file).returns(definition):
                    yield from _module_classes(program, file, value, depth + 1)


def find_model(step: Step) -> Model:
    """The one model whose parameters the step trains. Raises NoEdit where it cannot be told."""
    script = step.script
    calls = model_calls(step, step.home)
    if not calls:
        for call in (c for c in part_calls(step, step.home) if method_name(c) == "forward"):
            why = f"the step calls {script.code(call.func)}(), not the model itself, which is what torch changes"
            raise refusal(script, call, why, kind="unresolved")
        why = "which module the step trains cannot be told: its construction is not in these scripts"
        raise refusal(script, step.backward, why, kind="unresolved")
    models = {id(o): (s, o) for c in calls for s, o in step.program.of(script, c.func)}
    if len(models) > 1 and len({script.code(c.func) for c in calls}) > 1:
        places = [candidate(s, o) for s, o in models.values()]
        raise NoEdit("ambiguous", f"the step calls {len(models)} models", places)
    constructions = tuple((s, o) for s, o in models.values() if isinstance(o, cst.Call))
    home, name, statement = _binding(step.program, script, calls[0].func)
    owners = [step.program.class_by_name(s, o.func) for s, o in constructions]
    owner = owners[0] if all(o == owners[0] for o in owners) else None
    return Model(home, name, tuple(calls), statement, constructions, owner)


def _binding(
    program: Project, script: Script, node: cst.BaseExpression, depth: int = 0
) -> tuple[Script, str, Statement]:
    """(script, name, last statement that makes it ready) of a model, in the scope that binds it: callers for a parameter,
    the inner model for one that is wrapped."""
    bindings = dataflow_of(script).bindings_of(node)
    parameter, name = dataflow_of(script).parameter_of(node), dotted(node) or ""
    if parameter is not None and depth < 4:
        found = [
            _binding(program, where, value, depth + 1)
            for where, value in program.arguments_for(script, parameter, name)
        ]
        if found and all(f == found[0] for f in found):
            return found[0]
    coats = [_inside(script, b.value) for b in bindings]
    if len(bindings) == 1 and (inner := coats[0]) is not None and dotted(inner) not in (None, name):
        return _binding(program, script, inner, depth + 1) if depth < 4 else _unbound(script, node)
    own = [b for b, inner in zip(bindings, coats, strict=True) if inner is None or dotted(inner) != name]
    statements = [script.statement_of(b.value) for b in own]
    assignments = [s for s in statements if isinstance(s, cst.Assign) and name in _targets(s)]
    if not assignments or not name or len(assignments) != len(statements):
        return _unbound(script, node)
    last = joined(script, assignments)
    here = last is not None and script.function_of(last) is script.function_of(node)
    if last is None or (here and script.span(node)[0] < script.span(last)[1]):
        places = [candidate(script, s) for s in assignments]
        raise NoEdit("display", f"{name} is bound in several places", places)
    block, index = script.block_of(last)
    for line in block.body[index + 1 :]:
        if isinstance(line, cst.SimpleStatementLine) and _readies(line, name):
            last = line.body[-1]
        elif not isinstance(line, cst.SimpleStatementLine) or _uses(script, line, name):
            break
    return script, name, last


def _unbound(script: Script, node: cst.CSTNode) -> NoReturn:
    raise refusal(script, node, "the model is bound by no plain assignment")


def _targets(assign: cst.Assign) -> set[str | None]:
    """Dotted names of what an assignment binds, those of `a, b = ...` included."""
    targets = [t.target for t in assign.targets]
    items = [e.value for t in targets if isinstance(t, cst.Tuple | cst.List) for e in t.elements]
    return {dotted(t) for t in (*targets, *items)}


def _inside(script: Script, value: cst.BaseExpression) -> cst.BaseExpression | None:
    """`model` of `DistributedDataParallel(model).cuda()`: the same module in another coat; None for any other value."""
    inner = value
    while isinstance(inner, cst.Call):
        if script.callee(inner) in WRAPPERS and inner.args:
            inner = inner.args[0].value
        elif method_name(inner) in _READYING and (owner := receiver(inner)) is not None:
            inner = owner
        else:
            return None
    return inner if inner is not value else None


def joined(script: Script, statements: Sequence[Statement]) -> Statement | None:
    """The statement behind which a name has its value, whichever of these gave it: the last one in the innermost block around
    all, where only branches lead to them. None where that cannot be told."""
    if len(statements) == 1:
        return statements[0]
    blocks = (b for b in script.ancestors(statements[0]) if isinstance(b, cst.Module | cst.IndentedBlock))
    block = next(b for b in blocks if all(script.within(s, b) for s in statements))
    for statement in statements:
        for up in script.between(statement, block):
            if isinstance(up, cst.BaseCompoundStatement) and not isinstance(up, cst.If | cst.Match):
                return None
    last = max((line for s in statements for line in block.body if script.within(s, line)), key=script.span)
    if isinstance(last, cst.SimpleStatementLine):
        return last.body[-1]
    return last if isinstance(last, cst.BaseCompoundStatement) else None


_REPLICATES = ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel")


def replicas(place: Place, why: str) -> tuple[str, ...]:
    """A note on what DataParallel's copies of a model do, which it makes on several GPUs only. Raises NoEdit where the capture
    does not tell that there was one."""
    copies = f"on several GPUs the copies of the model that DataParallel runs in threads {why}"
    calls = ((s, c) for s in place.program.scripts_with("DataParallel(") for c in s.calls(*_REPLICATES))
    for script, call in calls:
        if not place.one_device:
            raise refusal(script, call, f"{copies}: use DistributedDataParallel")
        return (f"{copies}: use DistributedDataParallel there",)
    return ()


def ready(model: Model, program: Project, what: str) -> tuple[str, Statement]:
    """(name, statement) behind which a model is whole: behind the `with` that makes it on another device, and behind what
    shards or parallelizes it. Raises NoEdit where that is done elsewhere; `what` has to come after it."""
    script, name = model.script, model.name
    statement: Statement = model.setup
    for up in script.between(model.setup, script.function_of(model.setup)):
        if isinstance(up, cst.With):
            statement = up
    block, index = script.block_of(statement)
    if statement is not model.setup:
        for line in block.body[index + 1 :]:
            if not isinstance(line, cst.SimpleStatementLine) or not _readies(line, name):
                break
            statement = line.body[-1]
    for other in program.scripts_with("fully_shard", "parallelize_module", "FullyShardedDataParallel"):
        for call in other.calls(*_SHARDING):
            same = other is script and script.function_of(call) is script.function_of(statement)
            around = [s for s in block.body if same and script.within(call, s)]
            if not around:
                raise refusal(other, call, f"{what} goes behind the sharding, which is elsewhere")
            if script.span(around[0])[0] > script.span(statement)[0]:
                line = around[0]
                last = line.body[-1] if isinstance(line, cst.SimpleStatementLine) else line
                assert isinstance(last, Statement)
                names = assigned_names(last)
                name = names[0] if len(names) == 1 and names[0] is not None else name
                statement = last
    return name, statement


def _readies(line: cst.SimpleStatementLine, name: str) -> bool:
    """`model = model.to(device)`, `model.train()`, `model.load_state_dict(...)`: what belongs to making a model."""
    node = line.body[0]
    if len(line.body) > 1 or not isinstance(node, cst.Expr | cst.Assign):
        return False
    target = receiver(node.value)
    again = assigned_names(node) in ([], [name]) and target is not None and dotted(target) == name
    return again and method_name(node.value) in _READYING


def _uses(script: Script, node: cst.CSTNode, name: str) -> bool:
    return any(dotted(n) == name for kind in (cst.Name, cst.Attribute) for n in script.all(kind, within=node))


# ---------------------------------------------------------------------- statements of a step


def whole_line(script: Script, node: cst.CSTNode) -> cst.SimpleStatementLine:
    """The line of a small statement that shares it with no other. Raises NoEdit otherwise."""
    statement = script.statement_of(node)
    line = script.parent(statement) if statement is not None else None
    if statement is None or not isinstance(line, cst.SimpleStatementLine) or shares_line(script, statement):
        raise refusal(script, node, "other statements share the line")
    return line


def loss_assignments(step: Step) -> list[cst.Assign]:
    """The assignments of a step before backward that give the loss its value."""
    script, name = step.script, dotted(step.loss)
    assignments = [a for a in script.all(cst.Assign, step.home) if name in bound_names(a)]
    return [a for a in assignments if script.span(a)[1] <= script.span(step.backward)[0]]


def lines_from(script: Script, node: cst.CSTNode, last: cst.SimpleStatementLine) -> Sequence[cst.CSTNode]:
    """The statements of a block from the one that holds a node to `last`; none where no statement of it holds the node."""
    block, end = script.block_of(last)
    lines = block.body[: end + 1]
    return next((lines[i:] for i, line in enumerate(lines) if script.within(node, line)), ())


def outermost(script: Script, home: cst.CSTNode) -> cst.CSTNode:
    """The statement before which something is made once for all steps: the outermost loop of the function."""
    around = script.between(home, script.nearest(home, cst.FunctionDef, cst.ClassDef))
    return [home, *(up for up in around if isinstance(up, cst.BaseCompoundStatement))][-1]
