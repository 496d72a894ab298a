"""What else the machine does, and what a treatment makes of it before the first trial."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Literal

from trace_doctor.errors import UsageError
from trace_doctor.recording.launch import Recorded
from trace_doctor.recording.processes import Meter
from trace_doctor.recording.recording_warnings import BUSY_GPU, BUSY_OTHERS, busy_line

IfBusy = Literal["more", "wait", "stop"]
MORE_PAIRS = 2
"""so that some of the pairs may contradict a gain that the others show"""
_LOOK_SECONDS = 5.0
_QUIET_LOOKS = 3
_WAIT_SHARE = 0.25
"""of the time that is left: the trials need the rest"""


def look_around(
    recorded: Recorded | None, if_busy: IfBusy, left: float, say: Callable[[str], None]
) -> tuple[int, str]:
    """How many more pairs a trial makes until its first look because others kept the machine busy while the script was
    recorded, and the line that says so (empty where they did not). `left`: seconds of the budget. Waits for a quiet machine
    where `if_busy` says so. Raises UsageError where it says to stop."""
    waited = max(recorded.waited_for_cpu.values(), default=0.0) if recorded else 0.0
    line = busy_line(waited, recorded.others) if recorded and _of_others(recorded) else ""
    if not line:
        return 0, ""
    if if_busy == "stop":
        raise UsageError(f"the machine is busy: {line} (--if-busy wait or more)")
    if if_busy == "wait" and _wait(left * _WAIT_SHARE, line, say):
        return 0, ""
    say(f"the machine is busy: {line}; each trial takes {MORE_PAIRS} pairs of runs more (--if-busy)")
    return MORE_PAIRS, line


def _of_others(recorded: Recorded) -> bool:
    """Whether it is others that disturb the script, and not its own processes each other."""
    others = recorded.others
    return others.cpus is None or others.cpus >= BUSY_OTHERS or (others.gpu_percent or 0) >= BUSY_GPU


def _wait(seconds: float, line: str, say: Callable[[str], None]) -> bool:
    """Whether the machine became quiet within so many seconds, in several looks in a row."""
    say(f"the machine is busy: {line}; waiting up to {seconds:.0f} s for a quiet one")
    end, quiet = time.monotonic() + seconds, 0
    while quiet < _QUIET_LOOKS and time.monotonic() < end:
        meter = Meter(os.environ)
        time.sleep(min(_LOOK_SECONDS, max(end - time.monotonic(), 0.1)))
        load = meter.read()
        quiet = 0 if (load.cpus or 0) >= BUSY_OTHERS or (load.gpu_percent or 0) >= BUSY_GPU else quiet + 1
        if not quiet:
            say(f"still busy: other processes keep {load.cpus or 0:.1f} CPUs busy")
    return quiet >= _QUIET_LOOKS
