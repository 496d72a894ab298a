"""Why two results may not be of the same job: what would make a difference that no fix made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Literal

from trace_doctor.model import Input, Result
from trace_doctor.model.comparison import Side

_KERNELS, _OPERATORS = 1.5, 2.0
"""a step with that many times more or fewer of them is hardly the same step (loading batches in workers takes a third
of the operators out of a small step)"""
_CLOCK, _ALIKE, _LEAST_ALIKE, _LEAST_NAMES = 20.0, 2.0, 0.75, 5
"""No other machine, batch or code makes kernels, operators and calls of the runtime longer by one factor of that size: a batch
leaves the small operators as they are, a fix most names. Three of four of at least five names that are half of a
side's, within twice the factor: what a fix changes lies apart. Of 48,620 pairs of 221 unrelated captures none
looks like that"""
_OPTIONS = {
    "shapes": "record_shapes",
    "stacks": "with_stack",
    "memory": "profile_memory",
    "flops": "with_flops",
    "modules": "with_modules",
}
_KINDS = {
    "trace": "a trace",
    "snapshot": "a memory snapshot",
    "torch_trace": "a compile log",
    "flight_recorder": "a flight recorder dump",
}
_SOURCES = {
    "profiler_step": "prof.step()",
    "loader": "the loader",
    "optimizer": "optimizer steps",
    "engine": "engine steps",
}


def side(result: Result) -> Side:
    """What a result says of where it comes from."""
    return Side(
        paths=[i.path for i in result.inputs],
        findings=len(result.findings),
        ranks=len({i.rank for i in result.inputs}),
        steps=max((i.steps for i in result.inputs), default=0),
        device_names=sorted({i.device_name for i in result.inputs if i.device_name}),
        torch_version=sorted({v for i in result.inputs if (v := _version(i))}),
    )


def _version(source: Input) -> str:
    low, high = source.torch_version.min, source.torch_version.max
    if not low and not high:
        return ""
    if low == high:
        return str(low)
    if low and high:
        return f"{low} to {high}"
    return f"{low} or newer" if low else f"{high} or older"


def comparable(before: Result, after: Result) -> list[str]:
    """One sentence for each doubt, the gravest first; empty where nothing recorded speaks against comparing."""
    unread = [*_unread("BEFORE", before), *_unread("AFTER", after)]
    reasons = [*_identical(before, after), *unread, *_machine(before, after), *_work(before, after)]
    return [*reasons, *_recording(before, after), *_settings(before, after)]


def another_clock(before: Result, after: Result) -> list[str]:
    """One sentence where all that both sides show took about the same, very different, times as long: then the times of a
    side are in another unit than its file says, and nothing that goes by time can be compared."""
    a, b = _typical_us(before), _typical_us(after)
    ratios = [b[name] / a[name] for name in a.keys() & b.keys() if a[name] > 0 and b[name] > 0]
    if len(ratios) < max(_LEAST_NAMES, min(len(a), len(b)) / 2):
        return []
    factor = median(ratios)
    alike = sum(factor / _ALIKE <= r <= factor * _ALIKE for r in ratios)
    if 1 / _CLOCK < factor < _CLOCK or alike < _LEAST_ALIKE * len(ratios):
        return []
    longer = "AFTER" if factor > 1 else "BEFORE"
    return [
        f"{alike} of {len(ratios)} kernels and operators take {max(factor, 1 / factor):,.0f} times as long in {longer}: the "
        "times of a side are in another unit"
    ]


def _typical_us(result: Result) -> dict[tuple[str, str], float]:
    """(kind, name) -> us of one of them."""
    on_gpu = {("kernel", k.name): k.mean_us for k in result.kernels}
    return on_gpu | {(o.kind, o.name): o.self_us / o.count for o in result.operators if o.count}


def same_work(before: Result, after: Result, kind: Literal["kernel", "host"]) -> float | None:
    """How many times as long the same kernels, or operators and calls of the host, take in AFTER, called as often as in BEFORE.
    Without the name that moves the figure most from 1: a fix may be about it. None for too few names."""
    a, b = (
        {name: us for name, us in _typical_us(r).items() if (name[0] == "kernel") == (kind == "kernel")}
        for r in (before, after)
    )
    counts = {("kernel", k.name): k.count for k in before.kernels}
    counts |= {(o.kind, o.name): o.count for o in before.operators}
    pairs = [(counts[name] * a[name], counts[name] * b[name]) for name in a.keys() & b.keys() if a[name] > 0]
    if len(pairs) < _LEAST_NAMES:
        return None
    was, now = (sum(side) for side in zip(*pairs, strict=True))
    ratios = [(now - y) / (was - x) for x, y in pairs if was > x]
    return min(ratios, key=lambda r: abs(r - 1)) if (min(ratios) - 1) * (max(ratios) - 1) > 0 else 1.0


def is_same_recording(before: Result, after: Result) -> bool:
    """Whether both sides have the same steps, times and memory, to the last digit: no two runs do."""
    recorded = bool(before.steps or before.time_ledger or before.memory_timeline)
    same = before.steps == after.steps and before.time_ledger == after.time_ledger
    return recorded and same and before.memory_timeline == after.memory_timeline


def no_fix_shows(fates: Iterable[str], before: Result, after: Result) -> list[str]:
    """That findings are gone in the recording that they were found in, as where a side was diagnosed with other settings."""
    gone = "gone" in fates and is_same_recording(before, after)
    return ["BEFORE and AFTER are the same recording, in which no fix can show"] if gone else []


def other_kinds(before: Result, after: Result) -> list[str]:
    """That no capture of one side is of a kind that the other has: nothing of the two can be compared."""
    kinds = [sorted({_KINDS[i.kind] for i in r.inputs}) for r in (before, after)]
    if not all(kinds) or {*kinds[0]} & {*kinds[1]}:
        return []
    return [
        f"BEFORE is {' and '.join(kinds[0])}, AFTER {' and '.join(kinds[1])}: they have nothing in common"
    ]


def _identical(before: Result, after: Result) -> Iterator[str]:
    if is_same_recording(before, after):
        yield "BEFORE and AFTER are the same recording"


def _unread(which: str, result: Result) -> Iterator[str]:
    if result.ignored:
        first, more = result.ignored[0], len(result.ignored) - 1
        others = f" and {more} other files" if more > 1 else " and another file" if more else ""
        yield f"not analyzed of {which}: {first.path} ({first.reason}){others}"


def _machine(before: Result, after: Result) -> Iterator[str]:
    a, b = side(before), side(after)
    if a.device_names and b.device_names and a.device_names != b.device_names:
        yield f"another device: {', '.join(a.device_names)} before, {', '.join(b.device_names)} after"
    on_gpu = [{row.device >= 0 for row in r.time_ledger} for r in (before, after)]
    if all(on_gpu) and on_gpu[0] != on_gpu[1]:
        yield f"GPU work only {'before' if True in on_gpu[0] else 'after'}"
    exact = [{i.torch_version.min for i in r.inputs if _is_exact(i)} for r in (before, after)]
    if all(exact) and exact[0] != exact[1]:
        versions = [", ".join(sorted(map(str, v))) for v in exact]
        yield f"another torch version: {versions[0]} before, {versions[1]} after"
    if a.ranks != b.ranks:
        yield f"another number of ranks: {a.ranks} before, {b.ranks} after"


def _is_exact(source: Input) -> bool:
    return source.torch_version.min is not None and source.torch_version.min == source.torch_version.max


def _work(before: Result, after: Result) -> Iterator[str]:
    shapes = [{s for i in r.inputs for s in i.work.shapes} for r in (before, after)]
    operators = [{s.split(" [")[0] for s in side} for side in shapes]
    if all(shapes) and operators[0] & operators[1] and not shapes[0] & shapes[1]:
        pair = [
            min(s for s in side if s.split(" [")[0] == min(operators[0] & operators[1])) for side in shapes
        ]
        yield f"different model or batch size: {pair[0]} before, {pair[1]} after"
    for what, most in (("kernels", _KERNELS), ("operators", _OPERATORS)):
        a, b = (_most(r, what) for r in (before, after))
        if a and b and max(a, b) > most * min(a, b):
            yield f"{a:,.0f} {what} per step before, {b:,.0f} after: expected only where the fix changes them"
            return


def _most(result: Result, what: str) -> float | None:
    return max((n for i in result.inputs if (n := getattr(i.work, what)) is not None), default=None)


def _recording(before: Result, after: Result) -> Iterator[str]:
    sources = [sorted({i.step_source for i in r.inputs if i.step_source}) for r in (before, after)]
    if all(sources) and sources[0] != sources[1]:
        names = [", ".join(_SOURCES.get(s, s) for s in side) for side in sources]
        yield f"steps are marked by {names[0]} before, by {names[1]} after"
    for option, name in _OPTIONS.items():
        a, b = (_recorded(r, option) for r in (before, after))
        if a is not None and b is not None and a != b:
            yield f"{name}=True only {'before' if a else 'after'}: recording takes time of its own"


def _recorded(result: Result, option: str) -> bool | None:
    """Whether any trace has it; None where none says so."""
    known = [s for i in result.inputs if (s := getattr(i.recorded, option)) is not None]
    return any(known) if known else None


def _settings(before: Result, after: Result) -> Iterator[str]:
    a, b = ({k: v.get("value") for k, v in r.config.items() if isinstance(v, dict)} for r in (before, after))
    differing = sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))
    if differing:
        yield f"diagnosed with other settings: {', '.join(differing)}"
