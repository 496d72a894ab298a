"""What findings promise, beside what the healthy twin is really faster or leaner by."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cases import SAMPLES, Case

from trace_doctor.model import Finding, HowKnown, Result, known_together

NOISE = 0.01
"""of the whole: savings are printed in percent of it"""
RESERVED = "TD402"
"""promises of reserved, not of live bytes"""


@dataclass(frozen=True)
class Promise:
    """One scenario: `promised` and `measured` in the unit of `whole`, the step (us) or the peak (bytes) of the fault."""

    scenario: str
    basis: str
    """of the saving: replay, bound, model or measured"""
    against: str
    promised: float
    measured: float
    whole: float
    known: HowKnown = HowKnown()

    @property
    def holds(self) -> bool:
        """Of a bound: the measured saving is no more, and no less than half. Of an estimate: it lies in the interval."""
        slack = NOISE * self.whole
        if self.known.low is not None and self.known.high is not None:
            low, high = self.promised * self.known.low, self.promised * self.known.high
            return low - slack <= self.measured <= high + slack
        return self.measured <= self.promised + slack and self.promised <= 2 * self.measured + slack

    @property
    def error(self) -> float:
        """Promised too much (positive) or too little, as a share of the faulty step or peak."""
        return (self.promised - self.measured) / self.whole


def promises(results: Mapping[str, tuple[Case, Result]]) -> Iterator[Promise]:
    """Of each scenario whose fault and healthy twin were analysed, by the names of their cases."""
    for name, (case, fault) in results.items():
        twin = results.get(name.removesuffix("/fault") + "/healthy")
        if not name.endswith("/fault") or twin is None:
            continue
        codes = {planted.code for planted in case.faults}
        found = [f for f in fault.findings if f.code in codes and f.saving is not None]
        yield from _of_time(name, found, fault, twin[1])
        yield from _of_memory(name, found, fault, twin[1])


def _of_time(name: str, found: list[Finding], fault: Result, healthy: Result) -> Iterator[Promise]:
    savings = [f.saving for f in found if f.saving is not None and f.saving.time_us_per_step is not None]
    promised = sum(s.time_us_per_step or 0.0 for s in savings)
    if not savings or not fault.steps or not healthy.steps:
        return
    basis, known = savings[0].basis, known_together(savings)
    before, after = _mean_step(fault), _mean_step(healthy)
    yield Promise(name, basis, "time, the twin's capture", promised, before - after, before, known)
    plain, plain_twin = _plain_step(name), _plain_step(name.removesuffix("/fault") + "/healthy")
    if (
        basis != "measured" and plain is not None and plain_twin is not None
    ):  # compilers cache: it was measured once
        yield Promise(name, basis, "time, plain runs", promised, plain - plain_twin, plain, known)


def _of_memory(name: str, found: list[Finding], fault: Result, healthy: Result) -> Iterator[Promise]:
    savings = [f.saving for f in found if f.saving is not None and f.saving.bytes]
    reserved = any(f.code == RESERVED for f in found)
    before, after = (
        max(
            ((r.max_reserved_bytes if reserved else r.peak_bytes) or 0 for r in result.memory_ledger),
            default=0,
        )
        for result in (fault, healthy)
    )
    if savings and before and after:
        promised = max(s.bytes or 0 for s in savings)
        yield Promise(name, savings[0].basis, "memory, the twin's capture", promised, before - after, before)


def _mean_step(result: Result) -> float:
    """us, over every step of the capture: what a fault costs in some steps only counts as well."""
    return statistics.fmean(s.dur_us for s in result.steps)


def _plain_step(name: str) -> float | None:
    """us, the median step without the profiler, warm-up left out; None where nobody measured it."""
    path = SAMPLES / name / "steps.csv"
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        rows = [float(row["milliseconds"]) for row in csv.DictReader(file)]
    return statistics.median(rows[len(rows) // 4 :]) * 1e3


def table(found: list[Promise]) -> str:
    """Markdown: the errors by basis and by what they were measured against, and the worst one by name."""
    lines = [
        "| promised by | measured against | pairs | median error | quartiles | worst |",
        "|---|---|--:|--:|--:|---|",
    ]
    for key in sorted({(p.basis, p.against) for p in found}):
        group = sorted((p for p in found if (p.basis, p.against) == key), key=lambda p: p.error)
        errors = [p.error for p in group]
        worst = max(group, key=lambda p: abs(p.error))
        quartiles = statistics.quantiles(errors, n=4, method="inclusive") if len(errors) > 1 else errors * 3
        lines.append(
            f"| {key[0]} | {key[1]} | {len(group)} | {statistics.median(errors):+.0%} "
            f"| {quartiles[0]:+.0%} to {quartiles[2]:+.0%} | {worst.error:+.0%}, `{worst.scenario}` |"
        )
    return "\n".join(lines)


def coverage(found: list[Promise]) -> str:
    """Markdown: how often bounds and estimates hold, and every pair with what was promised and measured."""
    bounds = [p for p in found if p.known.known == "up_to"]
    about = [p for p in found if p.known.known == "about"]
    widths = [(p.known.high or 0.0) - (p.known.low or 0.0) for p in about]
    over = sum(p.measured > p.promised + NOISE * p.whole for p in bounds)
    twice = sum(p.promised > 2 * p.measured + NOISE * p.whole for p in bounds)
    lines = [
        "| known as | pairs | hold | exceeded | above twice the measured | median width of the interval |",
        "|---|--:|--:|--:|--:|--:|",
        f"| up to | {len(bounds)} | {sum(p.holds for p in bounds)} | {over} | {twice} | – |",
        f"| about | {len(about)} ({len(about) / max(len(found), 1):.0%} of all) | {sum(p.holds for p in about)} | – | – "
        f"| {statistics.median(widths) if widths else 0.0:.1f} times the figure |",
        "",
        "| pair | measured against | promised | measured | holds |",
        "|---|---|---|--:|---|",
    ]
    for p in sorted(found, key=lambda p: (p.known.known, p.scenario, p.against)):
        share = p.promised / p.whole
        words = f"up to {share:.0%}"
        if p.known.low is not None and p.known.high is not None:
            words = f"about {share:.0%} ({share * p.known.low:.0%}–{share * p.known.high:.0%})"
        lines.append(
            f"| `{p.scenario}` | {p.against} | {words} | {p.measured / p.whole:.0%} | {'yes' if p.holds else 'no'} |"
        )
    return "\n".join(lines)
