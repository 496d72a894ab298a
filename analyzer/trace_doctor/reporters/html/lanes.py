"""The timeline: what each device did, with the idle gaps coloured by cause and the longest of them named."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from types import MappingProxyType

from trace_doctor.model import Column, Lane, Result
from trace_doctor.reporters.html import timeline as zoomed
from trace_doctor.reporters.html.charts import timeline as chart
from trace_doctor.reporters.html.dom import Child, Html, el
from trace_doctor.reporters.html.parts import (
    Columns,
    Row,
    anchors,
    data_table,
    links,
    section,
    showing,
    step_name,
    swatch,
)
from trace_doctor.reporters.html.views import View, key_of, views
from trace_doctor.reporters.labels import KINDS, Names
from trace_doctor.reporters.units import share

_MOST_LANES = 16
_MOST_CHARTS, _MOST_RANKS = 5, 8
"""of captures that share no time axis; of ranks on their own, beside all together"""
_MOST_GAPS = 5
_MOST_WITH_STREAMS = 4
"""captures in one picture; of more, the streams are in the picture of each"""


def timeline(result: Result) -> Html | None:
    """Ranks of one job share a time axis, and can be looked at one by one, as captures that have nothing to do with each
    other must be."""
    lanes = _with_time(result)
    if not lanes:
        return None
    names = Names(result)
    captures = _by_capture(lanes)
    together = names.ranked and len(captures) > 1
    drawn_lanes = _drawn(captures, together)
    kinds = [k for k in KINDS if any(s.kind == k for lane in drawn_lanes for s in lane.segments)]
    return section(
        "timeline",
        "Timeline of the main thread" if all(lane.device < 0 for lane in lanes) else "GPU timeline",
        el("ul", [el("li", swatch(k), KINDS[k].label) for k in kinds], class_="keys"),
        views("timeline", _views(drawn_lanes, names, result, together), "Show"),
        zoomed.panel(result, [(result.timeline.index(lane), names.place(lane)) for lane in drawn_lanes]),
        showing(len(drawn_lanes), len(lanes), "devices"),
        showing(_MOST_RANKS, len(captures), "ranks on their own as well; --rank N looks at any other")
        if together
        else None,
        showing(
            sum(x.shown for x in drawn_lanes),
            sum(x.of for x in drawn_lanes),
            "intervals; the short ones are added up",
        ),
        _streams(drawn_lanes),
        lead=f"The height of a color is its share of that moment. The longest gaps are numbered."
        f"{_steps_said(drawn_lanes, result)}{_strips_said(drawn_lanes, together)}",
    )


def _with_time(result: Result) -> list[Lane]:
    return [lane for lane in result.timeline if lane.dur_us > 0 and lane.segments]


def _by_capture(lanes: list[Lane]) -> list[list[Lane]]:
    return [list(group) for _, group in groupby(lanes, key=lambda lane: lane.input)]


def _drawn(captures: list[list[Lane]], together: bool) -> list[Lane]:
    shown = captures if together else captures[:_MOST_CHARTS]
    return [lane for group in shown for lane in group][:_MOST_LANES]


def on_their_own(result: Result) -> dict[int, str]:
    """Of each capture that has a view of its own the key of that view; nothing where there is no choice."""
    names, captures = Names(result), _by_capture(_with_time(result))
    shown = _by_capture(_drawn(captures, names.ranked and len(captures) > 1))[:_MOST_RANKS]
    if len(captures) < 2:
        return {}
    return {group[0].input: key_of(group[0].rank, group[0].input, names.ranked) for group in shown}


def _steps_said(lanes: list[Lane], result: Result) -> str:
    """What the lines are, where there are any: by the marks of the host it ends before its kernels do."""
    marked = {step.input for step in result.steps}
    if not any(lane.input in marked and lane.device >= 0 for lane in lanes):
        return ""
    return " Lines mark the start of steps on the host; a step runs to its last kernel."


def _strips_said(lanes: list[Lane], together: bool) -> str:
    if not any(lane.streams for lane in lanes):
        return ""
    of = "a rank on its own" if together and not _with_streams(lanes) else "a device"
    return f" The strips below {of} are its streams: all they did, hidden by others or not."


def _with_streams(lanes: list[Lane]) -> bool:
    return len({lane.input for lane in lanes}) <= _MOST_WITH_STREAMS


def _streams(lanes: list[Lane]) -> Html | None:
    there = sum(lane.of_streams for lane in lanes if lane.streams)
    return showing(sum(len(lane.streams) for lane in lanes), there, "streams; the others did the least")


def _views(lanes: list[Lane], names: Names, result: Result, together: bool) -> list[View]:
    """Ranks of one job on one time axis, then each capture on its own, larger."""
    captures = _by_capture(lanes)
    charts = len(captures) + together
    views: list[View] = []
    if together:
        begins, clock = zoomed.begins(result, (lane.input for lane in lanes))
        said = f"All ranks on {clock}." if clock else "Each rank from its own start."
        if any(step.input == lanes[0].input for step in result.steps):
            said += f" The lines are the steps of {names.capture(lanes[0])}."
        pictures = _charted(lanes, "timeline-all", 2, names, result, begins)
        views.append(("all", "all ranks", [el("p", said, class_="limit"), *pictures]))
    for n, group in enumerate(captures[:_MOST_RANKS]):
        key = key_of(group[0].rank, group[0].input, names.ranked)
        share_of = 2 * len(captures) if together else charts
        views.append(
            (key, names.capture(group[0]), _charted(group, f"timeline-{n}", share_of, names, result))
        )
    return views


def _charted(
    lanes: list[Lane],
    anchor: str,
    charts: int,
    names: Names,
    result: Result,
    begins: Mapping[int, float] = MappingProxyType({}),
) -> list[Child]:
    """`begins`: when the window of a capture begins, us; 0 where it is not there."""
    worst = chart.worst(lanes, _MOST_GAPS)
    places = [names.place(lane) for lane in lanes]
    figure = chart.draw(
        lanes, places, result.steps, worst, anchor, charts, streams=_with_streams(lanes), begins=begins
    )
    return [figure, _gap_table(lanes, worst, names, result, begins) if worst else None]


def _gap_table(
    lanes: list[Lane], worst: list[chart.Placed], names: Names, result: Result, begins: Mapping[int, float]
) -> Html:
    owners = [zoomed.owner(result, lanes[lane], gap) for lane, gap in worst]
    columns: Columns = ["Gap", "Mostly", Column("Lasts", "us"), Column("Begins at", "us"), "Where"]
    columns += ["Finding"] if any(owners) else []
    rows: list[Row] = []
    for n, ((lane, gap), owner) in enumerate(zip(worst, owners, strict=True), 1):
        part = f" ({share(gap.share, 0)})" if gap.share < 0.995 else ""
        step = next(
            (
                s
                for s in result.steps
                if s.input == lanes[lane].input and s.start_us <= gap.start_us < s.start_us + s.dur_us
            ),
            None,
        )
        at = names.place(lanes[lane]) + (f", {step_name(result, step.input, step.index)}" if step else "")
        rows.append(
            [
                zoomed.to_gap(str(n), result, lanes[lane], gap),
                el("span", swatch(gap.cause), KINDS[gap.cause].label, part),
                gap.dur_us,
                begins.get(lanes[lane].input, 0.0) + gap.start_us,
                at,
                *([el("span", links([owner.id], anchors(result))) if owner else "–"] if any(owners) else []),
            ]
        )
    return data_table("The longest gaps", columns, rows, class_="gaps")
