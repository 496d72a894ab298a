"""Where the step goes, the timeline and the memory: the ledgers as pictures, each with its table."""

from __future__ import annotations

import msgspec

from trace_doctor.model import Column, Lane, MemoryLedgerRow, MemorySeries, Result, StepRow, TimeLedgerRow
from trace_doctor.reporters.html.charts import memory as memory_chart
from trace_doctor.reporters.html.charts import timeline as timeline_chart
from trace_doctor.reporters.html.charts.bars import Bar, stacked
from trace_doctor.reporters.html.dom import Child, Html, el
from trace_doctor.reporters.html.parts import Row, data_table, section, swatch, term
from trace_doctor.reporters.html.verdict import is_cpu
from trace_doctor.reporters.units import duration, plural, share, size
from trace_doctor.reporters.words import IDLE, KINDS, MEMORY, device_name, place

_MOST_LANES = 16
_MOST_CHARTS = 4
_MOST_ROWS = 32


def parts_of(row: TimeLedgerRow) -> dict[str, int]:
    """Every part of the window in ns, busy first, then the causes from the largest down."""
    idle = msgspec.structs.asdict(row.idle_ns)
    busy = {"compute": row.compute_ns, "comm": row.exposed_comm_ns, "copy": row.exposed_copy_ns}
    return busy | dict(sorted(idle.items(), key=lambda kv: (-kv[1], kv[0])))


# ------------------------------------------------------------------------------------------------ time


def where_the_step_goes(result: Result) -> Html:
    rows = [r for r in result.time_ledger if r.phase == "steady"] or result.time_ledger
    if not rows:
        return section(
            "time",
            "Where the step goes",
            el("p", "No profiler trace was given, so the time was not captured.", class_="empty"),
        )
    ranks = len({r.rank for r in result.time_ledger})
    bars = [
        Bar(
            place(r.rank, r.device, ranks),
            [(k, KINDS[k].label, v) for k, v in parts_of(r).items()],
            duration(r.step_us) if r.steps else duration(r.window_ns / 1e3),
        )
        for r in rows[:_MOST_LANES]
    ]
    legend = _legend(rows[0], result) if len(rows) == 1 else _comparison(rows, ranks)
    others = [r for r in result.time_ledger if r not in rows]
    return section(
        "time",
        "Where the step goes",
        stacked("time-chart", "Where the step goes", bars),
        _showing(len(bars), len(rows), "devices"),
        legend,
        _other_phases(others, ranks) if others else None,
        lead=_time_lead(rows, result),
    )


def _time_lead(rows: list[TimeLedgerRow], result: Result) -> list[Child]:
    of = plural(rows[0].steps, "steady step") if rows[0].steps else "the whole window: no steps were recorded"
    if rows[0].phase != "steady":
        of = f"the {rows[0].phase} phase: no steady step was left"
    if is_cpu(result):
        return [f"Time of the main thread over {of}. Solid: working. Hatched: waiting, by cause."]
    return [f"GPU time over {of}. Solid: the GPU works. Hatched: it is ", term("idle", "idle, by cause"), "."]


def _legend(row: TimeLedgerRow, result: Result) -> Html:
    """The bar as a table: every part, its time a step and what it means."""
    steps = max(1, row.steps)
    table_rows: list[Row] = [
        [
            el("span", swatch(kind), KINDS[kind].label, class_="key"),
            ns / steps / 1e3,
            ns / max(1, row.window_ns),
            _meaning(kind, row.device < 0),
        ]
        for kind, ns in parts_of(row).items()
        if ns
    ]
    per = "a step" if row.steps else "in the window"
    columns = [Column("Part"), Column(f"Time {per}", "us"), Column("Share", "share"), Column("What it is")]
    return data_table(
        "The parts of the step; they sum exactly to the window",
        columns,
        table_rows,
        hide_caption=True,
        class_="legend",
    )


def _meaning(kind: str, cpu: bool) -> str:
    if cpu and kind == "compute":
        return "operators were running"
    if kind in IDLE and not cpu:
        return f"GPU idle: {KINDS[kind].meaning}"
    return KINDS[kind].meaning


