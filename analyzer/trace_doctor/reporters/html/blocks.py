"""Memory block by block: what is allocated at a moment, by which stacks, and how it lies in its segments. The script draws
it from the detail that the page holds; how the reserved bytes were used stands as a table."""

from __future__ import annotations

import json
from importlib.resources import files

from msgspec import UNSET

from trace_doctor.model import MEMORY_CATEGORIES, Column, MemorySeries, Result
from trace_doctor.model.html_safe_json import html_safe
from trace_doctor.model.memory_detail import DeviceBlocksDetail
from trace_doctor.reporters.html.charts import memory as chart
from trace_doctor.reporters.html.dom import Html, el
from trace_doctor.reporters.html.parts import Columns, Row, data_table, more
from trace_doctor.reporters.html.policy import digest
from trace_doctor.reporters.labels import MEMORY
from trace_doctor.reporters.units import plural


def of_device(
    result: Result, place: tuple[int, int], series: tuple[int, MemorySeries] | None = None, anchor: str = ""
) -> list[Html]:
    """For one (input, device): its segments in figures, and where the script puts what it draws. `series` with its position
    in the result, and the anchor of its chart."""
    device = _detail(result, place)
    index, drawn = series or (-1, None)
    if device is None and drawn is None:
        return []
    holder = el(
        "div",
        data_blocks=f"{place[0]} {place[1]}",
        data_series=str(index),
        data_chart=anchor,
        data_frame=json.dumps(chart.frame(drawn)) if drawn else None,
        data_whole=device is not None,
    )
    return [holder, _space(device, folded=drawn is not None)] if device else [holder]


def _detail(result: Result, place: tuple[int, int]) -> DeviceBlocksDetail | None:
    if result.detail is UNSET:
        return None
    number, device = place
    memories = (d.memory for d in result.detail if d.input == number and d.memory is not None)
    return next((d for m in memories for d in m.devices if d.device == device), None)


def _space(device: DeviceBlocksDetail, *, folded: bool) -> Html:
    space = device.space
    rows: list[Row] = [
        [name, count, count / max(1, space.reserved)]
        for name, count in (
            (f"allocated, {plural(space.blocks, 'block')}", space.allocated),
            ("rounding: blocks are larger than requested", space.rounding),
            ("free, in segments that hold blocks", space.free_split),
            ("free, in segments without a block", space.free_segments),
            (f"reserved, {plural(space.segments, 'segment')}", space.reserved),
            ("largest free block", space.largest_free),
        )
    ]
    columns: Columns = ["Memory", Column("Bytes", "bytes"), Column("Of reserved", "share")]
    title = "Reserved memory when the snapshot was written"
    table = data_table(title, columns, rows, hide_caption=folded)
    return more(title, table) if folded else table


def panel(result: Result) -> tuple[Html, list[str], list[str]] | None:
    """The script with its style, and the digests of both; None where no memory is shown."""
    whole = result.detail is not UNSET and any(d.memory is not None for d in result.detail)
    if not whole and not result.memory_timeline:
        return None
    classes = [[name, MEMORY[name].label] for name in MEMORY_CATEGORIES]
    words = html_safe(json.dumps(classes).encode()).decode()
    script, style = (
        files(__package__).joinpath(f"memory.{kind}").read_text(encoding="utf-8") for kind in ("js", "css")
    )
    markup = Html(
        f'<script type="application/json" id="memory-classes">{words}</script>'
        f"<style>{style}</style><script>{script}</script>"
    )
    return markup, [digest(script.encode())], [digest(style.encode())]
