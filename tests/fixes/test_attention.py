"""Attention that is written out, one operation of it at a time: the call that computes the same, or why there is none."""

from __future__ import annotations

import re

import pytest

from trace_doctor.fixes.codemods import codemods
from trace_doctor.fixes.resolved import new_bytes
from trace_doctor.program.edits import NoEdit
from trace_doctor.program.place import Place
from trace_doctor.program.script import Script
from trace_doctor.program.versions import TorchBounds, parse

HEAD = """import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, n, given=None):
        self.size = n // 2
        self.root = given or self.size ** -0.5
        self.other_root = (n // 2) ** 0.5
        self.given = given
        self.temperature = nn.Parameter(torch.ones(n, 1, 1))
        self.drop = nn.Dropout(0.1)
        self.register_parameter("other", torch.tril(torch.ones(n, n)))
        self.register_buffer("empty")
        self.register_buffer("tri", torch.tril(torch.ones(n, n)))
        self.register_buffer("wide", torch.tril(torch.ones(n, 2)))

    def again(self, sizes):
        return [Attention(size) for size in sizes]

    def forward(self, q, k, v, mask, n: float, d):
"""
NONE = "no unfused attention"
UNKNOWN = "is no known form of attention scores"
ELSEWHERE = "is read elsewhere"


def fused(*lines: str) -> str:
    """The arguments of the fused call beside q, k and v (`scale=1.0` where there is none), or the reason of a refusal."""
    script = Script((HEAD + "".join(f"        {line}\n" for line in lines)).encode(), "train.py")
    mod, version = codemods()["use-sdpa"], parse("2.6")
    try:
        change = mod.run(Place([script], torch=TorchBounds(version, version)), mod.parameters({}))
    except NoEdit as refused:
        return refused.why
    after = new_bytes(script, change.edits).decode()
    compile(after, "train.py", "exec")
    found = re.search(r"scaled_dot_product_attention\((.*?)\)\n", after, re.DOTALL)
    assert found
    return " ".join(found[1].split()).rstrip(",").removeprefix("q, k, v").removeprefix(", ")


def chain(
    *operations: str,
    scores: str = "q @ k.transpose(-2, -1)",
    softmax: str = "att.softmax(-1)",
    out: str = "att @ v",
) -> str:
    return fused(f"att = {scores}", *operations, f"att = {softmax}", f"return {out}")


# ---------------------------------------------------------------------- masks


@pytest.mark.parametrize(
    "fill",
    ['float("-inf")', 'float("-Infinity")', '-float("inf")', "-math.inf", "-torch.inf", "-np.inf"],
)
def test_minus_infinity_masks(fill: str) -> None:
    assert chain(f"att = att.masked_fill(mask, {fill})") == "attn_mask=~mask, scale=1.0"


@pytest.mark.parametrize(
    "fill",
    [
        "+math.inf", "math.inf", "~math.inf", 'float("inf")', "-100", '-float("nan")', "float(n)", 'fill("-inf")',
        '-fill("inf")', '-float("inf", 2)', "torch.finfo(att.dtype).max", "torch.iinfo(n).min", "low", 'float("low")',
    ],
)  # fmt: skip
def test_other_numbers_do_not_mask(fill: str) -> None:
    assert "not so low" in chain(f"att = att.masked_fill(mask, {fill})")


@pytest.mark.parametrize(
    "fill",
    [
        "-1e9", "-1e4", 'float("-1e20")', "-65504.0", "torch.finfo(att.dtype).min", "-torch.finfo(att.dtype).max", "low",
    ],
)  # fmt: skip
def test_large_negative_numbers_mask_all_but_rows_without_a_key(fill: str) -> None:
    says = chain("low = -1e9", f"att = att.masked_fill(mask, {fill})")
    assert says == "q.masked_fill(no_key, 0), k, v, attn_mask=~mask | no_key, scale=1.0"
    assert chain(f"att = att.masked_fill(torch.ones(n, n).triu(1), {fill})".replace("low", "-1e9")) == (
        "is_causal=True, scale=1.0"
    )


