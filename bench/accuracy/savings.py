"""What findings promise, beside what the healthy twin is really faster or leaner by.

Pairs are those of `sample_traces`, recorded or simulated; scripts recorded beside their twins by turns, `bench/planted` with one fault
mended among them (`pairs.json`, written by `pairs.py`, never again for a name that is there); and public captures of one script
before and after (`PUBLIC`). `bench/fixes` runs patched scripts for what they compute and measures no time.
"""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from built import analysed
from cases import SAMPLES, SHARED, Case

from trace_doctor import analyze
from trace_doctor.model import Finding, HowKnown, Result, Saving, known_together

NOISE = 0.01
"""of the whole: savings are printed in percent of it"""
ERRORS = 2.0
"""so many standard errors of what was measured are noise as well"""
RECORDED = Path(__file__).with_name("pairs.json")
PUBLIC = (
    (
        "Kineto, resnet50: workers",
        "TD101",
        "traces/pytorch_kineto/resnet50_num_workers_0_worker0.1623143089861.pt.trace.json.gz",
        "traces/pytorch_kineto/resnet50_num_workers_4_worker0.1623212756351.pt.trace.json.gz",
    ),
    (
        "Kineto, resnet50 (autograd API): workers",
        "TD101",
        "traces/pytorch_kineto/02522842_resnet50_autograd_api_num_workers_0_worker0.pt.trace.json.gz",
        "traces/pytorch_kineto/02522842_resnet50_autograd_api_num_workers_4_worker0.pt.trace.json.gz",
    ),
)
"""of one script: name, what is mended between the two, before, after"""
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
    noise: float = 0.0
    """two standard errors of `measured`"""

    @property
    def slack(self) -> float:
        """What is left to noise: 1 % of the whole, or two standard errors where they are more."""
        return max(NOISE * self.whole, self.noise)

    @property
    def decided(self) -> bool:
        """Whether the noise leaves anything to judge: it is no more than half of what was promised or measured."""
        return self.slack <= max(self.promised, self.measured) / 2

    @property
    def holds(self) -> bool:
        """Of a bound: the measured saving is no more, and no less than half. Of an estimate: it lies in the interval."""
        slack = self.slack
        if self.known.low is not None and self.known.high is not None:
            low, high = self.promised * self.known.low, self.promised * self.known.high
            return low - slack <= self.measured <= high + slack
        return not self.exceeded and not self.twice

    @property
    def exceeded(self) -> bool:
        """More was saved than promised."""
        return self.measured > self.promised + self.slack

    @property
    def twice(self) -> bool:
        """More than twice of what was saved was promised."""
        return self.promised > 2 * self.measured + self.slack

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
    steps = ([s.dur_us for s in result.steps] for result in (fault, healthy))
    noise = 0.0 if "/simulated/" in name else ERRORS * sum(_error(some) ** 2 for some in steps) ** 0.5
    yield Promise(name, basis, "time, the twin's capture", promised, before - after, before, known, noise)
    plain, plain_twin = _plain_steps(name), _plain_steps(name.removesuffix("/fault") + "/healthy")
    if basis != "measured" and plain and plain_twin:  # compilers cache: it was measured once
        median, twin = statistics.median(plain), statistics.median(plain_twin)
        noise = ERRORS * OF_MEDIAN * (_error(plain) ** 2 + _error(plain_twin) ** 2) ** 0.5
        share = promised / before  # without the profiler both are shorter
        yield Promise(name, basis, "time, plain runs", share * median, median - twin, median, known, noise)


def recorded() -> Iterator[Promise]:
    """The pairs that `pairs.py` recorded, in shares: means over the rounds, whose spread is the noise."""
    pairs: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    for name, pair in pairs.items():
        rounds = [[_saving(each) for each in some] for some in pair["promised"] if some]
        if not rounds:
            continue
        promised = statistics.fmean(sum(s.share_of_step or 0.0 for s in some) for some in rounds)
        known = known_together(s for some in rounds for s in some)
        basis = pair["promised"][0][0]["basis"] if pair["promised"][0] else rounds[0][0].basis
        for what, against in (("profiled", "time, by turns, profiled"), ("plain", "time, by turns, plain")):
            twins = zip(pair["fault"], pair["healthy"], strict=True)
            measured = [(before[what] - after[what]) / before[what] for before, after in twins]
            noise = ERRORS * _error(measured)
            yield Promise(name, basis, against, promised, statistics.fmean(measured), 1.0, known, noise)


