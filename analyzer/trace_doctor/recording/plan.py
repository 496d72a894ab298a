"""Which phase each step is recorded in: decided by step times alone, so that it needs neither torch nor a clock.

Warm-up lasts until the step times settle; then the whole rest is laid out at once (`Schedule`), as far as the budgets
reach. One rank decides; the others read what it laid out and change phase at the same steps.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from trace_doctor.recording.options import Phase, RecordOptions

COST: Mapping[Phase, float] = {"warmup": 1.0, "timing": 1.0, "light": 1.5, "detailed": 4.0, "memory": 1.5}
"""about how much longer a step takes in a phase than plain"""
TRACED: tuple[Phase, ...] = ("light", "detailed")
"""phases whose first step only warms the profiler up"""
_LEAST: Mapping[Phase, int] = {"timing": 3, "light": 2, "detailed": 2, "memory": 2}
_FIRST_TO_GO: tuple[Phase, ...] = ("memory", "light", "timing", "detailed")
"""what is left out first when the budget is too small for all"""
FIRST_TIMING = 5
"""plain steps before the traces; the others come last, so that a script of few steps is traced all the same"""


@dataclass(frozen=True)
class Span:
    """Steps first..last of one phase, both included."""

    phase: Phase
    first: int
    last: int


@dataclass(frozen=True)
class Schedule:
    """The phases after warm-up, one behind the other without a gap."""

    spans: tuple[Span, ...]
    begin: int
    """the first step behind warm-up"""

    @property
    def end(self) -> int:
        """The first step that is not recorded any more."""
        return self.spans[-1].last + 1 if self.spans else self.begin

    def phase(self, step: int) -> Phase | None:
        """None: enough is recorded."""
        if step < self.begin:
            return "warmup"
        return next((s.phase for s in self.spans if s.first <= step <= s.last), None)

    def cut(self, end: int) -> Schedule:
        """The same, but step `end` and those behind it are not recorded."""
        spans = tuple(Span(s.phase, s.first, min(s.last, end - 1)) for s in self.spans if s.first < end)
        return Schedule(spans, min(self.begin, end))

    def to_json(self) -> str:
        """For the other ranks, read by `from_json`."""
        return json.dumps({"begin": self.begin, "spans": [[s.phase, s.first, s.last] for s in self.spans]})

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Raises ValueError, KeyError or TypeError for any other text."""
        decoded = json.loads(text)
        spans = tuple(Span(phase, int(first), int(last)) for phase, first, last in decoded["spans"])
        if any(s.phase not in get_args(Phase) for s in spans):
            raise ValueError("a phase that is not known")
        return cls(spans, int(decoded["begin"]))


@dataclass
class WarmUp:
    """The times of the first steps, and whether they have settled."""

    least: int
    most: int
    times: list[float] = field(default_factory=list)
    """seconds of the steps that compiled nothing"""
    steps: int = 0
    quiet: int = 0
    """steps since the last that compiled something"""

    def add(self, seconds: float | None, compiled: bool) -> None:
        """`seconds` is None where the begin of the step was not seen."""
        self.steps += 1
        self.quiet = 0 if compiled else self.quiet + 1
        if seconds is not None and not compiled:
            self.times.append(seconds)

    @property
    def settled(self) -> bool:
        """The last steps compiled nothing, and their pace is the best so far or that of the steps before them."""
        if self.steps < self.least or min(self.quiet, len(self.times)) < min(self.least, 3):
            return False
        if len(self.times) < 3:
            return True
        last = statistics.median(self.times[-3:])
        before = statistics.median(self.times[-6:-3]) if len(self.times) >= 6 else last * 2
        return last <= 1.2 * min(self.times) or 0.8 <= last / max(before, 1e-9) <= 1.2

    @property
    def over(self) -> bool:
        """Whether steps take as long as they will, or there were as many as may be waited for."""
        return self.settled or self.steps >= self.most

    @property
    def pace(self) -> float:
        """Median seconds of the last steps."""
        return statistics.median(self.times[-5:]) if self.times else 0.0


