"""What each device did over time: solid where it worked, hatched by cause where it waited.

A lane is cut into columns a few pixels wide. Within a column the height of a colour is its share of that moment, so the
picture is true at any length: areas are times, whether a column holds a part of one kernel or ten thousand of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trace_doctor.model import Gap, Lane, Segment, StepRow, Strip
from trace_doctor.reporters.html.charts.svg import WIDTH, chart, label, number, rects, ticks
from trace_doctor.reporters.html.dom import Html, el
from trace_doctor.reporters.labels import BUSY, KINDS
from trace_doctor.reporters.units import Scale, duration, share

_ORDER = list(KINDS)
_PATH_BUDGET = 36_000
"""Bytes of all lanes together; columns get wider until they fit."""

_WIDTHS = (1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0, 20.0)
"""Pixels of a column."""

Column = tuple[tuple[str, int], ...]
"""kinds from the bottom up, with their height in pixels"""


_STRIP_BUDGET = 9_000
_STRIP, _STRIP_ROW = 9, 14
"""Pixels of a stream's strip, and from one to the next."""


@dataclass(frozen=True)
class _Size:
    """Pixels of a lane, and from one lane to the next without strips."""

    height: int
    row: int

    @classmethod
    def of(cls, lanes: int) -> _Size:
        """The more lanes, the lower each."""
        return cls(84, 116) if lanes == 1 else cls(46, 78) if lanes <= 4 else cls(24, 50)


Placed = tuple[int, Gap]
"""a gap and the number of its lane"""


def worst(lanes: Sequence[Lane], most: int) -> list[Placed]:
    """The longest gaps of all lanes, longest first."""
    gaps = [(n, gap) for n, lane in enumerate(lanes) for gap in lane.gaps if gap.cause in KINDS]
    return sorted(gaps, key=lambda p: (-p[1].dur_us, p[0], p[1].start_us))[:most]


