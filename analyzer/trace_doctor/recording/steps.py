"""The steps of a recording: `steps.csv`, joined from what each rank wrote."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from trace_doctor.recording.options import STEPS_COLUMNS, STEPS_FILE


@dataclass(frozen=True)
class Step:
    """One step of one rank."""

    rank: int
    step: int
    """counted from 0 over all phases"""
    phase: str
    milliseconds: float
    """wall time; with the device's work done in the timing phase"""
    loss: float | None
    """None where it could not be seen"""


def gather(folder: Path) -> tuple[Step, ...]:
    """The steps of all ranks in order, written to `steps.csv` in place of the files of the single ranks."""
    parts = sorted(folder.glob("rank*.steps.csv"))
    found = sorted((s for part in parts for s in read(part)), key=lambda s: (s.rank, s.step))
    if parts:
        write(folder / STEPS_FILE, found)
        for part in parts:
            part.unlink()
    return tuple(found)


def write(path: Path, steps: list[Step]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(STEPS_COLUMNS)
        for s in steps:
            rows.writerow([s.rank, s.step, s.phase, s.milliseconds, "" if s.loss is None else repr(s.loss)])


def read(path: Path) -> list[Step]:
    """The steps of one file; a line that is no step (the last one of a process that was killed) is left out."""
    found = []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for row in csv.DictReader(file):
            try:
                loss = float(row["loss"]) if row["loss"] else None
                step = Step(
                    int(row["rank"]), int(row["step"]), row["phase"], float(row["milliseconds"]), loss
                )
            except (KeyError, TypeError, ValueError):
                continue
            if math.isfinite(step.milliseconds):
                found.append(step)
    return found
