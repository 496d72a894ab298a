"""The host time that graph breaks cost: from the end of compiled code to the start of the piece behind the break."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise, repeat

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.compile.compile_regions import CALLS, Region, Regions
from trace_doctor.evidence.intervals import complement, overlaps, pairs, union
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.run import HOST_CATS, Cat, Run

DYNAMO = ("TorchDynamo Cache Lookup", "Pregraph bytecode", "AOTDispatcher ", "Torch-Compiled Region")
_EVER = 1 << 62


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

    def gaps(self, pieces: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
        """Before each of these regions (ascending): (thread, start, end) ns."""
        gaps: list[tuple[int, int, int]] = []
        for thread, some in groupby(pieces, key=lambda p: self._regions.all[p].thread):
            spans = [(self._behind_compiled(p), self._regions.all[p].start) for p in some]
            free, _, _ = overlaps(np.array(spans, dtype=np.int64), self._free[thread])
            gaps += zip(repeat(thread), free[:, 0].tolist(), free[:, 1].tolist(), strict=False)
        return tuple(gaps)

    def _behind_compiled(self, piece: int) -> int:
        """When the compiled code before this piece ended; else what else ran since the piece before it."""
        region, sibling = self._regions.all[piece], self._sibling.get(piece)
        outer = self._regions.all[region.parent]
        earliest = outer.start if sibling is None else sibling.end
        if calls := self._calls.ends(outer.row, earliest, region.start):
            return min(max(calls), region.start)
        ends = self._rest.ends(outer.row, earliest, region.start)
        return max((end for end in ends if end <= region.start), default=earliest)


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
