"""The kernels that compute in the steady steps: what kind each is, how long it ran, and which operator launched it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Self

import numpy as np

from trace_doctor.arrays import I64, Bool, at_rows
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.intervals import covered, intervals, pairs
from trace_doctor.evidence.names.kernel_names import KernelClass, architecture, kernel_class
from trace_doctor.evidence.trace.gpu_timeline import COMPUTE, GpuTimeline
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat, Run, is_count


class Kernels(Evidence, frozen=True):
    """The kernels of the device that computes most, without collectives, one entry each, by start.

    Raises NotCaptured when the window holds no GPU work.
    """

    device: int
    rows: I64
    """rows of the run"""
    ns: I64
    """duration within the steady steps"""
    operator: I64
    """row of the innermost operator around the launch, -1 where none was captured"""
    steps: int
    """number of steady steps"""
    run: Run
    nesting: Nesting

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, timeline, steps = facts.run, facts[GpuTimeline], facts[Steps]
        steady = intervals(steps.on_device("steady"))
        parts = []
        for device in timeline.devices:
            rows = timeline.rows(device, COMPUTE)
            ns = covered(pairs(run.ts[rows], run.end[rows]), steady)
            parts.append((int(ns.sum()), -device, rows[ns > 0], ns[ns > 0]))
        _, device, rows, ns = max(parts, key=lambda f: f[:2])
        operators = launching_operators(run, facts[Nesting], facts[Launches], rows)
        return cls(-device, rows, ns, operators, steps.count, run, facts[Nesting])

    @property
    def total(self) -> int:
        """Time of all of them, ns: kernels that ran side by side count twice."""
        return int(self.ns.sum())

    @cached_property
    def classes(self) -> list[KernelClass]:
        """By id of the name; only names of kernels have been looked at."""
        classes = [KernelClass("other")] * len(self.run.names)
        for name in np.unique(self.run.name[self.rows]).tolist():
            classes[name] = kernel_class(self.run.names[name])
        return classes

    def where(self, matches: Callable[[KernelClass], bool]) -> Bool:
        """Mask of the kernels whose class satisfies a predicate."""
        chosen = np.array([matches(c) for c in self.classes], dtype=bool)
        return np.asarray(chosen[self.run.name[self.rows]])

    def named(self, matches: Callable[[str], bool]) -> Bool:
        """Mask of the kernels whose name satisfies a predicate."""
        chosen = np.zeros(len(self.run.names), dtype=bool)
        for name in np.unique(self.run.name[self.rows]).tolist():
            chosen[name] = matches(self.run.names[name])
        return np.asarray(chosen[self.run.name[self.rows]])

    def launched_by(self, matches: Callable[[str], bool]) -> Bool:
        """Mask of the kernels whose innermost operator has a name that satisfies a predicate."""
        return at_rows(self.run.is_named(matches), self.operator, False)

    def share(self, mask: Bool) -> float:
        """Of the time of all of them."""
        return float(self.ns[mask].sum()) / self.total if self.total else 0.0

    def us_per_step(self, mask: Bool) -> float:
        """Time of some of the kernels in a steady step, us on average."""
        return float(self.ns[mask].sum()) / self.steps / 1e3

    def by_operator(self, mask: Bool) -> tuple[I64, I64]:
        """The operators that launched these kernels and the GPU time of each, ns, by start; orphans are left out."""
        mask = mask & (self.operator >= 0)
        operators, at = np.unique(self.operator[mask], return_inverse=True)
        return operators, np.bincount(at, weights=self.ns[mask], minlength=len(operators)).astype(np.int64)

    def by_name(self, mask: Bool) -> list[tuple[str, int, int]]:
        """(name, number, ns) of these kernels, longest first."""
        ids = self.run.name[self.rows[mask]]
        ns = np.bincount(ids, weights=self.ns[mask], minlength=len(self.run.names))
        counts = np.bincount(ids, minlength=len(self.run.names))
        ranked = sorted(np.flatnonzero(counts).tolist(), key=lambda i: (-ns[i], self.run.names[i]))
        return [(self.run.names[i], int(counts[i]), int(ns[i])) for i in ranked]

    @cached_property
    def compute_capability(self) -> tuple[int, int] | None:
        """Of the device, from the file; else the least that its kernels need. None for AMD and where nothing tells."""
        known = self._properties
        if known is not None and "computeMajor" in known:
            return known["computeMajor"], known.get("computeMinor", 0)
        names = np.unique(self.run.name[self.rows]).tolist()
        return architecture([self.run.names[n] for n in names])

    @cached_property
    def multiprocessors(self) -> int | None:
        """Streaming multiprocessors (AMD: compute units) of the device, where the file says it."""
        known = self._properties
        return (known.get("numSms") or None) if known is not None else None

    @cached_property
    def device_name(self) -> str:
        """As the file has it; empty where it has none."""
        return self.run.device_names.get(self.device, "")

    @cached_property
    def memory_bytes(self) -> int | None:
        """Memory of the device, where the file says it."""
        known = self._properties
        return (known.get("totalGlobalMem") or None) if known is not None else None

    @cached_property
    def is_amd(self) -> bool:
        """Whether the GPU is AMD's: by its name, else by its kernels."""
        if self.device_name:
            return self.device_name.startswith(("AMD", "Instinct", "Radeon", "MI"))
        return any(n.startswith(("Cijk_", "MIOpen", "igemm_")) or "hip" in n for n in self._names)

    @cached_property
    def _names(self) -> list[str]:
        return [self.run.names[n] for n in np.unique(self.run.name[self.rows]).tolist()]

    @cached_property
    def _properties(self) -> dict[str, Any] | None:
        known = enumerate(self.run.device_properties)
        return next((p for i, p in known if p.get("id", i) == self.device), None)


def grid_of(args: Mapping[str, Any]) -> list[int]:
    """How many blocks of threads a kernel has in each direction; empty where it does not say."""
    grid = args.get("grid")
    return grid if isinstance(grid, list) and all(map(is_count, grid)) else []


def launching_operators(run: Run, nesting: Nesting, launches: Launches, rows: I64) -> I64:
    """The innermost operator around the launch of each GPU row, -1 where none was captured."""
    at = np.searchsorted(run.gpu, rows)
    return nesting.around(launches.launch[at], run.is_cat(Cat.CPU_OP))
