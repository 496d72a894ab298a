"""`use-sdpa`: attention written out as product, softmax, product becomes one fused call."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from trace_doctor.fixes.attention.matmuls import Attention
from trace_doctor.fixes.attention.pattern import find_attention
from trace_doctor.fixes.codemods import codemod
from trace_doctor.model.parameters import Sdpa
from trace_doctor.program.edits import Change, Edit, NoEdit, insert_before, replace_lines
from trace_doctor.program.place import Place, only, refusal
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.script import Script
from trace_doctor.program.versions import TorchBounds, accepts

_NAME = "scaled_dot_product_attention"
_SCALE = "torch.nn.functional.scaled_dot_product_attention(scale)"


@codemod(
    "use-sdpa",
    Sdpa,
    adds="torch nn functional scaled_dot_product_attention attn_mask dropout_p is_causal scale True p training size "
    "bool_mask None no_key masked_fill all keepdim transpose unsqueeze squeeze",
    words=("softmax",),
    elsewhere=True,
)
def use_sdpa(place: Place, params: Sdpa) -> Change:
    """Replaces softmax(q @ k.T * scale + mask) @ v by scaled_dot_product_attention, where it is provably just that."""
    matches: dict[cst.BaseExpression, tuple[Script, Attention]] = {}
    refusals: list[NoEdit] = []
    for script in place.scripts:
        for function in script.all(cst.FunctionDef):
            if place.line is not None and not script.covers(function, place.line):
                continue
            if _is_fused(place, script, function):
                continue  # written out only for a torch that has none
            try:
                matches |= {a.matmul: (script, a) for a in find_attention(script, function)}
            except NoEdit as reason:
                refusals.append(reason)
    if not matches and refusals:
        raise refusals[0]
    places = [(script, matmul) for matmul, (script, _) in matches.items()]
    _, matmul = only(places, "compute attention", _missing(place))
    return _change(*matches[matmul], place.torch, heads=params.heads)


def _is_fused(place: Place, script: Script, function: cst.FunctionDef) -> bool:
    """Whether a function calls the fused attention, where the recording does not show that the call was skipped."""
    if _NAME not in script.code(function):
        return False
    calls = [c for c in script.all(cst.Call, within=function) if _NAME in script.code(c.func)]
    skipped = [c for c in calls if place.program.executed.skipped(script, c) is not None]
    return not calls or len(skipped) < len(calls)


def _missing(place: Place) -> str:
    missing = "no unfused attention (matmul, softmax, matmul) was found"
    calls = [(s, c) for s in place.scripts for c in s.all(cst.Call) if _NAME in s.code(c.func)]
    if not calls:
        return missing
    script, call = calls[0]
    branch = script.nearest(call, cst.If, cst.Else, cst.FunctionDef)
    test = script.parent(branch) if isinstance(branch, cst.Else) else branch
    where = f"{script.name}:{script.line(call)} calls {_NAME}"
    if isinstance(test, cst.If):
        condition = script.code(test.test)
        return f"{missing}; {where} where {condition} is {'false' if test is not branch else 'true'}"
    return f"{missing}; {where} already"


def _change(script: Script, a: Attention, torch: TorchBounds, *, heads: bool) -> Change:
    name, imports = name_for(script, "torch.nn.functional.scaled_dot_product_attention", a.matmul)
    query, mask, lines = a.query, a.mask, []
    if a.no_key is not None and mask is not None:
        if "no_key" in script.text:
            raise refusal(script, a.matmul, "the script has a name no_key")
        lines.append(f"no_key = {a.no_key}  # such a row weighs all keys alike")
        query, mask = f"{_grouped(query)}.masked_fill(no_key, 0)", f"{_grouped(mask)} | no_key"
    last = script.statement_of(a.matmul)
    assert last is not None
    edits: list[Edit] = []
    drop = list(a.drop)
    if a.condition is not None:
        taken = {n.value for n in script.all(cst.Name, within=script.function_of(a.matmul))}
        variable = next((n for n in ("attn_mask", "bool_mask") if n not in taken), None)
        if variable is None:
            raise refusal(script, a.condition, "the function has names attn_mask and bool_mask")
        lines.append(f"{a.query}, {variable} = {query}, {mask}" if lines else f"{variable} = {mask}")
        edits.append(replace_lines(script, a.condition, a.condition, lines))
        edits.append(replace_lines(script, drop[-1], drop[-1], [f"{variable} = None"]))
        drop = [s for s in drop[:-1] if s is not a.condition]
        query, mask = a.query, variable
    elif lines:
        edits.append(insert_before(script, last, lines[0]))
    key, value = a.key, a.value
    if not heads:
        query, key, value = (_with_heads(each) for each in (query, key, value))
        mask = None if mask is None else _with_heads(mask)
    arguments = [f"attn_mask={mask}"] if mask is not None else []
    if a.dropout is not None:
        arguments.append(f"dropout_p={a.dropout}")
    if a.causal:
        arguments.append("is_causal=True")
    if a.scale is not None and accepts(torch, _SCALE):
        arguments.append(f"scale={a.scale}")
    elif a.scale is not None:  # 2.0 has no `scale`: it always divides by the square root of the last size
        query = f"{query} * ({a.scale} * {query}.size(-1) ** 0.5)".replace("(1.0 * ", "(")
    start, end = _range(script, a.matmul)
    text = f"{name}({', '.join([query, key, value, *arguments])})"
    edits.append(Edit(start, end, text + ".transpose(1, 2)" * a.swapped + ".squeeze(-3)" * (not heads)))
    edits += _removals(script, drop, titled=a.condition is None)
    return Change(script, (*imports, *edits), script.line(a.matmul))


def _grouped(text: str) -> str:
    return text if re.fullmatch(r"~?[\w.]+", text) else f"({text})"


def _with_heads(text: str) -> str:
    return f"{_grouped(text)}.unsqueeze(-3)"


def _removals(script: Script, statements: list[cst.BaseSmallStatement], *, titled: bool) -> Iterator[Edit]:
    """Takes statements out with the comments above them, of the first one only where it is not `titled`, and with the
    empty lines that would stand between nothing."""
    gone: set[int] = set()
    for number, statement in enumerate(reversed(statements)):
        block = script.nearest(statement, cst.IndentedBlock)
        around = script.parent(block) if block is not None and len(block.body) == 1 else None
        first, last = script.lines(around if isinstance(around, cst.If) else statement)
        while (number or not titled) and script.line_text(first - 1).strip().startswith("#"):
            first -= 1
        gone.update(range(first, last + 1))
    for line in sorted(gone):
        after, before = line + 1, line - 1
        while not script.line_text(after).strip():
            after += 1
        while before in gone:
            before -= 1
        above = script.line_text(before).strip()
        if after in gone or not above or above.startswith("#") or above.endswith(":"):
            gone.update(range(line + 1, after))
    for line in gone:
        yield Edit(script.line_starts[line - 1], script.line_starts[line], "")


def _range(script: Script, matmul: cst.BaseExpression) -> tuple[int, int]:
    """Where the product stands, with the parentheses around it: a call needs none."""
    start, end = script.outer_span(matmul)
    behind_word = start > 0 and (script.text[start - 1].isalnum() or script.text[start - 1] == "_")
    return script.span(matmul) if behind_word or len(matmul.lpar) != 1 else (start, end)
