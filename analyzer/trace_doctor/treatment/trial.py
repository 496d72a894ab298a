"""One change on trial: runs with it and without it in turn, until the verdict stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Protocol, TypeVar

from trace_doctor.model.treatment import Effect, Effects, LossCheck
from trace_doctor.treatment.candidates import Setup
from trace_doctor.treatment.losses import agreement
from trace_doctor.treatment.measurement import Measured, RunFailed
from trace_doctor.treatment.statistics import LOOKS, compare, contradictions, critical

T = TypeVar("T")


class Runner(Protocol):
    """Runs the script in the scratch copy. Both raise RunFailed."""

    def record(self, setup: Setup, name: str, *, short: bool = False) -> Path:
        """A whole recording, or one with few steps without the profiler, for a diagnosis; its folder."""

    def time(self, setup: Setup) -> Measured:
        """A plain run without the profiler, of the same steps each time."""


@dataclass(frozen=True)
class Rules:
    """How trials are run and judged."""

    repeats: int
    """runs of each side until the first look; twice as many until the second and last"""
    least_gain: float
    loss_tolerance: float
    without_losses: bool
    """keep fixes of scripts whose losses cannot be seen"""

    def alpha(self, pairs: int) -> float:
        """What a look after so many pairs of runs may spend; none where there is no look."""
        return dict(zip((self.repeats, 2 * self.repeats), LOOKS, strict=True)).get(pairs, 0.0)


class OutOfTime(Exception):
    """The time that the whole treatment may take would not do for the next run."""


@dataclass
class Clock:
    """How much time is left, and whether it will do for a run as long as the longest so far."""

    max_seconds: float
    now: Callable[[], float] = time.monotonic
    longest: float = 0.0
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.now()

    def spent(self) -> float:
        """Seconds since the treatment began."""
        return self.now() - self.start

    def left(self) -> float:
        """Seconds until the treatment is to end; none below 0."""
        return max(self.max_seconds - self.spent(), 0.0)

    def run(self, measure: Callable[[], T]) -> T:
        """Raises OutOfTime where the run would not end in time, or has failed when it was over: it was cut short."""
        if self.spent() + self.longest > self.max_seconds:
            raise OutOfTime
        began = self.now()
        try:
            return measure()
        except RunFailed:
            if self.left() > 0:
                raise
            raise OutOfTime from None
        finally:
            self.longest = max(self.longest, self.now() - began)


@dataclass
class Trial:
    """The runs so far. What they show can be asked at any time, also after an interruption."""

    rules: Rules
    samples: float | None = None
    """as of the candidate: times of runs with it are compared for as many samples as those without, losses are not"""
    before: list[Measured] = field(default_factory=list)
    after: list[Measured] = field(default_factory=list)
    failure: str = ""
    """why a run with the change ended early"""

    def run(self, runner: Runner, without: Setup, with_: Setup, clock: Clock) -> None:
        """Pairs of runs; the one that comes first changes from pair to pair, so that a drift of the machine meets both.

        Ends at the first look if that is clear, else at the second. Ends early where a run with the change fails, where the
        losses differ, and where the runs show no gain and no further pair could change that. Raises RunFailed where a run without the change fails, OutOfTime, and what interrupts it.
        """
        for pair in range(2 * self.rules.repeats):
            for with_change in (True, False) if pair % 2 == 0 else (False, True):
                if with_change:
                    try:
                        self.after.append(clock.run(lambda: runner.time(with_)))
                    except RunFailed as failure:
                        self.failure = str(failure)
                        return
                else:
                    self.before.append(clock.run(lambda: runner.time(without)))
            if self._is_decided(pair + 1):
                return

    def _is_decided(self, pairs: int) -> bool:
        rules, effects = self.rules, self.effects()
        if pairs > 1 and effects.losses is not None and effects.losses.verdict == "differ":
            return True
        both = [e for e in (effects.time, effects.memory) if e is not None]
        if rules.alpha(pairs) and any(e.verdict == "less" for e in both):
            return True
        most = critical(2 * rules.repeats, LOOKS[-1])
        return all(
            e.ratio >= 1 - rules.least_gain
            and contradictions(e.runs_before, e.runs_after, rules.least_gain) > most
            for e in both
        )

    def _figures(
        self, quantity: Callable[[Measured], float | None]
    ) -> tuple[list[float], list[float]] | None:
        """One figure a run of both sides; None where some run does not show it."""
        sides = [[quantity(run) for run in side] for side in (self.before, self.after)]
        if not all(sides) or any(not value for side in sides for value in side):
            return None
        return [v for v in sides[0] if v], [v for v in sides[1] if v]

    def losses(self) -> LossCheck:
        """Whether the losses of both sides agree."""
        sides = [[run.losses for run in side] for side in (self.before, self.after)]
        return agreement(sides[0], sides[1], self.rules.loss_tolerance)

    def effects(self) -> Effects:
        """What the pairs of runs so far show."""
        pairs = min(len(self.before), len(self.after))
        if not pairs:
            return Effects()
        time_, memory = self._figures(Measured.time_us), self._figures(lambda run: run.peak_bytes)
        if time_ and self.samples:
            time_ = time_[0], [us / self.samples for us in time_[1]]
        least, alpha = self.rules.least_gain, self.rules.alpha(pairs)
        return Effects(
            time=_effect("us", *time_, least, alpha) if time_ else None,
            memory=_effect("bytes", *memory, least, alpha) if memory else None,
            losses=self.losses() if self.samples is None else None,
            pairs=pairs,
        )


def _effect(unit: str, before: Sequence[float], after: Sequence[float], least: float, alpha: float) -> Effect:
    comparison = compare(before, after, least, alpha)
    return Effect(
        unit="us" if unit == "us" else "bytes",
        before=median(before),
        after=median(after),
        ratio=comparison.ratio,
        bound=comparison.bound if isfinite(comparison.bound) else None,
        interval=comparison.interval,
        p=comparison.p,
        verdict=comparison.verdict,
        detectable=comparison.detectable,
        runs_before=list(before),
        runs_after=list(after),
    )