class Plan:
    """Lays out the recording of this rank, and of those that follow it."""

    def __init__(self, options: RecordOptions, without: tuple[Phase, ...] = (), lead: int = 0) -> None:
        """`without`: phases that this machine cannot record. `lead`: steps between a decision and its effect, which
        other ranks need to hear of it."""
        self.options = options
        self.lead = lead
        self.wanted: dict[Phase, int] = {
            phase: getattr(options, f"{phase}_steps") + (phase in TRACED)
            for phase in options.phases
            if phase != "warmup" and phase not in without
        }
        self.schedule: Schedule | None = None
        self.why_settled = ""
        self._before = 0.0
        """seconds from the first step to the one with which recording begins"""
        self._restart()

    def _restart(self) -> None:
        room = self.options.max_steps - sum(self.wanted.values()) - self.lead
        most = max(self.options.warmup_steps, min(self.options.max_warmup_steps, room), 1)
        least = self.options.warmup_steps if "warmup" in self.options.phases else 0
        self.warm_up = WarmUp(least, most if least else 0)

    def restart(self) -> None:
        """What counts as a step has changed: the times so far say nothing. Without effect once laid out."""
        if self.schedule is None:
            self._restart()

    def after(self, step: int, seconds: float | None, compiled: bool, elapsed: float) -> Phase | None:
        """The phase of step + 1, given how step went. `elapsed`: seconds since the first step. Warm-up is looked for from the step on
        with which recording is to begin.

        None: enough is recorded."""
        if step < self.options.at:
            self._before = elapsed
            return "warmup"
        elapsed -= self._before
        if self.schedule is None:
            self.warm_up.add(seconds, compiled)
            late = elapsed > 0.3 * self.options.max_seconds or step + 1 >= self.options.last_steps
            if self.warm_up.over or late:
                self.why_settled = (
                    "step times settled" if self.warm_up.settled else "step times did not settle"
                )
                self.schedule = self._laid_out(step + 1 + self.lead, elapsed)
        elif elapsed > self.options.max_seconds and step + 1 + self.lead < self.schedule.end:
            self.schedule = self.schedule.cut(step + 1 + self.lead)
        return "warmup" if self.schedule is None else self.schedule.phase(step + 1)

    def prolong(self, step: int, steps: int) -> bool:
        """The phase of `step` lasts so many steps longer and all behind it come later; False where the budget does not
        reach, or others rely on what was laid out."""
        schedule = self.schedule
        if self.lead or schedule is None or schedule.end + steps > self.options.last_steps:
            return False
        self.schedule = Schedule(
            tuple(
                Span(
                    s.phase,
                    s.first + steps if s.first > step else s.first,
                    s.last + steps if s.last >= step else s.last,
                )
                for s in schedule.spans
            ),
            schedule.begin,
        )
        return True

    def _laid_out(self, begin: int, elapsed: float) -> Schedule:
        pace = self.warm_up.pace
        counts = fitted(
            self.wanted,
            self.options.last_steps - begin,
            self.options.max_seconds - elapsed - self.lead * pace,
            pace,
        )
        spans: list[Span] = []
        first = begin
        for phase, count in in_order(counts):
            spans.append(Span(phase, first, first + count - 1))
            first += count
        return Schedule(tuple(spans), begin)


def fitted(requested: Mapping[Phase, int], steps: int, seconds: float, pace: float) -> dict[Phase, int]:
    """The steps of each phase that fit into so many steps and seconds, where a plain step takes `pace` seconds.

    All phases shrink alike, down to the least that one needs; then the least useful are left out."""
    phases = dict(requested)
    while phases:
        for tenths in range(10, -1, -1):
            counts = {p: _share(p, n, tenths) for p, n in phases.items()}
            if (
                sum(counts.values()) <= steps
                and sum(COST[p] * n * pace for p, n in counts.items()) <= seconds
            ):
                return counts
        del phases[next(p for p in _FIRST_TO_GO if p in phases)]
    return {}


def in_order(counts: Mapping[Phase, int]) -> list[tuple[Phase, int]]:
    """The phases with their steps, plain timing in two parts: nobody knows how many steps a script has left."""
    timing = counts.get("timing", 0)
    first = timing if len(counts) == 1 else min(timing, FIRST_TIMING)
    spans: list[tuple[Phase, int]] = [(p, first if p == "timing" else n) for p, n in counts.items()]
    return [*spans, ("timing", timing - first)] if timing > first else spans


def _share(phase: Phase, requested: int, tenths: int) -> int:
    least = min(_LEAST[phase], requested)
    return least + (requested - least) * tenths // 10