@pytest.mark.parametrize(
    ("masked", "kept"),
    [
        ("mask == 0", "mask != 0"),
        ("mask == False", "mask != 0"),
        ("mask == 1", "~(mask == 1)"),
        ("mask != 0", "~(mask != 0)"),
        ("n == mask == 0", "~(n == mask == 0)"),
        ("~mask", "mask"),
        ("-mask", "~(-mask)"),
        ("mask.logical_not()", "mask"),
        ("mask.isnan()", "~mask.isnan()"),
        ("logical_not(mask)", "~logical_not(mask)"),
        ("mask[0]", "~mask[0]"),
        ("mask & n", "~(mask & n)"),
    ],
)
def test_what_is_filled_is_turned_into_what_is_kept(masked: str, kept: str) -> None:
    assert chain(f"att = att.masked_fill({masked}, -math.inf)") == f"attn_mask={kept}, scale=1.0"


def filled(mask: str) -> str:
    return fused(
        "tri = torch.tril(torch.ones(n, n))",
        "ones = torch.ones(n, n)",
        "first, second = torch.tril(torch.ones(n, n))",
        "several = torch.tril(torch.ones(n, n))",
        "several = torch.ones(n)",
        "for each in torch.tril(torch.ones(n, n)): pass",
        "att = q @ k.transpose(-2, -1)",
        f"att = att.masked_fill({mask}, -math.inf)",
        "return att.softmax(-1) @ v",
    )


@pytest.mark.parametrize(
    "mask",
    [
        "torch.tril(torch.ones(n, n)) == 0", "torch.ones(n, n).tril() == 0", "torch.tril(ones) == 0", "tri == 0",
        "torch.tril(torch.ones((n, n)), diagonal=0) == 0", "~torch.ones([n, n]).tril().bool()",
        "torch.triu(torch.ones(n, n), 1)", "torch.ones(n, n).triu(diagonal=1).bool()", "tri[None, None] == 0",
        "tri[:, :, :n, :n] == 0", "tri[..., :n, :n] == 0", "self.tri == 0", "self.tri[:n, :n] == 0",
    ],
)  # fmt: skip
def test_a_square_triangle_is_causal(mask: str) -> None:
    assert filled(mask) == "is_causal=True, scale=1.0"


@pytest.mark.parametrize(
    "mask",
    [
        "torch.tril(torch.ones(n, d))", "torch.tril(torch.ones(n, n), 1)", "torch.tril(torch.zeros(n, n))",
        "torch.triu(torch.ones(n, n), 1)", "torch.tril(torch.ones(n))", "torch.tril(torch.ones(n, n, n))",
        "torch.tril(torch.ones())", "torch.tril(torch.ones(*q.shape))", "torch.tril()", "tril(n)", "tri.sum()",
        "tri[0]", "tri[:n]", "tri[:n, :d]", "tri[1:n, :n]", "tri[:n:2, :n]", "tri[:n, :]", "tri[:, :n]", "tri[:, :]",
        "tri[0, :n, :n]", "tri[1:, :n, :n]", "tri[:1, :n, :n]", "mask.view(n)[None]", "self.wide", "self.other",
        "self.empty", "each", "first", "several",
    ],
)  # fmt: skip
def test_other_masks_stay_masks(mask: str) -> None:
    assert filled(f"{mask} == 0") == f"attn_mask={mask} != 0, scale=1.0"


@pytest.mark.parametrize(
    "mask",
    [
        "torch.triu(torch.ones(n, n))",
        "torch.tril(torch.ones(n, n))",
        "nn.Transformer.generate_square_subsequent_mask(n)",
    ],
)
def test_triangles_that_keep_the_other_side_are_not_causal(mask: str) -> None:
    assert filled(mask) == f"attn_mask=~{mask}, scale=1.0"


@pytest.mark.parametrize(
    ("mask", "causal"),
    [
        ('torch.triu(torch.full((n, n), float("-inf")), 1)', True),
        ('torch.triu(torch.full((n, n), float("-inf")), diagonal=1)', True),
        ("nn.Transformer.generate_square_subsequent_mask(n)", True),
        ("torch.triu(torch.full((n, n), 0.0), 1)", False),
        ('torch.triu(torch.full((n, d), float("-inf")), 1)', False),
        ("torch.triu(torch.full((n, n)), 1)", False),
        ("torch.triu(torch.ones(n, n), 1)", False),
        ('torch.triu(torch.full((n, n), float("-inf")))', False),
        ('torch.tril(torch.full((n, n), float("-inf")))', False),
        ("self.generate(n)", False),
        ("mask", False),
    ],
)
def test_a_mask_that_is_added(mask: str, causal: bool) -> None:
    says = "is_causal=True" if causal else f"attn_mask={mask}"
    assert chain(f"att = att + {mask}") == f"{says}, scale=1.0"