def _comparison(rows: list[TimeLedgerRow], ranks: int) -> Html:
    """A row for each device, a column for each part that any of them has."""
    shown = [k for k in KINDS if any(parts_of(r)[k] for r in rows)]
    keys = el("ul", [el("li", swatch(k), KINDS[k].label) for k in shown], class_="keys")
    columns = [Column("Device"), Column("Step", "us"), Column("Idle", "share")]
    columns += [Column(KINDS[k].label[0].upper() + KINDS[k].label[1:], "share") for k in shown]
    table_rows: list[Row] = [
        [
            place(r.rank, r.device, ranks) or device_name(r.device),
            r.step_us,
            r.idle_ns.total() / max(1, r.window_ns),
            *(parts_of(r)[k] / max(1, r.window_ns) for k in shown),
        ]
        for r in rows[:_MOST_ROWS]
    ]
    table = data_table("Shares of the window, device by device", columns, table_rows, of=len(rows))
    return el("div", keys, el("details", el("summary", "Compare as a table"), table, class_="more"))


def _other_phases(rows: list[TimeLedgerRow], ranks: int) -> Html:
    columns = [
        Column("Phase"),
        Column("Device"),
        Column("Steps", "count"),
        Column("Window", "us"),
        Column("Idle", "share"),
        Column("Largest cause"),
    ]
    table_rows: list[Row] = []
    for r in rows[:_MOST_ROWS]:
        causes = {k: v for k, v in parts_of(r).items() if k in IDLE and v}
        first = next(iter(causes), None)
        largest = f"{KINDS[first].label}, {share(causes[first] / max(1, r.window_ns))}" if first else "none"
        name = (
            "warm-up"
            if r.phase == "warmup"
            else f"{r.phase} of any step"
            if r.phase == "outside"
            else r.phase
        )
        table_rows.append(
            [
                name,
                place(r.rank, r.device, ranks),
                r.steps,
                r.window_ns / 1e3,
                r.idle_ns.total() / max(1, r.window_ns),
                largest,
            ]
        )
    table = data_table("Time outside the steady steps: shown, not counted", columns, table_rows, of=len(rows))
    return el("details", el("summary", "Warm-up and time outside the steps"), table, class_="more")


def _showing(shown: int, of: int, what: str) -> Html | None:
    return el("p", f"Showing {shown:,} of {of:,} {what}.", class_="limit") if shown < of else None


# ------------------------------------------------------------------------------------------------ timeline


def timeline(result: Result) -> Html | None:
    lanes = [lane for lane in result.timeline if lane.dur_us > 0 and lane.segments]
    if not lanes:
        return None
    shown = lanes[:_MOST_LANES]
    worst = timeline_chart.gaps(shown, 5)
    cpu = all(lane.device < 0 for lane in lanes)
    kinds = [k for k in KINDS if any(s.kind == k for lane in shown for s in lane.segments)]
    # the zoomable panel is to be put here, beside the picture that always stands
    return section(
        "timeline",
        "Timeline of the main thread" if cpu else "GPU timeline",
        timeline_chart.draw(shown, result.steps, worst),
        el("ul", [el("li", swatch(k), KINDS[k].label) for k in kinds], class_="keys"),
        _showing(len(shown), len(lanes), "devices"),
        _reduced(shown),
        _gap_table(shown, worst, result.steps) if worst else None,
        lead="The height of a colour is its share of that moment. The longest gaps are numbered.",
    )


def _reduced(lanes: list[Lane]) -> Html | None:
    shown, of = sum(lane.shown for lane in lanes), sum(lane.of for lane in lanes)
    return _showing(shown, of, "segments; the shortest are merged")


