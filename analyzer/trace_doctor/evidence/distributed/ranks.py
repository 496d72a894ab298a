"""What the ranks of a job do in a step, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import hypot, sqrt
from statistics import median
from typing import Self

import numpy as np

from trace_doctor.arrays import I64, U8
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.distributed.collectives import how_to_record_others
from trace_doctor.evidence.idle.gaps import IdleLedger
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.intervals import holds, intervals
from trace_doctor.evidence.rank_summary import JobEvidence, RankSummary
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.workload import Workload
from trace_doctor.model import IDLE_CAUSES, Cell, Column, Table
from trace_doctor.model import listed as listed
from trace_doctor.model import ranks_text as ranks_text

_NAMES = {
    "data_loading": "data loading",
    "cold_start": "cold start",
    "sync": "host-device sync",
    "optimizer": "the optimizer on the host",
    "annotation": "annotated code",
    "python": "Python",
    "dispatch": "operator dispatch",
    "launch": "kernel launches",
    "graph": "waits inside CUDA graphs",
}
PARTS = ("compute", "copies", *(_NAMES.get(cause, cause) for cause in IDLE_CAUSES))
"""what a rank does when it is in no collective"""


MOST_PIECES = 500
"""of one part: shorter ones are left out"""


class IdlePieces(Evidence, frozen=True):
    """The longest idle pieces of the steady steps, those of a cause together, the longest first. Raises NotCaptured where
    `IdleLedger` does."""

    cause: U8
    """index in `model.IDLE_CAUSES`"""
    start: I64
    end: I64

    @classmethod
    def build(cls, facts: Facts) -> Self:
        ledger, steady = facts[IdleLedger], intervals(facts[Steps].on_device("steady"))
        device = max(ledger.devices, key=lambda d: int((ledger.device == d).sum()), default=-1)
        rows = np.flatnonzero((ledger.device == device) & holds(steady, ledger.start))
        rows = rows[np.lexsort((ledger.start[rows] - ledger.end[rows], ledger.cause[rows]))]
        first = np.searchsorted(ledger.cause[rows], ledger.cause[rows])
        rows = rows[np.arange(len(rows)) - first < MOST_PIECES]
        return cls(ledger.cause[rows], ledger.start[rows], ledger.end[rows])

    def longest(self, part: str, ns: float) -> list[tuple[int, int]]:
        """As many of one of PARTS, the longest first, as are so long together."""
        cause = PARTS.index(part) - 2
        start, end = self.start[self.cause == cause], self.end[self.cause == cause]
        enough = np.cumsum(end - start) - (end - start) < ns
        return list(zip(start[enough].tolist(), end[enough].tolist(), strict=True))


class Ranks(JobEvidence, frozen=True):
    """Per rank the parts of a steady step from its time ledger. Raises NotCaptured with fewer than two ranks."""

    of_each = (TimeLedger, Steps, Workload, IdlePieces)

    ranks: tuple[int, ...]
    step_ns: tuple[int, ...]
    comm_ns: tuple[int, ...]
    """in collectives, beside no compute"""
    parts: tuple[tuple[float, ...], ...]
    """per rank and PARTS: ns of a steady step"""
    compute_error_ns: tuple[float | None, ...]
    """per rank: the standard error of its mean compute; None where fewer than two steps show none"""
    kernels: tuple[float | None, ...]
    """launched in a step; on a CPU operators"""
    on_gpu: bool = True
    cpu_wait_ns: tuple[float | None, ...] = ()
    """per rank: ns of a steady step in which its main thread could have run and did not; None where that was not recorded"""
    steps: tuple[int, ...] = ()
    pieces: tuple[IdlePieces | None, ...] = ()

    @classmethod
    def build(cls, ranks: Sequence[RankSummary]) -> Self:
        members = [m for m in ranks if m.get(TimeLedger) is not None]
        if len(members) < 2:
            raise NotCaptured("fewer than two ranks with a profiler trace", how_to_record_others(ranks))
        splits = [_parts(m) for m in members]
        loads = [m.get(Workload) for m in members]
        return cls(
            ranks=tuple(m.rank for m in members),
            step_ns=tuple(m[Steps].step_ns for m in members),
            comm_ns=tuple(comm for comm, _ in splits),
            parts=tuple(parts for _, parts in splits),
            compute_error_ns=tuple(_compute_error(m) for m in members),
            kernels=tuple(
                (w.kernels if w.kernels is not None else w.operators) if w else None for w in loads
            ),
            on_gpu=any(w is not None and w.kernels is not None for w in loads),
            cpu_wait_ns=tuple(
                m.waited_for_cpu * m[Steps].step_ns if m.waited_for_cpu is not None else None for m in members
            ),
            steps=tuple(m[Steps].count for m in members),
            pieces=tuple(m.get(IdlePieces) for m in members),
        )

    @cached_property
    def compute_ns(self) -> tuple[float, ...]:
        """Per rank: of a steady step."""
        return tuple(parts[0] for parts in self.parts)

    @cached_property
    def busiest(self) -> int:
        """Position of the rank that computes longest."""
        return self.compute_ns.index(max(self.compute_ns))

    def of(self, rank: int, part: str) -> float:
        """ns of a steady step that a rank spends in one of PARTS."""
        return self.parts[self.ranks.index(rank)][PARTS.index(part)]

    def excess(self, ranks: Sequence[int], others: Sequence[int]) -> dict[str, float]:
        """By how many ns of a step the median of `ranks` is above that of `others` in each of PARTS, the longest first."""
        more = {
            p: median(self.of(r, p) for r in ranks) - median(self.of(r, p) for r in others) for p in PARTS
        }
        return dict(sorted(more.items(), key=lambda part: -part[1]))

    def idle(self, rank: int, part: str, ns: float) -> list[tuple[int, int]]:
        """When a rank was in one of PARTS for so many ns of each step, in its longest pieces; empty for what is no idle time."""
        at = self.ranks.index(rank)
        pieces = self.pieces[at]
        return pieces.longest(part, ns * self.steps[at]) if pieces is not None and part in PARTS[2:] else []

    def waits_for_cpu(self, ranks: Sequence[int]) -> float | None:
        """ns of a step that the median of these ranks waits for a CPU; None where a recording of one does not say so."""
        waits = [self.cpu_wait_ns[self.ranks.index(r)] for r in ranks]
        known = [ns for ns in waits if ns is not None]
        return median(known) if len(known) == len(waits) else None

    def table(self) -> Table:
        """All ranks; of the parts those that take 1 % of any step."""
        columns = [
            n for n in range(len(PARTS))
            if any(own[n] * 100 >= step for own, step in zip(self.parts, self.step_ns, strict=True))
        ]  # fmt: skip
        rows: list[list[Cell]] = [
            [rank, step / 1e3, comm / 1e3, *(own[n] / 1e3 for n in columns), kernels]
            for rank, step, comm, own, kernels in zip(
                self.ranks, self.step_ns, self.comm_ns, self.parts, self.kernels, strict=True
            )
        ]
        return Table(
            title="A steady step of each rank",
            columns=[
                Column("rank", "count"),
                Column("step", "us"),
                Column("in collectives", "us"),
                *(Column(PARTS[n], "us") for n in columns),
                Column("kernels" if self.on_gpu else "operators", "count"),
            ],
            rows=rows,
        )


def _parts(summary: RankSummary) -> tuple[int, tuple[float, ...]]:
    rows = [r for r in summary[TimeLedger].rows if r.phase == "steady"]
    count = summary[Steps].count
    idle = [sum(getattr(r.idle_ns, cause) for r in rows) / count for cause in IDLE_CAUSES]
    compute, copies = sum(r.compute_ns for r in rows), sum(r.exposed_copy_ns for r in rows)
    return sum(r.exposed_comm_ns for r in rows) // count, (compute / count, copies / count, *idle)


def _compute_error(summary: RankSummary) -> float | None:
    rows = [r for r in summary[TimeLedger].rows if r.phase == "steady"]
    count = summary[Steps].count
    return hypot(*(r.step_sd_us.get("compute", 0.0) for r in rows)) * 1e3 / sqrt(count) if count > 1 else None


def named(ranks: Sequence[int]) -> str:
    """`ranks_text` as a sentence begins: `Rank 3`, `Ranks 0 and 6`."""
    return ranks_text(ranks).capitalize()
