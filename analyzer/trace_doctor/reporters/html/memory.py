"""Memory over time and what its peak is made of: the memory ledger as pictures, each with its table."""

from __future__ import annotations

import msgspec

from trace_doctor.model import Column, MemoryHeldRow, MemoryLedgerRow, MemorySeries, Result
from trace_doctor.reporters.html import blocks
from trace_doctor.reporters.html.charts import memory as chart
from trace_doctor.reporters.html.charts.bars import Bar, stacked
from trace_doctor.reporters.html.dom import Html, el
from trace_doctor.reporters.html.parts import Columns, Row, data_table, more, section, showing, swatch, term
from trace_doctor.reporters.html.views import View, key_of, views
from trace_doctor.reporters.html.zoom import of_memory
from trace_doctor.reporters.labels import MEMORY, PINNED, Names, held_words
from trace_doctor.reporters.units import plural, size

_MOST_CHARTS = 5
_MOST_BARS = 12
"""Devices of one page: charts of those to look at first, bars of more"""
Place = tuple[int, int]
"""input and device"""


def memory(result: Result) -> Html | None:
    """The memory panel: a chart or a table for each device; None where no memory was captured."""
    drawable = {
        (s.input, s.device): (n, s)
        for n, s in enumerate(result.memory_timeline)
        if s.at and s.live_by_category
    }
    rows = {(r.input, r.device): r for r in result.memory_ledger}
    accused = [(f.input, f.location.device) for f in result.findings if f.saving is None or f.saving.bytes]

    def first(device: tuple[int, int]) -> tuple[int, bool, int, tuple[int, int]]:
        """In the order of the findings about memory, then what can be drawn, then the fullest."""
        order = min((n for n, (i, d) in enumerate(accused) if (i, d or 0) == device), default=len(accused))
        _, series = drawable.get(device) or (-1, None)
        return order, series is None, -_peak_bytes(series, rows.get(device)), device

    devices = sorted({*drawable, *rows}, key=first)
    if not devices:
        return _memory_at_peak(result)
    names = Names(result) if len(devices) > 1 else None
    charted = devices[:_MOST_CHARTS]
    charts = [_device(result, d, drawable.get(d), rows.get(d), n) for n, d in enumerate(charted)]
    reported = [rows[d] for d in devices if d in rows]
    return section(
        "memory",
        "Memory over time",
        _compared(reported, names) if names and len(reported) > 1 else None,
        views("memory", _views(charted, drawable, rows, charts, names), "Show"),
        showing(len(charts), len(devices), "devices, those with findings and the fullest first"),
        _held_tables(result),
        _pinned_tables(result),
        lead=[
            "What is ",
            term("allocated", "allocated"),
            " by tensors, by class, and what makes up the peak.",
        ],
    )


def _peak_bytes(series: MemorySeries | None, row: MemoryLedgerRow | None) -> int:
    if row is not None:
        return row.peak_bytes
    return max(map(sum, zip(*series.live_by_category.values(), strict=True)), default=0) if series else 0


def _views(
    places: list[Place],
    drawable: dict[Place, tuple[int, MemorySeries]],
    rows: dict[Place, MemoryLedgerRow],
    charts: list[Html],
    names: Names | None,
) -> list[View]:
    views: list[View] = []
    several = {
        number
        for number, device in places
        if (number, device + 1) in places or (number, device - 1) in places
    }
    for (number, device), content in zip(places, charts, strict=True):
        owner = rows.get((number, device)) or drawable[number, device][1]
        key = key_of(owner.rank, number, names is not None and names.ranked)
        views.append(
            (f"{key}d{device}" if number in several else key, names.place(owner) if names else "", content)
        )
    return views


def _compared(devices: list[MemoryLedgerRow], names: Names) -> Html:
    """The peaks of all devices on one scale."""
    first_devices = devices[:_MOST_BARS]
    highest = max(r.peak_bytes for r in devices) or 1
    bars = [
        Bar(
            names.place(r),
            [(f"mem-{k}", MEMORY[k].label, v) for k, v in msgspec.structs.asdict(r.by_category).items()],
            size(r.peak_bytes),
            r.peak_bytes / highest,
        )
        for r in first_devices
    ]
    categories = [k for k in MEMORY if any(getattr(r.by_category, k) for r in first_devices)]
    columns: Columns = ["Device", Column("Peak", "bytes"), Column("Reserved at most", "bytes")]
    columns += [Column(MEMORY[k].label[0].upper() + MEMORY[k].label[1:], "bytes") for k in categories]
    table_rows: list[Row] = [
        [names.place(r), r.peak_bytes, r.max_reserved_bytes, *(getattr(r.by_category, k) for k in categories)]
        for r in first_devices
    ]
    table = data_table("The peaks, device by device", columns, table_rows, of=len(devices))
    return el(
        "div",
        stacked("peaks-chart", "The peaks of all devices", bars),
        el("ul", [el("li", swatch(f"mem-{k}"), MEMORY[k].label) for k in categories], class_="keys"),
        more("Compare as a table", table),
        class_="device",
    )


