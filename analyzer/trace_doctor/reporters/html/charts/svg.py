"""What the charts share: the frame with its description, hatching, axes with round numbers."""

from __future__ import annotations

from math import ceil, floor, log10

from trace_doctor.reporters.html.dom import Child, Html, el, join
from trace_doctor.reporters.labels import IDLE

WIDTH = 1080

_HATCH: dict[str, tuple[int, str]] = {
    "data_loading": (7, "M-1 1l2-2M0 7l7-7M6 8l2-2"),
    "sync": (6, "M-1 5l2 2M0 0l6 6M5-1l2 2"),
    "allocator": (7, "M0 0l7 7M7 0l-7 7"),
    "compile": (4, "M-1 1l2-2M0 4l4-4M3 5l2-2"),
    "cold_start": (8, "M4 3v2M3 4h2"),
    "optimizer": (4, "M0 2h4"),
    "annotation": (8, "M0 4h4M4 0h4"),
    "python": (6, "M0 3h6"),
    "dispatch": (5, "M2 2h1M2 3h1"),
    "launch": (5, "M2 0v5"),
    "graph": (6, "M1 1h4v4h-4z"),
    "profiler": (6, "M0 3h6M3 0v6"),
    "unattributed": (10, "M-1 1l2-2M0 10l10-10M9 11l2-2"),
}
"""Tile size and strokes of each cause, so that none is told by its colour alone."""


def number(value: float) -> str:
    """A coordinate, as short as one decimal allows."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")


def patterns() -> Html:
    """The hatching of the idle causes, once a page."""
    hatchings = [
        el(
            "pattern",
            el("rect", width=size, height=size, class_=f"c-{cause}"),
            el("path", d=strokes, class_="hatch"),
            id=f"p-{cause}",
            width=size,
            height=size,
            patternUnits="userSpaceOnUse",
        )
        for cause, (size, strokes) in _HATCH.items()
        if cause in IDLE
    ]
    return el(
        "svg", el("defs", hatchings), class_="defs", width=0, height=0, aria_hidden="true", focusable="false"
    )


def picture(
    anchor: str,
    title: str,
    description: str,
    height: float,
    *children: Child,
    class_: str = "chart",
    **attributes: str,
) -> Html:
    """An SVG with its name and description."""
    return el(
        "svg",
        el("title", title, id=f"{anchor}-t"),
        el("desc", description, id=f"{anchor}-d"),
        *children,
        class_=class_,
        viewBox=f"0 0 {WIDTH} {number(height)}",
        role="img",
        aria_labelledby=f"{anchor}-t {anchor}-d",
        **attributes,
    )


def chart(anchor: str, title: str, description: str, height: float, *children: Child) -> Html:
    """A picture in a box that scrolls where the screen is narrower than the picture is legible."""
    drawing = picture(anchor, title, description, height, *children)
    return el("div", drawing, class_="scroll wide", tabindex=0, role="group", aria_label=title)


def label(x: float, y: float, content: Child, *, class_: str = "", anchor: str | None = None) -> Html:
    """A text at a place of the chart, in its units."""
    return el("text", content, x=number(x), y=number(y), class_=class_ or None, text_anchor=anchor)


def ticks(top: float, count: int = 6) -> list[float]:
    """Round numbers from 0 up to `top`: 1, 2 or 5 times a power of ten."""
    if top <= 0:
        return [0.0]
    raw = top / count
    power = 10.0 ** floor(log10(raw))
    step = next((m * power for m in (1, 2, 5, 10) if m * power >= raw), 10 * power)
    return [i * step for i in range(ceil(top / step) + 1) if i * step <= top * 1.0001]


def byte_ticks(top: float) -> list[float]:
    """Round numbers of MiB or GiB."""
    unit = 1024.0**3 if top >= 1024.0**3 else 1024.0**2
    return [t * unit for t in ticks(top / unit, 4)]


def rects(spans: list[tuple[float, float, float, float]]) -> str:
    """One path for many rectangles (x, y, width, height)."""
    return join(
        Html(f"M{number(x)} {number(y)}h{number(w)}v{number(h)}h{number(-w)}z") for x, y, w, h in spans
    )
