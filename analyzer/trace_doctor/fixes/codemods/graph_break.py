"""`graph-break-line`: what stands on the line where torch.compile had to leave the graph decides what helps."""

from __future__ import annotations

import re
from dataclasses import replace

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.codemods.program import configure
from trace_doctor.model.parameters import GraphBreakLine
from trace_doctor.program.edits import Change, NoEdit, remove, shares_line, wrap
from trace_doctor.program.place import Place, refusal
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.script import Script, Statement, assigned_names, dotted, method_name
from trace_doctor.program.versions import TorchBounds, accepts

_PRINTS = ("print", "breakpoint", "pdb.set_trace", "warnings.warn", "sys.stdout.write", "sys.stderr.write")
_LOGGER = re.compile(
    r"(?:self\.)?_?(?:log|logger|logging)\.(?:debug|info|warning|error|critical|exception|log)", re.I
)
_IS_COMPILING = "torch.compiler.is_compiling"


@codemod(
    "graph-break-line",
    GraphBreakLine,
    adds="torch compiler is_compiling _dynamo config capture_scalar_outputs True",
)
def graph_break_line(place: Place, params: GraphBreakLine) -> Change:
    """Keeps a print or log line out of compiled code, or captures the scalar that is read there."""
    line = place.line or params.line
    script = place.script
    if script is None or not isinstance(line, int):
        raise NoEdit("unresolved", "the line of the break was not captured: record with with_stack=True")
    statements = script.statements_on(line)
    if not statements:
        why = f"nothing stands on {script.name}:{line}; the script has changed since the capture"
        raise NoEdit("unresolved", why)
    statement = statements[0]
    if isinstance(statement, cst.Expr) and _is_output(script, statement.value):
        return _silence(script, statement, place.torch)
    tests = script.all(cst.Call, within=statement.test) if isinstance(statement, cst.If) else []
    if any(script.callee(c) == _IS_COMPILING for c in tests):
        raise NoEdit("already", f"{script.name}:{line} is left out of compiled code already")
    branch = _branch(script, statement, line)
    if branch is not None:
        raise refusal(script, branch, _BRANCH)
    if _reads_scalar(script, statement):
        change = configure(script, place.program, "torch._dynamo.config.capture_scalar_outputs", True)
        return replace(change, line=line)
    raise refusal(script, statement, _why(script, statement))


_BRANCH = (
    "a branch on the value of a tensor cannot stay in the graph: use torch.where or torch.cond, torch._check for an "
    "assertion, or move the test out of the compiled function"
)


def _is_output(script: Script, call: cst.BaseExpression) -> bool:
    short = (dotted(call.func) or "") if isinstance(call, cst.Call) else ""
    name = script.callee(call) or short
    return name in _PRINTS or name.startswith("logging.") or _LOGGER.fullmatch(short) is not None


def _silence(script: Script, statement: cst.Expr, torch: TorchBounds) -> Change:
    """The line under `if not torch.compiler.is_compiling():`, which the compiler leaves out; without it where torch may
    not have that, or where other statements share the line."""
    if any(isinstance(n, cst.NamedExpr | cst.Await) for n in script.below(statement)):
        raise refusal(script, statement, "the line also assigns: move the print out manually")
    if not accepts(torch, _IS_COMPILING) or shares_line(script, statement):
        notes = ("the output of that line disappears",)
        return Change(script, (remove(script, statement),), script.line(statement), notes=notes)
    name, imports = name_for(script, _IS_COMPILING, statement)
    edits = (*imports, *wrap(script, statement, statement, f"if not {name}():"))
    notes = ("the output of that line disappears from compiled runs",)
    return Change(script, edits, script.line(statement), notes=notes)


def _branch(script: Script, statement: Statement, line: int) -> cst.CSTNode | None:
    """A test that depends on what this line reads: the line is one, or a name it assigns is tested further down."""
    if isinstance(statement, cst.If | cst.While | cst.Assert) or script.all(cst.IfExp, within=statement):
        return statement
    if not isinstance(statement, cst.Assign):
        return None
    names = set(assigned_names(statement))
    function = script.function_of(statement) or script.module
    tests = (n for n in script.below(function) if isinstance(n, cst.If | cst.While | cst.IfExp | cst.Assert))
    later = (n for n in tests if script.line(n) > line)
    return next((n for n in later if names & {dotted(node) for node in script.below(n.test)}), None)


def _reads_scalar(script: Script, statement: Statement) -> bool:
    return any(
        (method_name(call) == "item" and not call.args)
        or (script.callee(call) in ("float", "int") and len(call.args) == 1)
        for call in script.all(cst.Call, within=statement)
    )


def _why(script: Script, statement: Statement) -> str:
    names = [script.callee(c) or dotted(c.func) or "" for c in script.all(cst.Call, within=statement)]
    if any(n.split(".")[0] == "numpy" or n.endswith(".numpy") for n in names):
        return "NumPy leaves the graph: use the torch function of the same name"
    if any(n.endswith((".tolist", ".nonzero", ".unique")) for n in names):
        return (
            "the result's size depends on the data: mask with torch.where, or set "
            "torch._dynamo.config.capture_dynamic_output_shape_ops = True"
        )
    return (
        "the compiler cannot trace this line: rewrite it with torch operators, move it out of the compiled function, or "
        "mark what it calls with torch.compiler.disable so that the break is deliberate"
    )
