"""What a treatment says while it runs: a line at least every ten seconds, with the time that is left."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from trace_doctor.reporters.units import plural
from trace_doctor.treatment.launching import CommandRunner
from trace_doctor.treatment.loop import Loop
from trace_doctor.treatment.trial import Clock

EVERY = 9.0
"""seconds without a line after which the next look says one; looks are a quarter of a second apart"""


class Progress:
    """`say` tells a line; `tick` tells how far it is where none was told for a while."""

    def __init__(self, clock: Clock, tell: Callable[[str], None]) -> None:
        self._clock, self._tell = clock, tell
        self._told = clock.spent()
        self._follows: tuple[CommandRunner, Loop, int] | None = None
        self._attempts = self._runs_before = 0

    def say(self, line: str) -> None:
        """Tells it."""
        self._told = self._clock.spent()
        self._tell(line)

    def follow(self, runner: CommandRunner, loop: Loop, fixes: int) -> None:
        """From now on it is so many fixes that are tried."""
        self._follows = (runner, loop, fixes)

    def tick(self) -> None:
        """To be called often."""
        if self._clock.spent() - self._told >= EVERY:
            self.say(f"    {self._line()}")

    def _line(self) -> str:
        most = f"{spoken(self._clock.left())} at most"
        if self._follows is None or not self._follows[0].seconds:
            return f"{spoken(self._clock.spent())} so far, {most}"
        runner, loop, fixes = self._follows
        if len(loop.attempts) != self._attempts:
            self._attempts, self._runs_before = len(loop.attempts), len(runner.seconds)
        done, of_trial = len(runner.seconds), len(runner.seconds) - self._runs_before
        trials = max(fixes - self._attempts, 0) + (fixes > 1)  # all that helped are tried together
        ahead = max(2 * loop.rules.repeats * trials - of_trial, 1)
        left = min(ahead * fmean(runner.seconds), self._clock.left())
        return f"{plural(done, 'run')} of {spoken(fmean(runner.seconds))} each, about {ahead} to come: about {spoken(left)} left, {most}"


def spoken(seconds: float) -> str:
    """A time as people say it: `40 s`, `12 min`, `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
