"""Attention that is computed in pieces: batched product, softmax, batched product, each in kernels of its own. The softmax
may be written out as well, and in a CUDA graph, where no operator is known, grids tell which products are batched.

On a CPU operators take the place of kernels (see `work`)."""

from __future__ import annotations

import re
from math import prod
from typing import Any, Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compute.kernels import grid_of
from trace_doctor.evidence.compute.work import Work
from trace_doctor.evidence.names.kernel_names import is_log_softmax
from trace_doctor.evidence.trace.graph_replays import GraphReplays
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.operator_inputs import Inputs, OperatorInputs, tensor_bytes

MOST_BETWEEN = 12
"""Kernels at most between a product and the softmax: scale, mask, cast, dropout and the copies around them."""
_BATCHED = re.compile(r"aten::(?:bmm|baddbmm_?)")
_PRODUCT = re.compile(
    r"aten::(?:mm|addmm|bmm|baddbmm_?|addbmm|_addmm_activation|mv|addmv|dot|_scaled_mm|\w*conv\w*)"
)
_BATCHED_KERNEL = re.compile(r"triton_(?:tem_fused_\w*)?(?:baddbmm|bmm)")
_BY_HAND = (
    re.compile(r"aten::exp_?|.*(?:::|_)exp(?:_kernel|_(?!and|ect|ert|m1|2)).*"),
    re.compile(r"aten::sum|.*(?:sum_functor|_sum(?:_|$)).*"),
    re.compile(r"aten::(?:div|true_divide)_?|.*(?:DivFunctor|div_true|_div(?:_|$)).*"),
)
"""A softmax that is written out: exponentials over their sum, in any order of the kernels."""
MOST_LOOKED_AT = 2000
"""Pairs of products whose grids are read again from the file: each takes some 20 us."""
_SOFTMAX = re.compile(r"aten::_?(?:safe_|masked_)?softmax(?:_backward_data|_backward)?")


_MODULE = re.compile(r"nn\.Module: (\w+)_\d+")
_LAYER = re.compile(r"Softmax\w*|Dropout\w*|Identity|Linear|\w*Norm\w*")
_OTHER_BLOCK = re.compile(
    r"mlp|moe|ffn|feed_?forward|expert|rout(?:er|ing)|gat(?:e|ing)(?![a-z])", re.IGNORECASE
)
_CALLED_ATTENTION = re.compile(r"att(?:entio)?n", re.IGNORECASE)


class AttentionChains(Evidence, frozen=True):
    """Each softmax between two batched products of its stream. Raises NotCaptured where nothing computes, or no kernel's
    operator is known: then products of batches cannot be told from others.
    """

    softmax: I64
    """places in `kernels.rows` of the softmax kernels, one for each chain"""
    backward: Bool
    """aligned with `softmax`"""
    products: Bool
    """mask over `kernels.rows`: the batched products of the chains"""
    between: Bool
    """mask over `kernels.rows`: what ran between them, the softmax included: all that a fused kernel keeps on the chip"""
    score_bytes: int | None
    """of all score matrices in the forward of a typical step; None where shapes were not recorded"""
    undecided: int
    """softmax kernels in CUDA graphs between products of which neither an operator nor a grid was recorded"""
    kernels: Work

    @classmethod
    def build(cls, facts: Facts) -> Self:
        kernels = facts[Work]
        replays = facts[GraphReplays]
        if not (kernels.operator >= 0).any() and not (kernels.on_gpu and replays.nodes(kernels.rows).any()):
            raise NotCaptured(
                "no kernel's operator is known", "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
            )
        order = np.lexsort((np.arange(len(kernels.rows)), kernels.lane))
        first, last, batched, unknown = _products(kernels, order)
        softmax = np.union1d(
            np.flatnonzero(_is_softmax(kernels)[order]), _by_hand(kernels, order, first, last)
        )
        of_values = _of_values(facts, kernels, order, first, batched & ~unknown, softmax)
        aside = np.zeros(len(order), dtype=bool)
        for begin, end in zip(first[of_values].tolist(), last[of_values].tolist(), strict=True):
            aside[order[begin : end + 1]] = True
        first, last = first[~of_values], last[~of_values]
        batched, unknown = batched[~of_values], unknown[~of_values]
        behind = np.searchsorted(first, softmax)
        by_grid, undecided = _batched_by_grid(kernels, order[first], unknown, behind)
        batched |= by_grid
        apart = _Gaps(first, last, batched, kernels.lane[order])
        close = apart.linked(softmax, softmax, behind - 1, behind)
        # of several softmax kernels between the same products one stands for the chain
        one = np.zeros(len(softmax), dtype=bool)
        one[np.unique(behind, return_index=True)[1]] = True
        softmax, behind = softmax[close & one], behind[close & one]
        own = ~_of_other_blocks(facts, kernels.operator[order[softmax]])
        softmax, behind = softmax[own], behind[own]
        keep = _fitting(facts, kernels, order, softmax, first, behind)
        softmax, behind = softmax[keep], behind[keep]
        backward = _backward(kernels, order[softmax])
        products, between = _extent(order, apart, behind, backward)
        return cls(
            order[softmax],
            backward,
            products,
            between & ~aside,
            _score_bytes(facts, kernels, order[softmax[~backward]]),
            undecided,
            kernels,
        )


