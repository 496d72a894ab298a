"""The columns of a simulated job, as its traces would show them."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import numpy as np

from simulated_jobs.programs import Job
from simulated_jobs.simulation import Timeline
from trace_doctor.evidence.distributed.blame.columns import KINDS, JobColumns, Rows, StepColumns, rows_of

PARTS = ("compute", "data loading")


def columns(
    job: Job, *, hidden: str = "", jitter_ns: int = 0, clocks_ns: int = 2_000_000, seed: int = 0, missing: Collection[int] = (), hosts: int = 0,
    absent: dict[int, Collection[int]] | None = None,
) -> JobColumns:  # fmt: skip
    """`clocks_ns`: by how much the clocks of hosts differ. `hosts`: ranks of each; 0: not recorded. `missing`: ranks that were not
    read. `absent`: rank -> steps it did not record. `hidden`: a group of which nothing is recorded. `jitter_ns`: by how much times of
    collectives are off."""
    offsets = random.Random(seed)
    host = [n // (hosts or 8) for n in range(job.world)]
    ahead = [offsets.randint(-clocks_ns, clocks_ns) for _ in range(max(host) + 1)]
    ranks = [rank for rank in range(job.world) if rank not in missing]
    timelines = [_recorded(job, rank, hidden, jitter_ns, offsets) for rank in ranks]
    steps = [
        _step(n, timelines, [ahead[host[rank]] for rank in ranks], [n not in (absent or {}).get(rank, ()) for rank in ranks])
        for n in range(len(timelines[0].steps))
    ]  # fmt: skip
    return JobColumns(
        steps,
        tuple(ranks),
        tuple(job.groups),
        PARTS,
        tuple(f"node{host[rank]}" for rank in ranks) if hosts else (),
    )


def _recorded(job: Job, rank: int, hidden: str, jitter_ns: int, off: random.Random) -> Timeline:
    line = job.timelines[rank]
    collectives = [
        (op, start, max(start + 1, end + off.randint(-jitter_ns, jitter_ns)))
        for op, start, end in line.collectives
        if job.names[op.group] != hidden
    ]
    return Timeline(line.work, collectives, line.steps, line.begin)


def _step(
    n: int, timelines: Sequence[Timeline], ahead: Sequence[int], present: Sequence[bool]
) -> StepColumns:
    found, begins, ends, own, parts = [], [], [], [], []
    for rank, (line, add) in enumerate(zip(timelines, ahead, strict=True)):
        begin, end = line.steps[n - 1] if n else line.begin, line.steps[n]
        work = np.array([(a, b) for a, b, _ in line.work if begin <= a < end], dtype=np.int64).reshape(-1, 2)
        begins.append(begin + add)
        ends.append(end + add)
        own.append(int((work[:, 1] - work[:, 0]).sum()))
        parts.append(
            [sum(b - a for a, b, part in line.work if part == name and begin <= a < end) for name in PARTS]
        )
        if not present[rank]:
            continue
        for op, start, stop in sorted(line.collectives, key=lambda each: each[1]):
            if begin <= start < end:
                before, until = _until(work, start), _until(work, stop)
                busy = bool(((work[:, 0] < stop) & (stop < work[:, 1])).any())
                found.append(
                    (
                        rank,
                        op.group,
                        KINDS.index(op.kind),
                        op.seq,
                        start + add,
                        stop + add,
                        op.size,
                        before,
                        until - before,
                        busy,
                    )
                )
    table = np.array(found, dtype=np.int64).reshape(-1, 10)
    rows = rows_of(table)
    return StepColumns(n, rows, np.array(present), np.array(begins), np.array(ends), np.array(own), np.array(parts, dtype=np.float64))  # fmt: skip


def _until(work: np.ndarray, moment: int) -> int:
    return int((np.clip(work, None, moment)[:, 1] - np.clip(work, None, moment)[:, 0]).sum())


def side_by_side(job: JobColumns, copies: int) -> JobColumns:
    """So many copies of a job that have no ranks or groups in common: for what a job of many ranks costs."""
    ranks, groups = len(job.ranks), len(job.groups)
    steps = []
    for step in job.steps:
        rows, count = step.rows, len(step.rows.rank)
        columns = {name: np.tile(getattr(rows, name), copies) for name in rows.__struct_fields__}
        copy = np.repeat(np.arange(copies), count)
        columns["rank"] += copy * ranks
        columns["group"] += copy * groups
        steps.append(
            StepColumns(
                index=step.index,
                rows=Rows(**columns),
                present=np.tile(step.present, copies),
                begin=np.tile(step.begin, copies),
                end=np.tile(step.end, copies),
                own=np.tile(step.own, copies),
                parts=np.tile(step.parts, (copies, 1)),
            )
        )
    return JobColumns(
        steps,
        tuple(n + ranks * copy for copy in range(copies) for n in job.ranks),
        tuple(tuple(n + ranks * copy for n in group) for copy in range(copies) for group in job.groups),
        job.parts,
        tuple(f"{host}-{copy}" for copy in range(copies) for host in job.hosts),
    )
