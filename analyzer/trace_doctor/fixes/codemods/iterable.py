"""`shard-iterable`: each worker of a loader takes its share of an IterableDataset. Shown, never applied unseen."""

from __future__ import annotations

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.model.parameters import ShardIterable
from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import Change, Edit, insert_before
from trace_doctor.program.place import Place, already, only, refusal
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.script import Script

_SHARE = """info = {worker}()
first, stride = (info.id, info.num_workers) if info is not None else (0, 1)"""


@codemod(
    "shard-iterable",
    ShardIterable,
    adds="torch utils data get_worker_info itertools islice info first stride id num_workers None",
    scope="call",
    words=("IterableDataset",),
    elsewhere=True,
)
def shard_iterable(place: Place, params: ShardIterable) -> Change:
    """Lets __iter__ of an IterableDataset deliver only the worker's share, by get_worker_info()."""
    datasets = [
        (script, owner)
        for script in place.scripts
        for owner in script.all(cst.ClassDef)
        if "torch.utils.data.IterableDataset" in dataflow_of(script).bases(owner)
    ]
    script, owner = only(
        datasets, "define an IterableDataset", "no IterableDataset is defined in this script"
    )
    methods = [f for f in script.all(cst.FunctionDef, within=owner) if f.name.value == "__iter__"]
    if len(methods) != 1:
        raise refusal(script, owner, "the class has no __iter__ of its own")
    method = methods[0]
    if "get_worker_info" in script.code(owner) or "num_workers" in script.code(owner):
        raise already(script, method, "looks at its worker already")
    source, statement = _source(script, method)
    worker, imports = name_for(script, "torch.utils.data.get_worker_info", method)
    islice, more = name_for(script, "itertools.islice", method)
    start, end = script.span(source)
    text = f"{islice}({script.text[start:end]}, first, None, stride)"
    share = insert_before(script, statement, _SHARE.format(worker=worker), "shard")
    edits = (*imports, *more, share, Edit(start, end, text))
    note = "samples are then drawn by every worker and all but its share thrown away: cheap only where reading is cheap"
    return Change(script, edits, script.line(source), "display", (note,))


def _source(script: Script, method: cst.FunctionDef) -> tuple[cst.BaseExpression, cst.CSTNode]:
    """(what is iterated over, the statement that does): one loop that yields, or one `yield from`, or `return iter(...)`."""
    body = method.body.body
    loops: list[tuple[cst.BaseExpression, cst.CSTNode]] = []
    for line in body:
        if isinstance(line, cst.For) and script.all(cst.Yield, within=line):
            loops.append((line.iter, line))
        elif isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
            node = line.body[0]
            value = node.value if isinstance(node, cst.Expr | cst.Return) else None
            if isinstance(value, cst.Yield) and isinstance(value.value, cst.From):
                loops.append((value.value.item, line))
            elif isinstance(node, cst.Return) and value is not None and script.callee(value) == "iter":
                loops.append((value, line))
    yields = len(script.all(cst.Yield, within=method))
    inside = sum(len(script.all(cst.Yield, within=line)) for _, line in loops)
    if len(loops) != 1 or yields != inside:
        raise refusal(script, method, "__iter__ is not one loop over its samples")
    return loops[0]
