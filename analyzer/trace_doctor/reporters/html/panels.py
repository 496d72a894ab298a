"""What-if, critical path, collectives: the panels below and between the findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from trace_doctor.model import Basis, CollectiveRow, Column, Result, WhatIf
from trace_doctor.reporters.html.dom import Child, Html, el
from trace_doctor.reporters.html.parts import (
    Columns,
    Row,
    anchors,
    data_table,
    links,
    mini_bar,
    section,
    term,
)
from trace_doctor.reporters.labels import KINDS, Names, shares_of_path, short_kernel
from trace_doctor.reporters.units import estimate_share

_MOST_COLLECTIVES = 64
"""rows; of more, those of all devices are added up"""


def what_if(result: Result) -> Html | None:
    """Step time today, after each fix and after all: one combined replay, not a sum."""
    captures = sorted({w.input for w in result.what_if})
    by_capture = [[w for w in result.what_if if w.input == capture] for capture in captures]
    blocks = [b for entries in by_capture if (b := _of_capture(entries, result, len(captures) > 1))]
    if not blocks:
        return None
    return section(
        "what-if",
        "Simulated step time",
        blocks[:8],
        lead=[
            "Step time after the fixes, ",
            term("basis", "re-timed together"),
            " – never a sum of savings. A real step is not shorter than the figures after fixes.",
            *(_manual(result)),
        ],
    )


def _manual(result: Result) -> list[Child]:
    """The findings that save time by manual fixes alone: what one writes there is not known, so nothing is re-timed."""
    ids = [
        f.id
        for f in result.findings
        if f.saving and f.saving.time_us_per_step and all(x.safety == "display" for x in f.fixes)
    ]
    return [" Not in it, as the fix is manual: ", *links(ids, anchors(result)), "."] if ids else []


def critical_path(result: Result) -> list[Html]:
    """What another tool holds for the chain of work that decides the length of a step."""
    if not result.critical_path:
        return []
    columns: Columns = ["On the path", "As", Column("Times", "count"), Column("Time", "us")]
    tables = [
        data_table(
            f"Step {path.step} of rank {path.rank}: " + shares_of_path(path),
            columns,
            [[el("span", el("bdi", p.name), class_="kernel"), p.kind, p.count, p.us] for p in path.parts],
        )
        for path in result.critical_path[:8]
    ]
    lead = "By HolisticTraceAnalysis, of the steady step nearest the median: its model, not this report's."
    return [section("critical-path", "Critical path", tables, lead=lead)]


def _of_capture(entries: list[WhatIf], result: Result, with_title: bool) -> Html | None:
    identifiers = anchors(result)
    longest = max(w.step_us for w in entries)
    today = next((w.step_us for w in entries if not w.fixes), longest)
    if len(entries) < 2 or not longest:
        return None
    claimed = {f.id: f.saving.basis for f in result.findings if f.saving}
    rows: list[Row] = [
        [
            el("span", links(w.fixes, identifiers, " + ") if w.fixes else "today"),
            mini_bar(w.step_us / longest, "accent" if w.fixes else "today"),
            w.step_us,
            _change(w.step_us, today),
            _basis(w, claimed),
        ]
        for w in entries
    ]
    columns: Columns = ["After", "Length", Column("Step time", "us"), "Change", "Basis"]
    caption = "Step time today and after the fixes"
    if with_title:
        capture = entries[0].input
        path = result.inputs[capture].path if capture < len(result.inputs) else f"input {capture}"
        caption += f": rank {entries[0].rank}, {path}"
    return data_table(caption, columns, rows, hide_caption=not with_title, class_="what-if")


def _basis(entry: WhatIf, claimed: Mapping[str, Basis]) -> Basis:
    """The weakest of what it stands on: a re-timing without work that is bounded only is a bound too."""
    order = get_args(Basis)
    return max([entry.basis, *(claimed.get(f, entry.basis) for f in entry.fixes)], key=order.index)


def _change(after: float, today: float) -> str:
    if today <= 0 or after >= today:
        return "–"
    return f"−{estimate_share((today - after) / today)}"


def collectives(result: Result) -> Html | None:
    """The table of collectives; None where none was captured."""
    if not result.collectives:
        return None
    names, several = Names(result), len(result.collectives) > _MOST_COLLECTIVES
    groups: dict[object, list[CollectiveRow]] = {}
    for row in result.collectives:
        groups.setdefault(row.name if several else (row.input, row.device, row.name), []).append(row)
    columns: Columns = [
        "Collective",
        Column("Devices", "count") if several else "Device",
        Column("Calls", "count"),
        Column("Total", "us"),
    ]
    columns += [Column("Exposed", "us"), Column("Exposed share", "share")]
    rows: list[Row] = []
    for of in sorted(groups.values(), key=lambda of: -sum(c.total_us for c in of))[:_MOST_COLLECTIVES]:
        total, exposed = sum(c.total_us for c in of), sum(c.exposed_us for c in of)
        place = (
            len({(c.input, c.device) for c in of})
            if several
            else el("bdi", names.place(of[0]), class_="place")
        )
        name = el("bdi", short_kernel(of[0].name))
        rows.append(
            [name, place, sum(c.count for c in of), total, exposed, exposed / total if total else None]
        )
    return section(
        "collectives",
        "Collectives",
        data_table("Collectives by total time", columns, rows, hide_caption=True, of=len(groups)),
        lead=[term("exposed", "Exposed"), f": {KINDS['comm'].meaning}. It is not a saving by itself."],
    )
