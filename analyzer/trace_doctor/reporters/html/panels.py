"""What-if, top kernels, collectives: the panels below and between the findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import get_args

from trace_doctor.model import Basis, Column, KernelRow, OperatorRow, Result, WhatIf
from trace_doctor.reporters.critical import shares_of_path
from trace_doctor.reporters.html.dom import Html, el
from trace_doctor.reporters.html.parts import (
    Columns,
    Row,
    anchors,
    data_table,
    links,
    mini_bar,
    more,
    section,
    signature,
    term,
)
from trace_doctor.reporters.labels import KINDS, Names, short_kernel
from trace_doctor.reporters.units import estimate_share

_MOST_KERNELS = 20


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
            " – never a sum of savings. Every figure is a lower bound of the step.",
        ],
    )


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
            _name(w, identifiers),
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


def _name(entry: WhatIf, identifiers: frozenset[str]) -> Html:
    return el("span", links(entry.fixes, identifiers, " + ") if entry.fixes else "today")


def _basis(entry: WhatIf, claimed: Mapping[str, Basis]) -> Basis:
    """The weakest of what it stands on: a re-timing without work that is bounded only is a bound too."""
    order = get_args(Basis)
    return max([entry.basis, *(claimed.get(f, entry.basis) for f in entry.fixes)], key=order.index)


def _change(after: float, today: float) -> str:
    if today <= 0 or after >= today:
        return "–"
    return f"−{estimate_share((today - after) / today)}"


def kernels(result: Result) -> Html | None:
    """The longest operations. Over several devices they are added up: ranks of one job run the same kernels."""
    if not result.kernels:
        return None
    groups: dict[tuple[str, str], list[KernelRow]] = defaultdict(list)
    for row in result.kernels:
        groups[row.name, row.kind].append(row)
    order = sorted(groups.values(), key=lambda g: (-sum(k.total_us for k in g), g[0].name, g[0].kind))
    devices = len({(k.input, k.device) for k in result.kernels})
    columns: Columns = [
        "Operation",
        "Kind",
        *([Column("Devices", "count")] if devices > 1 else []),
    ]
    columns += [
        Column("Calls", "count"),
        Column("Total", "us"),
        Column("Mean", "us"),
        Column("Of compute", "share"),
    ]
    rows: list[Row] = [_kernel_row(group, devices > 1) for group in order[:_MOST_KERNELS]]
    title = "Top operators" if all(k.device < 0 for k in result.kernels) else "Top kernels"
    over = (
        f", added up over the devices that list the kernel among their longest, of {devices:,}; the share of compute is "
        "their mean"
        if devices > 1
        else ""
    )
    table = data_table(
        f"{title} by total time", columns, rows, hide_caption=True, of=len(order), class_="kernels"
    )
    fields = f"name kind {'devices ' if devices > 1 else ''}count total_us mean_us share"
    return section(
        "kernels",
        title,
        el("div", table, data_explore="kernels", data_fields=fields),
        lead=f"By total time in the analyzed window{over}.",
    )


def _kernel_row(group: list[KernelRow], several: bool) -> Row:
    first, calls, total = group[0], sum(k.count for k in group), sum(k.total_us for k in group)
    return [
        signature(short_kernel(first.name), first.name),
        first.kind,
        *([len(group)] if several else []),
        calls,
        total,
        total / max(1, calls),
        sum(k.share for k in group) / len(group) if first.kind == "compute" else None,
    ]


def operators(result: Result) -> Html | None:
    """Folded: most readers need it only when the host is the limit."""
    if not result.operators:
        return None
    names: dict[tuple[str, str], list[OperatorRow]] = defaultdict(list)
    for row in result.operators:
        names[row.kind, row.name].append(row)
    order = sorted(names.items(), key=lambda kv: (-sum(r.self_us for r in kv[1]), kv[0]))
    captures = len({r.input for r in result.operators})
    columns: Columns = ["Operation", "Kind", Column("Calls", "count"), Column("Self time", "us")]
    columns += [Column("Per step", "us"), Column("Of host time", "share")] if captures == 1 else []
    rows: list[Row] = [
        [
            el("span", el("bdi", name), class_="kernel"),
            kind,
            sum(r.count for r in group),
            sum(r.self_us for r in group),
            *([group[0].step_us, group[0].share] if captures == 1 else []),
        ]
        for (kind, name), group in order[:_MOST_KERNELS]
    ]
    table = data_table(
        "Operators and runtime calls by self time",
        columns,
        rows,
        hide_caption=True,
        of=len(order),
        class_="kernels",
    )
    over = f", all {captures:,} captures together" if captures > 1 else ""
    return section(
        "operators",
        "Host operators and runtime calls",
        more(
            f"The {len(rows)} with the most self time",
            el(
                "div",
                table,
                data_explore="operators",
                data_fields=f"name kind count self_us{' step_us share' * (captures == 1)}",
            ),
        ),
        lead=f"Time in the operator itself, without what it calls, on the threads of the loop and of autograd{over}.",
    )


def collectives(result: Result) -> Html | None:
    """The table of collectives; None where none was captured."""
    if not result.collectives:
        return None
    names = Names(result)
    columns: Columns = ["Collective", "Device", Column("Calls", "count"), Column("Total", "us")]
    columns += [Column("Exposed", "us"), Column("Exposed share", "share")]
    rows = [
        [
            el("bdi", short_kernel(c.name)),
            el("bdi", names.place(c), class_="place"),
            c.count,
            c.total_us,
            c.exposed_us,
            c.exposed_us / c.total_us if c.total_us else None,
        ]
        for c in result.collectives[:64]
    ]
    return section(
        "collectives",
        "Collectives",
        data_table("Collectives by total time", columns, rows, hide_caption=True, of=len(result.collectives)),
        lead=[term("exposed", "Exposed"), f": {KINDS['comm'].meaning}. It is not a saving by itself."],
    )
