"""What the waits for data cost in the steady steps: how long they took, and for how much of that the device idled."""

from __future__ import annotations

from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.data_loading import DataLoading, LoaderKind
from trace_doctor.evidence.idle.gaps import IdleCauses
from trace_doctor.evidence.intervals import clip, covered, intersect, intervals, total, union
from trace_doctor.evidence.trace.steps import Steps

Span = tuple[int, int]


class StepWait(Struct, frozen=True):
    """What one steady step spent on data, in ns."""

    step: int
    takes: int
    """the whole step"""
    inside: int
    """inside the loader"""
    exposed: int
    """of that"""


class DataWaits(Evidence, frozen=True):
    """Times in ns. A wait is exposed while the device (without GPU work: the main thread) had nothing else to do."""

    waits: tuple[Span, ...]
    """the waits that begin in steady steps"""
    owned: tuple[Span, ...]
    """idle pieces that data loading owns, on the device where they are most"""
    steps: tuple[StepWait, ...]
    length: int
    """of the steady steps together"""
    loading: int
    exposed: int
    lasting_share: float
    """exposed, as a share of the time behind the profile's first wait: that one follows on a drained device (the
    profiler waits for it when it starts) and on a cold loader, and hides behind nothing. Of a single wait its own share"""
    count: int
    """number of steady steps, 1 without a step source"""
    kind: LoaderKind
    """of the loader that took most time"""
    device: int | None
    """None in a capture without GPU work"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        steps, loading, ledger = facts[Steps], facts[DataLoading], facts[IdleCauses].ledger
        spans = steps.spans("steady")
        within = intervals(spans)
        device = max(ledger.devices, key=lambda d: ledger.owned("data_loading", spans, d), default=-1)
        owned = intersect(union(ledger.pieces("data_loading", device)), within)
        waits = loading.waits(spans)
        cover = union(waits)
        behind_first = _behind_first(loading, steps, within)
        indices = [s.index for s in steps.steady] or [0]
        each = np.array(spans, dtype=np.int64).reshape(-1, 2)
        return cls(
            waits=_tuples(waits.tolist()),
            owned=_tuples(owned.tolist()),
            steps=tuple(
                map(
                    StepWait,
                    indices,
                    (each[:, 1] - each[:, 0]).tolist(),
                    covered(each, cover).tolist(),
                    covered(each, owned).tolist(),
                )
            ),
            length=total(within),
            loading=int(covered(waits, within).sum()),
            exposed=total(owned),
            lasting_share=total(intersect(owned, behind_first)) / (total(behind_first) or 1),
            count=steps.count,
            kind=_main_kind(loading),
            device=device if device >= 0 else None,
        )

    @property
    def per_step(self) -> float:
        """ns of a step that are exposed, on average"""
        return self.exposed / self.count

    @property
    def slow(self) -> tuple[StepWait, ...]:
        """the steps that wait for more than half the average: few of them where single batches are late"""
        return tuple(s for s in self.steps if 2 * s.exposed * len(self.steps) > self.exposed)


def _behind_first(loading: DataLoading, steps: Steps, within: I64) -> I64:
    """The steady time from the profile's second wait on; all of it where there is no second one."""
    begins = loading.run.ts[loading.rows]
    later = clip(within, int(begins[1]), steps.window[1]) if len(begins) > 1 else within
    return later if total(later) else within


def _tuples(rows: list[list[int]]) -> tuple[Span, ...]:
    return tuple((start, end) for start, end in rows)


def _main_kind(loading: DataLoading) -> LoaderKind:
    spent: dict[LoaderKind, int] = {}
    for row, kind in zip(loading.rows.tolist(), loading.kinds, strict=True):
        spent[kind] = spent.get(kind, 0) + int(loading.run.dur[row])
    return max(spent, key=lambda k: spent[k])
