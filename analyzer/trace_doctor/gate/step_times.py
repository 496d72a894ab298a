"""Step time before and after: medians of steady steps, how large a change must be to be more than noise, and the means
that savings are of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import hypot, sqrt
from statistics import fmean, median

from msgspec.structs import replace

from trace_doctor.gate.comparable import same_work
from trace_doctor.model import Pace, Result, Saving
from trace_doctor.model.comparison import StepChange, StepTime

LEAST_STEPS = 3
LEAST_CHANGE = 0.02
"""of the step: two recordings of one job on one machine differ by about that much"""
_GPU_PACE = 1.5
"""between two runs no clock, no throttling and no neighbor makes the kernels of a GPU slower by more: sizes changed (an A100
boosts by 1.29 over its base clock)"""
_SIGMA_OF_MAD, _MEDIAN_OF_MEAN = 1.4826, 1.2533
"""normal distribution: standard deviation = 1.4826 MAD; the median's standard error is 1.2533 that of the mean"""


def step_times(before: Result, after: Result) -> StepChange:
    """What a step takes on both sides: without the profiler where both were recorded with plain steps, else with it."""
    plain = _plain(before), _plain(after)
    if plain[0] is not None and plain[1] is not None:
        change = _change(*plain, "medians of steps without the profiler")
    else:
        change = _change(
            _profiled(before), _profiled(after), "medians of steady steps with the profiler running"
        )
    return _beside_the_machine(change, before, after)


def in_noise(saving: Saving | None, step: StepChange) -> bool:
    """Whether a finding that came or went costs less than steps vary: then its rule's threshold was crossed, and nothing
    else is known."""
    if saving is None or saving.bytes or not saving.time_us_per_step or step.noise_us is None:
        return False
    return step.verdict not in ("faster", "slower") and saving.time_us_per_step <= step.noise_us


def _beside_the_machine(change: StepChange, before: Result, after: Result) -> StepChange:
    """A change no larger than that of the same work is of the machine: its clock, its neighbors."""
    moved, noise = change.change_us, change.noise_us
    if change.before is None or moved is None or noise is None:
        return change
    machine = _of_the_same_work(before, after)
    if machine is None:
        return change
    machine_us = machine * change.before.median_us
    change = replace(change, machine_us=machine_us)
    with_it = moved * machine_us > 0
    if change.verdict not in ("faster", "slower") or not with_it:
        return change
    if abs(moved) - abs(machine_us) > noise:
        return change
    how = f"the same kernels and operators take {1 + machine:.2f} times as long; {change.how}"
    return _judged(change, "machine", how)


def _of_the_same_work(before: Result, after: Result) -> float | None:
    """The share of the step by which it would have changed: kernels count as far as the devices compute, the host's work for
    the rest of the step."""
    kernels, host = (same_work(before, after, kind) for kind in ("kernel", "host"))
    rows = [r for r in before.time_ledger if r.phase == "steady" and r.window_ns and r.device >= 0]
    computing = fmean(r.compute_ns / r.window_ns for r in rows) if rows else 0.0
    if (kernels is None and computing) or (host is None and not computing):
        return None
    if kernels is not None and not 1 / _GPU_PACE <= kernels <= _GPU_PACE:
        return None
    return computing * ((kernels or 1.0) - 1) + (1 - computing) * ((host or 1.0) - 1)


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
    independent = sum(len(run) / _inflation(run) for run in runs)
    halves = [median(half) for run in runs for half in _halves(run)]
    return _time(rank, len(steps), middle, spread, halves, fmean(steps), len(runs), independent)


def _inflation(run: Sequence[float]) -> float:
    """How many steps in a row count as one independent sample, by the correlation of neighbors: a step that follows a long one is
    long as well where the machine changes its pace."""
    mean = fmean(run)
    total = sum((t - mean) ** 2 for t in run)
    if len(run) < LEAST_STEPS or not total:
        return 1.0
    lag = sum((a - mean) * (b - mean) for a, b in pairwise(run)) / total
    return (1 + lag) / (1 - lag) if lag > 0 else 1.0


def _halves(run: Sequence[float]) -> list[Sequence[float]]:
    """A recording in two, where each half has a median of its own: what drifts within one differs between two."""
    middle = len(run) // 2
    return [run[:middle], run[middle:]] if middle >= 2 * LEAST_STEPS else [run]


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
            len(paces),
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
    captures: int,
    independent: float | None = None,
    *,
    plain: bool = False,
) -> StepTime:
    """`middles`: the median of each recording, or of its halves; `independent`: as how many samples the steps count."""
    noise = _MEDIAN_OF_MEAN * _SIGMA_OF_MAD * spread / sqrt(independent or steps)
    return StepTime(
        rank=rank,
        steps=steps,
        captures=captures,
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
        how += "; one run on each side: differences between runs (clock, neighbors) are not covered"
    if abs(change) <= noise:
        return _judged(step_change, "within_noise", how)
    return _judged(step_change, "faster" if change < 0 else "slower", how)


def _judged(change: StepChange, verdict: str, how: str) -> StepChange:
    return replace(change, verdict=verdict, how=how)
