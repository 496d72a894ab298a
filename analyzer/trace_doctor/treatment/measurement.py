"""What one plain run of the script showed: the time of each step, its losses, its peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Literal

Figure = Literal["median", "mean"]
LONG_STEPS = 0.05
"""of the time of a run: with more of it in few long steps, a median would not see what makes them long"""


class RunFailed(Exception):
    """A run of the script that ended before it showed what was asked for; one line that says how."""


@dataclass(frozen=True)
class Measured:
    """One run, at least one timed step."""

    step_us: Mapping[tuple[int, int], float]
    """(rank, step) -> time of a timed step"""
    losses: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(rank, step) -> loss, of all steps where it could be seen"""
    peak_bytes: int | None = None
    """the most memory that the run held on any device"""
    by: Figure = "median"
    """which figure of the steps a run counts with"""
    waited_for_cpu: float | None = None
    """share of its time that the rank which waited most could have run and did not, because others did"""

    def time_us(self) -> float:
        """Of the slowest rank: the others wait for it."""
        return max((median if self.by == "median" else fmean)(steps) for steps in self._ranks())

    def in_long_steps(self) -> float:
        """Share of the time that steps of twice the median and more take beyond the median, of the rank with most."""
        shares = []
        for steps in self._ranks():
            middle = median(steps)
            shares.append(sum(us - middle for us in steps if us >= 2 * middle) / sum(steps))
        return max(shares)

    def _ranks(self) -> list[list[float]]:
        ranks: dict[int, list[float]] = {}
        for (rank, _), us in self.step_us.items():
            ranks.setdefault(rank, []).append(us)
        return list(ranks.values())
