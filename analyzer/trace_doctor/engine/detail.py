"""What a page shows of one capture when a reader looks closer."""

from __future__ import annotations

from trace_doctor.evidence.base import Facts
from trace_doctor.model.detail import Detail


def detail_of(facts: Facts) -> Detail:
    """All of it, each part bounded."""
    return Detail(rank=facts.rank)
