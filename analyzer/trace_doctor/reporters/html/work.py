"""The tables of kernels and of host operators, and what launched them. The script searches and sorts all of them."""

from __future__ import annotations

import json
from collections import defaultdict

from msgspec import UNSET

from trace_doctor.model import Column, Result
from trace_doctor.model.work_detail import KernelDetail, OperatorDetail, Origin
from trace_doctor.reporters.html.dom import Child, Html, el
from trace_doctor.reporters.html.parts import Columns, Row, data_table, more, section, signature
from trace_doctor.reporters.labels import Names, short_kernel
from trace_doctor.reporters.units import share

_MOST = 20
_TENSOR_CORES = {True: "yes", False: "no", None: "not known"}
Placed = tuple[int, KernelDetail]
"""with the input it is of"""


def kernels(result: Result) -> Html | None:
    """The longest operations. Over several devices they are added up: ranks of one job run the same kernels."""
    detailed = result.detail is not UNSET
    placed, whole = _all_kernels(result)
    if not placed:
        return None
    groups: dict[tuple[str, str], list[KernelDetail]] = defaultdict(list)
    for _, row in placed:
        groups[row.name, row.kind].append(row)
    order = sorted(groups.values(), key=lambda g: (-sum(k.total_us for k in g), g[0].name, g[0].kind))
    devices = len({(number, k.device) for number, k in placed})
    columns: Columns = ["Operation", "Kind", *([Column("Devices", "count")] if devices > 1 else [])]
    columns += [
        Column("Launches", "count"),
        Column("Total", "us"),
        Column("Mean", "us"),
        Column("Of compute", "share"),
        *(["Tensor Cores", "Type"] if detailed else []),
    ]
    rows = [_kernel_row(group, devices, detailed) for group in order[:_MOST]]
    title = "Top operators" if all(k.device < 0 for _, k in placed) else "Top kernels"
    over = ""
    if devices > 1:
        which = f"{devices:,} devices"
        if not whole:
            which = f"the devices that list the kernel among their longest, of {devices:,}"
        over = f", added up over {which}; the share of compute is their mean"
    table = data_table(
        f"{title} by total time", columns, rows, hide_caption=True, of=len(order), class_="kernels"
    )
    fields = f"name kind {'devices ' if devices > 1 else ''}count total_us mean_us share"
    return section(
        "kernels",
        title,
        el(
            "div",
            table,
            data_explore="kernels",
            data_fields=fields + " tensor_cores dtype" * detailed,
            data_sort="total_us",
            data_captures=_captures({number for number, _ in placed}, result),
        ),
        el("p", _KNOWN_FROM, class_="limit") if detailed else None,
        lead=f"By total time in the analyzed window{over}.",
    )


_KNOWN_FROM = (
    "Tensor Cores and type are from the name of the kernel, the type else from the recorded inputs of the operator that launched "
    "it. “Not known”: neither says. A function is named where Python stacks were recorded."
)


def _all_kernels(result: Result) -> tuple[list[Placed], bool]:
    """Of every capture, and whether none is left out."""
    if result.detail is not UNSET:
        return (
            [(d.input, k) for d in result.detail for k in d.work.kernels],
            all(len(d.work.kernels) >= d.work.of_kernels for d in result.detail),
        )
    return [
        (
            k.input,
            KernelDetail(
                device=k.device, name=k.name, kind=k.kind, count=k.count, total_us=k.total_us, share=k.share
            ),
        )
        for k in result.kernels
    ], False


def _captures(numbers: set[int], result: Result) -> str | None:
    """The choices of the filter, as JSON: [position in `Result.inputs`, name]; None for a single capture."""
    names = Names(result)
    choices = [(number, names.of(number) or f"input {number}") for number in sorted(numbers)]
    return json.dumps(choices, ensure_ascii=False) if len(choices) > 1 else None


def _kernel_row(group: list[KernelDetail], devices: int, detailed: bool) -> Row:
    first, launches, total = group[0], sum(k.count for k in group), sum(k.total_us for k in group)
    types, longest = {k.dtype for k in group}, max(group, key=lambda k: k.total_us)
    return [
        el(
            "span",
            signature(short_kernel(first.name), first.name),
            _origin("launched by", longest.operator, longest.site),
        ),
        first.kind,
        *([len(group)] if devices > 1 else []),
        launches,
        total,
        total / max(1, launches),
        sum(k.share for k in group) / devices if first.kind == "compute" else None,
        *(
            [
                _TENSOR_CORES[first.tensor_cores] if first.kind == "compute" else "–",
                (types.pop() or "not known") if first.kind == "compute" and len(types) == 1 else "–",
            ]
            if detailed
            else []
        ),
    ]


def _origin(how: str, *origins: Origin | None) -> Html | None:
    """Where most of it comes from, with its share where that is not all."""
    parts: list[Child] = []
    for origin in filter(None, origins):
        part = f" ({share(origin.share, 0)})" if origin.share < 0.995 else ""
        parts += [", " if parts else None, el("bdi", origin.name), part]
    return el("span", f"{how} ", parts, class_="origin") if parts else None


def operators(result: Result) -> Html | None:
    """Folded: most readers need it only when the host is the limit."""
    placed = _all_operators(result)
    if not placed:
        return None
    names: dict[tuple[str, str], list[OperatorDetail]] = defaultdict(list)
    for _, row in placed:
        names[row.kind, row.name].append(row)
    order = sorted(names.items(), key=lambda kv: (-sum(r.self_us for r in kv[1]), kv[0]))
    captures = len({number for number, _ in placed})
    columns: Columns = ["Operation", "Kind", Column("Calls", "count"), Column("Self time", "us")]
    columns += [Column("Mean", "us"), *([Column("Per step", "us")] if captures == 1 else [])]
    columns += [Column("Of host time", "share")]
    rows: list[Row] = []
    for (kind, name), group in order[:_MOST]:
        calls, total = sum(r.count for r in group), sum(r.self_us for r in group)
        longest = max(group, key=lambda r: r.self_us)
        rows.append(
            [
                el("span", el("span", el("bdi", name), class_="kernel"), _origin("in", longest.site)),
                kind,
                calls,
                total,
                total / max(1, calls),
                *([group[0].step_us] if captures == 1 else []),
                sum(r.share for r in group) / captures,
            ]
        )
    table = data_table(
        "Operators and runtime calls by self time",
        columns,
        rows,
        hide_caption=True,
        of=len(order),
        class_="kernels",
    )
    over = f", all {captures:,} captures together; the share is their mean" if captures > 1 else ""
    fields = f"name kind count self_us mean_us{' step_us' * (captures == 1)} share"
    return section(
        "operators",
        "Host operators and runtime calls",
        more(
            f"The {len(rows)} with the most self time",
            el(
                "div",
                table,
                data_explore="operators",
                data_fields=fields,
                data_sort="self_us",
                data_captures=_captures({number for number, _ in placed}, result),
            ),
        ),
        lead=f"Time in the operator itself, without what it calls, on the threads of the loop and of autograd{over}.",
    )


def _all_operators(result: Result) -> list[tuple[int, OperatorDetail]]:
    if result.detail is not UNSET:
        return [(d.input, o) for d in result.detail for o in d.work.operators]
    return [
        (
            o.input,
            OperatorDetail(
                name=o.name, kind=o.kind, count=o.count, self_us=o.self_us, share=o.share, step_us=o.step_us
            ),
        )
        for o in result.operators
    ]
