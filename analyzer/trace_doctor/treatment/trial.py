"""One change on trial: runs with it and without it in turn, until the verdict stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Protocol

from trace_doctor.model import Safety
from trace_doctor.treatment.candidates import Setup
from trace_doctor.treatment.losses import agreement
from trace_doctor.treatment.measurement import Measured, RunFailed
from trace_doctor.treatment.outcome import Effect, Effects, LossCheck
from trace_doctor.treatment.statistics import Comparison, compare, critical, hopeless


class Runner(Protocol):
    """Runs the script in the scratch copy. Both raise RunFailed."""

    def record(self, setup: Setup, name: str) -> Path:
        """A whole recording, for a diagnosis; its folder."""

    def time(self, setup: Setup) -> Measured:
        """A plain run without the profiler, of the same steps each time."""


@dataclass(frozen=True)
class Rules:
    """How trials are run and judged."""

    repeats: int
    least_gain: float
    loss_tolerance: float
    without_losses: bool
    """keep unsafe fixes of scripts whose losses cannot be seen"""


class OutOfTime(Exception):
    """The time that the whole treatment may take would not do for the next run."""


@dataclass
class Clock:
    """How much time is left, and whether it will do for a run as long as the longest so far."""

    max_seconds: float
    now: Callable[[], float] = time.monotonic
    longest: float = 0.0
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.now()

    def spent(self) -> float:
        return self.now() - self.started

    def run(self, measure: Callable[[], Measured]) -> Measured:
        """Raises OutOfTime where the run would not end in time."""
        if self.spent() + self.longest > self.max_seconds:
            raise OutOfTime
        began = self.now()
        try:
            return measure()
        finally:
            self.longest = max(self.longest, self.now() - began)


@dataclass
class Trial:
    """The runs so far. What they show can be asked at any time, also after an interruption."""

    rules: Rules
    safety: Safety
    before: list[Measured] = field(default_factory=list)
    after: list[Measured] = field(default_factory=list)
    failed: str = ""
    """why a run with the change ended early"""
    stopped: str = ""
    """why there were fewer runs than asked for"""

    def run(self, runner: Runner, without: Setup, with_: Setup, clock: Clock) -> None:
        """Pairs of runs; the one that comes first changes from pair to pair, so that a drift of the machine meets both.

        Ends early where a run with the change fails, where the losses differ, and where nothing to come could change the
        verdict. Raises RunFailed where a run without the change fails, OutOfTime, and what interrupts it.
        """
        for pair in range(self.rules.repeats):
            for changed in (True, False) if pair % 2 == 0 else (False, True):
                if changed:
                    try:
                        self.after.append(clock.run(lambda: runner.time(with_)))
                    except RunFailed as failure:
                        self.failed = str(failure)
                        return
                else:
                    self.before.append(clock.run(lambda: runner.time(without)))
            left = self.rules.repeats - pair - 1
            if left and self._settled():
                runs = "a pair" if pair == 0 else f"{pair + 1} pairs"
                self.stopped = f"after {runs} of runs no outcome of the others could have changed this"
                return

    def _settled(self) -> bool:
        rules = self.rules
        if len(self.before) > 1 and self.losses().verdict == "differ":
            return True
        sides = [self._figures(quantity) for quantity in (_time, _peak)]
        return all(a is None or hopeless(*a, rules.repeats, rules.least_gain) for a in sides)

    def _figures(
        self, quantity: Callable[[Measured], float | None]
    ) -> tuple[list[float], list[float]] | None:
        """One figure a run of both sides; None where some run does not show it."""
        sides = [[quantity(run) for run in side] for side in (self.before, self.after)]
        if not all(sides) or any(not value for side in sides for value in side):
            return None
        return [v for v in sides[0] if v], [v for v in sides[1] if v]

    def losses(self) -> LossCheck:
        sides = [[run.losses for run in side] for side in (self.before, self.after)]
        return agreement(sides[0], sides[1], self.safety, self.rules.loss_tolerance)

    def effects(self) -> Effects:
        pairs = min(len(self.before), len(self.after))
        if not pairs:
            return Effects()
        time_, memory = self._figures(_time), self._figures(_peak)
        least = self.rules.least_gain
        return Effects(
            time=_effect("us", *time_, least) if time_ else None,
            memory=_effect("bytes", *memory, least) if memory else None,
            losses=self.losses(),
            pairs=pairs,
        )


def _time(run: Measured) -> float | None:
    return run.time_us()


def _peak(run: Measured) -> float | None:
    return run.peak_bytes


def _effect(unit: str, before: Sequence[float], after: Sequence[float], least: float) -> Effect:
    made: Comparison = compare(before, after, least)
    return Effect(
        unit="us" if unit == "us" else "bytes",
        before=median(before),
        after=median(after),
        ratio=made.ratio,
        bound=made.bound if critical(len(before), len(after)) >= 0 else None,
        p=made.p,
        verdict=made.verdict,
        detectable=made.detectable,
        runs_before=list(before),
        runs_after=list(after),
    )
