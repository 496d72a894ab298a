"""Pieces of a trace that were recorded apart: between them the profiler did not run, which is no idle time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.intervals import covered, pairs, union
from trace_doctor.run import Cat, Run

Span = tuple[int, int]

EVER: Span = (-(1 << 62), 1 << 62)
"""the whole trace"""
LONG_NS = 1_000_000_000
"""Nothing at all for longer may be no pause of the program. Profilers end one mark of a step where they begin the next (of 86
captures at most 0.2 ms apart)."""
FAR = 10
"""So many times as long as any other hole is far longer: pauses of a program are like each other."""
_SHORT_NS = 1_000_000
"""A profiler starts and stops in no less; of a trace with a step cut out a whole step is missing, which may be shorter."""


def pieces(run: Run, marks: I64, numbers: Sequence[int | None]) -> list[Span]:
    """The stretches of time [start, end), ns, that were recorded apart, in order; they reach to the ends of time. `marks`:
    rows of the steps, one after the other, `numbers`: theirs.

    Between two of them lies no event of any kind, and something says that this is not the program's: numbers of steps that
    do not follow each other, with room for a step between them; `Trace` events that end before and begin after it; or, in
    a file without such events, that it is longer than `LONG_NS`, than all that was recorded, and far longer than any other.
    A pause inside a step lies in its mark, and one of a profiler that ran in its `Trace` event: these stay idle time.
    """
    spans = np.flatnonzero(run.is_cat(Cat.SPAN))
    step = int(np.median(run.dur[marks])) if len(marks) else _SHORT_NS
    holes = _holes(run, min(max(step, 1), _SHORT_NS))
    if not len(holes):
        return [EVER]
    apart = _jumps(holes, _between(run, holes, marks), numbers, step)
    if len(spans):
        apart |= _between_recordings(run, holes, spans)
    else:
        apart |= _longer_than_all(run, holes, marks)
    borders = [EVER[0], *holes[apart].ravel().tolist(), EVER[1]]
    return list(zip(borders[::2], borders[1::2], strict=True))


def _holes(run: Run, least: int) -> I64:
    """Where no event is, but for those that stretch over everything."""
    other = run.cat != Cat.SPAN
    reach, begins = np.maximum.accumulate(run.end[other])[:-1], run.ts[other][1:]
    long_enough = begins - reach >= least
    return pairs(reach[long_enough], begins[long_enough])


def _jumps(holes: I64, between: tuple[I64, Bool], numbers: Sequence[int | None], step: int) -> Bool:
    """Holes between two steps that do not follow each other, in which there is room for one, however short."""
    before, among = between
    if not among.any():
        return among
    follows = np.array([a is None or b is None or b == a + 1 for a, b in pairwise(numbers)])
    jump = np.zeros(len(holes), dtype=bool)
    jump[among] = ~follows[before[among]]
    return jump & (holes[:, 1] - holes[:, 0] >= step)


def _longer_than_all(run: Run, holes: I64, marks: I64) -> Bool:
    """One hole, or one for each two steps at the most: a program may pause before each of its steps."""
    lengths = holes[:, 1] - holes[:, 0]
    recorded = int(run.end.max() - run.ts[0] - lengths.sum())
    long = lengths > max(LONG_NS, recorded)
    if 2 * np.count_nonzero(long) > max(len(marks), 2):
        return np.zeros(len(holes), dtype=bool)
    far = lengths > FAR * lengths[~long].max(initial=0)
    return np.asarray(long & far & (_between(run, holes, marks)[1] if len(marks) else True))


def _between(run: Run, holes: I64, marks: I64) -> tuple[I64, Bool]:
    """For each hole the mark that begins before it, and whether another one begins after it."""
    before = np.searchsorted(run.ts[marks], holes[:, 0], side="right") - 1
    return before, np.asarray((before >= 0) & (before + 1 < len(marks)))


def _between_recordings(run: Run, holes: I64, spans: I64) -> Bool:
    """Holes with time between two recordings: these reach a little further than their events."""
    recorded = union(pairs(run.ts[spans], run.end[spans]))
    return np.asarray(covered(holes, pairs(recorded[:-1, 1], recorded[1:, 0])) >= _SHORT_NS)