# ---------------------------------------------------------------------- the scale


def scaled(by: str, *before: str) -> str:
    return fused(*before, "att = q @ k.mT", f"att = att {by}", "return att.softmax(-1) @ v")


@pytest.mark.parametrize(
    "by",
    [
        "/ math.sqrt(q.size(-1))", "/ q.shape[-1] ** 0.5", "* q.size(-1) ** -0.5", "* (1 / math.sqrt(k.size(-1)))",
        "* (1.0 / k.size(-1) ** 0.5)", "/ torch.sqrt(torch.tensor(q.size(-1)))", "/ np.sqrt(q.size(-1))",
        "/ math.sqrt(size)", "/ root",
    ],
)  # fmt: skip
def test_the_scale_that_is_the_default(by: str) -> None:
    assert scaled(by, "size = q.size(-1)", "root = math.sqrt(size)") == ""


@pytest.mark.parametrize(
    ("by", "scale"),
    [
        ("* 0.5", "0.5"),
        ("* (1 - math.sqrt(q.size(-1)))", "1 - math.sqrt(q.size(-1))"),
        ("* (2 / math.sqrt(q.size(-1)))", "2 / math.sqrt(q.size(-1))"),
        ("* math.sqrt(q.size(-1))", "math.sqrt(q.size(-1))"),
        ("* (1 / n)", "1 / n"),
        ("/ (n + 1)", "1 / (n + 1)"),
        ("/ q.size(-1) ** -0.5", "1 / (q.size(-1) ** -0.5)"),
        ("/ q.size(-1) ** 2", "1 / (q.size(-1) ** 2)"),
        *((f"/ {x}", f"1 / {x}") for x in (
            "n", "2.0", "self.size", "q.size(n)", "math.sqrt(v.size(-1))", "math.sqrt(q.size(1))", "math.sqrt()",
            "math.cbrt(q.size(-1))", "self.root", "self.other_root",
        )),
    ],
)  # fmt: skip
def test_another_scale_is_passed(by: str, scale: str) -> None:
    assert scaled(by) == f"scale={scale}"


@pytest.mark.parametrize(
    "by",
    [
        "* self.temperature", "* self.temperature.exp()", "* d", "/ self.unknown", "/ torch.sqrt(torch.tensor())",
        "* (d * 2)", "/ torch.sqrt(as_tensor(q.size(-1)))", "* self.given",
    ],
)  # fmt: skip
def test_a_scale_that_may_be_a_tensor_is_refused(by: str) -> None:
    """The fused call raises a TypeError for a parameter of the model."""
    assert "may be a tensor" in scaled(by)


@pytest.mark.parametrize(
    ("shape", "is_last"),
    [
        ("q.view(B, T, H, d)", True),
        ("q.view(B, T, H, d).transpose(1, 2)", True),
        ("q.reshape((B, T, H, d)).swapaxes(1, 2)", True),
        ("q.view(B, T, H, d).permute(0, 2, 1, 3)", True),
        ("q.view(B, T, H, d).permute(0, 2, 1, -1)", True),
        ("q.view(B, T, H, d).transpose(1, 2).contiguous().to(n)", True),
        ("q.view(3, B, T, H, d)[0]", True),
        ("q.view(B, T, H, d).unbind(1)", True),
        *((shape, False) for shape in (
            "q.view(B, T, H, d).transpose(1, 3)", "q.view(B, T, H, d).transpose(1, -1)", "q.view(T, d)", "q.view(d)",
            "q.view(B, T, H, d).permute(0, 3, 1, 2)", "q.view(B, T, H, d).permute()", "q.view()", "q.view(B, T, d, H)",
            "q.view(size=(B, T, H, d))", "q.view(*n, d)", "q.flip(1)", "q.view(B, T, H, d).flip(1)", "[q][0]",
            "q.view(3, B, T, H, d)[0:1]", "q.view(3, B, T, H, d)[0, 1]", "q.view(T, H, d)[0][0]", "view(B, T, H, d)",
            "q.view(B, T, H, d).unbind(3)", "q.view(B, T, d).unbind(1)",
        )),
    ],
)  # fmt: skip
def test_a_size_is_that_of_a_head_where_the_shape_proves_it(shape: str, is_last: bool) -> None:
    assert scaled("/ math.sqrt(d)", f"q = {shape}") == ("" if is_last else "scale=1 / math.sqrt(d)")


