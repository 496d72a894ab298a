"""What recording itself took of the steady steps."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.durations import two_figures
from trace_doctor.evidence.idle.host_causes import profilers_own
from trace_doctor.evidence.intervals import covered, intersect, intervals, pairs, total, union
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat

FRAME_NS = 300
"""What `with_stack=True` adds to a Python call: 317 ns, torch 2.13 on x86 (200,000 empty calls with and without)."""


_ADVICE = "trace-doctor record -- python train.py"
_TIMES_APART = 2
"""So many times as long is no longer the same step: in 36 traces of recordings the steps take 0.94 to 1.31 times what was timed."""


def doubt_of_times(facts: Facts) -> str:
    """Why the times of a recording's steps are not of the steps in its trace, whose phase was timed as well; "" where they
    may be, or a part of the steps was asked for."""
    capture, steps = facts.capture, facts.get(Steps)
    run = capture.run
    timed = capture.step_ms.get(capture.roles.get(run.path, ""), ()) if run is not None else ()
    if run is None or steps is None or not steps.steps or not timed or facts.options.steps is not None:
        return ""
    timed_us, own_us = float(np.median(timed)) * 1e3, steps.median_ns / 1e3
    if max(timed_us, own_us) < _TIMES_APART * min(timed_us, own_us):
        return ""
    both = f"{two_figures(timed_us)} for steps that take {two_figures(own_us)}"
    return f"the times of its steps in the recording are not used: they say {both} in the trace"


class PlainPace(Evidence, frozen=True):
    """What a step takes without the profiler, in the same run. Raises NotCaptured where only profiled steps are known."""

    steps: int
    mean_ns: int
    median_ns: int
    mad_ns: int
    """median absolute deviation of the steps"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        times = np.array(facts.capture.step_ms.get("timing", ()))
        if not len(times):
            raise NotCaptured("steps without the profiler were not timed", _ADVICE)
        if doubt := doubt_of_times(facts):
            raise NotCaptured(doubt, _ADVICE)
        middle = float(np.median(times))
        spread = float(np.median(np.abs(times - middle)))
        return cls(len(times), *(round(ms * 1e6) for ms in (float(times.mean()), middle, spread)))


class ProfilerCost(Evidence, frozen=True):
    """Raises NotCaptured when there is no window."""

    marked: tuple[tuple[str, int, int], ...]
    """(name, number, ns) of the profiler's own `overhead` events in the steady steps, the longest first"""
    marked_ns: int
    """of them together, as a union"""
    frames: int
    """Python calls recorded on the main thread in the steady steps; those of another trace cost nothing here"""
    plain: PlainPace | None = None
    """what the steps take without the profiler, where that was measured"""
    median_ns: int = 0
    """what they take with it, in the median as those without it"""
    phases: tuple[tuple[str, int, int], ...] = ()
    """(phase, steps, median ns) of a recording, in its order"""

    @property
    def frames_ns(self) -> int:
        """Estimated cost of recording these calls."""
        return self.frames * FRAME_NS

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, steady = facts.run, intervals(facts[Steps].spans("steady"))
        rows = profilers_own(run)
        spans = pairs(run.ts[rows], run.end[rows])
        inside = covered(spans, steady)
        by_name: dict[str, tuple[int, int]] = {}
        for row, ns in zip(rows[inside > 0].tolist(), inside[inside > 0].tolist(), strict=True):
            number, before = by_name.get(run.text(row), (0, 0))
            by_name[run.text(row)] = (number + 1, before + ns)
        threads = facts.get(Threads)
        python = run.is_cat(Cat.PYTHON) & run.own
        if threads is not None:
            python = python & (run.thread == threads.main)
        return cls(
            marked=tuple(sorted(((k, n, ns) for k, (n, ns) in by_name.items()), key=lambda m: (-m[2], m[0]))),
            marked_ns=total(intersect(union(spans), steady)),
            frames=sum(int(python[a:b].sum()) for a, b in np.searchsorted(run.ts, steady).tolist()),
            plain=facts.get(PlainPace),
            median_ns=facts[Steps].median_ns,
            phases=tuple(
                (phase, len(times), round(float(np.median(times)) * 1e6))
                for phase, times in facts.capture.step_ms.items()
            ),
        )
