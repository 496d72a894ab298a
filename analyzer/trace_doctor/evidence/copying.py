"""Calls that copy between host and device: the operator each belongs to, what was made for it just before, who waits."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from msgspec import Struct

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.event_names import (
    is_backward,
    is_copy_call,
    is_launch,
    is_loader,
    is_optimizer,
    is_step,
    is_synchronize,
    is_torch_mark,
)
from trace_doctor.evidence.intervals import covered, intervals, pairs
from trace_doctor.evidence.nesting import Nesting
from trace_doctor.evidence.steps import Steps
from trace_doctor.regex import regex
from trace_doctor.run import I64, Bool, Cat, Run

_MAKERS = regex(
    r"aten::(?:zeros|ones|full|eye|arange|linspace|logspace|rand|randn|randint|randperm|normal|tril_indices|triu_indices)"
)
MOST_ARGS = 2000
"""copies whose arguments are read again from the file"""


class Copying(Struct, frozen=True):
    """Aligned with the calls that were asked about."""

    op: I64
    """the outermost operator around the call, else the call; -1 where the call was not captured"""
    maker: I64
    """the operator just before that made the tensor on the host (`aten::zeros` …), -1 where it came from elsewhere"""
    waits: tuple[tuple[int, ...], ...]
    """calls that hold the host for it: the copy call, and synchronises of the same operator"""


def copying(run: Run, nesting: Nesting, calls: I64, launching: I64) -> Copying:
    """`calls` may be -1. `launching` are the rows of all calls that hand work to a device."""
    tops = _outermost_operators(run, nesting)
    op = np.array([_outermost(nesting, tops, c) for c in calls.tolist()], dtype=np.int64)
    return Copying(
        op=op,
        maker=_makers(run, launching, np.flatnonzero(tops), op),
        waits=tuple(_waits(run, nesting, c) for c in calls.tolist()),
    )


class UnseenCopies(Evidence, frozen=True):
    """Copies in the steady steps of a capture that lost the device's side: the calls are there, what they did is not.

    Raises NotCaptured where the device's work was recorded, or nothing was asked of one.
    """

    call: I64
    copying: Copying
    run: Run

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, steady = facts.run, intervals(facts[Steps].spans("steady"))
        if len(run.gpu):
            raise NotCaptured("the GPU did work")
        launching = run.named(lambda n: is_launch(n) or is_copy_call(n), Cat.RUNTIME, Cat.DRIVER)
        calls = launching[np.isin(run.name[launching], run.name_ids(is_copy_call))]
        calls = calls[covered(pairs(run.ts[calls], run.ts[calls] + 1), steady) > 0]
        if not len(calls):
            raise NotCaptured("no GPU work and no call that copies to a device")
        return cls(calls, copying(run, facts[Nesting], calls, launching), run)


def _outermost_operators(run: Run, nesting: Nesting) -> Bool:
    """Mask of the operators that lie in no other; marks around the loop's parts do not count as operators."""
    marks = run.is_named(
        lambda n: is_step(n) or is_loader(n) or is_optimizer(n) or is_torch_mark(n) or is_backward(n)
    )
    mask = np.zeros(len(run), dtype=bool)
    mask[nesting.outermost(np.flatnonzero(run.is_cat(Cat.CPU_OP) & ~marks))] = True
    return mask


def _outermost(nesting: Nesting, tops: Bool, call: int) -> int:
    return next((a for a in nesting.ancestors(call) if tops[a]), call) if call >= 0 else -1


def _makers(run: Run, launching: I64, tops: I64, op: I64) -> I64:
    """For each copying operator the one just before it on its thread, where that made a tensor of the same shape and
    launched nothing."""
    found = np.full(len(op), -1, dtype=np.int64)
    makes = np.isin(run.name, run.name_ids(lambda n: _MAKERS.fullmatch(n) is not None))
    for thread in np.unique(run.thread[op[op >= 0]]).tolist():
        own = tops[run.thread[tops] == thread]
        launched = run.ts[launching[run.thread[launching] == thread]]
        mine = np.flatnonzero((op >= 0) & (run.thread[op] == thread))
        at = np.searchsorted(own, op[mine])
        first = (at > 0) & (own[np.minimum(at, len(own) - 1)] == op[mine]) if len(own) else at < 0
        before = own[np.maximum(at - 1, 0)] if len(own) else op[mine]
        quiet = np.searchsorted(launched, run.ts[before]) == np.searchsorted(launched, run.end[before])
        chosen = first & makes[before] & quiet
        found[mine[chosen]] = before[chosen]
    pairs_ = [(i, m, o) for i, (m, o) in enumerate(zip(found.tolist(), op.tolist(), strict=True)) if m >= 0]
    if run.recorded.shapes:
        for i, maker, copying in pairs_[:MOST_ARGS]:
            if not _same_shape(run, maker, copying):
                found[i] = -1
    return found


def _same_shape(run: Run, maker: int, copying: int) -> bool:
    """Whether what was filled has the shape of what is copied; yes where the file does not say."""
    behind = int(np.searchsorted(run.ts, run.end[maker]))
    inside = [r for r in range(maker, behind) if run.thread[r] == run.thread[maker]]
    seen = [_first_dims(a) for a in run.args(inside[-4:])]
    filled = next((d for d in reversed(seen) if d), None)
    wanted = _first_dims(run.args([copying])[0])
    return filled is None or wanted is None or filled == wanted


def _first_dims(args: dict[str, Any]) -> list[Any] | None:
    dims = args.get("Input Dims")
    return dims[0] if isinstance(dims, list) and dims and isinstance(dims[0], list) and dims[0] else None


def _waits(run: Run, nesting: Nesting, call: int) -> tuple[int, ...]:
    """The copy call and the synchronises beside it in the operator that copies."""
    if call < 0:
        return ()
    parent = int(nesting.parent[call])
    if parent < 0 or run.cat[parent] != Cat.CPU_OP:
        return (call,)
    return (
        call,
        *(int(r) for r in nesting.children(parent) if r > call and is_synchronize(run.text(int(r)))),
    )
