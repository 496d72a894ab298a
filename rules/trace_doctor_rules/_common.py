"""What rules of several families share."""

from __future__ import annotations

from trace_doctor import Context, Rule, threshold
from trace_doctor.arrays import I64
from trace_doctor.evidence.idle.time_ledger import TimeLedger


class TimeRule(Rule):
    """A rule that is less sure where much of the idle time has no known cause; it wants the `TimeLedger`."""

    max_unattributed: float = threshold(
        0.10, "unattributed idle above which the rule is not sure", unit="share", source="185 real captures"
    )

    def much_unattributed(self, ctx: Context) -> bool:
        """Whether more idle time than that has no known cause; False where the capture has no ledger."""
        ledger = ctx.get(TimeLedger)
        return ledger is not None and ledger.unattributed_share > self.max_unattributed


def spans_of(intervals: I64) -> list[tuple[int, int]]:
    """A set of intervals, (n, 2) ns, as a claim has them."""
    return [(start, end) for start, end in intervals.tolist()]
