"""What rules of several families share: how a fix, a table and a place are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trace_doctor import Cell, Column, Context, Fix, Table, Target, Unit
from trace_doctor.evidence.trace.call_sites import CallSites, Site

LAST_BITS = "results differ in the last bits"
LOWER_PEAK = "record the memory again: the peak has fallen and this finding is gone"


def patch(title: str, codemod: str, text: str, risk: str, verify: str, **more: Any) -> Fix:
    """A fix that a codemod makes."""
    return Fix(title=title, kind="patch", codemod=codemod, text=text, risk=risk, verify=verify, **more)


def advice(title: str, text: str, risk: str, verify: str, **more: Any) -> Fix:
    """A fix that people make by hand."""
    return Fix(title=title, kind="advice", safety="display", text=text, risk=risk, verify=verify, **more)


def table(
    title: str, columns: Mapping[str, Unit], rows: Iterable[Sequence[Cell]], most: int | None = None
) -> Table:
    """`columns`: title -> unit. A table shows its first rows, and says how many there are where some are left out."""
    every = [list(row) for row in rows]
    left_out = most is not None and len(every) > most
    heads = [Column(name, unit) for name, unit in columns.items()]
    return Table(title=title, columns=heads, rows=every[:most], of=len(every) if left_out else None)


def site_of(ctx: Context, row: int) -> Site | None:
    """The user's frame around an event, where stacks were recorded. For rules that want `CallSites`."""
    sites = ctx.get(CallSites)
    return sites.site(row) if sites is not None else None


def target(site: Site | None) -> Target | None:
    """What a fix is to edit at a place, where one is known."""
    return site.target if site is not None else None
