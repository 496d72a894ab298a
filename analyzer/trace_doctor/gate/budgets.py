"""Budgets and the guards of a baseline, judged on one result: with room for noise, and never passed without evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from trace_doctor.config.budget_table import Aggregate, Budgets, Limit
from trace_doctor.gate.baseline import Baseline, devices
from trace_doctor.gate.evidence import captures_named, skipped_on
from trace_doctor.gate.runs import MEASURES, cost, largest, most_noise, spread, waited_for_cpu
from trace_doctor.model import Budget, Result
from trace_doctor.recording.folder import BUSY

AGGREGATES: Mapping[Aggregate, Callable[[Sequence[float]], float]] = {
    "median": median,
    "optimistic": min,
    "pessimistic": max,
}
DEFAULT_REGRESSION = 0.10
"""of the baseline: two healthy recordings of one job on shared machines differ by less (docs/ci.md)"""


def defaults_against(result: Result, baseline: Baseline, budgets: Budgets) -> tuple[Limit, ...]:
    """What a baseline guards without being asked: every figure that it or the result holds and no budget names."""
    named = {limit.name for limit in budgets.limits}
    return tuple(
        Limit(name, MEASURES[name].unit, relative=DEFAULT_REGRESSION, absolute=MEASURES[name].floor)
        for name in MEASURES
        if name not in named and (name in baseline.figures or MEASURES[name].of(result))
    )


def judge(result: Result, limit: Limit, budgets: Budgets, baseline: Baseline | None) -> Budget:
    """One budget on one result. Without evidence it is undecided, never passed."""
    values, missing = _values(result, limit)
    budget = Budget(name=limit.name, unit=limit.unit, level=limit.level, status="undecided", values=values)
    if not values:
        return _decided(budget, how=missing)
    figure = AGGREGATES[budgets.aggregate](values)
    allowed = [] if limit.at_most is None else [limit.at_most]
    how = [] if limit.at_most is None else ["limit: the budget"]
    if limit.compares:
        before = _before(limit, budgets, baseline)
        if isinstance(before, str):
            return _decided(budget, how=before, found=figure)
        if baseline is not None and limit.unit == "us" and baseline.devices != devices(result):
            was, now = ", ".join(baseline.devices) or "it names none", ", ".join(devices(result))
            return _decided(budget, how=f"the baseline is of another device ({was}; now {now})", found=figure)
        middle, deviation = before
        noise = budgets.noise * max(deviation, spread(result, limit.name) if limit.rule is None else 0.0)
        varies = "" if noise <= (most := most_noise(limit.unit, middle)) else ", at most the double"
        noise = min(noise, most)
        room = {
            "the absolute allowance": limit.absolute or 0.0,
            f"{limit.relative or 0.0:.0%} of it": (limit.relative or 0.0) * middle,
            f"{budgets.noise:g} x MAD{varies}": noise,
        }
        widest = max(room, key=lambda k: room[k])
        allowed.append(middle + room[widest])
        how.append(f"limit: the baseline + {widest}")
        budget = _decided(budget, baseline=middle, noise=noise)
    limit_is = min(allowed)
    hindered = _hindered(result, limit, figure, limit_is) if figure > limit_is else ""
    if hindered:
        return _decided(budget, how=hindered, found=figure)
    if missing and figure <= limit_is:
        return _decided(budget, how=missing, found=figure)
    status = "failed" if figure > limit_is else "passed"
    said = "; ".join([how[allowed.index(limit_is)], *_of_what(result, limit, values)])
    return _decided(budget, status=status, found=figure, limit=limit_is, how=said)


def _of_what(result: Result, limit: Limit, values: Sequence[float]) -> list[str]:
    """What a figure leaves out."""
    if limit.rule is not None:
        return []
    said = ["the peak of what was recorded"] if limit.unit == "bytes" else []
    without = MEASURES[limit.name].runs_without(result)
    return [*said, f"not recorded in {without} of {without + len(values)} runs"] if without else said


def _hindered(result: Result, limit: Limit, figure: float, at_most: float) -> str:
    """Why a figure above its limit says nothing: on a quieter machine it may be below. Empty where it speaks."""
    without = MEASURES[limit.name].unhindered if limit.rule is None else None
    waited = waited_for_cpu(result)
    if without is None or waited < BUSY or without(figure, waited) > at_most:
        return ""
    return (
        f"training waited {waited:.0%} of the time for a CPU: CPU contention is likely. Record it again on "
        "a quieter machine"
    )


def _decided(budget: Budget, **changes: Any) -> Budget:
    return msgspec.structs.replace(budget, **changes)


def _values(result: Result, limit: Limit) -> tuple[list[float], str]:
    """The value of each run, and what is missing: of all of them where there is no value, else of some captures."""
    if limit.rule is None:
        measure = MEASURES[limit.name]
        values, lacking = measure.of(result), measure.lacking(result)
        if values and not lacking:
            return values, ""
        return values, f"{captures_named(result, lacking)}: {measure.missing}" if values else measure.missing
    outcome = next((o for o in result.outcomes if o.code == limit.name), None)
    if outcome is None:
        return [], "the rule was not selected"
    if outcome.outcome in ("skipped", "error", "undecided"):
        return [], outcome.reason or outcome.outcome
    # a baseline holds no suppressed findings, so a comparison with it leaves them out on both sides
    accepted = [] if limit.compares else [s.finding for s in result.suppressed]
    costs = [(f.input, cost(f)) for f in [*result.findings, *accepted] if f.code == limit.name]
    if outcome.outcome == "fired" and not costs:
        return [], "what the rule found is suppressed, or below min-confidence or min-saving"
    looked = [(n, 0.0) for n in (outcome.inputs if outcome.inputs is not None else range(len(result.inputs)))]
    values = largest(result, [*looked, *costs])
    missing = skipped_on(result, outcome) if outcome.skipped_on else ""
    return values, missing if values else "no capture could be checked"


def _before(limit: Limit, budgets: Budgets, baseline: Baseline | None) -> tuple[float, float] | str:
    """The baseline's figure and its deviation, or why there is none."""
    if baseline is None:
        return "there is no baseline to compare with (--baseline FILE)"
    if limit.rule is not None:
        if limit.name not in baseline.decided:
            return "the baseline's captures could not tell"
        return max((k.cost or 0.0 for k in baseline.findings if k.code == limit.name), default=0.0), 0.0
    figure = baseline.figures.get(limit.name)
    if figure is None:
        return "the baseline has no such figure; write it again with --update-baseline"
    return AGGREGATES[budgets.aggregate](figure.values), figure.spread
