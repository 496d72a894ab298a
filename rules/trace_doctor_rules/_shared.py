"""What rules of several families share: doubt about idle time, and how a fix, a table and a place are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from trace_doctor import Cell, Column, Context, Fix, Rule, Table, Target, Unit, threshold
from trace_doctor.arrays import I64
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.trace.call_sites import CallSites, Site

LAST_BITS = "results are not bitwise identical"
LOWER_PEAK = "record the memory again: the peak has fallen and this finding is gone"


class TimeRule(Rule):
    """A rule that is less sure where much of the idle time has no known cause; it wants the `TimeLedger`."""

    max_unattributed: float = threshold(
        0.10, "unattributed idle above which the rule is not sure", unit="share", source="185 real captures"
    )

    def much_unattributed(self, ctx: Context) -> bool:
        """Whether more idle time than that has no known cause; False where the capture has no ledger."""
        ledger = ctx.get(TimeLedger)
        return ledger is not None and ledger.unattributed_share > self.max_unattributed


def patch(title: str, codemod: str, text: str, risk: str, verify: str, **more: Any) -> Fix:
    """A fix that a codemod makes."""
    return Fix(title=title, kind="patch", codemod=codemod, text=text, risk=risk, verify=verify, **more)


def advice(title: str, text: str, risk: str = "", verify: str = "", **more: Any) -> Fix:
    """A fix that people make by hand."""
    return Fix(title=title, kind="advice", safety="display", text=text, risk=risk, verify=verify, **more)


@dataclass(frozen=True)
class Technique:
    """A fix whose text is the same wherever it applies; called with how to verify it and with what it edits, it is one."""

    fix: Fix

    def __call__(self, verify: str = LOWER_PEAK, target: Target | None = None) -> Fix:
        return replace(self.fix, verify=verify, target=target)


def patched(title: str, codemod: str, text: str, risk: str, **more: Any) -> Technique:
    """What `patch` makes of it."""
    return Technique(patch(title, codemod, text, risk, "", **more))


def advised(title: str, text: str, risk: str) -> Technique:
    """What `advice` makes of it."""
    return Technique(advice(title, text, risk, ""))


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


def spans_of(intervals: I64) -> list[tuple[int, int]]:
    """A set of intervals, (n, 2) ns, as a claim has them."""
    return [(start, end) for start, end in intervals.tolist()]
