"""`chunked-loss`: logits and cross-entropy of a part of the tokens at a time, recomputed in backward."""

from __future__ import annotations

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.literals import source_text
from trace_doctor.model.parameters import ChunkedLoss
from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import Change, NoEdit, replace_lines
from trace_doctor.program.place import Place, already, only, refusal
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.script import Script, argument, assigned_names, dotted, method_name, receiver

_LOSS = "torch.nn.functional.cross_entropy"
_CHECKPOINT = "torch.utils.checkpoint.checkpoint"
_FREE = ("float", "flatten", "contiguous", "to")
_ROWS = ("view", "reshape")
_CODE = """\
def chunk_loss(hidden_chunk, {labels}):
{unit}{logits} = {head}(hidden_chunk)
{unit}return {loss}

loss_sum = 0.0
for hidden_chunk, labels_chunk in zip({hidden}.chunk({chunks}), {labels}.chunk({chunks})):
{unit}loss_sum = loss_sum + {checkpoint}(chunk_loss, hidden_chunk, labels_chunk, use_reentrant=False)
{keep}loss_sum / ({labels} != {ignored}).sum()"""
"""what replaces logits and loss, without the indentation of where they stand"""


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
    losses = [(s, c) for s in place.scripts for c in s.calls(_LOSS)]
    line = place.line
    losses = [(s, c) for s, c in losses if line is None or s.covers(s.function_of(c) or c, line)]
    script, call = only(losses, "compute a cross-entropy", "no F.cross_entropy was found there")
    if any("chunk" in script.code(a) for a in script.ancestors(call) if isinstance(a, cst.FunctionDef)):
        raise already(script, call, "is computed in chunks already")
    return _change(script, call, params.chunks)


def _change(script: Script, call: cst.Call, chunks: int) -> Change:
    statement = script.statement_of(call)
    value = statement.value if isinstance(statement, cst.Return | cst.Assign) else None
    if statement is None or value is not call:
        raise refusal(script, call, "the loss is part of a larger expression")
    logits_arg, target = argument(call, "input", 0), argument(call, "target", 1)
    others = [a for a in call.args if a is not logits_arg and a is not target]
    plain = all(
        a.keyword is not None and a.keyword.value in ("ignore_index", "label_smoothing") for a in others
    )
    if logits_arg is None or target is None or not plain:
        raise refusal(script, call, "the loss takes weights or another reduction")
    block, index = script.block_of(statement)
    logits, head, head_line = _logits(
        script, call, logits_arg.value, block.body[index - 1] if index else None
    )
    _refuse_other_uses(script, logits, head_line, call)
    hidden = head.args[0].value
    labels = _root(target.value)
    if dotted(hidden) is None or labels is None or not _only_shaped(script, target.value):
        raise refusal(script, call, "hidden states and labels have no plain names")
    loss, more = name_for(script, _LOSS, call)
    checkpoint, imports = name_for(script, _CHECKPOINT, call)
    inner = [
        script.code(logits_arg.value),
        script.code(target.value),
        *(script.code(a).rstrip(", ") for a in others),
    ]
    ignore_index = argument(call, "ignore_index")
    begin = script.text[script.span(statement)[0] : script.span(call)[0]]
    values = {
        "head": script.code(head.func),
        "logits": logits,
        "hidden": script.code(hidden),
        "labels": labels,
        "loss": f'{loss}({", ".join(inner)}, reduction="sum")',
        "checkpoint": checkpoint,
        "chunks": source_text(chunks),
        "ignored": script.code(ignore_index.value) if ignore_index else "-100",
        "keep": "return " if isinstance(statement, cst.Return) else begin,
        "unit": script.module.default_indent,
    }
    for name in ("chunk_loss", "loss_sum", "hidden_chunk", "labels_chunk"):
        if name in script.text:
            raise NoEdit("already", f"{script.name} has {name} already")
    lines = [line.format_map(values) for line in _CODE.split("\n")]
    edits = (*imports, *more, replace_lines(script, head_line, statement, lines))
    return Change(script, edits, script.line(statement))


def _logits(
    script: Script, loss: cst.Call, value: cst.BaseExpression, above: cst.CSTNode | None
) -> tuple[str, cst.Call, cst.SimpleStatementLine]:
    """(name, call of the head, its line): `logits = self.head(hidden)` right above the loss."""
    name = _root(value)
    line = above if isinstance(above, cst.SimpleStatementLine) and len(above.body) == 1 else None
    node = line.body[0] if line is not None else None
    head = node.value if isinstance(node, cst.Assign) and assigned_names(node) == [name] else None
    if (
        line is None
        or name is None
        or not isinstance(head, cst.Call)
        or len(head.args) != 1
        or not dotted(head.func)
    ):
        raise refusal(script, loss, "the logits are not made by one layer on the line above")
    if not dataflow_of(script).all_are(head.func, lambda o: script.callee(o) == "torch.nn.Linear"):
        raise refusal(script, loss, f"{script.code(head.func)} is no nn.Linear that is made in this script")
    if not _only_shaped(script, value):
        raise refusal(script, loss, "the logits are changed before the loss")
    return name, head, line


def _root(node: cst.BaseExpression) -> str | None:
    """`logits` of `logits.float().view(-1, n)`."""
    while (inner := receiver(node)) is not None:
        node = inner
    return node.value if isinstance(node, cst.Name) else None


def _only_shaped(script: Script, node: cst.BaseExpression) -> bool:
    """Whether methods only cast and reshape a tensor, in ways that hold for a chunk of its rows as well."""
    while isinstance(node, cst.Call) and (inner := receiver(node)) is not None:
        method, first = method_name(node), [script.code(a.value) for a in node.args[:1]]
        if method not in _FREE and not (method in _ROWS and first == ["-1"]):
            return False
        node = inner
    return True


def _refuse_other_uses(script: Script, logits: str, line: cst.CSTNode, call: cst.Call) -> None:
    for name in script.all(cst.Name, within=script.function_of(call)):
        if name.value == logits and not script.within(name, line) and not script.within(name, call):
            raise refusal(script, name, f"{logits} are used for something else as well")
