"""The host time that graph breaks cost: from the end of compiled code to the start of the piece behind the break, and what
Python does around the graph of that piece, forward and backward."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise, repeat
from typing import NamedTuple

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.compile.compile_regions import CALLS, Region, Regions
from trace_doctor.evidence.intervals import complement, intersect, overlaps, pairs, union
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.run import HOST_CATS, Cat, Run

DYNAMO = ("TorchDynamo Cache Lookup", "Pregraph bytecode", "AOTDispatcher ", "Torch-Compiled Region")
_WRAPPERS = ("CompiledFunction", "CompiledFunctionBackward")
_EVER = 1 << 62


class _Call(NamedTuple):
    start: int
    end: int
    thread: int


class Between:
    """The host time that a break costs: from the end of the compiled code before it to the start of the next piece."""

    def __init__(self, run: Run, nesting: Nesting, regions: Regions, others: I64) -> None:
        self._regions = regions
        self._sibling = _siblings_before(regions)
        covers = [others]
        if not len(run.gpu):  # without a device, operators are the work itself
            covers.append(run.named(lambda n: not n.startswith(DYNAMO), Cat.CPU_OP))
        rows = np.concatenate(covers)
        self._free = {
            int(t): complement(union(pairs(run.ts[own_rows], run.end[own_rows])), -_EVER, _EVER)
            for t in {r.thread for r in regions.all}
            for own_rows in (rows[run.thread[rows] == t],)
        }
        outers = np.array(
            [r.row for r, c in zip(regions.all, regions.children, strict=True) if c], dtype=np.int64
        )
        outer = [c for c in HOST_CATS if c != Cat.PYTHON]
        self._calls = _DirectlyIn(run, nesting, outers, run.named(_is_call, *outer))
        self._rest = _DirectlyIn(run, nesting, outers, run.named(_is_other, *outer))
        self._around = _AroundGraphs(run, regions, others)

    def gaps(self, pieces: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
        """Before each of these regions (ascending): (thread, start, end) ns."""
        gaps: list[tuple[int, int, int]] = []
        for thread, some in groupby(pieces, key=lambda p: self._regions.all[p].thread):
            spans = [(self._behind_compiled(p), self._regions.all[p].start) for p in some]
            free, _, _ = overlaps(np.array(spans, dtype=np.int64), self._free[thread])
            gaps += zip(repeat(thread), free[:, 0].tolist(), free[:, 1].tolist(), strict=False)
        return tuple(gaps)

    def entering(self, pieces: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
        """What it takes to enter each of these regions and its backward: (thread, start, end) ns, the time before it left out."""
        spans: list[tuple[int, int, int]] = []
        for p in pieces:
            region = self._regions.all[p]
            inner = [(self._behind_compiled(c), self._regions.all[c].end) for c in self._regions.children[p]]
            own = complement(union(np.array(inner, dtype=np.int64).reshape(-1, 2)), region.start, region.end)
            spans += self._around.free(region.thread, own)
            for call in self._around.backward(p):
                spans += self._around.free(call.thread, np.array([(call.start, call.end)], dtype=np.int64))
        return tuple(spans)

    def whole(self, pieces: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
        """These regions and their backward, with all that they run."""
        regions = [_Call(r.start, r.end, r.thread) for r in map(self._regions.all.__getitem__, pieces)]
        backward = [call for p in pieces for call in self._around.backward(p)]
        return tuple((call.thread, call.start, call.end) for call in (*regions, *backward))

    def _behind_compiled(self, piece: int) -> int:
        """When the compiled code before this piece ended; else what else ran since the piece before it."""
        region, sibling = self._regions.all[piece], self._sibling.get(piece)
        outer = self._regions.all[region.parent]
        earliest = outer.start if sibling is None else sibling.end
        if calls := self._calls.ends(outer.row, earliest, region.start):
            return min(max(calls), region.start)
        ends = self._rest.ends(outer.row, earliest, region.start)
        return max((end for end in ends if end <= region.start), default=earliest)


class _AroundGraphs:
    """Host time around compiled graphs, outside of what they run, and the backward of each."""

    def __init__(self, run: Run, regions: Regions, others: I64) -> None:
        self._regions = regions
        work = run.named(lambda n: not n.startswith(DYNAMO) and not _is_wrapper(n), Cat.CPU_OP, Cat.RUNTIME)
        rows = np.concatenate([others, work])
        self._run, self._rows = run, rows
        self._free: dict[int, I64] = {}
        self._forward, self._backward = (_calls(run, name) for name in _WRAPPERS)
        self._roots = sorted((regions.all[i].start, i) for i in regions.roots)

    def free(self, thread: int, spans: I64) -> list[tuple[int, int, int]]:
        """What of these spans (a set) no operator, compilation or wait fills."""
        if thread not in self._free:
            rows = self._rows[self._run.thread[self._rows] == thread]
            busy = union(pairs(self._run.ts[rows], self._run.end[rows]))
            self._free[thread] = complement(busy, -_EVER, _EVER)
        return [(thread, start, end) for start, end in intersect(spans, self._free[thread]).tolist()]

    def backward(self, piece: int) -> list[_Call]:
        """The backward calls of the graphs that a region itself calls: the graphs of a whole call go backward in the other
        order. Empty where some have none, or others lie between."""
        at = piece
        while self._regions.all[at].parent >= 0:
            at = self._regions.all[at].parent
        root, region = self._regions.all[at], self._regions.all[piece]
        after = bisect_right(self._roots, (root.start, at))
        until = self._roots[after][0] if after < len(self._roots) else _EVER
        calls = _within(self._forward, root.start, root.end)
        back = _within(self._backward, root.end, until)
        if len(calls) != len(back):
            return []
        inner = [self._regions.all[c] for c in self._regions.children[piece]]
        return [
            behind
            for call, behind in zip(calls, reversed(back), strict=True)
            if region.start <= call.start < region.end
            and not any(r.start <= call.start < r.end for r in inner)
        ]


def _within(calls: Sequence[_Call], start: int, end: int) -> Sequence[_Call]:
    """Those that begin in [start, end)."""
    return calls[bisect_left(calls, (start,)) : bisect_left(calls, (end,))]


def _calls(run: Run, name: str) -> list[_Call]:
    rows = run.named(lambda n: n == name, Cat.CPU_OP)
    columns = zip(run.ts[rows].tolist(), run.end[rows].tolist(), run.thread[rows].tolist(), strict=True)
    return sorted(_Call(*each) for each in columns)


def _is_wrapper(name: str) -> bool:
    return name.removeprefix("autograd::engine::evaluate_function: ") in _WRAPPERS


def _siblings_before(regions: Regions) -> dict[int, Region]:
    """For each region that is not the first in another: of those before it there, the one that ended last."""
    siblings: dict[int, Region] = {}
    for children in regions.children:
        for before, child in pairwise(children):
            siblings[child] = max(
                regions.all[before], siblings.get(before, regions.all[before]), key=lambda r: r.end
            )
    return siblings


def _is_call(name: str) -> bool:
    return name.startswith(CALLS)


def _is_other(name: str) -> bool:
    return not name.startswith((*CALLS, *DYNAMO))


class _DirectlyIn:
    """Chosen events by the event that they lie in, frames of Python between the two left out."""

    def __init__(self, run: Run, nesting: Nesting, outers: I64, rows: I64) -> None:
        chosen = np.zeros(len(run) + 1, dtype=bool)  # one more, so that -1 is in none
        chosen[outers] = True
        above = nesting.parent[rows]
        frames = np.append(run.is_cat(Cat.PYTHON), False)
        while (framed := frames[above]).any():
            above[framed] = nesting.parent[above[framed]]
        inside = np.flatnonzero(chosen[above])
        inside = inside[np.argsort(above[inside], kind="stable")]
        rows, above = rows[inside], above[inside]
        self._begins, self._ends = run.ts[rows].tolist(), run.end[rows].tolist()
        self._first = dict(zip(outers.tolist(), np.searchsorted(above, outers).tolist(), strict=True))
        self._behind = dict(zip(outers.tolist(), np.searchsorted(above, outers + 1).tolist(), strict=True))
        self._reach: dict[int, list[int]] = {}

    def ends(self, row: int, after: int, before: int) -> list[int]:
        """When those in this event ended that end after one moment (ns) and begin before another."""
        first, behind = self._first[row], self._behind[row]
        if row not in self._reach:
            self._reach[row] = list(accumulate(self._ends[first:behind], max))
        near = self._ends[
            first + bisect_right(self._reach[row], after) : bisect_left(self._begins, before, first, behind)
        ]
        return [end for end in near if end > after]
