"""`use-sdpa`: attention written out as product, softmax, product becomes one fused call."""

from __future__ import annotations

import libcst as cst

from trace_doctor.fixes.attention.matmuls import Attention
from trace_doctor.fixes.attention.pattern import find_attention
from trace_doctor.fixes.codemods import codemod
from trace_doctor.model.parameters import Parameters
from trace_doctor.program.edits import Change, Edit, NoEdit, line_span, remove
from trace_doctor.program.place import Place, only
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.script import Script
from trace_doctor.program.versions import TorchBounds


@codemod(
    "use-sdpa",
    Parameters,
    adds="torch nn functional scaled_dot_product_attention attn_mask dropout_p is_causal scale True p training size",
    words=("softmax",),
    elsewhere=True,
)
def use_sdpa(place: Place, params: Parameters) -> Change:
    """Replaces softmax(q @ k.T * scale + mask) @ v by scaled_dot_product_attention, where it is provably just that."""
    matches: dict[cst.BaseExpression, tuple[Script, Attention]] = {}
    refusals: list[NoEdit] = []
    for script in place.scripts:
        for function in script.all(cst.FunctionDef):
            if place.line is not None and not script.covers(function, place.line):
                continue
            if "scaled_dot_product_attention" in script.code(function):
                continue  # written out only for a torch that has none
            try:
                matches |= {a.matmul: (script, a) for a in find_attention(script, function)}
            except NoEdit as reason:
                refusals.append(reason)
    if not matches and refusals:
        raise refusals[0]
    places = [(script, matmul) for matmul, (script, _) in matches.items()]
    _, matmul = only(places, "compute attention", _missing(place))
    return _change(*matches[matmul], place.torch)


def _missing(place: Place) -> str:
    present = any("scaled_dot_product_attention" in s.text for s in place.scripts)
    also = "; scaled_dot_product_attention is used already" if present else ""
    return f"no unfused attention (matmul, softmax, matmul) was found{also}"


def _change(script: Script, a: Attention, torch: TorchBounds) -> Change:
    name, imports = name_for(script, "torch.nn.functional.scaled_dot_product_attention", a.matmul)
    query, arguments = a.query, []
    if a.mask is not None:
        arguments.append(f"attn_mask={a.mask}")
    if a.dropout is not None:
        arguments.append(f"dropout_p={a.dropout}")
    if a.causal:
        arguments.append("is_causal=True")
    if a.scale is not None and torch.at_least(2, 1):
        arguments.append(f"scale={a.scale}")
    elif a.scale is not None:  # 2.0 has no `scale`: it always divides by the square root of the last size
        query = f"{a.query} * ({a.scale} * {a.query}.size(-1) ** 0.5)".replace("(1.0 * ", "(")
    start, end = _range(script, a.matmul)
    text = f"{name}({', '.join([query, a.key, a.value, *arguments])})"
    removals = (
        Edit(*line_span(script, s), "") if isinstance(s, cst.If) else remove(script, s) for s in a.drop
    )
    return Change(script, (*imports, Edit(start, end, text), *removals), script.line(a.matmul))


def _range(script: Script, matmul: cst.BaseExpression) -> tuple[int, int]:
    """Where the product stands, with the parentheses around it: a call needs none."""
    start, end = script.outer_span(matmul)
    behind_word = start > 0 and (script.text[start - 1].isalnum() or script.text[start - 1] == "_")
    return script.span(matmul) if behind_word or len(matmul.lpar) != 1 else (start, end)
