"""Where a program makes gradients and where it uses them, seen from the statements of one training step.

Gradients are state that any statement can add to or read: whether `zero_grad()` may stand elsewhere depends on what runs
between the old place and the new one, on every path and in every function that is called there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from trace_doctor.program.project import Project
from trace_doctor.program.queries.loops import method_calls
from trace_doctor.program.script import Script, argument, dotted, literal

Node = tuple[Script, cst.CSTNode]
Span = tuple[int, int]
_USES = re.compile(r"(?:^|_)(?:grads?|gradients?|unscale)(?:_|$)", re.IGNORECASE)
_USES_NONE = re.compile(
    r"zero_grad|grad|(?:no|enable|is|set)_grad(?:_enabled)?|.*requires?_grad\w*|toggle_grad\w*|freeze\w*|gradient_checkpoint\w*"
    r"|.*gradient_checkpoint\w*|(?:un)?scale_grad\w*|zero_grads?_?|.*grad_scaler\w*|.*gradient_accumulation\w*|has_grad|.*_no_grad"
)
"""calls with such a name that neither read nor change what backward() left"""
_DEPTH = 4


def backwards(program: Project) -> Iterator[tuple[Script, cst.Call]]:
    """The calls of a program that add to the gradients of parameters."""
    for script in program.scripts_with("backward("):
        for method in ("backward", "manual_backward"):
            yield from ((script, call) for call, _ in method_calls(script, method))


def gradient_uses(program: Project) -> Iterator[Node]:
    """The expressions of a program that read or change gradients: `.grad`, clipping, norms, logs of gradients. The update
    of an optimizer that the program defines is its step, and does not count."""
    for script in program.scripts_with("grad", "unscale_"):
        for attribute in script.all(cst.Attribute):
            own = attribute.attr.value == "grad" and script.qualified(attribute) is None
            if own and not _in_optimizer(program, script, attribute):
                yield script, attribute
        for call in script.all(cst.Call):
            name = (dotted(call.func) or "").rpartition(".")[2]
            by_name = script.callee(call) in ("getattr", "setattr") and literal(_second(call)) == "grad"
            named = _USES.search(name) and not _USES_NONE.fullmatch(name)
            if by_name or (named and program.definition(script, call.func) is None):
                yield script, call


def _second(call: cst.Call) -> cst.BaseExpression | None:
    arg = argument(call, "", 1)
    return arg.value if arg is not None else None


def _in_optimizer(program: Project, script: Script, node: cst.CSTNode) -> bool:
    owner = script.nearest(node, cst.ClassDef)
    return owner is not None and any(b.startswith("torch.optim.") for b in program.bases(script, owner))


def places(program: Project, home: Node, node: Node, depth: int = 0) -> Iterator[Node]:
    """Where the function of a step, or the level of a module, leads to a node: the node itself, or the uses of the function
    that it stands in, and of those that use that one. A function that nothing uses leads nowhere; a method may be called
    by a framework."""
    script, inner = node
    function = script.function_of(inner)
    own = home[0].function_of(home[1]) if not isinstance(home[1], cst.FunctionDef) else home[1]
    if function is None or function is own or depth >= _DEPTH:
        yield node
        return
    uses = [
        (other, name)
        for other in program.scripts_with(function.name.value)
        for name in other.all(cst.Name)
        if name.value == function.name.value and is_use(other, name)
        if other is not script or not script.within(name, function)
    ]
    if not uses and script.nearest(function, cst.FunctionDef, cst.ClassDef) is not None:
        yield node
    for use in uses:
        yield from places(program, home, use, depth + 1)


def is_use(script: Script, name: cst.Name) -> bool:
    """Whether a name is read, and not what a definition, an import or an argument is called."""
    up = script.parent(name)
    defines = isinstance(up, cst.FunctionDef | cst.ClassDef | cst.ImportAlias | cst.ImportFrom | cst.Param)
    return not defines and not (isinstance(up, cst.Arg) and up.keyword is name)


def led_to_from(program: Project, home: Node, nodes: Iterator[Node], span: Span) -> cst.CSTNode | None:
    """What stands in a stretch of the step's script and is, or leads to, one of these nodes."""
    return next((n for s, n in _all_places(program, home, nodes) if s is home[0] and _in(s, n, span)), None)


def led_to_beside(program: Project, home: Node, nodes: Iterator[Node], span: Span) -> Node | None:
    """What stands anywhere else than in a stretch of the step's script and is, or leads to, one of these nodes."""
    every = _all_places(program, home, nodes)
    return next(((s, n) for s, n in every if s is not home[0] or not _in(s, n, span)), None)


def _all_places(program: Project, home: Node, nodes: Iterator[Node]) -> Iterator[Node]:
    for node in nodes:
        yield from places(program, home, node)


def _in(script: Script, node: cst.CSTNode, span: Span) -> bool:
    return span[0] <= script.span(node)[0] < span[1]


def way_out(script: Script, home: cst.CSTNode, span: Span) -> cst.CSTNode | None:
    """A statement in a stretch of a loop or function that leaves it before its end: `continue`, `break`, `return`."""
    function = home if isinstance(home, cst.FunctionDef) else script.function_of(home)
    kinds = (cst.For, cst.While, cst.FunctionDef)
    for node in (*script.all(cst.Continue, home), *script.all(cst.Break, home)):
        if _in(script, node, span) and script.nearest(node, *kinds) is home:
            return node
    returns = (r for r in script.all(cst.Return, home) if script.function_of(r) is function)
    return next((r for r in returns if _in(script, r, span)), None)


def caught(script: Script, node: cst.CSTNode) -> cst.CSTNode | None:
    """The `try` around a statement after which a loop goes on: what stood below the exception did not run."""
    for up in script.between(node, script.function_of(node)):
        if isinstance(up, cst.Try | cst.TryStar) and up.handlers:
            loop = script.nearest(up, cst.For, cst.While, cst.FunctionDef)
            if loop is not None and not isinstance(loop, cst.FunctionDef):
                return up
    return None


def blocks_around(script: Script, node: cst.CSTNode, home: cst.CSTNode) -> list[cst.CSTNode]:
    """The blocks between a statement and its loop or function that decide whether it runs: all but those of `with`."""
    up: list[cst.CSTNode] = []
    inner: cst.CSTNode = node
    for outer in script.between(node, home):
        if isinstance(inner, cst.IndentedBlock | cst.SimpleStatementSuite) and not isinstance(
            outer, cst.With
        ):
            up.append(inner)
        inner = outer
    return up
