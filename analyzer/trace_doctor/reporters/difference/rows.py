"""The tables of a difference as words: the same for a terminal, Markdown and the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from trace_doctor.model.difference import Change, Difference, RuleChange
from trace_doctor.reporters.labels import KINDS, MEMORY, short_kernel
from trace_doctor.reporters.units import duration, share, size

VERDICTS: dict[str, str] = {
    "within_noise": "within noise",
    "too_few_steps": "too few steps",
    "not_captured": "not captured",
}


class Block(NamedTuple):
    """One table: its title, what it is of, the changes, and what a name of it is called."""

    key: str
    title: str
    changes: list[Change]
    label: Callable[[str], str]
    missing: str


def blocks(difference: Difference) -> Iterator[Block]:
    """Where the time and the memory went; a block without changes says why."""
    per = "per step" if difference.per_step else "in the recorded window"
    yield Block(
        "time", _of_time(difference, per), difference.time, _part, "no step time breakdown on both sides"
    )
    yield Block("kernels", f"Kernels, {per}", difference.kernels, short_kernel, "no GPU work on both sides")
    yield Block(
        "operators", f"Host self time {per}", difference.operators, str, "no host operators on both sides"
    )
    yield Block(
        "peak", "Peak memory, by category", difference.peak, _category, "no memory snapshot on both sides"
    )


def _of_time(difference: Difference, per: str) -> str:
    """With the sum of the parts: they are of steps with the profiler and the mean of the ranks, while the step time may be without
    the profiler and is the slowest rank's."""
    if not difference.time:
        return f"Time {per}, by part"
    sums = [sum(getattr(c, side) or 0.0 for c in difference.time) for side in ("before", "after")]
    step = difference.step_time.before
    profiled = ", with the profiler" if step is not None and step.plain else ""
    ranks = ", mean of the ranks" if difference.before.ranks > 1 else ""
    return f"Time {per}, by part: {duration(sums[0])} → {duration(sums[1])}{profiled}{ranks}"


def _part(kind: str) -> str:
    label = KINDS[kind].label if kind in KINDS else kind
    return label if kind in ("compute", "comm", "copy") else f"idle: {label}"


def _category(name: str) -> str:
    return MEMORY[name].label if name in MEMORY else name


def value(change: Change, side: float | None, other: float | None) -> str:
    """The figure of a side; `≤` where it is not listed and may be that much."""
    if side is None:
        return "–"
    figure = duration(side) if change.unit == "us" else size(side)
    return f"≤ {figure}" if change.at_most and other is not None and side <= other else figure


def moved(change: Change) -> str:
    """`-1.20 ms`; empty where nothing moved."""
    if not change.change:
        return ""
    words = duration if change.unit == "us" else size
    return f"{'-' if change.change < 0 else '+'}{words(abs(change.change))}"


def verdict(change: Change) -> str:
    """`medium confidence` of a change beyond the noise, else why none is claimed."""
    return f"{change.confidence} confidence" if change.confidence else VERDICTS[change.verdict]


def outcome(change: RuleChange, after: bool) -> str:
    """What the rule said of a side: `2 findings, 12% at most`, `passed`, `skipped`, `not run`."""
    kind = change.after if after else change.before
    count = change.findings_after if after else change.findings_before
    cost = change.cost_after if after else change.cost_before
    if not count:
        return "not run" if kind is None else "below the limits set" if kind == "fired" else kind
    findings = f"{count} finding{'s' if count > 1 else ''}"
    return f"{findings}, {share(cost)}" if cost else findings


def beyond(changes: list[Change]) -> list[Change]:
    """Those that the noise does not explain."""
    return [c for c in changes if c.verdict != "within_noise"]
