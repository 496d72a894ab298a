"""Step time before and after: medians of steady steps, and how large a change must be to be more than noise."""

from __future__ import annotations

from math import hypot, sqrt
from statistics import median

from trace_doctor.comparison import StepChange, StepTime
from trace_doctor.model import Result

LEAST_STEPS = 3
LEAST_CHANGE = 0.02
"""of the step: two recordings of one job on one machine differ by about that much"""
_SIGMA_OF_MAD, _MEDIAN_OF_MEAN = 1.4826, 1.2533
"""normal distribution: standard deviation = 1.4826 MAD; the median's standard error is 1.2533 that of the mean"""


def step_time(result: Result) -> StepTime | None:
    """The slowest rank's steady steps; None where no capture has steps. The rank's captures are pooled."""
    captures: dict[int, dict[int, list[float]]] = {}
    for row in result.steps:
        if not row.warmup:
            mine = captures.setdefault(row.rank, {}).setdefault(row.input, [])
            mine.append(row.dur_us if row.pace_us is None else row.pace_us)
    times = [_of_rank(rank, list(runs.values())) for rank, runs in sorted(captures.items())]
    return max(times, key=lambda t: t.median_us, default=None)


def _of_rank(rank: int, runs: list[list[float]]) -> StepTime:
    steps = [t for run in runs for t in run]
    middle = median(steps)
    spread = median(abs(t - middle) for t in steps)
    noise = _MEDIAN_OF_MEAN * _SIGMA_OF_MAD * spread / sqrt(len(steps))
    middles = [median(run) for run in runs]
    return StepTime(
        rank=rank,
        steps=len(steps),
        captures=len(runs),
        median_us=middle,
        spread_us=spread,
        noise_us=max(noise, (max(middles) - min(middles)) / 2),
    )


def step_change(before: StepTime | None, after: StepTime | None) -> StepChange:
    if before is None or after is None:
        missing = " and ".join(n for n, t in (("before", before), ("after", after)) if t is None)
        return StepChange(before=before, after=after, how=f"no steps in what was recorded {missing}")
    change = after.median_us - before.median_us
    noise = max(3 * hypot(before.noise_us, after.noise_us), LEAST_CHANGE * before.median_us)
    made = StepChange(before=before, after=after, change_us=change, noise_us=noise)
    few = min(before.steps, after.steps)
    if few < LEAST_STEPS:
        return _judged(made, "too_few_steps", f"{few} steady steps on a side do not show how much they vary")
    how = "medians of steady steps with the profiler running; noise is three standard errors, at least 2 %"
    if before.captures == after.captures == 1:
        how += "; one recording on each side does not show how much runs differ"
    if abs(change) <= noise:
        return _judged(made, "within_noise", how)
    return _judged(made, "faster" if change < 0 else "slower", how)


def _judged(change: StepChange, verdict: str, how: str) -> StepChange:
    return StepChange(
        before=change.before,
        after=change.after,
        change_us=change.change_us,
        noise_us=change.noise_us,
        verdict=verdict,  # type: ignore[arg-type]
        how=how,
    )
