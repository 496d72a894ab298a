"""Whether runs with a fix are faster, or leaner, than runs without it, by more than chance and by more than a least gain.

One figure a run (its median step, its peak): steps of one run share a process and a moment, so runs are what is counted.
The exact one-sided Mann-Whitney test over the runs, and the bound of the ratio that belongs to it (Hodges and Lehmann);
nothing is assumed of how runs are distributed, and one disturbed run moves neither far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import comb
from statistics import median
from typing import Literal

ALPHA = 0.05
"""chance that a fix that gains nothing is kept, for one fix and one quantity"""
LOOKS = (0.03, 0.02)
"""how it is split over the two looks at a trial: after so many pairs of runs as were asked for, and after twice as many"""
LEAST_REPEATS = 4
"""of each side: with three, chance alone separates the sides in one trial of twenty"""
LEAST_GAIN = 0.01
"""of the step or of the peak: a gain of less is not worth a change of the script"""

Verdict = Literal["less", "more", "no_difference"]


@dataclass(frozen=True)
class Comparison:
    """After against before. Ratios are after / before: 0.8 is a fifth less."""

    ratio: float
    """the median of the ratios of all pairs of runs"""
    bound: float
    """the true ratio is below it, with 1 - alpha; infinite where so few runs cannot say so"""
    p: float
    """chance of runs as clear as these, or clearer, if nothing were gained beyond the least gain"""
    verdict: Verdict
    detectable: float
    """share of the figure that the fix would have had to gain, runs scattering as these do, to be told from chance"""


def compare(
    before: Sequence[float], after: Sequence[float], least: float = LEAST_GAIN, alpha: float = ALPHA
) -> Comparison:
    """Positive figures of runs, one each, at least one on a side. `least` is the share that a gain must exceed.

    With `alpha` 0 nothing is called less: the trial is not at one of its looks.
    """
    ratios = sorted(b / a for a in before for b in after)
    rank, contrary = (critical(len(before), len(after), a) for a in (alpha, ALPHA))
    ratio = median(ratios)
    bound = ratios[-1 - rank] if rank >= 0 else float("inf")
    lower = ratios[contrary] if contrary >= 0 else 0.0
    limit = 1 - least
    return Comparison(
        ratio=ratio,
        bound=bound,
        p=chance(sum(r >= limit for r in ratios), len(before), len(after)),
        verdict="less" if bound < limit else "more" if lower > 1 + least else "no_difference",
        detectable=1 - limit * ratio / ratios[-1 - max(rank, 0)],
    )


def against(before: Sequence[float], after: Sequence[float], least: float = LEAST_GAIN) -> int:
    """Pairs of a run with and a run without the change that do not show a gain of more than `least`."""
    return sum(b / a >= 1 - least for a in before for b in after)


def critical(before: int, after: int, alpha: float = ALPHA) -> int:
    """Of the pairs of runs, how many may speak against a gain at most; -1 where so few runs cannot show any."""
    most = -1
    while chance(most + 1, before, after) <= alpha:
        most += 1
    return most


def chance(inversions: int, before: int, after: int) -> float:
    """P(U <= inversions): that so few pairs speak against a gain, were all orders of the runs as likely."""
    total = sum(_orders(u, before, after) for u in range(min(inversions, before * after) + 1))
    return total / comb(before + after, before)


@cache
def _orders(u: int, before: int, after: int) -> int:
    """Orders of the runs in which exactly `u` pairs are inverted (Mann and Whitney's recursion)."""
    if u < 0 or u > before * after:
        return 0
    if before == 0 or after == 0:
        return int(u == 0)
    return _orders(u - after, before - 1, after) + _orders(u, before, after - 1)
