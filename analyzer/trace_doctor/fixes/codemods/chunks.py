"""`chunked-loss`: logits and cross-entropy of a part of the tokens at a time, recomputed in backward."""

from __future__ import annotations

from typing import Any

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.nodes import written
from trace_doctor.model.parameters import ChunkedLoss
from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import Change, Edit, NoEdit, line_span
from trace_doctor.program.place import Place, already, candidate, only, refusal
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.script import Script, argument, dotted

_LOSS = "torch.nn.functional.cross_entropy"
_CHECKPOINT = "torch.utils.checkpoint.checkpoint"
_FREE = ("float", "flatten", "contiguous", "to")
_ROWS = ("view", "reshape")


@codemod(
    "chunked-loss",
    ChunkedLoss,
    adds="torch nn functional cross_entropy utils checkpoint use_reentrant False chunk_loss hidden_chunk labels_chunk "
    "loss_sum zip chunk reduction sum",
    words=("cross_entropy",),
)
def chunked_loss(place: Place, params: ChunkedLoss) -> Change:
    """Computes `F.cross_entropy(head(hidden), labels)` over chunks, so that never all logits exist at once.

    params: `chunks`. Only where the logits are made on the line above and used for nothing else.
    """
    found = [(s, c) for s in place.scripts for c in s.calls(_LOSS)]
    line = place.line
    found = [(s, c) for s, c in found if line is None or s.covers(s.function_of(c) or c, line)]
    script, call = only(found, "compute a cross-entropy", "no F.cross_entropy was found there")
    if any("chunk" in script.code(a) for a in script.ancestors(call) if isinstance(a, cst.FunctionDef)):
        raise already(script, call, "is computed in chunks already")
    return _change(script, call, params.chunks)


def _change(script: Script, call: cst.Call, chunks: int) -> Change:
    where = [candidate(script, call)]
    statement = script.statement_of(call)
    value = statement.value if isinstance(statement, cst.Return | cst.Assign) else None
    if statement is None or value is not call:
        raise refusal(script, call, "the loss is part of a larger expression")
    given, target = argument(call, "input", 0), argument(call, "target", 1)
    others = [a for a in call.args if a is not given and a is not target]
    allowed = all(
        a.keyword is not None and a.keyword.value in ("ignore_index", "label_smoothing") for a in others
    )
    if given is None or target is None or not allowed:
        raise refusal(script, call, "the loss takes weights or another reduction")
    block, index = script.block_of(statement)
    logits, head, made = _logits(script, given.value, block.body[index - 1] if index else None, where)
    _refuse_other_uses(script, logits, made, call)
    hidden = head.args[0].value
    labels = _root(target.value)
    if dotted(hidden) is None or labels is None or not _only_shaped(script, target.value):
        raise refusal(script, call, "hidden states and labels have no plain names")
    loss, more = name_for(script, _LOSS, call)
    checkpoint, imports = name_for(script, _CHECKPOINT, call)
    inner = [
        script.code(given.value),
        script.code(target.value),
        *(script.code(a).rstrip(", ") for a in others),
    ]
    ignored = argument(call, "ignore_index")
    text = _code(
        function=f"{script.code(head.func)}({{}})",
        logits=logits,
        hidden=(script.code(hidden), "hidden"),
        labels=(labels, "labels"),
        loss=f'{loss}({", ".join(inner)}, reduction="sum")',
        checkpoint=checkpoint,
        chunks=written(chunks),
        count=f"({labels} != {script.code(ignored.value) if ignored else '-100'}).sum()",
        keep="return "
        if isinstance(statement, cst.Return)
        else script.text[script.span(statement)[0] : script.span(call)[0]],
        unit=script.module.default_indent,
    )
    return _replaced(script, made, statement, text, (*imports, *more))


def _logits(
    script: Script, given: cst.BaseExpression, above: cst.CSTNode | None, where: list[Any]
) -> tuple[str, cst.Call, cst.SimpleStatementLine]:
    """(name, call of the head, its line): `logits = self.head(hidden)` right above the loss."""
    name = _root(given)
    node = above.body[0] if isinstance(above, cst.SimpleStatementLine) and len(above.body) == 1 else None
    made = isinstance(node, cst.Assign) and [dotted(t.target) for t in node.targets] == [name]
    head = node.value if isinstance(node, cst.Assign) and made else None
    plain = isinstance(head, cst.Call) and len(head.args) == 1 and dotted(head.func) is not None
    if name is None or not plain:
        raise NoEdit("display", "the logits are not made by one layer on the line above", where)
    assert isinstance(head, cst.Call) and isinstance(above, cst.SimpleStatementLine)
    if not dataflow_of(script).all_are(head.func, lambda o: script.callee(o) == "torch.nn.Linear"):
        raise NoEdit(
            "display", f"{script.code(head.func)} is no nn.Linear that is made in this script", where
        )
    if not _only_shaped(script, given):
        raise NoEdit("display", "the logits are changed before the loss", where)
    return name, head, above


def _root(node: cst.BaseExpression) -> str | None:
    """`logits` of `logits.float().view(-1, n)`."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        node = node.func.value
    return node.value if isinstance(node, cst.Name) else None


def _only_shaped(script: Script, node: cst.BaseExpression) -> bool:
    """Whether methods only cast and reshape a tensor, in ways that hold for a chunk of its rows as well."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        method, given = node.func.attr.value, [script.code(a.value) for a in node.args]
        if method not in _FREE and not (method in _ROWS and given[:1] == ["-1"]):
            return False
        node = node.func.value
    return True


def _refuse_other_uses(script: Script, logits: str, made: cst.CSTNode, call: cst.Call) -> None:
    inside = [script.span(made), script.span(call)]
    for name in script.all(cst.Name, within=script.function_of(call)):
        at = script.span(name)[0]
        if name.value == logits and not any(a <= at < b for a, b in inside):
            raise refusal(script, name, f"{logits} are used for something else as well")


def _code(
    function: str,
    logits: str,
    hidden: tuple[str, str],
    labels: tuple[str, str],
    loss: str,
    checkpoint: str,
    chunks: str,
    count: str,
    keep: str,
    unit: str,
) -> list[str]:
    """The lines that replace logits and loss, without the indentation of where they stand."""
    return [
        f"def chunk_loss({hidden[1]}_chunk, {labels[0]}):",
        f"{unit}{logits} = {function.format(hidden[1] + '_chunk')}",
        f"{unit}return {loss}",
        "",
        "loss_sum = 0.0",
        f"for hidden_chunk, labels_chunk in zip({hidden[0]}.chunk({chunks}), {labels[0]}.chunk({chunks})):",
        f"{unit}loss_sum = loss_sum + {checkpoint}(chunk_loss, hidden_chunk, labels_chunk, use_reentrant=False)",
        f"{keep}loss_sum / {count}",
    ]


def _replaced(
    script: Script,
    made: cst.SimpleStatementLine,
    statement: cst.CSTNode,
    lines: list[str],
    imports: tuple[Edit, ...],
) -> Change:
    for name in ("chunk_loss", "loss_sum", "hidden_chunk", "labels_chunk"):
        if name in script.text:
            raise NoEdit("already", f"{script.name} has {name} already")
    start, end = line_span(script, made)[0], line_span(script, statement)[1]
    indent = script.indent(made)
    text = "".join(f"{indent}{line}\n" if line else "\n" for line in lines)
    if script.text[end - 1] not in "\r\n":
        text = text.rstrip("\n")
    return Change(script, (*imports, Edit(start, end, text)), script.line(statement))
