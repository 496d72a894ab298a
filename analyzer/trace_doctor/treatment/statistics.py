"""Whether runs with a fix are faster, or leaner, than runs without it, by more than chance and by more than a least gain.

One figure a run (its median step, its peak): steps of one run share a process and a moment, so runs are what is counted. A run
with the fix and the one without it that ran next to it are a pair: what the machine did meanwhile meets both. The exact one-sided
signed-rank test over the ratios of the pairs (Wilcoxon), and the bound and interval that belong to it (Hodges and Lehmann).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from statistics import median
from typing import Literal

ALPHA = 0.05
"""of the interval, and of what is called slower"""
LOOKS = (0.016, 0.012)
"""chance that a fix without a gain is kept at each of the two looks at a trial: after so many pairs of runs as were asked for, and
after twice as many"""
LEAST_REPEATS = 6
"""pairs of runs: with five that agree, chance alone does it in one trial of 32, which is more than a look may spend"""
LEAST_GAIN = 0.01
"""of the step or of the peak: a gain of less is not worth a change of the script"""

Verdict = Literal["less", "more", "no_difference"]


@dataclass(frozen=True)
class Comparison:
    """After against before. Ratios are after / before: 0.8 is a fifth less."""

    ratio: float
    """the median of the means of every two pairs' ratios"""
    bound: float
    """the true ratio is below it, with 1 - alpha; infinite where so few pairs cannot say so"""
    interval: tuple[float, float] | None
    """the true ratio lies in it, with 1 - ALPHA; None where so few pairs cannot say so"""
    p: float
    """chance of pairs as clear as these, or clearer, if nothing were gained beyond the least gain"""
    verdict: Verdict
    detectable: float
    """share of the figure that the fix would have had to gain, pairs scattering as these do, to be told from chance"""


def compare(
    before: Sequence[float], after: Sequence[float], least: float = LEAST_GAIN, alpha: float = ALPHA
) -> Comparison:
    """Positive figures of runs, one each, in pairs, at least one. `least` is the share that a gain must exceed.

    With `alpha` 0 nothing is called less: the trial is not at one of its looks.
    """
    means, pairs, limit = _means(before, after), min(len(before), len(after)), 1 - least
    rank, contrary, outside = (critical(pairs, a) for a in (alpha, ALPHA, ALPHA / 2))
    ratio = median(means)
    bound = means[-1 - rank] if rank >= 0 else float("inf")
    lower = means[contrary] if contrary >= 0 else 0.0
    return Comparison(
        ratio=ratio,
        bound=bound,
        interval=(means[outside], means[-1 - outside]) if outside >= 0 else None,
        p=chance(sum(m >= limit for m in means), pairs),
        verdict="less" if bound < limit else "more" if lower > 1 + least else "no_difference",
        detectable=1 - limit * ratio / means[-1 - max(rank, 0)],
    )


def contradictions(before: Sequence[float], after: Sequence[float], least: float = LEAST_GAIN) -> int:
    """The means of two pairs that show no gain of more than `least`: the sum of the ranks that speak against one. Further pairs
    never lower it."""
    return sum(m >= 1 - least for m in _means(before, after))


def _means(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """The geometric means of the ratios of every two pairs, and of each alone (Walsh), in order."""
    ratios = [b / a for a, b in zip(before, after, strict=False)]
    return sorted(sqrt(one * other) for i, one in enumerate(ratios) for other in ratios[i:])


def critical(pairs: int, alpha: float = ALPHA) -> int:
    """How large the sum of the ranks that speak against a gain may be; -1 where so few pairs cannot show any."""
    most = -1
    while chance(most + 1, pairs) <= alpha:
        most += 1
    return most


def chance(ranks: int, pairs: int) -> float:
    """That the ranks against a gain sum up to no more, were each pair as likely for it as against it."""
    return sum(_subsets(total, pairs) for total in range(ranks + 1)) / (1 << pairs)


@cache
def _subsets(total: int, most: int) -> int:
    """Sets of different ranks of at most `most` with this sum."""
    if total < 0 or most == 0:
        return int(total == 0)
    return _subsets(total, most - 1) + _subsets(total - most, most - 1)
