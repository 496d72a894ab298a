"""The figures that budgets and baselines speak of, one value for each run.

The captures of one folder that have different ranks are one run: what is slowest or fullest among them counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from statistics import median

from trace_doctor.model import Finding, MemoryLedgerRow, Result, TimeLedgerRow, Unit, unowned

Run = tuple[str, int]
"""folder of the captures, and which of those with the same rank"""
PerCapture = Sequence[tuple[int, float | None]]
"""position in `Result.inputs` and the figure there"""


def runs_of(result: Result) -> dict[int, Run]:
    """The run that each input belongs to. The files of a recording, light and detailed, are of one run."""
    count: Counter[tuple[str, str, str | None, int]] = Counter()
    runs = {}
    for number, source in enumerate(result.inputs):
        folder = str(PurePosixPath(source.path).parent)
        key = (folder, source.kind, source.role, source.rank)
        runs[number] = (folder, count[key])
        count[key] += 1
    return runs


def largest(result: Result, figures: PerCapture) -> list[float]:
    """Of (input, figure) pairs the largest of each run, in the order of the runs. Unknown figures are left out."""
    runs = runs_of(result)
    by_run: dict[Run, float] = {}
    for number, value in figures:
        if value is not None and number in runs:
            by_run[runs[number]] = max(value, by_run.get(runs[number], value))
    return [by_run[run] for run in sorted(by_run)]


@dataclass(frozen=True)
class Measure:
    """`figures` of captures by position; `floor` is a difference that nobody acts on, in the unit of the measure."""

    unit: Unit
    floor: float
    figures: Callable[[Result], PerCapture]
    missing: str
    """what was not captured where there is no value"""
    unhindered: Callable[[float, float], float] | None = None
    """a value and the share of the time that the training waited for a CPU -> what it may be without that wait"""

    def of(self, result: Result) -> list[float]:
        """Its value of each run."""
        return largest(result, self.figures(result))

    def lacking(self, result: Result) -> list[int]:
        """The captures that should have a figure, and have none: those with a file of its kind; and, where another rank is
        known to have a snapshot, those of a rank without any."""
        kind = "snapshot" if self.unit == "bytes" else "trace"
        capture = [n if i.capture is None else i.capture for n, i in enumerate(result.inputs)]
        files = list(zip(capture, result.inputs, strict=True))
        there = {capture[n] for n, value in self.figures(result) if value is not None and n < len(capture)}
        expected = {n for n, i in files if i.kind == kind}
        if kind == "snapshot" and any(i.kind == kind and i.rank_how for i in result.inputs):
            ranks = {i.rank for i in result.inputs if i.kind == kind}
            expected |= {n for n, i in files if i.rank not in ranks}
        return sorted(expected - there)

    def runs_without(self, result: Result) -> int:
        """How many runs have no figure at all, as where one of them was recorded without memory."""
        runs = runs_of(result)
        there = {runs[n] for n, value in self.figures(result) if value is not None and n in runs}
        return len({*runs.values()} - there)


def _step_time(result: Result) -> PerCapture:
    return [(n, i.pace.median_us if i.pace else None) for n, i in enumerate(result.inputs)]


def _share(of: Callable[[TimeLedgerRow], int], gpu_only: bool) -> Callable[[Result], PerCapture]:
    """A part of the steady steps; without any, of all that was recorded."""

    def values(result: Result) -> PerCapture:
        rows = [r for r in result.time_ledger if r.window_ns and (r.device >= 0 or not gpu_only)]
        steady = {r.input for r in rows if r.phase == "steady"}
        parts: dict[tuple[int, int], list[TimeLedgerRow]] = {}
        for row in rows:
            if row.phase == "steady" or row.input not in steady:
                parts.setdefault((row.input, row.device), []).append(row)
        return [
            (number, sum(map(of, mine)) / sum(r.window_ns for r in mine))
            for (number, _), mine in parts.items()
        ]

    return values


def _agrees(result: Result, row: MemoryLedgerRow) -> bool:
    """Whether the history of a snapshot agrees with its segments: where they hold less than it allocates, blocks are missing."""
    of_snapshot = any(
        i.kind == "snapshot" and (n if i.capture is None else i.capture) == row.input
        for n, i in enumerate(result.inputs)
    )
    return row.max_reserved_bytes is not None or not of_snapshot


MEASURES: dict[str, Measure] = {
    "step_time": Measure(
        "us", 0.0, _step_time, "no steps were recorded", lambda step, waited: step * (1 - waited)
    ),
    "gpu_idle_share": Measure(
        "share", 0.03, _share(lambda r: r.idle_ns.total(), True), "no GPU work was recorded",
        lambda idle, waited: idle - waited,
    ),
    "exposed_comm_share": Measure(
        "share", 0.03, _share(lambda r: r.exposed_comm_ns, False), "no trace was recorded"
    ),
    "max_unowned": Measure(
        "share", 0.03,
        lambda result: [(row.input, row.total) for row in unowned(result.time_ledger, result.ownership)],
        "no trace was recorded",
    ),
    "peak_reserved": Measure(
        "bytes", 20 * 2.0**20,  # one segment of the caching allocator
        lambda result: [(r.input, r.max_reserved_bytes) for r in result.memory_ledger],
        "no memory snapshot was recorded",
    ),
    "peak_allocated": Measure(
        "bytes", 20 * 2.0**20,
        lambda result: [(r.input, r.peak_bytes) for r in result.memory_ledger if _agrees(result, r)],
        "no memory snapshot was recorded, or its history contradicts its segments",
    ),
}  # fmt: skip


def cost(finding: Finding) -> float | None:
    """What a finding says it costs: a share of the step or of the peak, the larger. None where it claims nothing."""
    saving = finding.saving
    known = [s for s in (saving.share_of_step, saving.share_of_peak) if s is not None] if saving else []
    return max(known, default=None)


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation; 0 for fewer than three values, which do not show how much they vary."""
    if len(values) < 3:
        return 0.0
    middle = median(values)
    return median(abs(v - middle) for v in values)


def most_noise(unit: Unit, middle: float) -> float:
    """The most by which a figure may be worse and count as noise, in its unit: a step twice as long, a peak twice as high, or
    the share that such a step would have were all it is longer idle. Else a deviation would excuse whatever is measured."""
    return (1.0 - middle) / 2 if unit == "share" else middle


def waited_for_cpu(result: Result) -> float:
    """The share of its time that the training could have run and did not: the median over the recordings that say."""
    known = [i.waited_for_cpu for i in result.inputs if i.waited_for_cpu is not None]
    return median(known) if known else 0.0


def step_noise(result: Result) -> float:
    """How much a step varies, as a share of the step: the median over the traces of MAD / median."""
    paces = [i.pace for i in result.inputs if i.pace is not None and i.pace.steps >= 3 and i.pace.median_us]
    return median(p.mad_us / p.median_us for p in paces) if paces else 0.0


def spread(result: Result, name: str) -> float:
    """Median absolute deviation of a measure, in its unit: over the runs and over the steps of a run, the larger.

    A share of the step cannot be known better than the step, so its steps' deviation counts for it as well.
    """
    values = MEASURES[name].of(result)
    if not values:
        return 0.0
    unit, middle = MEASURES[name].unit, median(values)
    within = 0.0
    if unit == "us":
        within = step_noise(result) * middle
    elif unit == "share":
        within = step_noise(result) * max(middle, 1 - middle)
    return max(mad(values), within)