def _of_other_blocks(facts: Facts, operators: I64) -> Bool:
    """Which operators lie in a module that is called a feed-forward block, experts or their router, the innermost one that is
    not a layer of torch.nn."""
    nesting = facts[Nesting]
    text = nesting.run.text

    def other(row: int) -> bool:
        above = map(text, nesting.ancestors(row))
        modules = (m.group(1) for m in map(_MODULE.fullmatch, above) if m)
        block = next((m for m in modules if not _LAYER.fullmatch(m)), "")
        return _OTHER_BLOCK.search(block) is not None and _CALLED_ATTENTION.search(block) is None

    return np.array([other(row) for row in operators.tolist()], dtype=bool)


def _backward(kernels: Work, places: I64) -> Bool:
    """Which softmax kernels are of a backward: by their names and those of their operators."""
    run = kernels.run
    names = [run.names[i] for i in run.name[kernels.rows[places]].tolist()]
    operators = kernels.operator[places].tolist()
    texts = [f"{n} {run.text(o) if o >= 0 else ''}".lower() for n, o in zip(names, operators, strict=True)]
    return np.array(["backward" in text for text in texts], dtype=bool)


def _extent(order: I64, apart: _Gaps, behind: I64, backward: Bool) -> tuple[Bool, Bool]:
    """Masks over `kernels.rows`: the products of the chains, and what ran between them. `behind`: of each chain the
    number of the product behind its softmax."""
    products = np.zeros(len(order), dtype=bool)
    between = np.zeros(len(order), dtype=bool)
    for place, back in zip(behind.tolist(), backward.tolist(), strict=True):
        low, high = place - 1, place
        if back:  # each product's gradient is two products
            low -= apart.adjacent(low - 1)
            high += apart.adjacent(high)
        for event in range(low, high + 1):
            products[order[apart.first[event] : apart.last[event] + 1]] = True
        between[order[apart.last[low] + 1 : apart.first[high]]] = True
    return products, between & ~products


def _is_softmax(kernels: Work) -> Bool:
    """Softmax kernels but those of a log-softmax, which belong to a loss."""
    named = kernels.named(
        lambda n: "softmax" in n.lower() and "log_softmax" not in n and not is_log_softmax(n)
    )
    by_operator = kernels.launched_by(lambda n: _SOFTMAX.fullmatch(n) is not None)
    return (named | by_operator) & ~kernels.launched_by(lambda n: "log_softmax" in n or "cross_entropy" in n)


def _by_hand(kernels: Work, order: I64, first: I64, last: I64) -> I64:
    """Places in the order of the streams of exponentials that are divided by their sum before the next product."""
    exponential, total, quotient = (
        (
            kernels.named(lambda n, p=part: p.fullmatch(n) is not None)  # type: ignore[misc]
            | kernels.launched_by(lambda n, p=part: p.fullmatch(n) is not None)  # type: ignore[misc]
        )[order]
        for part in _BY_HAND
    )
    places = np.flatnonzero(exponential)
    behind = np.searchsorted(first, places)
    places, behind = (each[(behind > 0) & (behind < len(first))] for each in (places, behind))

    def between(mask: Bool) -> Bool:
        count = np.concatenate([[0], np.cumsum(mask)])
        return np.asarray(count[first[behind]] > count[last[behind - 1]])

    return np.asarray(places[between(total) & between(quotient)])


