"""Positions and names of a script are LibCST's own, found in one walk."""

from __future__ import annotations

import textwrap
from pathlib import Path

import libcst as cst
import pytest
from libcst.metadata import (
    CodePosition,
    ExpressionContext,
    ExpressionContextProvider,
    MetadataWrapper,
    PositionProvider,
    QualifiedNameSource,
    ScopeProvider,
    WhitespaceInclusivePositionProvider,
)

from trace_doctor.program.edits import add_arguments, apply
from trace_doctor.program.script import Script

ODD = textwrap.dedent(
    """
    import torch.nn.functional as F, os.path
    from torch import nn as nn, optim
    from . import losses
    from .data import *
    try:
        from apex import amp
    except ImportError:
        amp = None

    @torch.no_grad()
    def outer(nn=nn.Linear, *args: optim, size=[optim for optim in range(3)]):
        global shared
        shared = F
        def inner():
            nonlocal size
            size = os.path.join("a", "b")
            return [losses.dice(x) for x in loader if (y := F.relu(x))], y
        optim = optim.Adam(nn(1).parameters())  # the name is read before it is bound
        return (lambda F=F: F.gelu), inner, shared.softmax, print(optim)

    class Model(nn.Module):
        relu = nn.ReLU
        def forward(self, x):
            with amp.autocast() as amp, open("f") as (a, b):
                for nn, F.target in x:
                    relu(nn)
            return relu, torch.zeros(3).cuda().half

    nn.Sequential(); len = 3
    len(os.path.sep); str(os)"""
)  # without a line end, on purpose
FILES = [Path(cst.__file__).parent / "_exceptions.py", Path(__file__)]


@pytest.fixture(params=["odd", *FILES], ids=lambda p: getattr(p, "name", p))
def script(request: pytest.FixtureRequest) -> Script:
    data = ODD.encode() if request.param == "odd" else request.param.read_bytes()
    return Script(data, "script.py")


def _offset(script: Script, at: CodePosition) -> int:
    starts = [*script.line_starts, len(script.text)]  # LibCST ends the last line even where the file does not
    return min(starts[at.line - 1] + at.column, len(script.text))


def test_positions_parents_and_order_are_those_of_libcst(script: Script) -> None:
    tree = MetadataWrapper(script.module, unsafe_skip_copy=True)
    inner, outer = tree.resolve(PositionProvider), tree.resolve(WhitespaceInclusivePositionProvider)
    in_order = [n for n in script.below(script.module) if not _white(n)]
    for node in in_order:
        for places, span in ((inner, script.span(node)), (outer, script.outer_span(node))):
            begin, end = places[node].start, places[node].end
            assert span == (_offset(script, begin), _offset(script, end))
        assert script.lines(node) == (inner[node].start.line, inner[node].end.line) or _at_end(script, node)
        assert all(script.parent(child) is node for child in node.children)
    for kind in {type(n) for n in in_order}:
        assert script.all(kind) == [n for n in in_order if type(n) is kind]


def _white(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.BaseParenthesizableWhitespace | cst.TrailingWhitespace | cst.Newline)


def _at_end(script: Script, node: cst.CSTNode) -> bool:
    """LibCST ends the last line where the file does not: what ends there ends one line further."""
    return script.span(node)[1] == len(script.text)


def test_what_is_within_a_node_is_found_by_its_span(script: Script) -> None:
    for function in script.all(cst.FunctionDef):
        start, end = script.span(function)
        inside = [n for n in script.all(cst.Name) if start <= script.span(n)[0] and script.span(n)[1] <= end]
        assert script.all(cst.Name, within=function) == inside


def test_names_mean_what_libcst_says(script: Script) -> None:
    tree = MetadataWrapper(script.module, unsafe_skip_copy=True)
    scopes, contexts = tree.resolve(ScopeProvider), tree.resolve(ExpressionContextProvider)
    asked = 0
    for node in [*script.all(cst.Attribute), *script.all(cst.Call), *script.all(cst.Name)]:
        if contexts.get(node, ExpressionContext.LOAD) is not ExpressionContext.LOAD or node not in scopes:
            continue
        if any(isinstance(a, cst.Import | cst.ImportFrom | cst.ClassDef) for a in [script.parent(node)]):
            continue  # what an import or a definition binds
        asked += 1
        names = scopes[node].get_qualified_names_for(node)
        imported = {n.name for n in names if n.source is QualifiedNameSource.IMPORT}
        only = imported if len(names) == len(imported) == 1 else {None}
        assert script.qualified(node) in only, script.code(node)
    assert asked > 20


def _with_workers(text: str) -> str:
    script = Script(text.encode(), "a.py")
    return apply(script, add_arguments(script, script.all(cst.Call)[0], {"num_workers": "2"}))


def test_a_form_feed_is_no_indentation() -> None:
    """A line added below has none: it is a break of the page."""
    text = "def f():\n    loader = DataLoader(\n\f        dataset,\n    )\n"
    assert _with_workers(text) == text.replace("dataset,\n", "dataset,\n        num_workers=2,\n")


def test_an_argument_below_a_comma_that_begins_the_line() -> None:
    compile(_with_workers("loader = DataLoader(\n    dataset\n    , shuffle=True\n)\n"), "a.py", "exec")
