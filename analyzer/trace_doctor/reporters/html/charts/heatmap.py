"""A heatmap of rows and steps, in five colors; it fills any width, its names stand beside it as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trace_doctor.reporters.html.charts.svg import WIDTH, label, number, picture, rects
from trace_doctor.reporters.html.dom import Html, el

TALL, LOWEST, HIGHEST = 640, 2, 18
"""pixels: of all rows together, of one at least and at most"""
NAME = 14
"""pixels that a name takes"""
NONE = -1
"""the level of a cell that was not captured"""


def heatmap(
    anchor: str,
    title: str,
    description: str,
    rows: Sequence[Sequence[int]],
    names: Mapping[int, str],
    steps: Sequence[int],
) -> Html:
    """`rows`: of each cell its level, 0 (nothing is drawn) to 5, or NONE. `names`: position of a row -> its name, those that
    must be seen first; one without room is left out."""
    height = max(LOWEST, min(HIGHEST, TALL // max(len(rows), 1)))
    whole, width = height * len(rows), WIDTH / max(len(steps), 1)
    gap = 1 if height > 3 else 0
    cells: dict[int, list[tuple[float, float, float, float]]] = {}
    for y, row in enumerate(rows):
        for x, level in enumerate(row):
            if level:
                cells.setdefault(level, []).append((x * width, y * height, width - 2, height - gap))
    drawn = [
        el("path", d=rects(of_level), class_="heat-none" if level == NONE else f"heat-{level}")
        for level, of_level in sorted(cells.items())
    ]
    map_ = picture(
        anchor, title, description, whole,
        el("defs", _ABSENT), el("rect", width=WIDTH, height=whole, class_="track"), drawn,
        el("rect", width=WIDTH, height=height, class_="heat-cursor"),
        class_="heat-picture", preserveAspectRatio="none", height_=str(whole),
    )  # fmt: skip
    return el(
        "div",
        el("svg", _names(names, height, whole), class_="heat-names", height=whole, aria_hidden="true"),
        el("div", map_, class_="heat-cells"),
        el("span", "step", class_="heat-unit", aria_hidden="true"),
        el("div", [el("span", step) for step in steps], class_="heat-steps", aria_hidden="true"),
        class_="heat",
    )


_ABSENT = el(
    "pattern",
    el("path", d="M-1 1l2-2M0 6l6-6M5 7l2-2", class_="heat-hatch"),
    id="p-absent",
    width=6,
    height=6,
    patternUnits="userSpaceOnUse",
)


def _names(names: Mapping[int, str], height: int, whole: int) -> list[Html]:
    taken: list[float] = []
    elements = []
    for row, name in names.items():
        y = min(max((row + 0.5) * height, NAME / 2), max(whole - NAME / 2, NAME / 2))
        if all(abs(y - other) >= NAME for other in taken):
            taken.append(y)
            elements.append(label(0, y + 4, name))
            elements.append(
                el("path", d=f"M92 {number(y)}L100 {number((row + 0.5) * height)}", class_="tick")
            )
    return elements
