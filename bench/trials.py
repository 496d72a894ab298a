"""How often `treat` keeps a fix that gains nothing worth it, and one that does: its own trials, over runs that are drawn.

    python bench/trials.py [--trials N] [--search]

Prints the tables of docs/treat.md: of trials, or of searches for one of five values. *Reused*: what would be kept if the runs of
the search were the first ones of the trial. Runs scatter by 5 % (standard deviation); *autocorrelated*: each run is 0.8 of the one before it
and new noise; *heavy-tailed*: Student's t with 2 degrees of freedom; *spikes*: every seventh run is 30 % longer on average.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, sqrt
from pathlib import Path
from statistics import fmean

from trace_doctor.treatment.acceptance import judge
from trace_doctor.treatment.candidates import Setup
from trace_doctor.treatment.measurement import Measured
from trace_doctor.treatment.search.halving import Halving
from trace_doctor.treatment.search.values import MOST_VALUES
from trace_doctor.treatment.statistics import LEAST_GAIN, LEAST_REPEATS
from trace_doctor.treatment.trial import Clock, Rules, Trial

SCATTER = 0.05
GAINS = (0.0, LEAST_GAIN, 0.05, 0.1, 0.3, 0.6)
USELESS = ([0.0] * MOST_VALUES, [LEAST_GAIN] * MOST_VALUES)
USEFUL = ([0.0, 0.1, 0.0, 0.0, 0.0], [0.0, 0.1, 0.2, 0.1, 0.0], [0.3, 0.5, 0.6, 0.5, 0.3])
"""true gains of five values"""
RULES = Rules(LEAST_REPEATS, LEAST_GAIN, loss_tolerance=0.02, without_losses=True)


Kind = Callable[[random.Random], Iterator[float]]
Pair = tuple[int, Measured, Measured]
"""value, run without, run with it"""


def normal(draw: random.Random) -> Iterator[float]:
    while True:
        yield draw.gauss(0, SCATTER)


def autocorrelated(draw: random.Random) -> Iterator[float]:
    value = draw.gauss(0, SCATTER)
    while True:
        yield value
        value = 0.8 * value + draw.gauss(0, SCATTER * sqrt(1 - 0.8**2))


def heavy_tailed(draw: random.Random) -> Iterator[float]:
    while True:
        yield 0.6 * SCATTER * draw.gauss(0, 1) / sqrt(draw.expovariate(1))


def spikes(draw: random.Random) -> Iterator[float]:
    while True:
        yield draw.gauss(0, SCATTER) + (draw.expovariate(1 / 0.3) if draw.random() < 1 / 7 else 0)


class Drawn:
    """Runs of a script, with what each change of it gains."""

    def __init__(self, noise: Iterator[float], gains: Mapping[int, float]) -> None:
        self.noise, self.gains = noise, gains
        self.reused: dict[int, list[Measured]] = {}

    def record(self, setup: Setup, name: str) -> Path:
        raise NotImplementedError

    def time(self, setup: Setup) -> Measured:
        if self.reused.get(id(setup)):
            return self.reused[id(setup)].pop(0)
        return Measured({(0, 0): 1e5 * (1 - self.gains.get(id(setup), 0.0)) * exp(next(self.noise))})


WITHOUT: Setup = object()  # type: ignore[assignment]
WITH: Setup = object()  # type: ignore[assignment]
VALUES: list[Setup] = [object() for _ in range(MOST_VALUES)]  # type: ignore[misc]


def tried(noise: Iterator[float], gain: float) -> tuple[bool, int]:
    """Whether the fix was kept, and how many pairs of runs that took."""
    trial = Trial(RULES)
    trial.run(Drawn(noise, {id(WITH): gain}), WITHOUT, WITH, Clock(float("inf")))
    return judge(trial)[0], len(trial.after)


def searched(noise: Iterator[float], gains: Sequence[float], *, reuse: bool) -> tuple[float | None, int]:
    """What the value gains that was kept (None: none was), and how many runs that took. `reuse` begins the trial with the runs
    that picked the value."""
    runner, pairs = Drawn(noise, {id(v): g for v, g in zip(VALUES, gains, strict=True)}), list[Pair]()
    halving = Halving([1.0] * len(gains))

    def measure(left: Sequence[int]) -> dict[int, float]:
        without = runner.time(WITHOUT)
        runs = {number: runner.time(VALUES[number]) for number in left}
        pairs.extend((number, without, run) for number, run in runs.items())
        return {number: run.time_us() / without.time_us() for number, run in runs.items()}

    best = halving.run(measure, LEAST_GAIN)
    runs = len(pairs) + len({id(without) for _, without, _ in pairs})
    if best is None:
        return None, runs
    if reuse:
        mine = [pair for pair in pairs if pair[0] == best]
        runner.reused = {id(WITHOUT): [w for _, w, _ in mine], id(VALUES[best]): [r for _, _, r in mine]}
    trial = Trial(RULES)
    trial.run(runner, WITHOUT, VALUES[best], Clock(float("inf")))
    return (gains[best] if judge(trial)[0] else None), runs + len(trial.before) + len(trial.after)


def search_row(kind: Kind, trials: int) -> Iterator[str]:
    """Useless values that are kept, then values that gain."""
    for gains, reuse in ((USELESS[0], False), (USELESS[1], False), (USELESS[1], True)):
        kept = [searched(kind(random.Random(seed)), gains, reuse=reuse)[0] for seed in range(trials)]
        yield f"{fmean(gain is not None for gain in kept):.1%}"
    for gains in USEFUL:
        outcomes = [searched(kind(random.Random(seed)), gains, reuse=False) for seed in range(trials)]
        best = fmean(gain == max(gains) for gain, _ in outcomes)
        yield f"{best:.1%} in {fmean(runs for _, runs in outcomes):.0f} runs"


def trial_row(kind: Kind, trials: int) -> Iterator[str]:
    for gain in GAINS:
        outcomes = [tried(kind(random.Random(seed)), gain) for seed in range(trials)]
        kept, pairs = (fmean(column) for column in zip(*outcomes, strict=True))
        yield f"{kept:.1%} in {pairs:.1f} pairs"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=4000, help="of each kind (4000)")
    parser.add_argument("--search", action="store_true", help="of a value among five")
    options = parser.parse_args()
    columns = [f"true gain {gain:.0%}" for gain in GAINS]
    if options.search:
        columns = ["useless: all gain 0%", "useless: all gain 1%", "the same, reused"]
        columns += [f"best kept: gains {', '.join(f'{g:.0%}' for g in gains)}" for gains in USEFUL]
    print("| runs | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for kind in (normal, autocorrelated, heavy_tailed, spikes):
        cells = (search_row if options.search else trial_row)(kind, options.trials)
        print(f"| {kind.__name__.replace('_', '-')} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
