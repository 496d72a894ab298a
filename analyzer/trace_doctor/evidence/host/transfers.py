"""Calls that copy between host and device: the operator each belongs to, what was made for it just before, who waits."""

from __future__ import annotations

import re
from math import prod
from typing import Any, Self

import numpy as np

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.names.event_arguments import shapes
from trace_doctor.evidence.names.event_names import (
    is_backward,
    is_copy_call,
    is_launch,
    is_loader,
    is_optimizer,
    is_step,
    is_synchronize,
    is_torch_mark,
    is_view,
)
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat, Run

_MAKERS = re.compile(
    r"aten::(?:(?:zeros|ones|full|rand|randn|randint)(?:_like)?|new_(?:zeros|ones|full)|eye|arange|linspace|logspace|randperm|normal"
    r"|tril_indices|triu_indices|(?:normal|uniform|random|bernoulli|exponential|fill|zero)_)"
)
_IN_BETWEEN = re.compile(
    r"aten::(?:to|contiguous|reshape|flatten|tril_?|triu_?|pin_memory|is_pinned|logical_not|bitwise_not)"
)
"""beside views: what is done to a tensor between making and copying it, which keeps its size"""
_WITH_NUMBERS = re.compile(r"aten::(?:mul|add|sub|rsub|div|pow|neg|clamp\w*|round|floor)_?")
"""the same, where shapes show that no other tensor takes part"""
_OTHER_SIZE = re.compile(r"aten::(?:slice|select|narrow|expand|expand_as)")
MOST_BETWEEN = 4
"""operators between the one that makes a tensor and the one that copies it"""
MOST_ARGS = 2000
"""copies whose arguments are read again from the file"""


class Copies(Evidence, frozen=True):
    """Aligned columns, one entry for each copy."""

    row: I64
    """the copy on the device, -1 where that side was lost"""
    call: I64
    """the call that made it, -1 where it was not captured"""
    op: I64
    """the outermost operator around the call, else the call; -1 without a call"""
    maker: I64
    """the operator before it that made the tensor on the host (`aten::zeros` …), -1 where it came from elsewhere"""
    waits: tuple[tuple[int, ...], ...]
    """calls that hold the host for it: the copy call, and synchronises of the same operator"""
    run: Run


class UnseenCopies(Copies, frozen=True):
    """Copies in the steady steps of a capture that lost the device's side: the calls are there, what they did is not.

    Raises NotCaptured where the device's work was recorded, or nothing was asked of one.
    """

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, steps = facts.run, facts[Steps]
        if len(run.gpu):
            raise NotCaptured("the GPU did work")
        launching = run.named(lambda n: is_launch(n) or is_copy_call(n), Cat.RUNTIME, Cat.DRIVER)
        calls = launching[np.isin(run.name[launching], run.name_ids(is_copy_call))]
        calls = calls[steps.is_steady(run.ts[calls])]
        if not len(calls):
            raise NotCaptured("no GPU work and no call that copies to a device")
        op, maker, waiting = copying(run, facts[Nesting], calls, launching)
        return cls(row=np.full(len(calls), -1), call=calls, op=op, maker=maker, waits=waiting, run=run)


def copying(
    run: Run, nesting: Nesting, calls: I64, launching: I64
) -> tuple[I64, I64, tuple[tuple[int, ...], ...]]:
    """The columns `op`, `maker` and `waits` of `Copies` for these calls, which may be -1. `launching` are the rows of all
    calls that hand work to a device."""
    tops = _outermost_operators(run, nesting)
    op = np.array([_outermost(nesting, tops, c) for c in calls.tolist()], dtype=np.int64)
    makers = _makers(run, launching, np.flatnonzero(tops), op)
    return op, makers, tuple(waits(run, nesting, c) for c in calls.tolist())


def _outermost_operators(run: Run, nesting: Nesting) -> Bool:
    """Mask of the operators that lie in no other; marks around the loop's parts do not count as operators."""
    marks = run.is_named(is_step, is_loader, is_optimizer, is_torch_mark, is_backward)
    mask = np.zeros(len(run), dtype=bool)
    mask[nesting.outermost(np.flatnonzero(run.is_cat(Cat.CPU_OP) & ~marks))] = True
    return mask


