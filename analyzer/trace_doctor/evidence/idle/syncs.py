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


class Syncs(Evidence, frozen=True):
    """Synchronising calls, synchronous copies, and copies to pageable memory whatever their name.

    A device synchronise after which nothing is launched is the profiler's own (or ends the run): never counted.
    """

    rows: I64
    """runtime or driver calls that block, ascending"""
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
        return cls(rows, np.flatnonzero(last), run)


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
    name = run.name_ids_at(work)
    return np.asarray((by_name & ~np.isin(name, within)) | np.isin(name, pageable))