@pytest.mark.parametrize(
    ("parts", "is_last"),
    [
        ("q, k, v = q.view(B, T, 3, H, d).unbind(2)", True),
        ("q, k, v = q.view(3, B, T, H, d)", True),
        ("q, k, v = q.view(3, T, d)", False),
        ("q, k, v = q.view(3, B, T, H, d).unbind(4)", False),
        ("for q in q.view(3, B, T, H, d): pass", False),
        ("q, k, v = unbind(q)", False),
    ],
)
def test_parts_of_one_projection(parts: str, is_last: bool) -> None:
    assert scaled("/ math.sqrt(d)", parts) == ("" if is_last else "scale=1 / math.sqrt(d)")


@pytest.mark.parametrize(
    ("sizes", "same"),
    [
        (("size = self.n // self.heads", "other = self.n // self.heads"), True),
        (("size = other = n // 2",), True),
        (("size = n // 2", "other = n // 3"), False),
    ],
)
def test_two_names_of_a_size(sizes: tuple[str, ...], same: bool) -> None:
    says = scaled("/ math.sqrt(size)", *sizes, "q = q.view(1, 2, 3, other)")
    assert says == ("" if same else "scale=1 / math.sqrt(size)")


# ---------------------------------------------------------------------- products


@pytest.mark.parametrize(
    "scores",
    [
        "torch.matmul(q, k.transpose(-1, -2))", "q @ k.transpose(2, 3)", "q.matmul(k.mT)", "q @ k.permute(0, 1, 3, 2)",
        "q @ k.swapaxes(-1, -2)", 'torch.einsum("bhid,bhjd->bhij", q, k)', "q @ torch.transpose(k, -2, -1)",
        'torch.einsum("b h i d, b h j d -> b h i j", [q, k])',
    ],
)  # fmt: skip
def test_a_product_of_query_and_key(scores: str) -> None:
    assert chain(scores=scores) == "scale=1.0"


