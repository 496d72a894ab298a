"""What a figure may be, as `[tool.trace-doctor.budgets]` says it: absolute limits, and limits against the baseline.

    gpu_idle_share = 0.15                                   # at most
    step_time = { max_regression = ["5%", "2 ms"] }         # above the baseline by no more than the larger
    peak_reserved = { max = "38 GiB", level = "warning" }
    TD101 = "10%"                                           # what one finding of the rule may cost
    noise = 3                                               # k of k x MAD
    aggregate = "median"                                    # of several runs: median, optimistic, pessimistic

A limit that nothing can exceed would pass everything, so each has a largest sensible value.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trace_doctor.errors import UsageError, one_line
from trace_doctor.model import Unit
from trace_doctor.registry import resolve
from trace_doctor.rule import Rule

FIGURES: Mapping[str, Unit] = {
    "step_time": "us",
    "gpu_idle_share": "share",
    "exposed_comm_share": "share",
    "max_unowned": "share",
    "peak_reserved": "bytes",
    "peak_allocated": "bytes",
}
MOST: Mapping[Unit, float] = {"us": 7 * 86_400e6, "bytes": 2.0**50, "share": 1.0}
"""a week, 1 PiB, all of it: no figure is larger"""
MOST_NOISE, MOST_RELATIVE = 20.0, 10.0
"""k of k x MAD; share of the baseline"""
Aggregate = Literal["median", "optimistic", "pessimistic"]
_LARGEST: Mapping[Unit, str] = {"us": "7 days", "bytes": "1 PiB", "share": "1 (100%)"}
_UNITS: Mapping[Unit, Mapping[str, float]] = {
    "us": {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6},
    "bytes": {"": 1.0, "b": 1.0, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "kb": 1e3, "mb": 1e6, "gb": 1e9},
    "share": {"": 1.0, "%": 0.01},
}  # fmt: skip
_EXAMPLES: Mapping[Unit, str] = {"us": '"180 ms"', "bytes": '"38 GiB"', "share": '0.15 or "15%"'}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zµ%]*)\s*", re.IGNORECASE)
_KEYS = ("max", "max_regression", "level")


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
        """Whether it is held against the baseline, and not against a figure of its own."""
        return self.relative is not None or self.absolute is not None


@dataclass(frozen=True)
class Budgets:
    limits: tuple[Limit, ...] = ()
    noise: float = 3.0
    aggregate: Aggregate = "median"

    @property
    def rules(self) -> set[str]:
        """Codes of the rules that have a budget: it judges their findings, not their severity."""
        return {limit.rule.code for limit in self.limits if limit.rule is not None}


def parse_budgets(table: Mapping[str, Any]) -> Budgets:
    """Raises UsageError, in one line, for an unknown name, a wrong unit or a value that is no sensible quantity."""
    noise, aggregate = table.get("noise", 3.0), table.get("aggregate", "median")
    if _number(noise) is None or not 0 <= noise <= MOST_NOISE:
        raise UsageError(f"budgets.noise must be a number from 0 to {MOST_NOISE:g}, the k of k x MAD")
    if aggregate not in get_args(Aggregate):
        raise UsageError(f"budgets.aggregate must be one of {', '.join(get_args(Aggregate))}")
    limits: dict[str, Limit] = {}
    for key, value in sorted(table.items()):
        if key not in ("noise", "aggregate"):
            limit = _limit(key, value)
            if limit.name in limits:
                raise UsageError(f"budgets: {limit.name} has two budgets; {shown(key)} is the second")
            limits[limit.name] = limit
    return Budgets(tuple(limits.values()), float(noise), aggregate)


def _limit(key: str, value: Any) -> Limit:
    bare = _named(key)
    if not isinstance(value, Mapping):
        return dataclasses.replace(bare, at_most=_quantity(key, value, bare.unit))
    if unknown := sorted(set(value) - set(_KEYS)):
        near = difflib.get_close_matches(unknown[0], _KEYS, n=1, cutoff=0.55)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_KEYS)}"
        raise UsageError(f"budgets.{key}: unknown key {shown(unknown[0])}; {hint}")
    level = value.get("level", "error")
    if level not in ("error", "warning"):
        raise UsageError(f"budgets.{key}.level must be error or warning")
    if not {"max", "max_regression"} & set(value):
        raise UsageError(f"budgets.{key} sets no limit; give max or max_regression")
    limit = dataclasses.replace(bare, level=level)
    if "max" in value:
        limit = dataclasses.replace(limit, at_most=_quantity(key, value["max"], bare.unit))
    return _with_regression(limit, key, value["max_regression"]) if "max_regression" in value else limit


def _with_regression(limit: Limit, key: str, value: Any) -> Limit:
    parts = value if isinstance(value, list) else [value]
    if not 1 <= len(parts) <= 2:
        raise UsageError(f'budgets.{key}.max_regression must be one room or two, like ["5%", "2 ms"]')
    for part in parts:
        match = _QUANTITY.fullmatch(part) if isinstance(part, str) else None
        if match and match[2] == "%":
            room, field = float(match[1]) / 100, "relative"
            if room > MOST_RELATIVE:
                raise UsageError(f"budgets.{key}.max_regression must be at most {MOST_RELATIVE:.0%}")
        else:
            room, field = _quantity(f"{key}.max_regression", part, limit.unit), "absolute"
        if getattr(limit, field) is not None:
            raise UsageError(f"budgets.{key}.max_regression names two {field} rooms")
        limit = dataclasses.replace(limit, **{field: room})  # type: ignore[arg-type]
    return limit


def _named(key: str) -> Limit:
    name = key.replace("-", "_")
    if name in FIGURES:
        return Limit(name, FIGURES[name])
    try:
        rules = resolve(key)
    except UsageError:
        rules = []
    if len(rules) != 1:
        near = difflib.get_close_matches(name[:60], [*FIGURES, "noise", "aggregate"], n=1, cutoff=0.55)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(FIGURES)} and rules"
        raise UsageError(f"budgets: unknown figure {shown(key)}; {hint}")
    return Limit(rules[0].code, "share", rules[0])


def _number(value: Any) -> float | None:
    """A finite number; None for anything else, true and false included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 2**63 and math.isfinite(value) else None


def _quantity(key: str, value: Any, unit: Unit) -> float:
    """In the unit of the figure."""
    amount, factor = _number(value), _UNITS[unit].get("")
    if isinstance(value, str) and (match := _QUANTITY.fullmatch(value)):
        amount, factor = float(match[1]), _UNITS[unit].get(match[2].lower())
    if amount is None or factor is None:
        raise UsageError(f"budgets.{key}: {shown(value)} is not like {_EXAMPLES[unit]}")
    if not 0 <= amount * factor <= MOST[unit]:
        raise UsageError(f"budgets.{key}: {shown(value)} is not from 0 to {_LARGEST[unit]}")
    return amount * factor


def shown(value: Any) -> str:
    """A value of a configuration as a message can hold it."""
    text = one_line(repr(value))
    return text if len(text) <= 60 else f"{text[:59]}…"
