"""What each device did over time: solid where it worked, hatched by cause where it waited.

A lane is cut into columns a few pixels wide. Within a column the height of a colour is its share of that moment, so the
picture is true at any length: areas are times, whether a column holds a part of one kernel or ten thousand of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trace_doctor.model import Gap, Lane, StepRow
from trace_doctor.reporters.html.charts.svg import WIDTH, chart, label, number, rects, ticks
from trace_doctor.reporters.html.dom import Html, el
from trace_doctor.reporters.units import Scale, duration, share
from trace_doctor.reporters.words import BUSY, KINDS

_ORDER = list(KINDS)
_PATH_BUDGET = 24_000
"""Bytes of all lanes together; columns get wider until they fit."""

_WIDTHS = (1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0, 20.0)
"""Pixels of a column."""

Column = tuple[tuple[str, int], ...]
"""kinds from the bottom up, with their height in pixels"""


@dataclass(frozen=True)
class _Size:
    """Pixels of a lane, and from one lane to the next."""

    height: int
    row: int

    @classmethod
    def of(cls, lanes: int) -> _Size:
        return cls(84, 116) if lanes == 1 else cls(46, 78) if lanes <= 4 else cls(24, 50)


Placed = tuple[int, Gap]
"""a gap and the number of its lane"""


def worst(lanes: Sequence[Lane], most: int) -> list[Placed]:
    """The longest gaps of all lanes, longest first."""
    found = [(n, gap) for n, lane in enumerate(lanes) for gap in lane.gaps if gap.cause in KINDS]
    return sorted(found, key=lambda p: (-p[1].dur_us, p[0], p[1].start_us))[:most]


def draw(
    lanes: Sequence[Lane],
    names: Sequence[str],
    steps: Sequence[StepRow],
    gaps: Sequence[Placed],
    anchor: str,
    charts: int = 1,
) -> Html:
    """The lanes over one time axis, with step marks and the gaps numbered. `charts` share the budget."""
    left = 0.0 if len(lanes) == 1 else max(len(n) for n in names) * 6.7 + 16
    longest = max(lane.dur_us for lane in lanes)
    scale = (WIDTH - left) / longest
    size = _Size.of(len(lanes))
    paths = _fitting(lanes, scale, size.height, _PATH_BUDGET // charts)
    top = 22
    drawn = [
        el(
            "g",
            label(0, top + 22 + size.row * n + size.height / 2 + 4, names[n], class_="axis")
            if left
            else None,
            el("g", path, transform=f"translate({number(left)} {top + 22 + size.row * n})"),
        )
        for n, path in enumerate(paths)
    ]
    bottom = top + size.row * len(lanes) + 2
    marks = [
        _badge(number_, left + x, top + 10 + size.row * lane, g)
        for number_, lane, x, g in _placed(gaps, scale)
    ]
    return chart(
        anchor,
        "GPU timeline" if lanes[0].device >= 0 else "Timeline of the main thread",
        _described(lanes, names, gaps),
        bottom + 26,
        _steps(lanes, steps, left, scale, bottom),
        drawn,
        marks,
        _axis(longest, left, scale, bottom),
    )


def _described(lanes: Sequence[Lane], names: Sequence[str], gaps: Sequence[Placed]) -> str:
    said = []
    for lane, name in zip(lanes, names, strict=True):
        whole = sum(s.dur_us for s in lane.segments) or 1.0
        busy = sum(s.dur_us for s in lane.segments if s.kind in BUSY)
        said.append(f"{name}: busy {share(busy / whole)} of {duration(lane.dur_us)}")
    if gaps:
        first = gaps[0][1]
        said.append(f"The longest gap lasts {duration(first.dur_us)}, mostly {KINDS[first.cause].label}")
    return ". ".join(said) + "."


# ------------------------------------------------------------------------------------------------ columns


def _fitting(lanes: Sequence[Lane], scale: float, height: int, budget: int) -> list[list[Html]]:
    """The lanes drawn with the narrowest columns whose paths stay within the budget. Where the short segments were added
    up, a column must be wide enough to level their order out."""
    drawn: list[list[Html]] = []
    merged = any(lane.shown < lane.of for lane in lanes)
    for width in _WIDTHS[3 if merged else 0 :]:
        drawn = [_lane(lane, scale, width, height) for lane in lanes]
        if sum(len(path) for lane in drawn for path in lane) <= budget:
            break
    return drawn


def _lane(lane: Lane, scale: float, width: float, full: int) -> list[Html]:
    stacks = _columns(lane, scale, width, full)
    boxes: dict[str, list[tuple[float, float, float, float]]] = {}
    start = 0
    for n in range(1, len(stacks) + 1):
        if n < len(stacks) and stacks[n] == stacks[start]:
            continue
        base = full
        for kind, height in stacks[start]:
            base -= height
            boxes.setdefault(kind, []).append((start * width, base, (n - start) * width, height))
        start = n
    return [el("path", d=rects(boxes[kind]), class_=f"f-{kind}") for kind in _ORDER if kind in boxes]


def _columns(lane: Lane, scale: float, width: float, full: int) -> list[Column]:
    """For each column, how high each kind stands in it."""
    step = width / scale
    count = max(1, -(-int(lane.dur_us * 1000) // max(1, int(step * 1000))))
    shares: list[dict[str, float]] = [{} for _ in range(count)]
    for segment in lane.segments:
        end = min(segment.start_us + segment.dur_us, lane.dur_us)
        first, last = int(segment.start_us / step), min(count - 1, int(end / step))
        for n in range(max(0, first), last + 1):
            part = min(end, (n + 1) * step) - max(segment.start_us, n * step)
            if part > 0:
                shares[n][segment.kind] = shares[n].get(segment.kind, 0.0) + part
    return [_stack(parts, full) for parts in shares]


def _stack(parts: dict[str, float], full: int) -> Column:
    whole = sum(parts.values())
    if not whole:
        return ()
    stack, before, done = [], 0.0, 0
    for kind in sorted(parts, key=lambda k: _ORDER.index(k) if k in _ORDER else len(_ORDER)):
        before += parts[kind]
        upto = round(before / whole * full)
        if upto > done:
            stack.append((kind if kind in KINDS else "unattributed", upto - done))
        done = upto
    return tuple(stack)


# ------------------------------------------------------------------------------------------------ marks


def _placed(gaps: Sequence[Placed], scale: float) -> Iterable[tuple[int, int, float, Gap]]:
    """Numbers at the middle of their gap, moved right where they would cover one another."""
    ends: dict[int, float] = {}
    order = sorted(enumerate(gaps, 1), key=lambda numbered: (numbered[1][0], numbered[1][1].start_us))
    for rank, (lane, gap) in order:
        x = max((gap.start_us + gap.dur_us / 2) * scale, ends.get(lane, 9.0))
        ends[lane] = x + 20
        yield rank, lane, x, gap


def _badge(rank: int, x: float, y: float, gap: Gap) -> Html:
    return el(
        "g",
        el("title", f"{duration(gap.dur_us)} {KINDS[gap.cause].label}"),
        el("path", d=f"M{number(x)} {number(y + 6)}v7", class_="tick"),
        el("circle", cx=number(x), cy=number(y), r=8.5, class_="mark"),
        label(x, y + 3.8, str(rank), class_="mark-text", anchor="middle"),
    )


def _steps(
    lanes: Sequence[Lane], steps: Sequence[StepRow], left: float, scale: float, bottom: float
) -> list[Html]:
    """A line where each step of the first rank begins; named where there is room."""
    longest = max(lane.dur_us for lane in lanes)
    mine = [s for s in steps if s.input == lanes[0].input and -1 <= s.start_us <= longest]
    drawn, free = [], -1.0
    for step in mine[:400]:
        x = left + max(0.0, step.start_us) * scale
        drawn.append(el("path", d=f"M{number(x)} 16V{number(bottom)}", class_="step"))
        name = f"step {step.index}" + (" (warm-up)" if step.warmup else "")
        if x >= free and x + len(name) * 6.2 < WIDTH:
            drawn.append(label(x + 3, 11, name, class_="small"))
            free = x + len(name) * 6.2 + 14
    return drawn


def _axis(longest: float, left: float, scale: float, bottom: float) -> Html:
    marks = ticks(longest, 8)
    unit = Scale.of("us", [longest])
    factor = unit.factor
    step = marks[1] / factor if len(marks) > 1 else 1.0
    decimals = 0 if step >= 1 else 1 if step >= 0.1 else 2
    drawn = []
    for mark in marks:
        x = left + mark * scale
        edge = "end" if x > WIDTH - 20 else "start" if x < 20 else "middle"
        drawn.append(el("path", d=f"M{number(x)} {number(bottom)}v4", class_="tick"))
        drawn.append(
            label(x, bottom + 18, f"{mark / factor:,.{decimals}f} {unit.unit}", class_="small", anchor=edge)
        )
    return el("g", drawn)
