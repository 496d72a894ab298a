"""What a figure may be: absolute limits, and limits against the baseline with room for noise.

`[tool.trace-doctor.budgets]` is read here:

    gpu_idle_share = 0.15                                   # at most
    step_time = { max_regression = ["5%", "2 ms"] }         # above the baseline by no more than the larger
    peak_reserved = { max = "38 GiB", level = "warning" }
    TD101 = "10%"                                           # what one finding of the rule may cost
    noise = 3                                               # k of k x MAD
    aggregate = "median"                                    # of several runs: median, optimistic, pessimistic
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import msgspec

from trace_doctor.errors import UsageError
from trace_doctor.gate.baseline import Baseline, devices
from trace_doctor.gate.runs import MEASURES, cost, largest, spread, waited_for_cpu
from trace_doctor.model import Budget, Result, Unit
from trace_doctor.recording.folder import BUSY
from trace_doctor.registry import resolve
from trace_doctor.rule import Rule

AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "median": median,
    "optimistic": min,
    "pessimistic": max,
}
DEFAULT_REGRESSION = 0.10
"""of the baseline: two healthy recordings of one job on shared machines differ by less (docs/ci.md)"""
_UNITS = {
    "us": {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6},
    "bytes": {"": 1.0, "b": 1.0, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "kb": 1e3, "mb": 1e6, "gb": 1e9},
    "share": {"": 1.0, "%": 0.01},
}  # fmt: skip
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ%]*)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Limit:
    """What is allowed of one figure. `relative` and `absolute` say how far above the baseline it may be."""

    name: str
    unit: Unit
    rule: type[Rule] | None = None
    at_most: float | None = None
    relative: float | None = None
    absolute: float | None = None
    level: Literal["error", "warning"] = "error"

    @property
    def compares(self) -> bool:
        return self.relative is not None or self.absolute is not None


@dataclass(frozen=True)
class Budgets:
    limits: tuple[Limit, ...] = ()
    noise: float = 3.0
    aggregate: str = "median"

    @property
    def rules(self) -> set[str]:
        """Codes of the rules that have a budget: it judges their findings, not their severity."""
        return {limit.rule.code for limit in self.limits if limit.rule is not None}


def parse_budgets(table: Mapping[str, Any]) -> Budgets:
    """Raises UsageError for an unknown name, a wrong unit or a value that is no quantity."""
    noise, aggregate = table.get("noise", 3.0), table.get("aggregate", "median")
    if isinstance(noise, bool) or not isinstance(noise, int | float) or noise < 0:
        raise UsageError("budgets.noise must be a number, the k of k x MAD")
    if aggregate not in AGGREGATES:
        raise UsageError(f"budgets.aggregate must be one of {', '.join(AGGREGATES)}")
    limits = [_limit(key, value) for key, value in sorted(table.items()) if key not in ("noise", "aggregate")]
    return Budgets(tuple(limits), float(noise), aggregate)


def _limit(key: str, value: Any) -> Limit:
    bare = _named(key)
    if not isinstance(value, Mapping):
        return _with(bare, at_most=_quantity(key, value, bare.unit))
    unknown = sorted(set(value) - {"max", "max_regression", "level"})
    if unknown:
        raise UsageError(f"budgets.{key}: unknown key {unknown[0]!r}; known are max, max_regression, level")
    level = value.get("level", "error")
    if level not in ("error", "warning"):
        raise UsageError(f"budgets.{key}.level must be error or warning")
    if not {"max", "max_regression"} & set(value):
        raise UsageError(f"budgets.{key} sets no limit; give max or max_regression")
    made = _with(bare, level=level)
    if "max" in value:
        made = _with(made, at_most=_quantity(key, value["max"], bare.unit))
    given = value.get("max_regression", [])
    for part in given if isinstance(given, list) else [given]:
        match = _QUANTITY.fullmatch(part) if isinstance(part, str) else None
        if match and match[2] == "%":
            made = _with(made, relative=float(match[1]) / 100)
        else:
            made = _with(made, absolute=_quantity(f"{key}.max_regression", part, bare.unit))
    return made


def _with(limit: Limit, **changes: Any) -> Limit:
    return dataclasses.replace(limit, **changes)


def _named(key: str) -> Limit:
    name = key.replace("-", "_")
    if name in MEASURES:
        return Limit(name, MEASURES[name].unit)
    try:
        rules = resolve(key)
    except UsageError:
        rules = []
    if len(rules) != 1:
        near = difflib.get_close_matches(name, [*MEASURES, "noise", "aggregate"], n=1, cutoff=0.55)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(MEASURES)} and rules"
        raise UsageError(f"budgets: unknown figure {key!r}{hint}")
    return Limit(rules[0].code, "share", rules[0])


def _quantity(key: str, value: Any, unit: Unit) -> float:
    factors = _UNITS[unit]
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    factor = factors.get(match[2].lower()) if match else None
    if match is None or factor is None:
        example = {"us": '"180 ms"', "bytes": '"38 GiB"', "share": '0.15 or "15%"'}[unit]
        raise UsageError(f"budgets.{key}: {value!r} is not like {example}")
    return float(match[1]) * factor


def defaults_against(baseline: Baseline, budgets: Budgets) -> tuple[Limit, ...]:
    """What a baseline guards without being asked: every figure that it holds and no budget names."""
    named = {limit.name for limit in budgets.limits}
    return tuple(
        Limit(name, MEASURES[name].unit, relative=DEFAULT_REGRESSION, absolute=MEASURES[name].floor)
        for name in MEASURES
        if name in baseline.figures and name not in named and any(baseline.figures[name].values)
    )


def judge(result: Result, limit: Limit, budgets: Budgets, baseline: Baseline | None) -> Budget:
    """One budget on one result. Without evidence it is undecided, never passed."""
    values, missing = _values(result, limit)
    made = Budget(name=limit.name, unit=limit.unit, level=limit.level, status="undecided", values=values)
    if not values:
        return _decided(made, how=missing)
    found = AGGREGATES[budgets.aggregate](values)
    allowed = [] if limit.at_most is None else [limit.at_most]
    how = [] if limit.at_most is None else ["limit: the budget"]
    if limit.compares:
        before = _before(limit, budgets, baseline)
        if isinstance(before, str):
            return _decided(made, how=before, found=found)
        if baseline is not None and limit.unit == "us" and baseline.devices != devices(result):
            was, now = ", ".join(baseline.devices), ", ".join(devices(result))
            return _decided(made, how=f"the baseline is of another device ({was}; now {now})", found=found)
        middle, deviation = before
        noise = budgets.noise * max(deviation, spread(result, limit.name) if limit.rule is None else 0.0)
        room = {
            "the absolute allowance": limit.absolute or 0.0,
            f"{limit.relative or 0.0:.0%} of it": (limit.relative or 0.0) * middle,
            f"{budgets.noise:g} x MAD": noise,
        }
        widest = max(room, key=lambda k: room[k])
        allowed.append(middle + room[widest])
        how.append(f"limit: the baseline + {widest}")
        made = _decided(made, baseline=middle, noise=noise)
    limit_is = min(allowed)
    hindered = _hindered(result, limit, found, limit_is) if found > limit_is else ""
    if hindered:
        return _decided(made, how=hindered, found=found)
    status = "failed" if found > limit_is else "passed"
    return _decided(made, status=status, found=found, limit=limit_is, how=how[allowed.index(limit_is)])


def _hindered(result: Result, limit: Limit, found: float, at_most: float) -> str:
    """Why a figure above its limit says nothing: on a quieter machine it may be below. Empty where it speaks."""
    without = MEASURES[limit.name].unhindered if limit.rule is None else None
    waited = waited_for_cpu(result)
    if without is None or waited < BUSY or without(found, waited) > at_most:
        return ""
    return (
        f"training waited {waited:.0%} of the time for a CPU, so other programs may be to blame: record it again on "
        "a quieter machine"
    )


def _decided(budget: Budget, **changes: Any) -> Budget:
    return msgspec.structs.replace(budget, **changes)


def _values(result: Result, limit: Limit) -> tuple[list[float], str]:
    if limit.rule is None:
        return MEASURES[limit.name].of(result), MEASURES[limit.name].missing
    outcome = next((o for o in result.outcomes if o.code == limit.name), None)
    if outcome is None:
        return [], "the rule was not selected"
    if outcome.outcome in ("skipped", "error"):
        return [], outcome.reason or outcome.outcome
    mine = [(f.input, cost(f)) for f in result.findings if f.code == limit.name]
    looked = [(n, 0.0) for n in (outcome.inputs if outcome.inputs is not None else range(len(result.inputs)))]
    return largest(result, [*looked, *mine]), "no capture could be looked at"


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
