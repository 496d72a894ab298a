"""Step time before and after: medians of steady steps, how large a change must be to be more than noise, and the means
that savings are of."""

from __future__ import annotations

from math import hypot, sqrt
from statistics import fmean, median

from msgspec.structs import replace

from trace_doctor.model import Pace, Result
from trace_doctor.model.comparison import StepChange, StepTime

LEAST_STEPS = 3
LEAST_CHANGE = 0.02
"""of the step: two recordings of one job on one machine differ by about that much"""
_SIGMA_OF_MAD, _MEDIAN_OF_MEAN = 1.4826, 1.2533
"""normal distribution: standard deviation = 1.4826 MAD; the median's standard error is 1.2533 that of the mean"""


def step_times(before: Result, after: Result) -> StepChange:
    """What a step takes on both sides: without the profiler where both were recorded with plain steps, else with it."""
    plain = _plain(before), _plain(after)
    if plain[0] is not None and plain[1] is not None:
        return _change(*plain, "medians of steps without the profiler")
    return _change(_profiled(before), _profiled(after), "medians of steady steps with the profiler running")


def _profiled(result: Result) -> StepTime | None:
    """The slowest rank's steady steps; None where no capture has steps. The rank's captures are pooled."""
    captures: dict[int, dict[int, list[float]]] = {}
    for row in result.steps:
        if not row.warmup:
            own_steps = captures.setdefault(row.rank, {}).setdefault(row.input, [])
            own_steps.append(row.dur_us if row.pace_us is None else row.pace_us)
    times = [_of_rank(rank, list(runs.values())) for rank, runs in sorted(captures.items())]
    return max(times, key=lambda t: t.median_us, default=None)


def _of_rank(rank: int, runs: list[list[float]]) -> StepTime:
    steps = [t for run in runs for t in run]
    middle = median(steps)
    spread = median(abs(t - middle) for t in steps)
    return _time(rank, len(steps), middle, spread, [median(run) for run in runs], fmean(steps))


def _plain(result: Result) -> StepTime | None:
    """The slowest rank's steps without the profiler; None where a capture that has steps lacks them."""
    ranks: dict[int, list[Pace]] = {}
    for source in result.inputs:
        if source.plain is not None:
            ranks.setdefault(source.rank, []).append(source.plain)
        elif source.pace is not None:
            return None
    times = [
        _time(
            rank,
            sum(p.steps for p in paces),
            median(p.median_us for p in paces),
            median(p.mad_us for p in paces),
            [p.median_us for p in paces],
            _mean(paces),
            plain=True,
        )
        for rank, paces in sorted(ranks.items())
    ]
    return max(times, key=lambda t: t.median_us, default=None)


def _mean(paces: list[Pace]) -> float | None:
    """Of all steps; None where an older result does not say."""
    sums = [p.mean_us * p.steps for p in paces if p.mean_us is not None]
    return sum(sums) / sum(p.steps for p in paces) if len(sums) == len(paces) else None


def _time(
    rank: int,
    steps: int,
    middle: float,
    spread: float,
    middles: list[float],
    mean: float | None,
    *,
    plain: bool = False,
) -> StepTime:
    """`middles`: the median of each recording."""
    noise = _MEDIAN_OF_MEAN * _SIGMA_OF_MAD * spread / sqrt(steps)
    return StepTime(
        rank=rank,
        steps=steps,
        captures=len(middles),
        median_us=middle,
        spread_us=spread,
        noise_us=max(noise, (max(middles) - min(middles)) / 2),
        mean_us=mean,
        plain=plain,
    )


def _change(before: StepTime | None, after: StepTime | None, what: str) -> StepChange:
    if before is None or after is None:
        missing = " and ".join(n for n, t in (("before", before), ("after", after)) if t is None)
        return StepChange(before=before, after=after, how=f"no steps in what was recorded {missing}")
    change = after.median_us - before.median_us
    noise = max(3 * hypot(before.noise_us, after.noise_us), LEAST_CHANGE * before.median_us)
    means = None if before.mean_us is None or after.mean_us is None else after.mean_us - before.mean_us
    step_change = StepChange(
        before=before, after=after, change_us=change, mean_change_us=means, noise_us=noise
    )
    few = min(before.steps, after.steps)
    if few < LEAST_STEPS:
        return _judged(
            step_change, "too_few_steps", f"{few} steady steps on a side do not show how much they vary"
        )
    how = f"{what}; noise is three standard errors, at least 2%"
    if before.captures == after.captures == 1:
        how += "; one recording on each side does not show how much runs differ"
    if abs(change) <= noise:
        return _judged(step_change, "within_noise", how)
    return _judged(step_change, "faster" if change < 0 else "slower", how)


def _judged(change: StepChange, verdict: str, how: str) -> StepChange:
    return replace(change, verdict=verdict, how=how)
