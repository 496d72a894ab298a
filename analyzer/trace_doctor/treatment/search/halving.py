"""Which value of a fix is worth a trial: successive halving over rounds of runs, and what the rounds showed.

The runs that pick a value make it look better than it is, so they do not judge it: a trial with pairs of its own does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import fmean

from trace_doctor.model.treatment import ValueTried
from trace_doctor.treatment.candidates import Setup, Value
from trace_doctor.treatment.measurement import Measured, RunFailed
from trace_doctor.treatment.trial import Clock, Runner

PRIOR_WEIGHT = 0.5
"""rounds that a prediction counts as much as"""
FAR = log(1.25)
"""values that are slower than the best by more are dropped at once"""
ALIKE = 0.01
"""of values whose step times differ by no more, the smaller one is taken"""


@dataclass
class Halving:
    """Values, smaller ones first, with their predicted step times, as shares of the script's as it is.

    In a round each value that is left runs as often, next to the script as it is. Then the slower half is dropped, with all that
    are far from the best, and the next round has twice as many runs.
    """

    predictions: Sequence[float]
    ratios: list[list[float]] = field(init=False)
    """of each value the step times with it / as it is, one a run"""

    def __post_init__(self) -> None:
        self.ratios = [[] for _ in self.predictions]

    def run(self, measure: Callable[[Sequence[int]], Mapping[int, float]], least_gain: float) -> int | None:
        """The best value; None where none was faster by more than `least_gain`. `measure` runs the script as it is and with
        each of these values once, and gives the ratios of those that ran through."""
        left, runs = list(range(len(self.predictions))), 1
        while left:
            for _ in range(runs):
                measured = measure(left)
                for number, ratio in measured.items():
                    self.ratios[number].append(ratio)
                left = [number for number in left if number in measured]
            if len(left) <= 1:
                break
            best = min(map(self.score, left))
            most = max(len(left) // 2, 2)
            if len(left) > 2:
                near = [number for number in left if self.score(number) <= best + FAR]
                left = sorted(sorted(near, key=self.score)[:most])
            else:
                left = [next(number for number in left if self.score(number) <= best + ALIKE)]
            runs *= 2
            if len(left) == 1:
                break
        return left[0] if left and self.gain(left[0]) > least_gain else None

    def gain(self, number: int) -> float:
        """Share of the step that a value has taken off so far; its runs count alone."""
        return 1 - exp(fmean(map(log, self.ratios[number])))

    def score(self, number: int) -> float:
        """Logarithm of the step time by runs and prediction."""
        runs = self.ratios[number]
        prediction = PRIOR_WEIGHT * log(self.predictions[number])
        return (prediction + sum(map(log, runs))) / (PRIOR_WEIGHT + len(runs))


def search(
    values: Sequence[Value],
    runner: Runner,
    clock: Clock,
    as_it_is: Setup,
    with_: Callable[[Value], Setup],
    least_gain: float,
) -> tuple[Value | None, list[ValueTried]]:
    """The value to put on trial, or None, and what was seen of each. Raises RunFailed where the script fails as it is, and
    OutOfTime."""
    halving = Halving([value.predicted for value in values])
    failures: dict[int, str] = {}
    rounds = 0

    def measure(left: Sequence[int]) -> Mapping[int, float]:
        nonlocal rounds
        rounds += 1
        times: dict[int | None, float] = {}
        for number in _in_turn([None, *left], rounds):
            try:
                setup = as_it_is if number is None else with_(values[number])
                run = clock.run(lambda setup=setup: runner.time(setup))  # type: ignore[misc]
            except RunFailed as failure:
                if number is None:
                    raise
                failures[number] = str(failure)
                continue
            times[number] = per_sample(run, 1.0 if number is None else values[number].candidate.samples)
        return {number: times[number] / times[None] for number in left if number in times}

    best = halving.run(measure, least_gain)
    return (None if best is None else values[best]), _tried(values, halving, failures, best)


def per_sample(run: Measured, samples: float | None) -> float:
    """Step time of a run whose steps have so many times the samples, for the samples of one step as it is; in us."""
    return run.time_us() / (samples or 1.0)


def _in_turn(order: list[int | None], rounds: int) -> Iterable[int | None]:
    """Forth and back, so that a drift of the machine meets all alike."""
    return order if rounds % 2 else order[::-1]


def _tried(
    values: Sequence[Value], halving: Halving, failures: Mapping[int, str], best: int | None
) -> list[ValueTried]:
    return [
        ValueTried(
            name=value.name,
            value=value.text,
            ratio=1 - halving.gain(number) if halving.ratios[number] else None,
            runs=len(halving.ratios[number]),
            best=number == best,
            failure=failures.get(number, ""),
        )
        for number, value in enumerate(values)
    ]