def _device(
    result: Result, place: Place, placed: tuple[int, MemorySeries] | None, row: MemoryLedgerRow | None, n: int
) -> Html:
    """`placed`: the series with its position in the result."""
    index, series = placed or (-1, None)
    elements = (
        [
            _memory_keys(series),
            chart.draw(series, f"memory-chart-{n}"),
            showing(series.shown, series.of, "points; highs and lows are kept"),
            of_memory(index),
        ]
        if series
        else None
    )
    closer = blocks.of_device(result, place, placed, f"memory-chart-{n}")
    return el("div", elements, closer, _peak(row, n) if row else None, class_="device")


def _memory_keys(series: MemorySeries) -> Html:
    """Above the picture, whose foot may lie below the screen."""
    kinds = {m.kind for m in series.marks}
    keys = [
        el("li", swatch(f"mem-{name}"), kind.label)
        for name, kind in MEMORY.items()
        if any(series.live_by_category.get(name, ()))
    ]
    if any(r is not None for r in series.reserved):
        keys.append(el("li", _line_key("reserved"), "reserved"))
    if "segment_alloc" in kinds:
        keys.append(el("li", _line_key("mark-segment_alloc"), "segment taken from the device"))
    if "segment_free" in kinds:
        keys.append(el("li", _line_key("mark-segment_free"), "segment freed"))
    if "oom" in kinds:
        keys.append(el("li", _line_key("oom"), "out of memory"))
    return el("ul", keys, class_="keys") if keys else Html("")


def _line_key(kind: str) -> Html:
    line = "M1 7h12" if kind == "reserved" else "M7 2v10"
    return el(
        "svg", el("path", d=line, class_=kind), class_="swatch", viewBox="0 0 14 14", aria_hidden="true"
    )


def _peak(row: MemoryLedgerRow, n: int) -> Html:
    """The make-up of the peak: a bar, its table, and the frames that own most."""
    parts = {k: v for k, v in msgspec.structs.asdict(row.by_category).items() if v}
    parts = dict(sorted(parts.items(), key=lambda kv: (-kv[1], kv[0])))
    bar = Bar("peak", [(f"mem-{k}", MEMORY[k].label, v) for k, v in parts.items()])
    rows: list[Row] = [
        [
            el("span", swatch(f"mem-{k}"), MEMORY[k].label, class_="key"),
            v,
            v / max(1, row.peak_bytes),
            MEMORY[k].meaning,
        ]
        for k, v in parts.items()
    ]
    columns: Columns = ["Class", Column("At the peak", "bytes"), Column("Share", "share"), "What it is"]
    reserved = f", with {size(row.max_reserved_bytes)} reserved at most" if row.max_reserved_bytes else ""
    if row.private_bytes:
        reserved += f"; {size(row.private_bytes)} in private pools when the snapshot was written"
    return el(
        "div",
        el("p", el("strong", f"The peak: {size(row.peak_bytes)}"), reserved, ".", class_="peak-line"),
        stacked(f"peak-chart-{n}", "Peak memory breakdown", [bar]) if parts else None,
        data_table("Peak memory breakdown", columns, rows, hide_caption=True, class_="legend")
        if rows
        else None,
        el("p", "How the classes were told apart: ", row.how, class_="limit") if row.how else None,
        _frames(row) if row.by_frame else None,
        class_="peak-block",
    )


def _memory_at_peak(result: Result) -> Html | None:
    if not result.memory_held:
        return section("memory", "Memory", _pinned_tables(result)) if result.memory_pinned else None
    lead = "Without a usable allocation history neither the peak nor what the blocks are for is known, only who allocated them."
    return section(
        "memory",
        "Memory when the snapshot was written",
        _held_tables(result),
        _pinned_tables(result),
        lead=[lead],
    )


def _held_tables(result: Result) -> list[Html]:
    """Who holds the memory, for devices without a history."""
    names = Names(result)
    return [
        el(
            "div",
            _held_table(row, names.place(row)),
            blocks.of_device(result, (row.input, row.device)),
            class_="device",
        )
        for row in sorted(result.memory_held, key=lambda r: -r.held_bytes)[:_MOST_CHARTS]
    ]


def _pinned_tables(result: Result) -> list[Html]:
    """Who holds the host's pinned memory, a part of no device."""
    names = Names(result)
    rows = sorted(result.memory_pinned, key=lambda r: -r.held_bytes)[:_MOST_CHARTS]
    places = [" · ".join(filter(None, (names.capture(row), PINNED))) for row in rows]
    return [
        el("div", _held_table(row, place), class_="device") for row, place in zip(rows, places, strict=True)
    ]


def _held_table(row: MemoryHeldRow, place: str) -> Html:
    columns = [Column("Allocated by", "code"), Column("Allocated", "bytes"), Column("Share", "share")]
    title = (
        f"{place}: {held_words(row)} in {plural(row.blocks, 'block')}, {size(row.reserved_bytes)} reserved"
    )
    rows: list[Row] = [[frame, count, count / max(1, row.held_bytes)] for frame, count in row.by_frame]
    return data_table(title, columns, rows)


def _frames(row: MemoryLedgerRow) -> Html:
    columns = [Column("Allocated by", "code"), Column("At the peak", "bytes"), Column("Share", "share")]
    rows: list[Row] = [[frame, count, count / max(1, row.peak_bytes)] for frame, count in row.by_frame[:12]]
    table = data_table("The frames that own most of the peak", columns, rows, of=len(row.by_frame))
    return more("By the code that allocated it", table)
