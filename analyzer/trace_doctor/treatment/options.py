"""What `treat` is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import get_args

from trace_doctor.errors import UsageError
from trace_doctor.model.treatment import Treatment
from trace_doctor.treatment import losses, statistics
from trace_doctor.treatment.quiet import IfBusy


@dataclass(frozen=True)
class TreatOptions:
    """What to try and how much. Raises UsageError for what cannot be."""

    unsafe: bool = False
    """also fixes that may change numerics, randomness or memory"""
    select: tuple[str, ...] = ()
    """only these findings: ids, prefixes of codes, names"""
    repeats: int = statistics.LEAST_REPEATS
    """runs with each fix, and as many without it; twice as many where these are not clear"""
    max_steps: int | None = None
    """of a plain run, warm-up included; None: what takes some seconds"""
    max_seconds: float = 3600.0
    """of everything"""
    max_trials: int | None = None
    if_busy: IfBusy = "more"
    """what to do where others kept the machine busy while the script was recorded: more pairs, wait for a quiet one, stop"""
    search_batch: bool = False
    """also search for a batch size, and for accumulation, by samples per second"""
    step_every: int | None = None
    least_gain: float = statistics.LEAST_GAIN
    loss_tolerance: float = losses.TOLERANCE
    without_losses: bool = False
    link: tuple[str, ...] = ()
    """files and folders that the scratch copy shares with the original"""
    copy_data: bool = False
    """copy large files and folders of data as well, instead of sharing them"""
    data_writes: bool = False
    """go on where runs write to files of the user's that the copy cannot have of its own"""
    scratch: Path | None = None
    """where the scratch copy is made (default: the system's folder for temporary files)"""
    logs: Path | None = None
    """where the recordings before and after are kept (default: nowhere)"""
    resume: Treatment | None = None
    """an earlier treatment that was interrupted: what it has decided is not tried again"""

    def __post_init__(self) -> None:
        if self.repeats < statistics.LEAST_REPEATS:
            raise UsageError(
                f"--repeats: fewer than {statistics.LEAST_REPEATS} pairs of runs cannot show anything"
            )
        if self.max_steps is not None and self.max_steps < 4:
            raise UsageError("--max-steps: a run has at least 4 steps, half of them to warm up")
        if self.if_busy not in get_args(IfBusy):
            raise UsageError(f"--if-busy: more, wait or stop, not {self.if_busy!r}")
        if not 0 < self.max_seconds < inf:
            raise UsageError(f"--max-minutes: {self.max_seconds:g} s is no time above 0")
