"""What comes only once in a while between steps: evaluation, a rollout, a checkpoint, a log.

The step that holds it is long. Where the time goes is sampled by a thread, in phases without the profiler, which would show it."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import threading
import time
from collections import Counter
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any

from trace_doctor.recording.options import Phase

LONG = 3.0
"""so many times the median of its phase is a long step"""
_LEAST_SAMPLES = 10
"""of regular steps: fewer do not show which lines are theirs"""
_WORTH = 0.1
"""of the time observed: a long step that takes more of it is waited for once more"""
_LOOKS_PER_STEP, _OFTEN, _SELDOM = 4, 0.002, 0.1
"""samples in a step, and the least and the most seconds between them"""
_BOUNDARIES = 8
"""ends of steps by which the functions around the loop are known"""
_MOST_PLACES = 4
_LOADER = "/torch/utils/data/"

Line = tuple[str, str, int]
Place = tuple[str, str, int, str]
"""file, function and line in the loop, and the function that it calls"""


class PeriodicWork:
    """Of one training thread; told of each end of a step."""

    def __init__(self, observes: bool = True) -> None:
        """`observes` False: no thread, and no summary."""
        self._observes = observes
        self._loop: set[CodeType] | None = None
        self._boundaries = 0
        self._samples: dict[int, Counter[Place | None]] = {}
        self._seconds: dict[int, float] = {}
        """step -> seconds on the host, of phases without the profiler"""
        self._ms: dict[Phase, dict[int, float]] = {}
        self._step = 0
        self._began = time.perf_counter()
        self._stop: threading.Event | None = None
        self._waited = False

    # -- in the training thread

    def phase(self, name: Phase | None) -> None:
        """A phase begins. Under the profiler there is no thread of ours: its frames would be in the trace."""
        observed = self._observes and name in ("warmup", "timing")
        if not observed and self._stop is not None:
            self._stop.set()
            self._stop = None
        elif observed and self._stop is None:
            self._stop = threading.Event()
            arguments = (self._stop, threading.get_ident())
            threading.Thread(target=self._watch, args=arguments, daemon=True).start()

    def step_ended(self, step: int, seconds: float | None) -> None:
        """Step `step` is over, and the next one begins. `seconds`: None where its begin was not seen."""
        if self._boundaries < _BOUNDARIES:
            self._boundaries += 1
            here = _outside_torch(sys._getframe(1))
            self._loop = here if self._loop is None else (self._loop & here or self._loop)
        if self._stop is not None and seconds is not None:
            self._seconds[step] = seconds
        self._step, self._began = step + 1, time.perf_counter()

    def measured(self, step: int, phase: Phase, milliseconds: float) -> None:
        """How long a step took, on the device where there is one."""
        self._ms.setdefault(phase, {})[step] = milliseconds

    def steps_to_wait(self, step: int) -> int:
        """How many steps behind this one are worth waiting for, once: what took long may come again. It comes before the first
        step too, or at ends of epochs: then again after as many steps as it came after, or a multiple of these."""
        usual = self._usual(self._long(self._seconds)) if self._seconds else None
        if self._waited or usual is None:
            return 0
        middle, total = statistics.median(self._seconds.values()), sum(self._seconds.values())
        found = [n for n in self._long(self._seconds) if self._found(n, usual)]
        if len(found) != 1 or self._seconds[found[0]] - middle < _WORTH * total:
            return 0
        self._waited = True
        return found[0] - step % found[0] + 2

    def summary(self, leave_out: list[int]) -> dict[str, Any] | None:
        """What came twice at least, as it stands in the manifest; empty for nothing, None where too little was seen to tell.
        `leave_out`: steps that compile."""
        plain = {n: ms for phase in ("warmup", "timing") for n, ms in self._ms.get(phase, {}).items()}
        plain = {n: ms for n, ms in plain.items() if n and n not in leave_out}
        long = self._long(plain)
        usual = self._usual(long)
        if usual is None or not self._loop:
            return None
        by_step = {n: found for n in long if (found := self._found(n, usual))}
        often = Counter(place for found in by_step.values() for place in found)
        again = {place for place, steps in often.items() if steps > 1}
        steps = sorted(n for n, found in by_step.items() if again & found.keys())
        if len(steps) < 2:
            return {}
        middle = statistics.median(plain.values())
        times: Counter[Place] = Counter()
        for n in steps:
            for place in again & by_step[n].keys():
                times[place] += (plain[n] - middle) * by_step[n][place] / self._samples[n].total()  # type: ignore[assignment]
        return _told(steps, times, statistics.mean(ms for n, ms in plain.items() if n not in long))

    # -- which steps and lines

    @staticmethod
    def _long(times: dict[int, float]) -> list[int]:
        middle = statistics.median(times.values()) if times else 0.0
        return sorted(n for n, taken in times.items() if n and taken >= LONG * middle)

    def _usual(self, long: list[int]) -> set[Line] | None:
        """Lines of steps that are not long; None where too few samples tell."""
        regular = [seen for n, seen in list(self._samples.items()) if n and n not in long]
        if sum(seen.total() for seen in regular) < _LEAST_SAMPLES:
            return None
        return {place[:3] for seen in regular for place in seen if place is not None}

    def _found(self, step: int, usual: set[Line]) -> dict[Place, int]:
        seen = list(self._samples.get(step, {}).items())
        return {place: n for place, n in seen if place is not None and place[:3] not in usual}

    # -- in a thread of its own

    def _watch(self, stop: threading.Event, thread: int) -> None:
        with contextlib.suppress(Exception):  # what fails here is no matter of the script's
            self._look(stop, thread)

    def _look(self, stop: threading.Event, thread: int) -> None:
        while not stop.wait(self._between_looks()):
            step = self._step
            frame = sys._current_frames().get(thread)
            if frame is not None and self._loop is not None and not stop.is_set():
                self._samples.setdefault(step, Counter())[self._place(frame)] += 1
            del frame

    def _between_looks(self) -> float:
        """Seconds. A step that goes on for long is looked at less often."""
        step = self._step
        pace = min(self._seconds.get(n, _SELDOM) for n in range(step - 3, step))
        age = time.perf_counter() - self._began
        return min(max(pace / _LOOKS_PER_STEP, age / 40, _OFTEN), _SELDOM)

    def _place(self, frame: FrameType | None) -> Place | None:
        """The line of the innermost function around the loop, and what it calls; None for a wait for data, which is no periodic
        work, and outside of the loop."""
        called: CodeType | None = None
        while frame is not None:
            code = frame.f_code
            if self._loop is not None and code in self._loop:
                if called is not None and _LOADER in called.co_filename:
                    return None
                return code.co_filename, code.co_name, frame.f_lineno or 0, called.co_name if called else ""
            called, frame = code, frame.f_back
        return None


def _outside_torch(frame: FrameType | None) -> set[CodeType]:
    files = (getattr(sys.modules.get(name), "__file__", None) for name in ("torch", "trace_doctor"))
    folders = tuple(os.path.dirname(file) + os.sep for file in files if file)
    codes = set()
    while frame is not None:
        if not frame.f_code.co_filename.startswith(folders):
            codes.add(frame.f_code)
        frame = frame.f_back
    return codes


def _told(steps: list[int], times: Counter[Place], step_ms: float) -> dict[str, Any]:
    every = (steps[-1] - steps[0]) / (len(steps) - 1)
    each = sum(times.values()) / len(steps)
    return {
        "steps": steps,
        "every": round(every, 2),
        "milliseconds": round(each, 3),
        "step_ms": round(step_ms, 3),
        "share": round(each / (each + every * step_ms), 4),
        "places": [
            {
                "file": PurePath(file).name,
                "function": function,
                "line": line,
                "calls": calls,
                "share": round(taken / sum(times.values()), 4),
            }
            for (file, function, line, calls), taken in times.most_common(_MOST_PLACES)
        ],
    }
