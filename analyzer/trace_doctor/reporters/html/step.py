"""Where the step goes: the time ledger as a bar for each device, with its table."""

from __future__ import annotations

import msgspec

from trace_doctor.model import Column, Result, TimeLedgerRow
from trace_doctor.reporters.diagnosis import between_words, least_explained
from trace_doctor.reporters.engine_steps import COLUMNS, cells, engine_rows
from trace_doctor.reporters.html.charts.bars import Bar, stacked
from trace_doctor.reporters.html.dom import Child, Html, el, join
from trace_doctor.reporters.html.parts import (
    Columns,
    Row,
    anchors,
    data_table,
    links,
    more,
    section,
    showing,
    swatch,
    term,
)
from trace_doctor.reporters.html.verdict import is_cpu, without_time
from trace_doctor.reporters.labels import IDLE, KINDS, Names, main_rows, short_kernel
from trace_doctor.reporters.units import duration, plural, share

_MOST_BARS = 16
_MOST_ROWS = 12


def parts_of(row: TimeLedgerRow) -> dict[str, int]:
    """Every part of the window in ns, busy first, then the causes from the largest down."""
    idle = msgspec.structs.asdict(row.idle_ns)
    busy = {"compute": row.compute_ns, "comm": row.exposed_comm_ns, "copy": row.exposed_copy_ns}
    return busy | dict(sorted(idle.items(), key=lambda kv: (-kv[1], kv[0])))


def where_the_step_goes(result: Result) -> Html | None:
    """The panel with the parts of a step, as bars and as a table; None where no trace was given."""
    if without_time(result):
        return None
    first = {lane.input: n for n, lane in reversed(list(enumerate(result.timeline)))}
    rows = sorted(main_rows(result), key=lambda r: first.get(r.input, len(first)))
    if not rows:
        return section(
            "time",
            "Step time breakdown",
            el("p", "No profiler trace was given, so the time was not captured.", class_="empty"),
        )
    names = Names(result)
    bars = [
        Bar(
            names.place(r),
            [(k, KINDS[k].label, v) for k, v in parts_of(r).items()],
            duration(r.step_us) if r.steps else duration(r.window_ns / 1e3),
        )
        for r in rows[:_MOST_BARS]
    ]
    legend = _legend(rows[0], result) if len(rows) == 1 else _comparison(rows, names)
    others = [r for r in result.time_ledger if r not in rows]
    return section(
        "time",
        "Step time breakdown",
        stacked("time-chart", "Step time breakdown", bars),
        showing(len(bars), len(rows), f"devices{', those that delay the job first' * _delayed(result)}"),
        legend,
        _owners(result, names),
        _other_phases(others, names) if others else None,
        _engine_steps(result),
        lead=_time_lead(rows, result),
    )


def _delayed(result: Result) -> bool:
    return any(job.blamed for job in result.jobs or [])


def _engine_steps(result: Result) -> Html | None:
    rows = [cells(row) for row in engine_rows(result)]
    return data_table("Steps of the inference engine, by kind", COLUMNS, rows) if rows else None


def _time_lead(rows: list[TimeLedgerRow], result: Result) -> list[Child]:
    whose = "the main thread" if is_cpu(result) else "the GPU"
    idle = ["waiting, by cause"] if is_cpu(result) else [term("idle", "idle, by cause")]
    if any(r.device < 0 for r in rows) and not is_cpu(result):
        whose, idle = "each device, the main thread where no GPU was recorded", ["idle or waiting, by cause"]
    return [f"Time of {whose} over {_over(rows)}.{_beside(rows)} Solid: working. Hatched: ", *idle, "."]


def _beside(rows: list[TimeLedgerRow]) -> str:
    return " Next to each bar: its mean step." if len(rows) > 1 and any(r.steps > 1 for r in rows) else ""


