"""Calls that hold the host until the device is done."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.names.event_names import (
    is_copy_call,
    is_device_synchronize,
    is_synchronize,
    is_synchronous_copy,
)
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.run import Cat, Run

_RETURN_NS = 20_000
"""GPU work that ends this much before a call returns may be what the call waited for (clocks differ by a few µs)."""


class Syncs(Evidence, frozen=True):
    """Synchronising calls, synchronous copies, and copies to pageable memory whatever their name.

    A device synchronise after which nothing is launched is the profiler's own (or ends the run): never counted.
    """

    rows: I64
    """runtime or driver calls that block, ascending"""
    waited_on: I64
    """aligned with `rows`: the GPU row whose end let the call return, -1 when it waited for none"""
    profilers: I64
    """device synchronises after which nothing is launched"""
    run: Run

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, launches = facts.run, facts[Launches]
        calls = run.is_cat(Cat.RUNTIME, Cat.DRIVER)
        waits = calls & run.is_named(is_synchronize)
        last = calls & _end_of_run(run, launches)
        waits &= ~last
        copies = np.flatnonzero(calls & run.is_named(is_copy_call))
        holding = copies[_copy_blocks(run, copies, launches)]
        rows = np.union1d(np.flatnonzero(waits), holding)
        return cls(rows, _waited_on(run, rows, launches), np.flatnonzero(last), run)


def _end_of_run(run: Run, launches: Launches) -> Bool:
    """Device synchronises that no launch follows."""
    device_wide = run.is_named(is_device_synchronize)
    last = int(run.ts[launches.calls].max()) if len(launches.calls) else -1
    return np.asarray(device_wide & (run.ts > last))


def _copy_blocks(run: Run, copies: I64, launches: Launches) -> Bool:
    """Which copy calls return only after their copy."""
    by_name = np.isin(run.name[copies], run.name_ids(is_synchronous_copy))
    within = run.name_ids(lambda n: "DtoD" in n or "Device -> Device" in n)
    pageable = run.name_ids(lambda n: "DtoH" in n and "Pageable" in n)
    work = launches.first_work(copies)
    name = np.where(work >= 0, run.name[work], -1)
    return np.asarray((by_name & ~np.isin(name, within)) | np.isin(name, pageable))


def _waited_on(run: Run, rows: I64, launches: Launches) -> I64:
    """The GPU row, launched before the call, that ended last before the call returned and while it was open."""
    known = launches.launch >= 0
    work = run.gpu[known]
    launched = run.ts[launches.launch[known]]
    order = np.argsort(run.end[work], kind="stable")
    work, launched, ends = work[order], launched[order], run.end[work[order]]
    behind = np.searchsorted(ends, run.end[rows], side="right")
    first = np.searchsorted(ends, run.ts[rows] - _RETURN_NS, side="right")
    found = np.full(len(rows), -1, dtype=np.int64)
    for i, (lo, hi) in enumerate(zip(first.tolist(), behind.tolist(), strict=True)):
        own = np.flatnonzero(launched[lo:hi] <= run.ts[rows[i]])
        if len(own) and ends[lo + own[-1]] > run.ts[rows[i]]:
            found[i] = work[lo + own[-1]]
    return found
