"""What a page shows of one capture when a reader looks closer."""

from __future__ import annotations

from trace_doctor.engine.detail.host_stacks import host_stacks_of
from trace_doctor.engine.detail.memory import memory_detail
from trace_doctor.engine.detail.work import work_detail_of
from trace_doctor.engine.sizes import Sizes
from trace_doctor.evidence.base import Facts
from trace_doctor.model.detail import Detail


def detail_of(facts: Facts, sizes: Sizes) -> Detail:
    """All of it but the events of the timeline, which need the findings; each part bounded."""
    return Detail(
        rank=facts.rank,
        memory=memory_detail(facts, sizes.memory_blocks),
        work=work_detail_of(facts, sizes.work_rows),
        host_stacks=host_stacks_of(facts, sizes.frames),
    )