def _of_values(facts: Facts, kernels: Work, order: I64, first: I64, batched: Bool, softmax: I64) -> Bool:
    """Which products compute the values (`v = self.value(x)`), or their gradients, between a softmax and a batched product
    of its scores. Many scripts do so there. Only shapes tell such a product from one that uses the scores.
    """
    found = np.zeros(len(first), dtype=bool)
    inputs, places = facts.get(OperatorInputs), np.flatnonzero(batched)
    if inputs is None or not len(places):
        return found
    behind = np.searchsorted(places, np.searchsorted(first, softmax))
    inside = (behind > 0) & (behind < len(places))
    softmax, low, high = softmax[inside], places[behind[inside] - 1], places[behind[inside] % len(places)]
    backward = _backward(kernels, order[softmax])
    few = (high - low > 1) & (high - low - 1 <= 1 + backward)
    for at, start, end, back in list(
        zip(*(part[few].tolist() for part in (softmax, low, high, backward)), strict=True)
    )[:MOST_LOOKED_AT]:
        rows = kernels.operator[order[[at, *first[start : end + 1]]]].tolist()
        if min(rows) >= 0 and _touch_values(*inputs.of(rows), backward=back, equal=not kernels.on_gpu):
            found[start + 1 : end] = True
    return found


def _touch_values(softmax: Inputs, *products: Inputs, backward: bool, equal: bool) -> bool:
    """Whether the products between the first and the last, which are batched, compute values, or gradients of them: as large
    as what the last multiplies with the scores (in a backward the first). `equal`: values have to be as large as queries or
    keys, as the fused operator of a CPU takes no others."""
    scores = _elements(softmax)
    (made, *low), *inner, (_, *high) = map(_sizes, products)
    if scores not in high or not (backward or made == scores):
        return False
    high.remove(scores)
    values = {made, *low} - {scores} if backward else set(high)
    if equal and not values & set(high if backward else low):
        return False
    if backward:
        return all(values & set(each) for each in inner)
    return all(each[0] in values and (each[0] != scores or scores not in each[1:]) for each in inner)


def _sizes(product: Inputs) -> list[int]:
    """Numbers of elements of a product: of its result, and of both operands. The result of a convolution is known where
    its kernel is a single point, else 0."""
    shapes = [shape for shape, _ in product.tensors()]
    if len(shapes) < 2:
        return [0]
    if len(shapes[0]) == 4:  # a convolution: input, weight, bias
        one, other = shapes[:2]
        made = prod(one) // one[1] * other[0] if one[1] and prod(other[2:]) == 1 else 0
    else:  # a bias comes first
        one, other = shapes[-2:]
        made = prod(one[:-1]) * other[-1]
    return [made, prod(one), prod(other)]


def _batched_by_grid(kernels: Work, rows: I64, unknown: Bool, behind: I64) -> tuple[Bool, int]:
    """Which products of unknown operators (a CUDA graph is launched as a whole) are batched: those on both sides of a
    softmax whose grids have the same depth, of 2 or more. And how many of these have no grid."""
    batched = np.zeros(len(rows), dtype=bool)
    behind = np.unique(behind[(behind > 0) & (behind < len(rows))])
    behind = behind[unknown[behind - 1] & unknown[behind]][:MOST_LOOKED_AT]
    neighbours = np.stack([behind - 1, behind], axis=1).ravel()
    depth = [_depth(args) for args in kernels.run.args(kernels.rows[rows[neighbours]].tolist())]
    for place, before, after in zip(behind.tolist(), depth[::2], depth[1::2], strict=True):
        batched[[place - 1, place]] |= before == after > 1
    return batched, sum(
        not before and not after for before, after in zip(depth[::2], depth[1::2], strict=True)
    )


def _depth(args: dict[str, Any]) -> int:
    return next(iter(grid_of(args)[2:]), 0)


