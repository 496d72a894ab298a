"""What a page shows of one capture when a reader looks closer: too long for a result that is stored or compared."""

from __future__ import annotations

from msgspec import Struct

from trace_doctor.model.events import Events
from trace_doctor.model.quantities import Count


class Detail(Struct, frozen=True, kw_only=True):
    """Only pages hold it, bounded; saved results, comparisons and the gate know nothing of it."""

    input: Count = 0
    rank: int
    events: Events | None = None
    """what the timeline shows; None without a trace"""
