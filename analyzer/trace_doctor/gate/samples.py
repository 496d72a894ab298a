"""The figures of a result by name, over its captures, ranks and devices: the value and how surely it is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, median

from trace_doctor.model import KernelRow, OperatorRow, Result, TimeLedgerRow, Work

Place = tuple[int, int]
"""rank and device (-1: the host)"""


@dataclass(frozen=True)
class Sample:
    """`error` is a standard error; `at_most`: not listed, so no more than `value`."""

    value: float
    error: float = 0.0
    at_most: bool = False


@dataclass
class Figures:
    """One sample by name for each place and capture that could show it; `rest` is what a name may have that is nowhere
    listed."""

    samples: dict[str, list[tuple[Place, Sample]]] = field(default_factory=lambda: defaultdict(list))
    rest: Sample = Sample(0.0)

    def add(self, name: str, place: Place, sample: Sample) -> None:
        """Adds the figure of one place."""
        self.samples[name].append((place, sample))

    def of(self, name: str) -> Sample:
        """Of the captures of a place the median, over places the mean; as unsure as the most unsure place."""
        if name not in self.samples:
            return self.rest
        places: dict[Place, list[Sample]] = defaultdict(list)
        for place, sample in self.samples[name]:
            places[place].append(sample)
        each = [_of_captures(mine) for mine in places.values()]
        return Sample(fmean(s.value for s in each), max(s.error for s in each))

    def __bool__(self) -> bool:
        return bool(self.samples)


def _of_captures(samples: Sequence[Sample]) -> Sample:
    """The median; unsure by half the range of the captures, and by what is hidden in lists that were cut."""
    values = [s.value for s in samples]
    hidden = [s.value for s in samples if s.at_most]
    return Sample(
        median(values), max(median(s.error for s in samples), (max(values) - min(values)) / 2, *hidden)
    )


def _error(deviation: float | None, steps: int) -> float:
    """Standard error of a mean over the steps."""
    return (deviation or 0.0) / sqrt(steps) if steps > 1 else 0.0


def parts_of(row: TimeLedgerRow) -> dict[str, int]:
    """Every part of a row of the time ledger, ns: compute, comm, copy and the causes of idle time."""
    idle = {cause: getattr(row.idle_ns, cause) for cause in row.idle_ns.__struct_fields__}
    return {"compute": row.compute_ns, "comm": row.exposed_comm_ns, "copy": row.exposed_copy_ns, **idle}


def time_parts(result: Result) -> Figures:
    """us per steady step of each part of the ledger; of the window where there are no steps."""
    figures = Figures()
    for row in result.time_ledger:
        if row.phase != "steady":
            continue
        for part, ns in parts_of(row).items():
            error = _error(row.step_sd_us.get(part), row.steps)
            figures.add(part, (row.rank, row.device), Sample(ns / max(row.steps, 1) / 1e3, error))
    return figures


def peak_parts(result: Result) -> Figures:
    """Live bytes at the peak by category."""
    figures = Figures()
    for row in result.memory_ledger:
        for category in row.by_category.__struct_fields__:
            value = float(getattr(row.by_category, category))
            figures.add(category, (row.rank, row.device), Sample(value))
    return figures


def kernels(result: Result) -> Figures:
    """us per step of each kernel."""
    rows = ((r, r.device, r.total_us) for r in result.kernels)
    return _listed(result, rows, lambda work: work.kernel_names)


def operators(result: Result) -> Figures:
    """us per step of each operator and runtime call itself, on the host."""
    rows = ((r, -1, r.self_us) for r in result.operators)
    return _listed(result, rows, lambda work: work.operator_names)


def _listed(
    result: Result,
    rows: Iterable[tuple[KernelRow | OperatorRow, int, float]],
    known: Callable[[Work], int | None],
) -> Figures:
    """Lists hold the longest of a capture only: where one was cut, a name that is not on it may have as much as the
    last one on it."""
    lists: dict[int, dict[Place, dict[str, Sample]]] = defaultdict(lambda: defaultdict(dict))
    for row, device, whole in rows:
        pace = result.inputs[row.input].pace if row.input < len(result.inputs) else None
        value = whole if row.step_us is None else row.step_us
        lists[row.input][row.rank, device][row.name] = Sample(
            value, _error(row.step_sd_us, pace.steps if pace else 0)
        )
    figures = Figures()
    names = {name for places in lists.values() for own in places.values() for name in own}
    for number, places in lists.items():
        listed = [sample.value for own in places.values() for sample in own.values()]
        count = known(result.inputs[number].work) if number < len(result.inputs) else None
        rest = Sample(0.0) if count == len(listed) else Sample(min(listed), at_most=True)
        figures.rest = max(figures.rest, rest, key=lambda s: (s.value, s.at_most))
        for place, own in places.items():
            for name in sorted(names):
                figures.add(name, place, own.get(name, rest))
    return figures