def built() -> Iterator[Promise]:
    """The pairs that `built.py` builds."""
    for name, code, fault, before, after in analysed():
        savings = [f.saving for f in fault.findings if f.code == code and f.saving is not None]
        timed = [s for s in savings if s.time_us_per_step]
        if timed:
            promised = sum(s.time_us_per_step or 0.0 for s in timed)
            yield Promise(
                name, timed[0].basis, "time, built", promised, before - after, before, known_together(timed)
            )
        elif savings:
            yield Promise(
                name,
                savings[0].basis,
                "memory, built",
                max(s.bytes or 0 for s in savings),
                before - after,
                before,
                savings[0],
            )


def not_promised() -> list[str]:
    """Recorded pairs whose fault was found in no round, or without a saving."""
    pairs: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    return [f"{name} ({pair['code']})" for name, pair in pairs.items() if not any(pair["promised"])]


def _saving(each: dict[str, Any]) -> Saving:
    return Saving(
        time_us_per_step=each["share"] * 1e6,
        share_of_step=each["share"],
        basis=each["basis"],
        known=each["known"],
        low=each["low"],
        high=each["high"],
    )


def public() -> Iterator[Promise]:
    """Captures of others, of one script before and after, where they are there."""
    for name, code, before, after in PUBLIC:
        if (SHARED / before).exists() and (SHARED / after).exists():
            fault, healthy = analyze(SHARED / before), analyze(SHARED / after)
            found = [f for f in fault.findings if f.code == code and f.saving is not None]
            yield from _of_time(name, found, fault, healthy)


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
    """us, over every step of the capture: what a fault costs in some steps only counts as well. The marks of a server are short
    where its host runs ahead: its steps count until their GPU work is done."""
    if result.engine_steps and result.summary.step_us is not None:
        return result.summary.step_us
    return statistics.fmean(s.dur_us for s in result.steps)


OF_MEDIAN = 1.25
"""standard error of a median over that of a mean"""


def _error(values: list[float]) -> float:
    """Standard error of their mean; 0 of one alone."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _plain_steps(name: str) -> list[float]:
    """us, the steps without the profiler, warm-up left out; none where nobody measured them."""
    path = SAMPLES / name / "steps.csv"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = [float(row["milliseconds"]) * 1e3 for row in csv.DictReader(file)]
    return rows[len(rows) // 4 :]


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


def _verdict(p: Promise) -> str:
    return "undecided" if not p.decided else "yes" if p.holds else "no"


def coverage(found: list[Promise]) -> str:
    """Markdown: how often bounds and estimates hold, and every pair with what was promised and measured."""
    decided = [p for p in found if p.decided]
    bounds = [p for p in decided if p.known.known == "up_to"]
    about = [p for p in decided if p.known.known == "about"]
    widths = [(p.known.high or 0.0) - (p.known.low or 0.0) for p in about]
    over, twice = sum(p.exceeded for p in bounds), sum(p.twice for p in bounds)
    unsure = len(found) - len(decided)
    lines = [
        f"{len(decided)} pairs that decide; of {unsure} the noise is more than half of what was promised or measured.",
        "",
        "| known as | pairs | hold | exceeded | above twice the measured | median width of the interval |",
        "|---|--:|--:|--:|--:|--:|",
        f"| up to | {len(bounds)} | {sum(p.holds for p in bounds)} | {over} | {twice} | – |",
        f"| about | {len(about)} ({len(about) / max(len(decided), 1):.0%} of all) | {sum(p.holds for p in about)} | – | – "
        f"| {statistics.median(widths) if widths else 0.0:.1f} times the figure |",
        "",
        "| pair | measured against | promised | measured | noise | holds |",
        "|---|---|---|--:|--:|---|",
    ]
    for p in sorted(found, key=lambda p: (p.known.known, p.scenario, p.against)):
        share = p.promised / p.whole
        words = f"up to {share:.0%}"
        if p.known.low is not None and p.known.high is not None:
            words = f"about {share:.0%} ({share * p.known.low:.0%}–{share * p.known.high:.0%})"
        lines.append(
            f"| `{p.scenario}` | {p.against} | {words} | {p.measured / p.whole:.0%} | {p.slack / p.whole:.0%} | {_verdict(p)} |"
        )
    return "\n".join(lines)
