"""Which captures are of one job: what a verdict is about, and within which findings are one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from trace_doctor.engine.examine import Examination
from trace_doctor.evidence.rank_summary import ranks_of_jobs
from trace_doctor.model import Input

MOST_KERNELS = 1.5
"""a step with so many times more kernels is of another job"""


def job_numbers(examinations: Sequence[Examination]) -> list[int]:
    """The job of each capture, numbered in their order. Ranks that ran at the same time are one; further captures of a folder
    are too, unless what they record says that it is another program or machine. A folder of its own is another job only where
    it is unlike."""
    ranks = ranks_of_jobs([e.summary for e in examinations])
    jobs = [
        id(rank.dumped_together if _dump_alone(e) else rank.job)
        for e, rank in zip(examinations, ranks, strict=True)
    ]
    first: dict[int, Examination] = {}
    numbers: dict[int, int] = {}
    for job, examination in zip(jobs, examinations, strict=True):
        if job in numbers:
            continue
        alike = (number for known, number in numbers.items() if _alike(first[known], examination))
        numbers[job] = next(alike, len(set(numbers.values())))
        first[job] = examination
    return [numbers[job] for job in jobs]


def _alike(a: Examination, b: Examination) -> bool:
    """Whether nothing recorded speaks against two captures being of one job."""
    one, other = a.display.inputs[0], b.display.inputs[0]
    return one.kind != other.kind or not (
        _other_device(one, other)
        or _other_work(one, other)
        or _other_folder(a, b)
        or _dump_alone(a)  # dumps of one job were put together by their times
    )


def _dump_alone(examination: Examination) -> bool:
    return examination.summary.dump is not None and not _timed(examination)


def _other_device(a: Input, b: Input) -> bool:
    return bool(a.device_name and b.device_name and a.device_name != b.device_name)


def _other_work(a: Input, b: Input) -> bool:
    few, many = sorted((a.work.kernels or 0.0, b.work.kernels or 0.0))
    shapes = [set(side.work.shapes) for side in (a, b)]
    return 0 < MOST_KERNELS * few < many or (all(shapes) and not shapes[0] & shapes[1])


def _other_folder(a: Examination, b: Examination) -> bool:
    """Whether the same rank of another folder: ranks may have a folder each."""
    folders = [PurePosixPath(e.summary.path).parent for e in (a, b)]
    return folders[0] != folders[1] and a.rank == b.rank and _timed(a) and _timed(b)


def _timed(examination: Examination) -> bool:
    return examination.summary.begin is not None