def _products(kernels: Work, order: I64) -> tuple[I64, I64, Bool, Bool]:
    """The products in order of their streams: places of the first and last kernel of each, whether it is batched, and
    whether no operator tells.

    Kernels of one operator in a row (a product that is split and summed up) are one product.
    """
    known = kernels.launched_by(lambda n: _PRODUCT.fullmatch(n) is not None)[order]
    batched = kernels.launched_by(lambda n: _BATCHED.fullmatch(n) is not None)[order]
    batched |= kernels.named(lambda n: _BATCHED_KERNEL.match(n) is not None)[order]
    other = kernels.where(lambda c: c.kind in ("gemm", "gemv", "conv", "attention"))[order]
    places = np.flatnonzero(batched | other)
    operators = kernels.operator[order[places]]
    new = np.ones(len(places), dtype=bool)
    is_known = known[places]
    new[1:] = (operators[1:] != operators[:-1]) | (operators[1:] < 0) | ~is_known[1:]
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(places))[: len(starts)] - 1
    return places[starts], places[ends], batched[places[starts]], ~is_known[starts]


class _Gaps(Struct, frozen=True):
    """How far products lie apart."""

    first: I64
    last: I64
    batched: Bool
    stream: I64

    def linked(self, begin: I64, end: I64, before: I64, behind: I64) -> Bool:
        """Whether the stretches [begin, end] have a batched product of their stream close on both sides."""
        if not len(self.first):
            return np.zeros(len(begin), dtype=bool)
        inside = (before >= 0) & (behind < len(self.first))
        before, behind = np.maximum(before, 0), np.minimum(behind, len(self.first) - 1)
        near = (begin - self.last[before] <= MOST_BETWEEN + 1) & (
            self.first[behind] - end <= MOST_BETWEEN + 1
        )
        here = self.stream[begin]
        same = (self.stream[self.last[before]] == here) & (self.stream[self.first[behind]] == here)
        return np.asarray(inside & near & same & self.batched[before] & self.batched[behind])

    def adjacent(self, place: int) -> bool:
        """Whether a product and the one behind it are both batched and close together."""
        return bool(
            0 <= place < len(self.first) - 1
            and self.batched[place]
            and self.batched[place + 1]
            and self.first[place + 1] - self.last[place] <= MOST_BETWEEN + 1
            and self.stream[self.first[place + 1]] == self.stream[self.last[place]]
        )


def _fitting(facts: Facts, kernels: Work, order: I64, softmax: I64, first: I64, behind: I64) -> Bool:
    """Whether the softmax is over what the product behind it multiplies: by the number of elements, where shapes of the
    same softmax in the typical step tell; else it counts as fitting."""
    inputs = facts.get(OperatorInputs)
    keep = np.ones(len(softmax), dtype=bool)
    if inputs is None:
        return keep
    over, into = (
        kernels.operator[order[softmax]].astype(np.int64),
        kernels.operator[order[first[behind]]].astype(np.int64),
    )
    own = inputs.run.is_named(
        lambda n: _SOFTMAX.fullmatch(n) is not None or _BY_HAND[0].fullmatch(n) is not None
    )
    multiplies = inputs.run.is_named(lambda n: _BATCHED.fullmatch(n) is not None)
    known = np.isin(over, inputs.typical(over[over >= 0])) & (into >= 0)
    known &= own[over] & multiplies[into]
    pairs = np.stack([over[known], into[known]], axis=1)
    operands = inputs.of(pairs.ravel().tolist())
    fits = [
        _elements(a) in {prod(s) for s, _ in b.tensors()}
        for a, b in zip(operands[::2], operands[1::2], strict=True)
    ]
    keep[known] = fits
    if len(fits) and not any(fits):  # what does not fit in one step does not in the others
        keep[:] = False
    return keep


def _elements(inputs: Inputs) -> int:
    return max((prod(shape) for shape, _ in inputs.tensors()), default=0)


def _score_bytes(facts: Facts, kernels: Work, softmax: I64) -> int | None:
    """What the softmax of each forward chain of a typical step gives: as large as what it is given."""
    inputs = facts.get(OperatorInputs)
    if inputs is None:
        return None
    operators = np.unique(kernels.operator[softmax])
    rows = inputs.typical(operators[operators >= 0])
    sizes = [
        max((tensor_bytes(*t) for t in operands.tensors()), default=0)
        for operands in inputs.of(rows.tolist())
    ]
    return sum(sizes) or None
