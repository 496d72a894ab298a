"""The training step of a script: its backward, the model it calls, and where that model was made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from trace_doctor.fixes.codemods import Place, candidate, only, origins
from trace_doctor.fixes.edits import NoEdit, shares_line
from trace_doctor.fixes.loops import Loop, enclosing_loop, method_calls
from trace_doctor.loaders.script import Script, Statement, dotted

Home = Loop | cst.FunctionDef | cst.Module
"""what is run once per step: the loop, else the function that some loop calls"""

_LOSS_CLASS = re.compile(r"(.*\.)?\w*(Loss|Criterion|Metric)\w*$")
_MODEL_NAME = re.compile(r"(?:.*[._])?(?:model|net|network|module|ddp_model)(?:_\w+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Step:
    """One training step: `backward` is the call, `loss` what it differentiates."""

    script: Script
    home: Home
    backward: cst.Call
    loss: cst.BaseExpression


@dataclass(frozen=True)
class Model:
    """The model that a step calls. `name` is how the scope that made it calls it; `made` is the last statement there
    that gives the name its value, `definition` its class in this script."""

    script: Script
    name: str
    calls: tuple[cst.Call, ...]
    made: Statement
    construction: cst.Call
    definition: cst.ClassDef | None


def home_of(script: Script, node: cst.CSTNode) -> Home:
    return enclosing_loop(script, node) or script.function_of(node) or script.module


def find_step(place: Place) -> Step:
    """The one step that trains; of several, the one that the captured line is in. Raises NoEdit for none and several."""
    found = [
        (script, Step(script, home_of(script, call), call, loss))
        for script in place.scripts
        for call, receiver in method_calls(script, "backward")
        if (loss := _differentiated(script, call, receiver)) is not None
    ]
    if place.line is not None and place.script is not None:
        here = [(s, f) for s, f in found if s.lines(f.home)[0] <= place.line <= s.lines(f.home)[1]]
        found = here or found
    found = [(s, f) for s, f in found if not isinstance(f.home, cst.Module)] or found
    if len(found) > 1:
        raise NoEdit(
            "ambiguous", f"{len(found)} places call backward()", [candidate(s, f.backward) for s, f in found]
        )
    step: Step = only(found, "", "no training step (a call of backward()) was found")[1]
    return step


def _differentiated(
    script: Script, call: cst.Call, receiver: cst.BaseExpression
) -> cst.BaseExpression | None:
    """`loss` of `loss.backward()` and `scaler.scale(loss).backward()`; None for a method of another kind."""
    if isinstance(receiver, cst.Call):
        method = receiver.func.attr.value if isinstance(receiver.func, cst.Attribute) else ""
        return receiver.args[0].value if method == "scale" and len(receiver.args) == 1 else receiver
    if dotted(receiver) is None or (call.args and call.args[0].keyword is None):
        return None  # accelerator.backward(loss), engine.backward(loss), ctx.backward(grad)
    return receiver


def refuse_frameworks(script: Script, instead: Mapping[str, str]) -> None:
    """A framework that runs the loop has its own switch: raises NoEdit that names it."""
    for framework, word in (
        ("deepspeed", "deepspeed.initialize"),
        ("accelerate", "Accelerator("),
        ("lightning", "LightningModule"),
        ("lightning", "Fabric("),
        ("transformers", "Trainer("),
    ):
        if framework in script.frameworks and word in script.text and framework in instead:
            raise NoEdit("display", f"{framework.capitalize()} has its own switch: {instead[framework]}")


# ---------------------------------------------------------------------- the model


def is_model(script: Script, node: cst.BaseExpression) -> bool:
    """Whether every value an expression can have is a constructed module that is no loss."""
    tracked = origins(script)
    return tracked.all_are(node, lambda o: _is_model(script, o))


def _is_model(script: Script, origin: cst.BaseExpression) -> bool:
    if not isinstance(origin, cst.Call) or not origins(script).is_model(origin):
        return False
    name = script.callee(origin) or dotted(origin.func) or ""
    return _LOSS_CLASS.match(name) is None and not name.startswith(
        ("transformers.Trainer", "torch.nn.functional.")
    )


def model_calls(script: Script, within: cst.CSTNode) -> list[cst.Call]:
    """Calls of a model inside a node, outermost first."""
    return [c for c in script.all(cst.Call, within=within) if is_model(script, c.func)]


def find_model(step: Step) -> Model:
    """The one model whose parameters the step trains. Raises NoEdit where it cannot be told."""
    script = step.script
    calls = model_calls(script, step.home)
    if not calls:
        raise NoEdit(
            "unresolved",
            "which module the step trains cannot be told: its construction is not in this script",
            [candidate(script, step.backward)],
        )
    made = {id(o): o for c in calls for o in origins(script).of(c.func)}
    if len(made) > 1:
        raise NoEdit(
            "ambiguous", f"the step calls {len(made)} models", [candidate(script, o) for o in made.values()]
        )
    construction = next(iter(made.values()))
    assert isinstance(construction, cst.Call)
    name, statement = _binding(script, construction)
    owner = origins(script).definition(construction.func)
    return Model(
        script,
        name,
        tuple(calls),
        statement,
        construction,
        owner if isinstance(owner, cst.ClassDef) else None,
    )


def _binding(script: Script, construction: cst.Call) -> tuple[str, Statement]:
    """(name, last statement of its scope that assigns it before it is used otherwise) of a constructed model."""
    statement = script.statement_of(construction)
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        where = [candidate(script, construction)]
        raise NoEdit("display", "the model is made inside a larger expression", where)
    name = dotted(statement.targets[0].target)
    if name is None:
        raise NoEdit(
            "display", "the model is one of several assigned together", [candidate(script, statement)]
        )
    block, index = script.block_of(statement)
    last: Statement = statement
    for line in block.body[index + 1 :]:
        if not isinstance(line, cst.SimpleStatementLine):
            break
        if _readies(script, line, name):
            last = line.body[-1]
        elif _uses(script, line, name):
            break
    return name, last


def _readies(script: Script, line: cst.SimpleStatementLine, name: str) -> bool:
    """`model = model.to(device)`, `model.train()`, `model.load_state_dict(...)`: what belongs to making a model."""
    node = line.body[0]
    if len(line.body) > 1:
        return False
    value = node.value if isinstance(node, cst.Expr | cst.Assign) else None
    if isinstance(node, cst.Assign) and [dotted(t.target) for t in node.targets] != [name]:
        return False
    return (
        isinstance(value, cst.Call)
        and isinstance(value.func, cst.Attribute)
        and dotted(value.func.value) == name
        and value.func.attr.value
        in ("to", "cuda", "train", "load_state_dict", "apply", "requires_grad_", "half", "bfloat16", "float")
    )


def _uses(script: Script, node: cst.CSTNode, name: str) -> bool:
    return any(dotted(n) == name for kind in (cst.Name, cst.Attribute) for n in script.all(kind, within=node))


# ---------------------------------------------------------------------- statements of a step


def block_path(script: Script, node: cst.CSTNode, home: Home) -> list[cst.CSTNode]:
    """The statements from the home's own block down to the one that a node is in, outermost first."""
    path: list[cst.CSTNode] = []
    for up in [node, *script.ancestors(node)]:
        if up is home:
            break
        if isinstance(up, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            path.append(up)
    return list(reversed(path))


def whole_line(script: Script, node: cst.CSTNode) -> cst.SimpleStatementLine:
    """The line of a small statement that shares it with no other. Raises NoEdit otherwise."""
    statement = script.statement_of(node)
    line = script.parent(statement) if statement is not None else None
    if statement is None or not isinstance(line, cst.SimpleStatementLine) or shares_line(script, statement):
        raise NoEdit("display", "other statements share the line", [candidate(script, node)])
    return line
