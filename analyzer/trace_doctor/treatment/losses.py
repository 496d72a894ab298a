"""Whether a changed script still computes the same: its losses, step for step, beside those of the script as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from trace_doctor.model.treatment import LossCheck

TOLERANCE = 0.02
"""mean difference of the losses of a fix, as a share of the mean loss. Autocast to bf16 moves the losses of the
first hundred steps by less than 1 %, a wrong gradient or batch by far more"""

Losses = Mapping[tuple[int, int], float]
"""(rank, step) -> loss, of one run"""


def agreement(before: Sequence[Losses], after: Sequence[Losses], tolerance: float = TOLERANCE) -> LossCheck:
    """Compares the losses of all steps that every run has shown; within `tolerance`. What the runs of the script as it was
    differ by among themselves is allowed on top.
    """
    runs = [*before, *after]
    steps = sorted(set.intersection(*(set(r) for r in runs))) if before and after else []
    if not steps:
        return LossCheck(verdict="not_seen", how="no loss was seen in the same steps of both sides")
    old, new = ([[run[s] for s in steps] for run in side] for side in (before, after))
    if all(_same(a, b) for a in old for b in new):
        return LossCheck(verdict="same", steps=len(steps), distance=0.0, how="bitwise identical")
    if any(isfinite(a) and not isfinite(b) for run in new for a, b in zip(old[0], run, strict=True)):
        return LossCheck(verdict="differ", steps=len(steps), how="a loss is no longer finite")
    own = max(
        (min(_distance(a, b) for j, b in enumerate(old) if i != j) for i, a in enumerate(old[1:], 1)),
        default=0.0,
    )
    distance = max(min(_distance(a, b) for a in old) for b in new)
    limit = own * 2 + tolerance
    repeats = "" if own == 0 else f"; runs of the script as it was differ by {own:.2g} among themselves"
    if distance <= limit:
        how = f"differ by {distance:.2g} on average, at most {limit:.2g} is allowed{repeats}"
        return LossCheck(verdict="close", steps=len(steps), distance=distance, own=own, how=how)
    first = next(s for s, a, b in zip(steps, old[0], new[0], strict=True) if not _same([a], [b]))
    at = f"from step {first[1]} on"
    allowed = f"at most {limit:.2g} is allowed (--loss-tolerance)"
    how = f"differ by {distance:.2g} on average, {at}; {allowed}{repeats}"
    return LossCheck(verdict="differ", steps=len(steps), distance=distance, own=own, how=how)


def _same(a: Sequence[float], b: Sequence[float]) -> bool:
    """Equal, where a loss that is no number is equal to another that is none."""
    return all(x == y or (x != x and y != y) for x, y in zip(a, b, strict=True))


def _distance(a: Sequence[float], b: Sequence[float]) -> float:
    """Mean absolute difference over the mean size of `a`, of steps where both are finite."""
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if isfinite(x) and isfinite(y)]
    apart, whole = sum(abs(x - y) for x, y in pairs), sum(abs(x) for x, _ in pairs)
    return apart / whole if whole else float(apart > 0)
