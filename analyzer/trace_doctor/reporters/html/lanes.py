"""The timeline: what each device did, with the idle gaps coloured by cause and the longest of them named."""

from __future__ import annotations

from itertools import groupby

from trace_doctor.model import Column, Lane, Result
from trace_doctor.reporters.html.charts import timeline as chart
from trace_doctor.reporters.html.dom import Child, Html, el
from trace_doctor.reporters.html.parts import Row, data_table, section, showing, swatch
from trace_doctor.reporters.html.zoom import of_lanes
from trace_doctor.reporters.units import share
from trace_doctor.reporters.words import KINDS, Names

_MOST_LANES = 16
_MOST_CHARTS = 6
"""of captures that share no time axis"""
_MOST_GAPS = 5


def timeline(result: Result) -> Html | None:
    """Ranks of one job share a time axis; captures that have nothing to do with each other get a chart each."""
    lanes = [lane for lane in result.timeline if lane.dur_us > 0 and lane.segments]
    if not lanes:
        return None
    names = Names(result)
    groups = [lanes] if names.ranked else [list(g) for _, g in groupby(lanes, key=lambda lane: lane.input)]
    groups = [group[:_MOST_LANES] for group in groups[:_MOST_CHARTS]]
    shown = [lane for group in groups for lane in group][:_MOST_LANES]
    kinds = [k for k in KINDS if any(s.kind == k for lane in shown for s in lane.segments)]
    return section(
        "timeline",
        "Timeline of the main thread" if all(lane.device < 0 for lane in lanes) else "GPU timeline",
        el("ul", [el("li", swatch(k), KINDS[k].label) for k in kinds], class_="keys"),
        [_charted(group, n, len(groups), names, result) for n, group in enumerate(groups)],
        of_lanes([(result.timeline.index(lane), names.place(lane)) for lane in shown]),
        showing(len(shown), len(lanes), "devices"),
        showing(
            sum(x.shown for x in shown), sum(x.of for x in shown), "segments; the short ones are added up"
        ),
        lead="The height of a colour is its share of that moment. The longest gaps are numbered.",
    )


def _charted(lanes: list[Lane], n: int, charts: int, names: Names, result: Result) -> list[Child]:
    worst = chart.worst(lanes, _MOST_GAPS)
    heading = el("h3", el("bdi", names.capture(lanes[0]))) if charts > 1 else None
    drawn = chart.draw(
        lanes, [names.place(lane) for lane in lanes], result.steps, worst, f"timeline-{n}", charts
    )
    return [heading, drawn, _gap_table(lanes, worst, names, result) if worst else None]


def _gap_table(lanes: list[Lane], worst: list[chart.Placed], names: Names, result: Result) -> Html:
    columns = [
        Column("Gap"),
        Column("Mostly"),
        Column("Lasts", "us"),
        Column("Begins at", "us"),
        Column("Where"),
    ]
    rows: list[Row] = []
    for n, (lane, gap) in enumerate(worst, 1):
        part = f" ({share(gap.share, 0)})" if gap.share < 0.995 else ""
        step = next(
            (
                s
                for s in result.steps
                if s.input == lanes[lane].input and s.start_us <= gap.start_us < s.start_us + s.dur_us
            ),
            None,
        )
        at = names.place(lanes[lane]) + (f", step {step.index}" if step else "")
        rows.append(
            [
                str(n),
                el("span", swatch(gap.cause), KINDS[gap.cause].label, part),
                gap.dur_us,
                gap.start_us,
                at,
            ]
        )
    return data_table("The longest gaps", columns, rows, class_="gaps")