@pytest.mark.parametrize(
    "scores",
    [
        "torch.matmul(q, k)", "q @ k", "q @ k.T", "q + k.mT", "torch.matmul(q, k.mT, out=n)", "torch.matmul(*n)",
        "torch.bmm(q, k.mT, n)", "torch.dot(q, k.mT)", "q.dot(k.mT)", "q.matmul(k.mT, n)", "q @ k.transpose(1, 2)",
        "q @ torch.transpose(k, -2)", "q @ k.flip(-1, -2)", "q @ turned(k, -2, -1)", "q @ torch.flip(k, -2, -1)",
        "torch.einsum(n, q, k)", 'torch.einsum("id,jd->ij", q, k)', 'torch.einsum("bhid,bhjd->bhji", q, k)',
        'torch.einsum("bhid,bhdj->bhij", q, k)', 'torch.einsum("bbid,bbjd->bbij", q, k)',
        'torch.einsum("bhid,bhjd,bhd->bhij", q, k, v)', 'torch.einsum("bhid,bhjd->bhij", n)', "torch.bmm(q, k.mT)",
        'torch.einsum("bid,bjd->bij", q, k)', "q @ k.permute(0, 2, 3, 1)",
        'other("bhid,bhjd->bhij", q, k)',
    ],
)  # fmt: skip
def test_no_product_of_query_and_key(scores: str) -> None:
    assert UNKNOWN in chain(scores=scores)


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("att.matmul(v)", "scale=1.0"),
        ('torch.einsum("bhij,bhjd->bhid", att, v)', "scale=1.0"),
        *((out, NONE) for out in (
            'torch.einsum("bhij,bhdj->bhid", att, v)', 'torch.einsum("bhij,bhjd->bhdi", att, v)', "att.bmm(v, n)",
            "torch.einsum(n, att, v)", "torch.matmul(att, v, out=n)", "torch.matmul(*att)", "att * v", "v @ att",
            "torch.mm(att, v)",
        )),
    ],
)  # fmt: skip
def test_the_last_product(out: str, says: str) -> None:
    assert chain(out=out).startswith(says)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("att = q @ k.mT", "att = att.softmax(-1)", "att = att @ v", "return att"), "scale=1.0"),
        (("return (q @ k.mT).softmax(-1) @ v",), "scale=1.0"),
        (("att = (q * n) @ k.mT", "return att.softmax(-1) @ v"), "scale=n"),
        (("att = (q + n) @ k.mT", "return att.softmax(-1) @ v"), "q + n, k, v, scale=1.0"),
        (("att = q * n @ k.mT", "return att.softmax(-1) @ v"), "q * n, k, v, scale=1.0"),
        (("att = (q @ k.mT).softmax(-1)", "out = att @ v", "return out, att"), ELSEWHERE),
        (
            ("att = q @ k.mT", "att = att.softmax(-1).softmax(-1)", "return att @ v"),
            "not exactly one softmax",
        ),
        (("att = q @ k.mT", "return att @ v"), NONE),
        (("att = q @ k.mT", "return att.softmax(-1) @ att"), "scores and operand at once"),
        (("att = q @ k.mT", "def f():", "    return att.softmax(-1) @ v", "return f()"), UNKNOWN),
        (("return torch.stack([n]).softmax(-1) @ v",), UNKNOWN),
    ],
)
def test_how_the_products_belong_together(lines: tuple[str, ...], says: str) -> None:
    assert says == fused(*lines) or (" " in says and says in fused(*lines))


# ---------------------------------------------------------------------- between them


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        ("att.mul(n)", "scale=n"),
        ("att.div(n)", "scale=1 / n"),
        ("n * att", "scale=n"),
        ("att.add(mask)", "attn_mask=mask, scale=1.0"),
        ("mask + att", "attn_mask=mask, scale=1.0"),
        ("torch.where(mask, att, -math.inf)", "attn_mask=mask, scale=1.0"),
        ("torch.where(mask, -math.inf, att)", "not so low"),
        ("torch.softmax(att, -1)", "not exactly one softmax"),
        *((cast, "scale=1.0") for cast in ("att.float()", "att.type_as(q)", "att.to(q.dtype)")),
        *((other, UNKNOWN) for other in (
            "n / att", "att.mul(n, d)", "att.sub(mask)", "att - mask", "torch.where(mask)", "att.masked_fill(mask)",
            "att.to(n)", "att.to(q.dtype, n)", "att.half()", "att.float(n, d)", "build(att)(n)",
        )),
    ],
)  # fmt: skip
def test_an_operation_on_the_scores(operation: str, says: str) -> None:
    assert says in chain(f"att = {operation}")