def _over(rows: list[TimeLedgerRow]) -> str:
    """What the bars are of, in words."""
    kinds = {(r.phase if r.steps else "window") for r in rows}
    if len(kinds) > 1:
        return "its steady steps, or the whole window where there are none"
    steps = {r.steps for r in rows}
    if not any(steps):
        return "the whole window: no steps were recorded"
    if kinds != {"steady"}:
        return f"the {rows[0].phase} phase: no steady step was left"
    return plural(rows[0].steps, "steady step") if len(steps) == 1 else "the steady steps"


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
    columns: Columns = [
        "Part",
        Column("Time per step" if row.steps else "Time", "us"),
        Column("Share", "share"),
        "What it is",
    ]
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


def _comparison(rows: list[TimeLedgerRow], names: Names) -> Html:
    """A row for each device, a column for each part that any of them has."""
    kinds = [k for k in KINDS if any(parts_of(r)[k] for r in rows)]
    keys = el("ul", [el("li", swatch(k), KINDS[k].label) for k in kinds], class_="keys")
    columns: Columns = ["Device", Column("Step", "us"), Column("Idle", "share")]
    columns += [Column(KINDS[k].label[0].upper() + KINDS[k].label[1:], "share") for k in kinds]
    table_rows: list[Row] = [
        [
            names.place(r),
            r.step_us,
            r.idle_ns.total() / max(1, r.window_ns),
            *(parts_of(r)[k] / max(1, r.window_ns) for k in kinds),
        ]
        for r in rows[:_MOST_ROWS]
    ]
    table = data_table("Shares of the window, device by device", columns, table_rows, of=len(rows))
    return join([keys, more("Compare as a table", table)])


def _owners(result: Result, names: Names) -> Html | None:
    """Which findings own the time that is no compute, and the largest stretches that none owns."""
    windows = {(r.input, r.device): r for r in result.time_ledger if r.phase == "steady"}
    identifiers, several = anchors(result), len(windows) > 1
    table_rows: list[Row] = []
    for row in sorted(result.ownership, key=lambda r: -r.unowned_ns):
        steady = windows.get((row.input, row.device))
        if steady is None or not steady.window_ns or row.total_ns < 0.01 * steady.window_ns:
            continue
        block = next(iter(row.blocks), None)
        table_rows.append(
            [
                _part(row.part),
                *([names.place(row)] if several else []),
                row.total_ns / steady.window_ns,
                el("span", links(row.findings, identifiers)) if row.findings else "none",
                row.unowned_ns / steady.window_ns,
                (short_kernel(block.name) or "nothing recorded") if block else None,
                block.longest_us if block else None,
                between_words(block) if block else None,
            ]
        )
    if not table_rows:
        return None
    columns: Columns = [
        "Part",
        *(["Device"] if several else []),
        Column("Of the step", "share"),
        "Explained by",
        Column("Not explained", "share"),
    ]
    columns += ["Mostly in", Column("Longest", "us"), "Where the longest is"]
    table = data_table(
        "Time that is no compute: which finding explains it",
        columns,
        table_rows[:_MOST_ROWS],
        of=len(table_rows),
    )
    return table if least_explained(result) else more("What findings explain of it", table)


def _part(part: str) -> Html:
    kind = part.removeprefix("exposed_")
    if kind not in KINDS:
        return el("span", part)
    return el("span", swatch(kind), KINDS[kind].label, class_="key")


def _other_phases(rows: list[TimeLedgerRow], names: Names) -> Html:
    columns: Columns = [
        "Phase",
        "Device",
        Column("Steps", "count"),
        Column("Window", "us"),
        Column("Idle", "share"),
    ]
    columns += ["Largest cause"]
    table_rows: list[Row] = []
    for r in rows[:_MOST_ROWS]:
        causes = {k: v for k, v in parts_of(r).items() if k in IDLE and v}
        first = next(iter(causes), None)
        largest = f"{KINDS[first].label}, {share(causes[first] / max(1, r.window_ns))}" if first else "none"
        name = {"warmup": "warm-up", "outside": "outside of any step"}.get(r.phase, r.phase)
        table_rows.append(
            [
                name,
                names.place(r),
                r.steps,
                r.window_ns / 1e3,
                r.idle_ns.total() / max(1, r.window_ns),
                largest,
            ]
        )
    table = data_table("Time outside the steady steps: shown, not counted", columns, table_rows, of=len(rows))
    return more("Warm-up and time outside the steps", table)
