"""Memory of one device over time: live bytes stacked by class, reserved as a line, the events that matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor

from trace_doctor.model import MEMORY_CATEGORIES, MemorySeries
from trace_doctor.reporters.html.charts.svg import WIDTH, byte_ticks, chart, label, number, ticks
from trace_doctor.reporters.html.dom import Html, el
from trace_doctor.reporters.labels import MEMORY, device_name
from trace_doctor.reporters.units import Scale, size

_LEFT, _TOP, _HEIGHT = 70.0, 30.0, 250.0
_BOTTOM = _TOP + _HEIGHT
_POINTS = 1300
"""Of all classes together."""
_LEVEL = 8.0

Scaled = Callable[[float], float]
"""a value -> its coordinate"""


def draw(series: MemorySeries, anchor: str) -> Html:
    """The chart. Points are steps: memory keeps its value until the next one."""
    classes = _classes(series)
    total = [sum(series.live_by_category[c][i] for c in classes) for i in range(len(series.at))]
    held = [r or 0 for r in series.reserved]
    curves = [total, held] if len(held) == len(total) and any(held) else [total]
    points = _reduced(curves, series.peak_index, _POINTS // max(1, len(classes)))
    top = _most(series, total)
    first, last = series.at[0], max(series.at[-1], series.at[0] + 1e-9)

    def x(at: float) -> float:
        return _LEFT + (at - first) / (last - first) * (WIDTH - _LEFT)

    def y(count: float) -> float:
        return _BOTTOM - count / top * _HEIGHT

    xs = [x(series.at[i]) for i in points]
    reserved = [series.reserved[i] if i < len(series.reserved) else None for i in points]
    return chart(
        anchor,
        f"Memory of {device_name(series.device)} over time",
        _described(series, total, classes),
        _BOTTOM + (60 if series.unit == "entry" else 42),
        _grid(top, y),
        _areas(series, classes, points, xs, y),
        _line(xs, reserved, y),
        _marks(series, x),
        _peak(series, total, x, y),
        _names(series, classes, points, xs, y, top),
        _axis(series, last - first, x),
    )


def frame(series: MemorySeries) -> dict[str, float]:
    """Where the chart has its axes, in its own units, and the bytes at its upper edge."""
    total = [sum(values) for values in zip(*series.live_by_category.values(), strict=True)]
    return {"left": _LEFT, "right": WIDTH, "top": _TOP, "bottom": _BOTTOM, "most": _most(series, total)}


def _most(series: MemorySeries, total: Sequence[int]) -> float:
    return max([*total, *(r or 0 for r in series.reserved), 1]) * 1.08


def _classes(series: MemorySeries) -> list[str]:
    """The classes that are there, in their fixed order."""
    names = [c for c in MEMORY_CATEGORIES if any(series.live_by_category.get(c, ()))]
    return names + sorted(
        c for c, v in series.live_by_category.items() if c not in MEMORY_CATEGORIES and any(v)
    )


def _described(series: MemorySeries, total: Sequence[int], classes: Sequence[str]) -> str:
    peak = series.peak_index
    parts = ", ".join(
        f"{MEMORY[c].label if c in MEMORY else c} {size(series.live_by_category[c][peak])}"
        for c in classes
        if series.live_by_category[c][peak]
    )
    ooms = sum(m.kind == "oom" for m in series.marks)
    return f"The peak is {size(total[peak])}: {parts}." + (" The record ends out of memory." if ooms else "")


def _reduced(curves: Sequence[Sequence[int]], peak: int, most: int) -> list[int]:
    """Indices of the highest and lowest point of each bucket and curve, the peak and both ends: no peak is ever lost."""
    count = len(curves[0])
    if count <= most:
        return list(range(count))
    buckets = max(1, most // 2 // len(curves))
    points = {0, peak, count - 1}
    for b in range(buckets):
        members = range(b * count // buckets, (b + 1) * count // buckets)
        for curve in curves:
            points.add(max(members, key=curve.__getitem__))
            points.add(min(members, key=curve.__getitem__))
    return sorted(points)


def _areas(
    series: MemorySeries, classes: Sequence[str], points: Sequence[int], xs: Sequence[float], y: Scaled
) -> list[Html]:
    """Each class from the floor up to its upper border, the highest first, so that the lower ones cover it."""
    sums = [0] * len(points)
    borders = []
    for name in classes:
        values = series.live_by_category[name]
        sums = [s + values[i] for s, i in zip(sums, points, strict=True)]
        borders.append((name, [y(v) for v in sums]))
    elements = []
    for name, border in reversed(borders):
        outline = f"{_staircase(xs, border)}V{number(_BOTTOM)}H{number(xs[0])}z"
        elements.append(el("path", d=outline, class_=f"m-{name} area"))
        elements.append(el("path", d=_level(xs, border), class_="edge"))
    return elements


def _level(xs: Sequence[float], ys: Sequence[float]) -> str:
    """The level pieces of a border that are wide enough to part two classes; on a spike a line would hide it."""
    turns = [i for i in range(len(ys)) if i == 0 or number(ys[i]) != number(ys[i - 1])]
    ends = [*turns[1:], len(ys) - 1]
    return "".join(
        f"M{number(xs[i])} {number(ys[i])}H{number(xs[end])}"
        for i, end in zip(turns, ends, strict=True)
        if xs[end] - xs[i] >= _LEVEL
    )


def _staircase(xs: Sequence[float], ys: Sequence[float]) -> str:
    path, last_x, last_y = [f"M{number(xs[0])} {number(ys[0])}"], number(xs[0]), number(ys[0])
    for x, y in zip(xs[1:], ys[1:], strict=True):
        new_x, new_y = number(x), number(y)
        if new_y == last_y:
            last_x = new_x
            continue
        path.append(f"H{new_x}V{new_y}")
        last_x, last_y = new_x, new_y
    return "".join(path) + f"H{last_x}"


def _line(xs: Sequence[float], reserved: Sequence[int | None], y: Scaled) -> list[Html]:
    """Reserved memory; broken where it is not known."""
    points = [(x, y(r)) for x, r in zip(xs, reserved, strict=True) if r is not None]
    if not points:
        return []
    return [el("path", d=_staircase([x for x, _ in points], [y for _, y in points]), class_="reserved")]


def _grid(top: float, y: Scaled) -> list[Html]:
    elements = []
    for mark in byte_ticks(top):
        elements.append(el("path", d=f"M{number(_LEFT)} {number(y(mark))}H{WIDTH}", class_="grid"))
        elements.append(label(_LEFT - 8, y(mark) + 4, _round(mark), class_="small", anchor="end"))
    return elements


def _round(mark: float) -> str:
    """`20 GiB`, not `20.0 GiB`: marks are round."""
    figure, _, unit = size(mark).partition(" ")
    whole, point, decimals = figure.partition(".")
    rest = decimals.rstrip("0")
    return f"{whole}{point if rest else ''}{rest} {unit}" if mark else "0"


def _marks(series: MemorySeries, x: Scaled) -> list[Html]:
    """Steps as lines, segment events as ticks below the floor, out of memory as a line with its name."""
    elements: list[Html] = []
    low, high = series.at[0], series.at[-1]
    marks = [m for m in series.marks if low <= m.at <= high]
    for kind, tick in (("segment_alloc", "v7"), ("segment_free", "v7")):
        places = dict.fromkeys(number(x(m.at)) for m in marks if m.kind == kind)
        path = "".join(
            f"M{p} {number(_BOTTOM + (2 if kind == 'segment_alloc' else 10))}{tick}" for p in places
        )
        if path:
            elements.append(el("path", d=path, class_=f"mark-{kind}"))
    free = 0.0
    for mark in [m for m in marks if m.kind == "step"][:200]:
        at = x(mark.at)
        elements.append(el("path", d=f"M{number(at)} {number(_TOP - 8)}V{number(_BOTTOM)}", class_="step"))
        name = mark.label or "step"
        if at >= free and at + 6.2 * len(name) < WIDTH:
            elements.append(label(at + 3, _TOP - 12, name, class_="small"))
            free = at + 6.2 * len(name) + 14
    for mark in [m for m in marks if m.kind == "oom"][:3]:
        at = x(mark.at)
        elements.append(el("path", d=f"M{number(at)} {number(_TOP - 14)}V{number(_BOTTOM)}", class_="oom"))
        end = at > WIDTH / 2
        text = "out of memory" + (f": {mark.label}" if mark.label else "")
        elements.append(
            label(
                at - 6 if end else at + 6,
                _TOP - 2,
                text,
                class_="oom-text halo",
                anchor="end" if end else None,
            )
        )
    return elements


def _peak(series: MemorySeries, total: Sequence[int], x: Scaled, y: Scaled) -> Html:
    px, py = x(series.at[series.peak_index]), y(total[series.peak_index])
    end = px > WIDTH - 130
    return el(
        "g",
        el("circle", cx=number(px), cy=number(py), r=4.5, class_="peak"),
        label(
            px - 9 if end else px + 9,
            py - 6,
            f"peak {size(total[series.peak_index])}",
            class_="value halo",
            anchor="end" if end else None,
        ),
    )


def _names(
    series: MemorySeries,
    classes: Sequence[str],
    points: Sequence[int],
    xs: Sequence[float],
    y: Scaled,
    top: float,
) -> list[Html]:
    """Each class named inside its area, where that is widest and there is room."""
    elements = []
    below = [0] * len(points)
    for name in classes:
        values = [series.live_by_category[name][i] for i in points]
        word = MEMORY[name].label if name in MEMORY else name
        best = _room(values, xs, len(word) * 6.4 + 10, 17 / _HEIGHT * top)
        if best is not None:
            middle = below[best] + values[best] / 2
            elements.append(label(xs[best] + 6, y(middle) + 4, word, class_="small halo"))
        below = [b + v for b, v in zip(below, values, strict=True)]
    return elements


def _room(values: Sequence[int], xs: Sequence[float], wide: float, least: float) -> int | None:
    """The first point from which the area stays `least` high and even for `wide` pixels."""
    start = 0
    for i in range(1, len(values)):
        steady = values[i] >= least and abs(values[i] - values[start]) <= 0.25 * values[start]
        if not steady or values[start] < least:
            start = i
        elif xs[i] - xs[start] >= wide:
            return start
    return None


def _axis(series: MemorySeries, length: float, x: Scaled) -> list[Html]:
    first, last = series.at[0], series.at[0] + length
    apart = [*ticks(length, 8), length][1]
    marks = [n * apart for n in range(ceil(first / apart - 1e-9), floor(last / apart + 1e-9) + 1)]
    unit = Scale.of("us", [max(abs(first), abs(last))])
    elements = []
    for mark in marks:
        at = x(mark)
        edge = "end" if at > WIDTH - 24 else "middle"
        step = apart / unit.factor
        text = (
            f"{mark / unit.factor:,.{0 if step >= 1 else 1 if step >= 0.1 else 2}f} {unit.unit}"
            if series.unit == "us"
            else f"{mark:,.0f}"
        )
        elements.append(label(at, _BOTTOM + 36, text, class_="small", anchor=edge))
    if series.unit == "entry":
        elements.append(
            label(
                WIDTH, _BOTTOM + 54, "position in the record (it has no clock)", class_="small", anchor="end"
            )
        )
    return elements