def _outermost(nesting: Nesting, tops: Bool, call: int) -> int:
    return next((a for a in nesting.ancestors(call) if tops[a]), call)


def _makers(run: Run, launching: I64, tops: I64, op: I64) -> I64:
    """For each copying operator the one before it on its thread that made a tensor of the same size and launched nothing."""
    makers = np.full(len(op), -1, dtype=np.int64)
    for thread in np.unique(run.thread[op[op >= 0]]).tolist():
        own = tops[run.thread[tops] == thread]
        launched = run.ts[launching[run.thread[launching] == thread]]
        own_operators = np.flatnonzero((op >= 0) & (run.thread[op] == thread))
        makers[own_operators] = _before(run, own, op[own_operators], launched)
    pairs_ = [(i, m, o) for i, (m, o) in enumerate(zip(makers.tolist(), op.tolist(), strict=True)) if m >= 0]
    if run.recorded.shapes:
        for i, maker, copying in pairs_[:MOST_ARGS]:
            if not _same_tensor(run, tops, maker, copying):
                makers[i] = -1
    return makers


def _before(run: Run, own: I64, op: I64, launched: I64) -> I64:
    """The operator that made what each of these copies, among those of its thread: just before it, but for views and the
    like. -1 where there is none, or it launched something (at a time in `launched`)."""
    makers = np.full(len(op), -1, dtype=np.int64)
    if not len(own):
        return makers
    makes = np.isin(run.name, run.name_ids(lambda n: _MAKERS.fullmatch(n) is not None))
    between = (_IN_BETWEEN, _WITH_NUMBERS) if run.recorded.shapes else (_IN_BETWEEN,)
    passes = np.isin(run.name, run.name_ids(lambda n: is_view(n) or any(p.fullmatch(n) for p in between)))
    at = np.searchsorted(own, op)
    searching = own[np.minimum(at, len(own) - 1)] == op
    for back in range(1, MOST_BETWEEN + 2):
        before = own[np.maximum(at - back, 0)]
        quiet = np.searchsorted(launched, run.ts[before]) == np.searchsorted(launched, run.end[before])
        searching &= (at >= back) & quiet
        hits = searching & makes[before]
        makers[hits] = before[hits]
        searching &= ~hits & passes[before]
    return makers


def _same_tensor(run: Run, tops: I64, maker: int, copying: int) -> bool:
    """Whether what was filled can be what is copied, by its size; yes where the file does not say."""
    behind = int(np.searchsorted(run.ts, run.end[maker]))
    inside = [r for r in range(maker, behind) if run.thread[r] == run.thread[maker]]
    filled_shapes = [_first_dims(a) for a in run.args(inside[-4:])]
    filled = next((d for d in reversed(filled_shapes) if d), None)
    copied_shape = _first_dims(run.args([copying])[0])
    if filled is None or copied_shape is None:
        return True
    first, behind = np.searchsorted(tops, [maker + 1, copying])
    between = tops[first:behind]
    between = between[run.thread[between] == run.thread[maker]]
    computing = [row for row in between.tolist() if _WITH_NUMBERS.fullmatch(run.text(row))]
    if any(_tensors(args) != 1 for args in run.args(computing)):
        return False
    cut = any(_OTHER_SIZE.fullmatch(run.text(int(row))) for row in between)
    return cut or prod(filled) == prod(copied_shape)


def _tensors(args: dict[str, Any]) -> int:
    """How many tensors an operator is given."""
    return sum(map(bool, shapes(args)))


def _first_dims(args: dict[str, Any]) -> tuple[int, ...] | None:
    """The shape of its first argument, where that is a tensor."""
    first = next(iter(shapes(args)), ())
    return first if first and isinstance(first[0], int) else None


def waits(run: Run, nesting: Nesting, call: int) -> tuple[int, ...]:
    """The copy call and the synchronises behind it in the operator that copies; empty where no call is known."""
    if call < 0:
        return ()
    operator = [a for a in nesting.ancestors(call)[:1] if run.cat[a] == Cat.CPU_OP]
    behind = [r for a in operator for r in nesting.children(a).tolist() if r > call]
    return (call, *(r for r in behind if is_synchronize(run.text(r))))
