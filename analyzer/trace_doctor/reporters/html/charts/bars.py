"""Stacked bars: the parts of one whole, a row for each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trace_doctor.reporters.html.charts.svg import WIDTH, number, picture
from trace_doctor.reporters.html.dom import Html, el
from trace_doctor.reporters.units import share

_CHAR = 6.7
"""Width of a character of the label font, on the safe side."""


@dataclass(frozen=True)
class Bar:
    """One row: `parts` are (kind, name, value) from left to right."""

    name: str
    parts: Sequence[tuple[str, str, float]]
    note: str = ""
    length: float = 1.0
    """of the room: less than 1 where bars are of different wholes"""

    @property
    def whole(self) -> float:
        """The sum of the parts, in their unit."""
        return sum(value for _, _, value in self.parts)

    def described(self) -> str:
        """The bar in words, for who cannot see it."""
        return f"{self.name}: " + ", ".join(
            f"{name} {share(value / self.whole)}" for _, name, value in self.parts if value
        )


def stacked(anchor: str, title: str, bars: Sequence[Bar]) -> Html:
    """One bar is drawn tall, with its parts named below; several are drawn as rows of equal length."""
    bars = [bar for bar in bars if bar.whole > 0]
    description = ". ".join(bar.described() for bar in bars) or "Nothing to show"
    if len(bars) == 1:
        return _single(anchor, title, description, bars[0])
    rows = [_row(bar) for bar in bars]
    return el("div", picture(anchor, title, description, 1, class_="hidden"), rows, class_="bars")


def _segments(
    bar: Bar, y: float, height: float, left: float, right: float
) -> tuple[list[Html], list[tuple[float, float]]]:
    """The rectangles, and where each begins and ends."""
    rectangles, edges, at = [], [], left
    for kind, _, value in bar.parts:
        width = value / bar.whole * (right - left)
        edges.append((at, at + width))
        if width > 0.05:
            gap = 1.5 if width > 4 else 0
            rectangles.append(
                el(
                    "rect",
                    x=number(at),
                    y=number(y),
                    width=number(width - gap),
                    height=number(height),
                    class_=f"f-{kind}",
                )
            )
        at += width
    return rectangles, edges


def _single(anchor: str, title: str, description: str, bar: Bar) -> Html:
    """The bar fills any width; its names stand below as text, so that they keep their size. Where they do not fit, the
    table that follows every bar names the parts."""
    rectangles, edges = _segments(bar, 0, 48, 0, WIDTH)
    names, free = [], 0.0
    for (left, right), (_, name, value) in zip(edges, bar.parts, strict=True):
        text = share(value / bar.whole)
        room = max(len(name), len(text) + 2) * _CHAR + 8
        if not value or right - left < room or left < free:
            continue
        x = f"{number(left / WIDTH * 100)}%"
        names += [el("rect", x=x), el("text", el("tspan", text), x=x, y=17), el("text", name, x=x, y=34)]
        free = left + room
    drawing = picture(
        anchor, title, description, 48, rectangles, class_="chart bar-chart", preserveAspectRatio="none"
    )
    return el("div", drawing, el("svg", names, class_="bar-names", aria_hidden="true"))


def _row(bar: Bar) -> Html:
    """Name and note as text beside the drawing, below 560 px above it: they keep their size on any screen."""
    rectangles, _ = _segments(bar, 0, 20, 0, WIDTH * bar.length)
    drawing = el(
        "svg",
        rectangles,
        class_="bar-part",
        viewBox=f"0 0 {WIDTH} 20",
        aria_hidden="true",
        preserveAspectRatio="none",
    )
    names = [el("bdi", bar.name, class_="bar-name"), drawing, el("span", bar.note, class_="bar-note")]
    return el("div", names, class_="bar-row", aria_hidden="true")
