"""What a page shows of one capture when a reader looks closer: too long for a result that is stored or compared."""

from __future__ import annotations

from msgspec import Struct, field

from trace_doctor.model.events import Events
from trace_doctor.model.memory_detail import MemoryDetail
from trace_doctor.model.quantities import Count, Us
from trace_doctor.model.work_detail import WorkDetail


class Frame(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function below its caller; calls of one function by one caller are one frame."""

    name: str
    value: Us
    """time in it and in what it calls, us"""
    children: list[Frame] = field(default_factory=list)


class HostStacks(Struct, frozen=True, kw_only=True):
    """Of the main thread in the analyzed window."""

    root: Frame
    shown: Count
    of: Count
    """frames before the small ones were added up as "other" """


class Detail(Struct, frozen=True, kw_only=True):
    """Only pages hold it, bounded; saved results, comparisons and the gate know nothing of it."""

    input: Count = 0
    rank: int
    memory: MemoryDetail | None = None
    """of its snapshot"""
    work: WorkDetail = field(default_factory=WorkDetail)
    """all kernels and operators, and what launched them"""
    host_stacks: HostStacks | None = None
    """None where no Python stacks were recorded"""
    events: Events | None = None
    """what the timeline shows; None without a trace"""