@pytest.mark.parametrize(
    ("softmax", "says"),
    [
        *((softmax, "scale=1.0") for softmax in (
            "torch.softmax(att, dim=-1)", "F.softmax(att, 3)", "att.softmax(dim=-1)", "F.softmax(att, -1).type_as(q)",
            "F.softmax(att, -1, dtype=torch.float32)", "F.softmax(att.float(), -1).to(q.dtype)",
        )),
        *((softmax, NONE) for softmax in (
            "F.softmax(att, -1, dtype=torch.float64)", "F.softmax(att)", "att.softmax()", "F.softmax(att, 1)",
            "F.log_softmax(att, -1)", "F.softmax(att, -1).to(n)", "F.dropout()", "self.drop(F.softmax(att, -1), n)",
            "self.norm(F.softmax(att, -1))",
        )),
        ("F.softmax(att, -1) * n", "changed between softmax and matmul"),
        ("F.dropout(F.softmax(att, -1))", "dropout_p=0.5, scale=1.0"),
        ("F.dropout(F.softmax(att, -1), 0.2)", "dropout_p=0.2, scale=1.0"),
        ("F.dropout(F.softmax(att, -1), n if d else 0)", "dropout_p=(n if d else 0), scale=1.0"),
        ("F.dropout(F.softmax(att, -1), 0.1, training=True)", "dropout_p=0.1, scale=1.0"),
        ("F.dropout(F.softmax(att, -1), 0.1, n)", "dropout_p=0.1 if n else 0.0, scale=1.0"),
        ("F.dropout(F.dropout(F.softmax(att, -1), 0.1), 0.1)", "two dropouts"),
        ("self.drop(F.softmax(att, -1))", "dropout_p=self.drop.p if self.drop.training else 0.0, scale=1.0"),
    ],
)  # fmt: skip
def test_softmax_and_dropout(softmax: str, says: str) -> None:
    assert says in chain(softmax=softmax)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("att = att * n", "att = att.float()"), "scale=n"),
        (("att = att.float()", "att = att * n"), "in no known form of attention"),
        (("att = att * n", "att = att / d"), "scaled more than once"),
        (("att = att * n", "att = att + mask"), "attn_mask=mask, scale=n"),
        (("att = att + mask", "att = att * n"), "scaled together with the scores"),
        (("att = att.masked_fill(torch.ones(n, n).triu(1), -math.inf)", "att = att + mask"), "two masks"),
        (("att += mask",), "attn_mask=mask, scale=1.0"),
        (("att *= n",), "scale=n"),
        (("att /= n",), "scale=1 / n"),
        (("att -= n",), "in a way that attention does not know"),
        (("att.masked_fill_(mask, -math.inf)",), "attn_mask=~mask, scale=1.0"),
        (("att.add_(mask)",), UNKNOWN),
        (("att.masked_fill(mask, -math.inf)",), ELSEWHERE),
        (("other = att",), ELSEWHERE),
        (("print(n)", '"a text"', "other = n"), "scale=1.0"),
        (("att = other = att + mask",), UNKNOWN),
        (("att, other = att + mask, n",), UNKNOWN),
        (("att = att + mask; other = n",), UNKNOWN),
        (("att = att + att",), "scores and operand at once"),
        *((lines, "scale=1.0") for lines in (
            ("v = self.f(v)",), ("v.add_(n)",), ("other = n; v = n",), ("mask = self.f(mask)", "att = att + mask"),
        )),
        *((lines, "an operand gets another value") for lines in (
            ("q = self.f(q)",), ("k.add_(n)",), ("other = n; q = n",),
            ("att = att + mask", "mask = n"), ("att = att + mask", "mask += n"),
        )),
    ],
)  # fmt: skip
def test_statements_between_the_products(lines: tuple[str, ...], says: str) -> None:
    assert says in chain(*lines)


FILL = "    att = att.masked_fill(mask == 0, -math.inf)"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("if mask is not None:", "    att = att + mask"), "attn_mask=mask, scale=1.0"),
        *(((f"if {test}:", FILL), "attn_mask=attn_mask, scale=1.0") for test in (
            "mask is not None", "exists(mask)", "mask", "self.f(n) is not None", "not self.training",
        )),
        (("if n is not None:", "    att = att + torch.triu(torch.full((n, n), -math.inf), 1)"), "attn_mask=attn_mask"),
        (("if mask is not None:", "    mask = mask[:, None]", FILL), "attn_mask=attn_mask, scale=1.0"),
        (("if mask is not None:", FILL, "else:", "    att = att + n"), UNKNOWN),
        (("if att is not None:", FILL), ELSEWHERE),
        (("if mask is not None:", "    att = att * n"), "under a condition"),
        (("if mask is not None:", "    att = n"), "in a way that attention does not know"),
        (("if mask is not None:", "    att = other + mask"), "in a way that attention does not know"),
        (("if mask is not None: att = att + mask",), UNKNOWN),
        (("while n:", FILL), UNKNOWN),
        (("if mask is not None:", FILL.replace("-math.inf", "-1e9"), "q = self.f(q)"), "the query has no name of its own"),
        (("if mask is not None:", FILL.replace("-math.inf", "-1e9"), "print(q)"), "the query has no name of its own"),
    ],
)  # fmt: skip
def test_a_mask_under_a_condition(lines: tuple[str, ...], says: str) -> None:
    assert says in chain(*lines)
