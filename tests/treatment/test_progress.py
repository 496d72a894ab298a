"""Somebody who waits is told how far it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from trace_doctor.treatment.progress import Progress, spoken
from trace_doctor.treatment.trial import Clock, Rules


@dataclass
class Now:
    value: float = 0.0

    def __call__(self) -> float:
        return self.value


@dataclass
class Of:
    """As much of a runner and of a loop as is asked for."""

    seconds: list[float] = field(default_factory=list)
    attempts: list[Path] = field(default_factory=list)
    rules: Rules = field(default_factory=lambda: Rules(6, 0.01, 0.02, False))


def test_no_ten_seconds_pass_without_a_line_and_the_time_left_is_told() -> None:
    now, lines, of = Now(), list[tuple[float, str]](), Of()
    progress = Progress(Clock(600.0, now), lambda line: lines.append((now.value, line)))
    progress.say("recording")
    for quarter in range(4 * 120):
        now.value = quarter / 4
        if now.value == 30:
            progress.follow(cast("Any", of), cast("Any", of), 2)
        if now.value > 30 and now.value % 5 == 0:
            of.seconds.append(5.0)
        if now.value == 70:
            of.attempts.append(Path())
        progress.tick()
    times = [when for when, _ in lines]
    assert max(b - a for a, b in pairwise(times)) <= 10
    told = [line for when, line in lines if when > 40]
    # two fixes and both together, 12 runs each: 36 less what ran
    assert "3 runs of 5 s each, about 33 to come: about 3 min left, 9 min at most" in told[0]
    assert "about 15 to come" in told[-1], told[-1]


def test_more_than_the_budget_is_not_told() -> None:
    now, lines = Now(), list[str]()
    of = Of(seconds=[60.0])
    progress = Progress(Clock(100.0, now), lines.append)
    progress.follow(cast("Any", of), cast("Any", of), 5)
    now.value = 40.0
    progress.tick()
    assert "about 60 s left, 60 s at most" in lines[0]
    assert [spoken(s) for s in (3.2, 89, 300, 7200)] == ["3 s", "89 s", "5 min", "2.0 h"]
