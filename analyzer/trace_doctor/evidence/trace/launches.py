"""Which runtime or driver call launched which GPU work."""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np

from trace_doctor.arrays import I32, I64, at_rows
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.run import Cat, Run


class Launches(Evidence, frozen=True):
    """The join by correlation id. A CUDA graph launch has many kernels; work without a call is an orphan."""

    derived_columns = ("launch",)

    launch: I32
    """aligned with `run.gpu`: row of the call, -1 where none was captured"""
    run: Run

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run = facts.run
        given = _ids(run)
        calls = np.flatnonzero(run.is_cat(Cat.RUNTIME, Cat.DRIVER) & (given > 0))
        work = given[run.gpu]
        if not len(calls) or not len(work):
            return cls(np.full(len(run.gpu), -1, dtype=np.int32), run)
        # Where a runtime call and the driver call inside it share an id, the outer one (the first) hands over the work.
        ids, first = np.unique(given[calls], return_index=True)
        at = np.minimum(np.searchsorted(ids, work), len(ids) - 1)
        known = (ids[at] == work) & (work > 0)
        return cls(np.where(known, calls[first[at]], -1).astype(np.int32), run)

    def launch_of(self, gpu_row: int) -> int:
        """The call that launched this GPU row, -1 when unknown."""
        at = int(np.searchsorted(self.run.gpu, gpu_row))
        return int(self.launch[at]) if at < len(self.launch) and self.run.gpu[at] == gpu_row else -1

    def with_launch(self, start: int, end: int, *cats: Cat) -> tuple[int, int]:
        """Of the GPU rows between two moments (ns), optionally of some categories: how many have their launch in the trace, and
        how many there are."""
        run = self.run
        inside = (run.ts[run.gpu] < end) & (run.end[run.gpu] > start)
        if cats:
            inside &= run.is_cat(*cats)[run.gpu]
        return int((self.launch[inside] >= 0).sum()), int(inside.sum())

    def first_work(self, calls: I64) -> I64:
        """The first GPU row of each call, -1 where it launched none."""
        if not len(self._by_call):
            return np.full(len(calls), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self._calls_sorted, calls), len(self._by_call) - 1)
        return np.where(self._calls_sorted[at] == calls, self.run.gpu[self._by_call[at]], -1)

    def launched_at(self, gpu_rows: I64) -> I64:
        """When the host launched each of these GPU rows, ns; where no call is known, when it began."""
        call = self.launch[np.searchsorted(self.run.gpu, gpu_rows)]
        return at_rows(self.run.ts, call, self.run.ts[gpu_rows])

    def done(self, span: tuple[int, int]) -> int:
        """When the last GPU work that was launched in a span ended, ns; its begin where there is none."""
        work = self.run.gpu[self.launch >= 0]
        at = self.launched_at(work)
        return int(self.run.end[work[(at >= span[0]) & (at < span[1])]].max(initial=span[0]))

    def completions(self, spans: I64) -> I64:
        """For the begin and the end of each span, (n, 2) ns: when everything that the host had launched before it was done, and
        the host past it."""
        if not len(spans):
            return spans
        run, known = self.run, self.launch >= 0
        at, ends = run.ts[self.launch[known]], run.end[run.gpu[known]]
        if len(at) and at.min() < spans[0, 1]:
            # Work without a call that runs in front of all that the first span launched was launched before the capture.
            early = ~known & (run.ts[run.gpu] < run.ts[run.gpu[known]].min())
            at = np.append(at, np.full(np.count_nonzero(early), np.iinfo(np.int64).min))
            ends = np.append(ends, run.end[run.gpu[early]])
        order = np.argsort(at, kind="stable")
        reach = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(ends[order])])
        return np.asarray(np.maximum(spans, reach[np.searchsorted(at[order], spans)]))

    @cached_property
    def calls(self) -> I64:
        """Rows of the calls that launched captured work, ascending, each once."""
        return np.unique(self.launch[self.launch >= 0]).astype(np.int64)

    @cached_property
    def _by_call(self) -> I64:
        return np.argsort(self.launch, kind="stable")

    @cached_property
    def _calls_sorted(self) -> I32:
        return self.launch[self._by_call]


def _ids(run: Run) -> I64:
    """The correlation ids. Some versions of Kineto for ROCm write them as `External id` only: no two calls share one then,
    as calls of one operator do where that is the operator's."""
    if (run.correlation > 0).any():
        return run.correlation
    of_calls = run.external_id[run.is_cat(Cat.RUNTIME, Cat.DRIVER) & (run.external_id > 0)]
    return run.external_id if len(np.unique(of_calls)) == len(of_calls) else run.correlation
