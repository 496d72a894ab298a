"""How often `treat` keeps a fix that gains nothing worth it, and one that does: its own trials, over runs that are drawn.

    python bench/trials.py [--trials N]

Prints the table of docs/treat.md. Runs scatter by 5 % (standard deviation); *autocorrelated*: each run is 0.8 of the one before it
and new noise; *heavy-tailed*: Student's t with 2 degrees of freedom; *spikes*: every seventh run is 30 % longer on average.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from math import exp, sqrt
from pathlib import Path
from statistics import fmean

from trace_doctor.treatment.acceptance import judge
from trace_doctor.treatment.candidates import Setup
from trace_doctor.treatment.measurement import Measured
from trace_doctor.treatment.statistics import LEAST_GAIN, LEAST_REPEATS
from trace_doctor.treatment.trial import Clock, Rules, Trial

SCATTER = 0.05
GAINS = (0.0, LEAST_GAIN, 0.05, 0.1, 0.3, 0.6)
RULES = Rules(LEAST_REPEATS, LEAST_GAIN, loss_tolerance=0.02, without_losses=True)


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
    """Runs of a script whose fix gains so much."""

    def __init__(self, noise: Iterator[float], gain: float) -> None:
        self.noise, self.gain = noise, gain

    def record(self, setup: Setup, name: str) -> Path:
        raise NotImplementedError

    def time(self, setup: Setup) -> Measured:
        factor = 1 - self.gain if setup is WITH else 1.0
        return Measured({(0, 0): 1e5 * factor * exp(next(self.noise))})


WITHOUT: Setup = object()  # type: ignore[assignment]
WITH: Setup = object()  # type: ignore[assignment]


def tried(noise: Iterator[float], gain: float) -> tuple[bool, int]:
    """Whether the fix was kept, and how many pairs of runs that took."""
    trial = Trial(RULES)
    trial.run(Drawn(noise, gain), WITHOUT, WITH, Clock(float("inf")))
    return judge(trial)[0], len(trial.after)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=4000, help="of each kind (4000)")
    trials: int = parser.parse_args().trials
    print("| runs | " + " | ".join(f"true gain {gain:.0%}" for gain in GAINS) + " |")
    print("|---" * (len(GAINS) + 1) + "|")
    kinds: tuple[Callable[[random.Random], Iterator[float]], ...] = (
        normal,
        autocorrelated,
        heavy_tailed,
        spikes,
    )
    for kind in kinds:
        cells = []
        for gain in GAINS:
            outcomes = [tried(kind(random.Random(seed)), gain) for seed in range(trials)]
            cells.append(
                f"{fmean(kept for kept, _ in outcomes):.1%} in {fmean(pairs for _, pairs in outcomes):.1f} pairs"
            )
        print(f"| {kind.__name__.replace('_', '-')} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
