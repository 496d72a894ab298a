"""Lightning: what its Trainer and its Fabric are told, and a model that is compiled before either takes it.

`fit` takes a compiled module from 2.0 on; `Fabric.setup` compiles again what it wrapped from 2.2 on (lightning 2.0.0,
2.1.4, 2.2.5 and 2.6.6: pytorch/trainer/trainer.py, fabric/fabric.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from trace_doctor.fixes.batch_sizes import divided_batch
from trace_doctor.fixes.frameworks.settings import Call, set_arguments
from trace_doctor.fixes.frameworks.trainers import FABRIC, LIGHTNING
from trace_doctor.fixes.literals import source_text
from trace_doctor.model.parameters import Compile, Parameters
from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import Change, insert_before, together
from trace_doctor.program.place import Place, already, only, refusal
from trace_doctor.program.queries.arguments import Arguments
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.queries.loops import method_calls
from trace_doctor.program.queries.training import whole_line
from trace_doctor.program.script import argument

_TAKES = {"lightning": ("fit", (2, 0)), "fabric": ("setup", (2, 2))}
"""the method that is given the model, and the first release in which that may be compiled"""
_CLASS = {"lightning": "Trainer", "fabric": "Fabric"}
_LOGS_EVERY = 50
"""steps, of a Trainer that is told nothing"""


def in_lightning(
    place: Place, framework: str, calls: list[Call], params: Parameters, wishes: Mapping[str, str]
) -> Change | None:
    """The change in the terms of Lightning (`lightning`: its Trainer) or of its `fabric`; None where it has no word."""
    if isinstance(params, Compile):
        return _compile_model(place, framework, calls, params)
    table = LIGHTNING if framework == "lightning" else FABRIC
    if not set(wishes) <= set(table):
        return None
    call = only(calls, f"construct the {_CLASS[framework]}", "")
    steps = wishes.get("log_every")
    if steps is not None and int(steps) <= _LOGS_EVERY:
        arguments = Arguments(place.program, *call, {})
        if not arguments.hidden and arguments.find(table["log_every"].name) is None:
            return None
    own = set_arguments(place, call, "lightning", table, wishes)
    return together(own, divided_batch(place, int(wishes["accumulate"]))) if "accumulate" in wishes else own


def _compile_model(place: Place, framework: str, calls: list[Call], params: Compile) -> Change:
    """`model = torch.compile(model)` right before the Trainer or the Fabric takes it."""
    method, since = _TAKES[framework]
    constructions = [call for _, call in calls]
    uses = [
        (script, call)
        for script in place.program.scripts_with(f".{method}(")
        for call, receiver in method_calls(script, method)
        if any(o in constructions for _, o in place.program.of(script, receiver))
    ]
    missing = f"no call of {method}() was found that takes the model"
    script, call = only(uses, f"call {method}()", missing)
    arg = argument(call, "model" if framework == "lightning" else "module", 0)
    if arg is None or not isinstance(arg.value, cst.Name):
        raise refusal(script, call, f"the model has no name at {method}()", framework="lightning")
    if any(script.callee(b.value) == "torch.compile" for b in dataflow_of(script).bindings_of(arg.value)):
        raise already(script, call, "takes a compiled model", framework="lightning")
    version = place.packages.get("lightning")
    if version is None or version < since:
        why = f"a compiled model needs lightning {'.'.join(map(str, since))} or newer in {method}()"
        raise refusal(script, call, why, framework="lightning")
    line = whole_line(script, call)
    torch, imports = name_for(script, "torch", call)
    name, options = arg.value.value, [f"{k}={source_text(v)}" for k, v in params.set_values().items()]
    code = f"{name} = {torch}.compile({', '.join([name, *options])})"
    edit = insert_before(script, line, code, "compile-model")
    return Change(script, (*imports, edit), script.line(call), framework="lightning")
