"""The host's time by Python stack: a flame graph that the script draws, and its heaviest functions as a table."""

from __future__ import annotations

import json
from collections import defaultdict

from msgspec import UNSET

from trace_doctor.model import Column, Result
from trace_doctor.model.detail import Detail, Frame, HostStacks
from trace_doctor.reporters.html.dom import Html, el
from trace_doctor.reporters.html.parts import Columns, Row, data_table, more, section, showing
from trace_doctor.reporters.labels import Names

_MOST = 20
_MOST_TABLES = 4
_OTHER = "other"


def flame_graph(result: Result) -> Html | None:
    """None where no capture has Python stacks."""
    details = [] if result.detail is UNSET else [d for d in result.detail if d.host_stacks]
    if not details:
        return None
    names = Names(result)
    choices = [(d.input, names.of(d.input)) for d in details]
    first = details[:_MOST_TABLES]
    shown = [d.host_stacks for d in details if d.host_stacks]
    return section(
        "host-stacks",
        "Host time by Python stack",
        more(
            "Flame graph",
            el("div", data_flame="host_stacks", data_captures=json.dumps(choices, ensure_ascii=False)),
        ),
        more("The heaviest functions as a table", [_table(d, names) for d in first]),
        showing(len(first), len(details), "captures as tables"),
        showing(
            sum(s.shown for s in shown),
            sum(s.of for s in shown),
            "frames; the short ones are added up as “other”",
        ),
        lead="Main thread in the analyzed window, from the recorded Python functions. Width is time, waiting included.",
    )


def _table(detail: Detail, names: Names) -> Html | None:
    if detail.host_stacks is None:
        return None
    order = sorted(_functions(detail.host_stacks).items(), key=lambda kv: (-kv[1][0], -kv[1][1], kv[0]))
    whole = max(detail.host_stacks.root.value, 1e-9)
    columns: Columns = [
        "Function",
        Column("Own time", "us"),
        Column("With callees", "us"),
        Column("Own share", "share"),
    ]
    rows: list[Row] = [
        [el("span", el("bdi", name), class_="kernel"), own, total, own / whole]
        for name, (own, total) in order[:_MOST]
    ]
    called = names.of(detail.input)
    caption = "The functions with the most time of their own" + (f": {called}" if called else "")
    return data_table(caption, columns, rows, of=len(order))


def _functions(stacks: HostStacks) -> dict[str, tuple[float, float]]:
    """Of each function: own time and time with what it calls, us; one that calls itself counts once."""
    own: dict[str, float] = defaultdict(float)
    total: dict[str, float] = defaultdict(float)
    waiting: list[tuple[Frame, frozenset[str]]] = [(child, frozenset()) for child in stacks.root.children]
    while waiting:
        frame, above = waiting.pop()
        if frame.name != _OTHER:
            own[frame.name] += max(0.0, frame.value - sum(child.value for child in frame.children))
            if frame.name not in above:
                total[frame.name] += frame.value
        inside = above | {frame.name}
        waiting += [(child, inside) for child in frame.children]
    return {name: (own[name], total[name]) for name in own}
