"""How findings of flight recorder dumps speak of calls and ranks."""

from __future__ import annotations

from collections.abc import Sequence

from trace_doctor import Location, Table
from trace_doctor.evidence.distributed.flight.groups import Call
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor_rules._shared import table


def place_of(call: Call, ranks: Sequence[int]) -> Location:
    """The line of the script that calls it, and the ranks that a finding is about."""
    at = location(call.site)
    return Location(file=at.file, line=at.line or None, function=at.function, ranks=sorted(ranks))


def calls_table(title: str, calls: Sequence[Call]) -> Table:
    """A row for each call, those that came first on top."""
    calls = sorted(calls, key=lambda c: (c.created, c.rank))
    begun = calls[0].created if calls else 0
    return table(
        title,
        {
            "rank": "count",
            "after the first": "us",
            "state": "text",
            "stack": "text",
            "call": "text",
            "elements in": "count",
            "elements out": "count",
            "dtype": "text",
        },
        (
            [
                c.rank,
                (c.created - begun) / 1e3 if c.created and begun else None,
                f"{c.state or 'not recorded'}{', timed out' if c.timed_out else ''}",
                " < ".join(map(str, c.stack)) or None,
                c.words,
                *c.elements,
                " to ".join(dict.fromkeys(filter(None, c.dtypes))) or None,
            ]
            for c in calls
        ),
    )