def _gap_table(lanes: list[Lane], worst: list[timeline_chart.Gap], steps: list[StepRow]) -> Html:
    ranks = len({lane.rank for lane in lanes})
    columns = [
        Column("Gap"),
        Column("Mostly"),
        Column("Lasts", "us"),
        Column("Begins at", "us"),
        Column("Where"),
    ]
    rows: list[Row] = []
    for n, gap in enumerate(worst, 1):
        lane = lanes[gap.lane]
        cause = el(
            "span",
            swatch(gap.cause),
            KINDS[gap.cause].label,
            f" ({share(gap.share, 0)})" if gap.share < 0.995 else "",
            class_="key",
        )
        step = next(
            (s for s in steps if s.rank == lane.rank and s.start_us <= gap.start_us < s.start_us + s.dur_us),
            None,
        )
        at = [place(lane.rank, lane.device, ranks), f"step {step.index}" if step else ""]
        rows.append([str(n), cause, gap.dur_us, gap.start_us, ", ".join(a for a in at if a)])
    return data_table("The longest gaps", columns, rows, class_="gaps")


# ------------------------------------------------------------------------------------------------ memory


def memory(result: Result) -> Html | None:
    if not result.memory_timeline and not result.memory_ledger:
        return None
    drawable = [s for s in result.memory_timeline if s.at and s.live_by_category]
    blocks: list[Child] = []
    rows = list(result.memory_ledger)
    for n, series in enumerate(drawable[:_MOST_CHARTS]):
        row = next((r for r in rows if (r.rank, r.device) == (series.rank, series.device)), None)
        blocks.append(_device(series, row, n, len(drawable) > 1 or len(rows) > 1))
        rows = [r for r in rows if r is not row]
    blocks += [_device(None, r, _MOST_CHARTS + n, True) for n, r in enumerate(rows[:_MOST_CHARTS])]
    return section(
        "memory",
        "Memory over time",
        blocks,
        _showing(min(len(drawable), _MOST_CHARTS), len(drawable), "devices"),
        lead=[
            "What is ",
            term("allocated", "allocated"),
            " by live tensors, by class, and what makes up the peak.",
        ],
    )


def _device(series: MemorySeries | None, row: MemoryLedgerRow | None, n: int, named: bool) -> Html:
    owner = series or row
    assert owner is not None
    heading = el("h3", f"rank {owner.rank} · {device_name(owner.device)}") if named else None
    drawn = None
    if series:
        drawn = [
            memory_chart.draw(series, f"memory-chart-{n}"),
            _memory_keys(series),
            _showing(series.shown, series.of, "points; highs and lows are kept"),
        ]
    return el("div", heading, drawn, _peak(row, n) if row else None, class_="device")


def _memory_keys(series: MemorySeries) -> Html:
    kinds = {m.kind for m in series.marks}
    keys = (
        [el("li", _line_key("reserved"), "reserved")] if any(r is not None for r in series.reserved) else []
    )
    if "segment_alloc" in kinds:
        keys.append(el("li", _line_key("mark-segment_alloc"), "segment taken from the device"))
    if "segment_free" in kinds:
        keys.append(el("li", _line_key("mark-segment_free"), "segment given back"))
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
    columns = [
        Column("Class"),
        Column("At the peak", "bytes"),
        Column("Share", "share"),
        Column("What it is"),
    ]
    reserved = f", with {size(row.max_reserved_bytes)} reserved at most" if row.max_reserved_bytes else ""
    return el(
        "div",
        el("p", el("strong", f"The peak: {size(row.peak_bytes)}"), reserved, ".", class_="peak-line"),
        stacked(f"peak-chart-{n}", "What the peak is made of", [bar]) if parts else None,
        data_table("What the peak is made of", columns, rows, hide_caption=True, class_="legend")
        if rows
        else None,
        el("p", "How the classes were told apart: ", row.how, class_="limit") if row.how else None,
        _frames(row) if row.by_frame else None,
        class_="peak-block",
    )


def _frames(row: MemoryLedgerRow) -> Html:
    columns = [Column("Allocated by", "code"), Column("At the peak", "bytes"), Column("Share", "share")]
    rows: list[Row] = [[frame, count, count / max(1, row.peak_bytes)] for frame, count in row.by_frame[:12]]
    table = data_table("The frames that own most of the peak", columns, rows, of=len(row.by_frame))
    return el("details", el("summary", "By the code that allocated it"), table, class_="more")
