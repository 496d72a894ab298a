"""`steps.csv`: the steps of all ranks, joined from what each rank wrote."""

from __future__ import annotations

from pathlib import Path

from trace_doctor.recording import whole_files
from trace_doctor.recording.options import STEPS_COLUMNS, STEPS_FILE, rank_steps_file


def join(folder: Path, ranks: list[int]) -> None:
    """Puts `steps.csv` in place of the files of the single ranks; does nothing where no rank wrote one.

    Lines are kept as they are, losses to the last digit. The last line of a process that was killed may be cut: one
    without an end is left out.
    """
    header = ",".join(STEPS_COLUMNS) + "\n"
    lines: list[str] = []
    for rank in sorted(ranks):
        part = folder / rank_steps_file(rank)
        if part.is_file():
            with part.open(encoding="utf-8", errors="replace", newline="") as file:
                lines += [line for line in file if line.endswith("\n") and line.strip() != header.strip()]
    if not lines:
        return
    whole_files.write(folder / STEPS_FILE, header + "".join(lines))
    whole_files.check(folder)
    for rank in ranks:
        (folder / rank_steps_file(rank)).unlink(missing_ok=True)
