"""Which of several processes this is, and how all of them change phase at the same step.

The first process of a machine lays the recording out and writes it down a few steps ahead; the others read it. No
collective is used: those of the script come in an order that must stay what it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trace_doctor.recording import whole_files
from trace_doctor.recording.options import PLAN_FILE, Phase
from trace_doctor.recording.plan import Plan, Schedule

LEAD = 3
"""steps between a decision and its effect: a rank that runs ahead of the first one is still in time"""


def rank_and_size(modules: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Rank and number of ranks: as torch.distributed says where it is initialised, else as launchers say. A process
    that its variables make no rank of their world (`RANK=-1`) is alone."""
    distributed = modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    for rank, size in (
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ):
        try:
            rank_and_size = int(environment[rank]), int(environment[size])
        except (KeyError, ValueError):
            continue
        if 0 <= rank_and_size[0] < rank_and_size[1]:
            return rank_and_size
    return 0, 1


def leads(rank: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process decides for its machine."""
    local = environment.get("LOCAL_RANK", "")
    return int(local) == 0 if local.isdigit() and "RANK" in environment else rank == 0


class Leader:
    """A plan that others follow."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self._path = folder / PLAN_FILE
        self._written: Schedule | None = None

    def restart(self) -> None:
        """Plans anew: what came before was no training."""
        self.plan.restart()

    def prolong(self, step: int, steps: int) -> bool:
        """The others would come to know of it too late."""
        return False

    def after(self, step: int, seconds: float | None, compiled: bool, elapsed: float) -> Phase | None:
        """The phase behind a step (None: enough is recorded); the schedule is written for the other ranks. `seconds`: of the step."""
        phase = self.plan.after(step, seconds, compiled, elapsed)
        if self.plan.schedule is not self._written and self.plan.schedule is not None:
            whole_files.write(self._path, self.plan.schedule.to_json())
            self._written = self.plan.schedule
        return phase


class Follower:
    """Reads what the leader has laid out. `late` when it was already past it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PLAN_FILE
        self._stamp: tuple[int, int] | None = None
        self._schedule: Schedule | None = None
        self.late = False

    def restart(self) -> None:
        """The leader's business."""

    def prolong(self, step: int, steps: int) -> bool:
        """Never: the first rank decides."""
        return False

    def after(self, step: int, seconds: float | None, compiled: bool, elapsed: float) -> Phase | None:
        """The phase behind a step, by the schedule that the first rank wrote; None: enough is recorded."""
        try:
            stat = os.stat(self._path)
            if (stat.st_ino, stat.st_mtime_ns) != self._stamp:
                self._schedule = Schedule.from_json(self._path.read_text(encoding="utf-8"))
                self._stamp = (stat.st_ino, stat.st_mtime_ns)
                self.late = self.late or self._schedule.begin <= step
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not there yet
        return "warmup" if self._schedule is None else self._schedule.phase(step + 1)