def draw(
    lanes: Sequence[Lane],
    names: Sequence[str],
    steps: Sequence[StepRow],
    gaps: Sequence[Placed],
    anchor: str,
    charts: int = 1,
    *,
    streams: bool = True,
    begins: Mapping[int, float],
) -> Html:
    """The lanes over one time axis, with step marks, the gaps numbered and, with `streams`, a strip for each stream below
    its device. `charts` share the budget. `begins`: when the window of a capture begins, us; 0 where it is not there."""
    strips = [lane.streams if streams else [] for lane in lanes]
    names_beside = [
        *(names if len(lanes) > 1 or any(strips) else []),
        *(strip_name(x) for row in strips for x in row),
    ]
    left = max((len(text) for text in names_beside), default=0) * 6.7 + 16 if names_beside else 0.0
    offsets = [begins.get(lane.input, 0.0) for lane in lanes]
    longest = max(b + lane.dur_us for b, lane in zip(offsets, lanes, strict=True))
    scale = (WIDTH - left) / longest
    starts = [left + b * scale for b in offsets]
    size = _Size.of(len(lanes))
    tops = _tops(strips, size)
    elements = [
        el(
            "g",
            label(0, top + size.height / 2 + 4, name, class_="axis") if left else None,
            el("g", path, transform=f"translate({number(start)} {top})"),
        )
        for top, start, name, path in zip(
            tops[:-1], starts, names, _fitting(lanes, scale, size.height, _PATH_BUDGET // charts), strict=True
        )
    ]
    below = _strips(lanes, strips, [top + size.height + 6 for top in tops[:-1]], starts, scale, charts)
    bottom = tops[-1] - 20
    marks = [_badge(rank, x, tops[lane] - 12, gap) for rank, lane, x, gap in _placed(gaps, starts, scale)]
    return chart(
        anchor,
        "GPU timeline" if lanes[0].device >= 0 else "Timeline of the main thread",
        _described(lanes, names, gaps),
        bottom + 26,
        _steps(lanes, steps, starts[0], scale, bottom),
        elements,
        below,
        marks,
        _axis(longest, left, scale, bottom),
    )


def strip_name(strip: Strip) -> str:
    """How a stream is called beside its strip."""
    return f"stream {strip.stream}" if strip.stream >= 0 else "no stream"


def _tops(strips: Sequence[Sequence[Strip]], size: _Size) -> list[int]:
    """Where each lane begins, and where one more would."""
    tops = [44]
    for row in strips:
        tops.append(tops[-1] + size.row + (len(row) * _STRIP_ROW + 4 if row else 0))
    return tops


def _described(lanes: Sequence[Lane], names: Sequence[str], gaps: Sequence[Placed]) -> str:
    sentences = []
    for lane, name in zip(lanes, names, strict=True):
        whole = sum(s.dur_us for s in lane.segments) or 1.0
        busy = sum(s.dur_us for s in lane.segments if s.kind in BUSY)
        sentences.append(f"{name}: busy {share(busy / whole)} of {duration(lane.dur_us)}")
    if gaps:
        first = gaps[0][1]
        sentences.append(f"The longest gap lasts {duration(first.dur_us)}, mostly {KINDS[first.cause].label}")
    return ". ".join(sentences) + "."


# ------------------------------------------------------------------------------------------------ columns


def _fitting(lanes: Sequence[Lane], scale: float, height: int, budget: int) -> list[list[Html]]:
    """The lanes drawn with the narrowest columns whose paths stay within the budget. Where the short segments were added
    up, a column must be wide enough to level their order out."""
    paths: list[list[Html]] = []
    merged = any(lane.shown < lane.of for lane in lanes)
    for width in _WIDTHS[3 if merged else 0 :]:
        paths = [_lane(lane, scale, width, height) for lane in lanes]
        if sum(len(path) for lane in paths for path in lane) <= budget:
            break
    return paths


def _lane(lane: Lane, scale: float, width: float, full: int) -> list[Html]:
    shares = _shares(lane.segments, lane.dur_us, scale, width)
    return _boxes([_stack(parts, full) for parts in shares], width, full)


def _boxes(stacks: Sequence[Column], width: float, full: int) -> list[Html]:
    """The columns as one path a kind; equal neighbours are one box."""
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


def _shares(segments: Sequence[Segment], dur_us: float, scale: float, width: float) -> list[dict[str, float]]:
    """For each column, how long each kind lasts in it."""
    step = width / scale
    count = max(1, -(-int(dur_us * 1000) // max(1, int(step * 1000))))
    shares: list[dict[str, float]] = [{} for _ in range(count)]
    for segment in segments:
        end = min(segment.start_us + segment.dur_us, dur_us)
        first, last = int(segment.start_us / step), min(count - 1, int(end / step))
        for n in range(max(0, first), last + 1):
            part = min(end, (n + 1) * step) - max(segment.start_us, n * step)
            if part > 0:
                shares[n][segment.kind] = shares[n].get(segment.kind, 0.0) + part
    return shares


def _stack(parts: dict[str, float], full: int) -> Column:
    whole = sum(parts.values())
    if not whole:
        return ()
    stack, before, rectangles = [], 0.0, 0
    for kind in sorted(parts, key=lambda k: _ORDER.index(k) if k in _ORDER else len(_ORDER)):
        before += parts[kind]
        upto = round(before / whole * full)
        if upto > rectangles:
            stack.append((kind if kind in KINDS else "unattributed", upto - rectangles))
        rectangles = upto
    return tuple(stack)


# ------------------------------------------------------------------------------------------------ streams


def _strips(
    lanes: Sequence[Lane],
    strips: Sequence[Sequence[Strip]],
    tops: Sequence[int],
    starts: Sequence[float],
    scale: float,
    charts: int,
) -> list[Html]:
    """The strips below their lanes, in columns as wide as the budget asks for."""
    elements: list[Html] = []
    for width in _WIDTHS[2:]:
        elements = [
            _strip(strip, lane.dur_us, start, top + n * _STRIP_ROW, scale, width)
            for lane, row, top, start in zip(lanes, strips, tops, starts, strict=True)
            for n, strip in enumerate(row)
        ]
        if sum(map(len, elements)) <= _STRIP_BUDGET // charts:
            break
    return elements


def _strip(strip: Strip, dur_us: float, left: float, top: float, scale: float, width: float) -> Html:
    kinds = sorted({s.kind for s in strip.segments} & set(BUSY), key=_ORDER.index)
    columns = [
        tuple((k, max(1, round(parts[k] * scale / width * _STRIP))) for k in kinds if k in parts)
        for parts in _shares(strip.segments, dur_us, scale, width)
    ]
    return el(
        "g",
        el("title", f"{strip_name(strip)}: busy {share(strip.busy_us / dur_us)}"),
        label(12, top + 8, strip_name(strip), class_="small"),
        el(
            "rect", x=number(left), y=number(top), width=number(dur_us * scale), height=_STRIP, class_="track"
        ),
        el("g", _boxes(columns, width, _STRIP), transform=f"translate({number(left)} {number(top)})"),
    )


# ------------------------------------------------------------------------------------------------ marks


def _placed(
    gaps: Sequence[Placed], starts: Sequence[float], scale: float
) -> list[tuple[int, int, float, Gap]]:
    """Numbers at the middle of their gap, moved aside where they would cover one another or leave the picture."""
    ends: dict[int, float] = {}
    places: list[tuple[int, int, float, Gap]] = []
    for rank, (lane, gap) in sorted(enumerate(gaps, 1), key=lambda n: (n[1][0], n[1][1].start_us)):
        x = max(starts[lane] + (gap.start_us + gap.dur_us / 2) * scale, ends.get(lane, starts[lane] + 9))
        ends[lane] = x + 20
        places.append((rank, lane, x, gap))
    limits: dict[int, float] = {}
    for n, (rank, lane, x, gap) in reversed(list(enumerate(places))):
        places[n] = (rank, lane, min(x, limits.get(lane, WIDTH - 9)), gap)
        limits[lane] = places[n][2] - 20
    return places


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
    longest = max(lane.dur_us for lane in lanes if lane.input == lanes[0].input)
    own_steps = [s for s in steps if s.input == lanes[0].input and -1 <= s.start_us <= longest]
    elements, free = [], -1.0
    for step in own_steps[:400]:
        x = left + max(0.0, step.start_us) * scale
        elements.append(el("path", d=f"M{number(x)} 16V{number(bottom)}", class_="step"))
        name = f"step {step.index}" + (" (warm-up)" if step.warmup else "")
        if x >= free and x + len(name) * 6.2 < WIDTH:
            elements.append(label(x + 3, 11, name, class_="small"))
            free = x + len(name) * 6.2 + 14
    return elements


def _axis(longest: float, left: float, scale: float, bottom: float) -> Html:
    marks = ticks(longest, 8)
    unit = Scale.of("us", [longest])
    factor = unit.factor
    step = marks[1] / factor if len(marks) > 1 else 1.0
    decimals = 0 if step >= 1 else 1 if step >= 0.1 else 2
    elements = []
    for mark in marks:
        x = left + mark * scale
        edge = "end" if x > WIDTH - 20 else "start" if x < 20 else "middle"
        elements.append(el("path", d=f"M{number(x)} {number(bottom)}v4", class_="tick"))
        elements.append(
            label(x, bottom + 18, f"{mark / factor:,.{decimals}f} {unit.unit}", class_="small", anchor=edge)
        )
    return el("g", elements)
